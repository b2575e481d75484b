//! What LRU would have kept, without keeping an LRU cache beside.

use crate::id::ix;

const BUCKETS: u16 = 128;

/// How many blocks, cached or not, were last idle when: counts over a ring of stretches of time.
///
/// An LRU cache holds the blocks used last, as many as fit. So it would still hold a block that was last idle no longer
/// ago than the *cutoff*: the age up to which as many different blocks were idle as the pool has.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    counts: [u32; ix(BUCKETS as u32)],
    num_blocks: u32,
    /// Ticks a bucket.
    width: u16,
    /// The bucket of now, and the ticks that it has had.
    head: u16,
    into: u16,
    cutoff: Option<u16>,
}

impl Recency {
    pub(super) const fn new() -> Self {
        Self { counts: [0; ix(BUCKETS as u32)], num_blocks: 0, width: 1, head: 0, into: 0, cutoff: None }
    }

    /// For a pool of so many blocks, with so many ticks to a turnover of the pool.
    pub(super) fn start(&mut self, num_blocks: u32, turnover_ticks: u16) {
        self.num_blocks = num_blocks;
        self.width = (turnover_ticks / 32).max(8);
    }

    /// The age, in ticks, from which LRU would have evicted a block; `None` as long as it would have evicted none.
    #[inline]
    pub(super) const fn cutoff(&self) -> Option<u16> {
        self.cutoff
    }

    /// Whether LRU would still have a block that was idle this many ticks ago.
    #[inline]
    pub(super) fn keeps(&self, age: u16) -> bool {
        self.cutoff.is_none_or(|cutoff| age <= cutoff)
    }

    /// A block becomes idle; the age is how long ago it was before, if anybody remembers.
    #[inline]
    pub(super) fn touch(&mut self, age: Option<u16>) {
        if let Some(age) = age {
            let behind = age.saturating_sub(self.into).div_ceil(self.width);
            if behind < BUCKETS {
                let count = &mut self.counts[usize::from((self.head + BUCKETS - behind) % BUCKETS)];
                *count = count.saturating_sub(1);
            }
        }
        self.counts[usize::from(self.head)] += 1;
    }

    /// A tick has passed. Whether it began a bucket.
    ///
    /// # Complexity
    /// O(1) but for the first tick of a bucket, which looks at as many buckets as hold what LRU would: about 32.
    pub(super) fn tick(&mut self) -> bool {
        self.into += 1;
        if self.into < self.width {
            return false;
        }
        self.into = 0;
        self.head = (self.head + 1) % BUCKETS;
        self.counts[usize::from(self.head)] = 0;
        self.cutoff = None;
        let mut room = self.num_blocks;
        for behind in 1..BUCKETS {
            let count = self.counts[usize::from((self.head + BUCKETS - behind) % BUCKETS)];
            if count >= room {
                let width = u32::from(self.width);
                // Below the width, since room is at most the count, which is not zero: room never is.
                let part = u64::from(room) * u64::from(width) / u64::from(count);
                self.cutoff = u16::try_from(part).ok().map(|part| (behind - 1) * self.width + part);
                break;
            }
            room -= count;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cutoff_is_the_age_up_to_which_a_pool_of_different_blocks_was_idle() {
        let mut recency = Recency::new();
        recency.start(64, 64);
        // Eight ticks a bucket, two new blocks a tick: 64 blocks are 32 ticks.
        for tick in 1..=48 {
            recency.touch(None);
            recency.touch(None);
            assert_eq!(recency.tick(), tick % 8 == 0);
        }
        assert_eq!(recency.cutoff(), Some(32));
        assert!(recency.keeps(32) && !recency.keeps(33));
        // One new block and one from a tick ago, again and again: half as many different ones a tick, 8 of the last 8.
        for _ in 0..8 {
            recency.touch(None);
            recency.touch(Some(0));
            recency.tick();
        }
        // 8, then 56 more at two a tick: 8 + 28 ticks.
        assert_eq!(recency.cutoff(), Some(36));
    }

    #[test]
    fn a_pool_that_holds_all_that_was_used_would_evict_nothing() {
        let mut recency = Recency::new();
        recency.start(64, 64);
        for _ in 0..512 {
            recency.touch(Some(1));
            recency.tick();
        }
        assert_eq!(recency.cutoff(), None);
    }
}
