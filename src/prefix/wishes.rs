//! How the content of a request is to be kept, looked up by block.
//!
//! Floor 1. A request says it in any order and as often as it likes; of the ranges that overlap a block the one of the
//! highest priority counts, of equal ones the last that was given. Kept is, once, which range counts at each position:
//! ```text
//! given     |------- 20 -------|        |-- 50 --|
//!               |--- 90 ---|       |--- 35 ---|
//! kept      | 20|--- 90 ---| 20|   | 35 |-- 50 --|
//! ```
//! Kept ranges ascend and do not overlap, so that those of a block are one run. A range that counts for a block counts
//! wherever the two overlap, so that it is in the block's run.

use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::ops::Range;

use super::{RangeRetention, Retention};

/// Which wish counts where.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wishes(Box<[Wish]>);

/// Positions at which one of the ranges counts.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wish {
    range: Range<u32>,
    retention: Retention,
    /// Which of the ranges it is, in the order given.
    given: usize,
}

impl Wishes {
    /// Those of a request; none of the ranges is empty.
    ///
    /// # Complexity
    /// O(n log n) for n ranges, of which less than 2 n are kept: one more begins only where a range does or ends.
    pub(crate) fn new(ranges: &[RangeRetention]) -> Self {
        if ranges.is_empty() {
            return Self::default();
        }
        let mut borders: Vec<u32> = ranges.iter().flat_map(|kept| [kept.range.start, kept.range.end]).collect();
        borders.sort_unstable();
        borders.dedup();
        let mut by_start: Vec<(usize, &RangeRetention)> = ranges.iter().enumerate().collect();
        by_start.sort_unstable_by_key(|(_, kept)| kept.range.start);
        let mut coming = by_start.into_iter().peekable();
        // The highest priority on top; ranges that have ended stay until they get there.
        let mut begun: BinaryHeap<(u8, usize, u32)> = BinaryHeap::new();
        let mut wishes: Vec<Wish> = Vec::new();
        for (&start, &end) in borders.iter().zip(borders.iter().skip(1)) {
            while let Some((given, kept)) = coming.next_if(|(_, kept)| kept.range.start <= start) {
                begun.push((kept.retention.priority, given, kept.range.end));
            }
            while begun.peek().is_some_and(|&(.., end)| end <= start) {
                begun.pop();
            }
            let Some(&(_, given, _)) = begun.peek() else { continue };
            match wishes.last_mut() {
                Some(last) if last.given == given => last.range.end = end,
                _ => wishes.extend(ranges.get(given).map(|kept| Wish {
                    range: start..end,
                    retention: kept.retention,
                    given,
                })),
            }
        }
        Self(wishes.into())
    }

    /// How to keep the block of these positions, if something was said.
    ///
    /// # Complexity
    /// O(log n), and O(those that overlap the block), so that all blocks of a sequence together take O(n + blocks · log n).
    pub(crate) fn of(&self, block: Range<u32>) -> Option<Retention> {
        let from = self.0.partition_point(|wish| wish.range.end <= block.start);
        let run = self.0.iter().skip(from).take_while(|wish| wish.range.start < block.end);
        run.max_by_key(|wish| (wish.retention.priority, wish.given)).map(|wish| wish.retention)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(range: Range<u32>, priority: u8, duration: u64) -> RangeRetention {
        RangeRetention::new(range, Retention { priority, duration: Some(duration) })
    }

    /// The rule as it is said.
    fn plain(ranges: &[RangeRetention], block: &Range<u32>) -> Option<Retention> {
        let overlaps = |kept: &&RangeRetention| kept.range.start < block.end && block.start < kept.range.end;
        ranges.iter().filter(overlaps).map(|kept| kept.retention).max_by_key(|kept| kept.priority)
    }

    #[test]
    fn a_block_is_kept_as_the_highest_priority_that_overlaps_it_says() {
        let wishes = Wishes::new(&[keep(6..10, 80, 0), keep(4..8, 50, 0)]);
        let expected = [(0..4, None), (0..5, Some(50)), (4..8, Some(80)), (9..12, Some(80)), (10..14, None)];
        for (block, priority) in expected {
            assert_eq!(wishes.of(block.clone()).map(|kept| kept.priority), priority, "{block:?}");
        }
    }

    #[test]
    fn of_equal_priorities_the_last_given_counts_wherever_it_lies() {
        // Within a block of 8, the first two do not overlap; 9 was given last of those with 50, and 7 is lower.
        let wishes = Wishes::new(&[keep(5..8, 50, 1), keep(0..2, 50, 9), keep(0..8, 20, 7)]);
        let duration = |block| wishes.of(block).and_then(|kept| kept.duration);
        assert_eq!([0..8, 0..4, 2..4, 4..8].map(duration), [Some(9), Some(9), Some(7), Some(1)]);
    }

    #[test]
    fn what_is_kept_is_which_range_counts_at_each_position() {
        // The picture above: borders at 0, 4, 16, 20, 24, 29, 35 and the end of what is generated.
        let end = u32::MAX;
        let given = [keep(0..20, 20, 0), keep(4..16, 90, 1), keep(29..end, 50, 2), keep(24..35, 35, 3)];
        let kept: Vec<_> = Wishes::new(&given).0.iter().map(|wish| (wish.range.clone(), wish.given)).collect();
        assert_eq!(kept, [(0..4, 0), (4..16, 1), (16..20, 0), (24..29, 3), (29..end, 2)]);
    }

    #[test]
    fn every_list_of_three_ranges_counts_as_the_rule_says() {
        let ranges = || (0..5).flat_map(|start| (start + 1..=5).map(move |end| start..end));
        // 15 ranges of 3 priorities, three times; the duration says which of the three it was.
        let choices: Vec<(Range<u32>, u8)> =
            ranges().flat_map(|range| (0..3).map(move |p| (range.clone(), p))).collect();
        assert_eq!(choices.len(), 45);
        let one = |given, choice: &(Range<u32>, u8)| keep(choice.0.clone(), choice.1, given);
        for first in &choices {
            for second in &choices {
                for third in &choices {
                    let given = [one(0, first), one(1, second), one(2, third)];
                    let wishes = Wishes::new(&given);
                    assert!(wishes.0.len() < 2 * given.len());
                    assert!(wishes.0.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
                    for block in ranges() {
                        assert_eq!(wishes.of(block.clone()), plain(&given, &block), "{given:?} at {block:?}");
                    }
                }
            }
        }
    }
}
