//! A bounded memory of content that was evicted.
//!
//! Floor 1. Four bytes an entry: a tag of the content's key above, and below it what the policy wants to know again. Where
//! that leaves few bits for the tag, four more are beside the line, and are looked at only where the others are equal: half
//! a cache line is touched by nearly all lookups. A wrong answer (two contents with one tag in one line) costs a little hit
//! rate, and nothing else.
//!
//! A line is a queue of eight, the newest in front. A table with one place per key would do much worse: it forgets at
//! random, and one block forgotten in the middle of a chain is as good as all behind it.

use alloc::vec::Vec;

use crate::error::ConfigError;
use crate::id::{TokenId, ix};

const WAYS: usize = 8;

/// Summands, one for each token of a stretch: digits of the golden ratio's multiples.
const SUMMANDS: [u32; STRETCH] = {
    let mut summands = [0x9E37_79B9_u32; STRETCH];
    let mut at = 1;
    while at < STRETCH {
        summands[at] = summands[at - 1].wrapping_mul(0x85EB_CA77).wrapping_add(0x7F4A_7C15);
        at += 1;
    }
    summands
};
const STRETCH: usize = 16;

/// The key of content: of what is in front of it, and its tokens. Plain wrapping arithmetic, equal on every machine.
///
/// Tokens are multiplied in pairs and the products added, each token with a summand of its own (NH, Black et al., CRYPTO
/// 1999), so that the products need not wait for each other: a third of the time of a chain of multiplications. What is
/// in front comes last, so that only one multiplication waits for it.
#[inline]
pub(super) fn key_of(parent: Option<u32>, tokens: &[TokenId]) -> u32 {
    let mut hash = 0_u64;
    let mut stretches = tokens.chunks_exact(STRETCH);
    for stretch in &mut stretches {
        let mut sum = 0_u64;
        for (pair, summands) in stretch.chunks_exact(2).zip(SUMMANDS.chunks_exact(2)) {
            let left = pair[0].wrapping_add(summands[0]);
            let right = pair[1].wrapping_add(summands[1]);
            sum = sum.wrapping_add(u64::from(left) * u64::from(right));
        }
        hash = (hash ^ sum ^ (sum >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    let rest = stretches.remainder();
    if !rest.is_empty() {
        let mut sum = 0_u64;
        for (&token, &summand) in rest.iter().zip(&SUMMANDS) {
            sum = (sum ^ u64::from(token.wrapping_add(summand))).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        }
        hash = (hash ^ sum ^ (sum >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    let parent = parent.map_or(0, |key| u64::from(key) + 1);
    high((hash ^ (hash >> 29) ^ parent << 31).wrapping_mul(0xBF58_476D_1CE4_E5B9))
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The memory, with `PAYLOAD` bits of payload an entry. Its tags have the rest of 32 bits, and four more where they are
/// `LONG`.
#[derive(Clone, Debug, Default)]
pub(super) struct Ghost<const PAYLOAD: u32, const LONG: bool> {
    lines: Vec<[u32; WAYS]>,
    /// The ends of long tags, by line: four bits a way, the first way's lowest.
    ends: Vec<u32>,
}

impl<const PAYLOAD: u32, const LONG: bool> Ghost<PAYLOAD, LONG> {
    /// Bytes a line.
    const LINE: usize = size_of::<[u32; WAYS]>() + if LONG { size_of::<u32>() } else { 0 };

    pub(super) const fn new() -> Self {
        Self { lines: Vec::new(), ends: Vec::new() }
    }

    /// As many whole lines as so many bytes per block have room for, but for one at least.
    pub(super) fn start(&mut self, num_blocks: u32, bytes: usize) -> Result<(), ConfigError> {
        let lines = (ix(num_blocks).saturating_mul(bytes) / Self::LINE).max(1);
        self.lines.try_reserve_exact(lines).map_err(|_| ConfigError::OutOfMemory { num_blocks })?;
        self.lines.resize(lines, [0; WAYS]);
        if LONG {
            self.ends.try_reserve_exact(lines).map_err(|_| ConfigError::OutOfMemory { num_blocks })?;
            self.ends.resize(lines, 0);
        }
        Ok(())
    }

    /// Lines.
    pub(super) fn num_lines(&self) -> usize {
        self.lines.len()
    }

    /// Forgets what is not to be kept, by payload, of one line.
    pub(super) fn sweep(&mut self, line: usize, keep: impl Fn(u32) -> bool) {
        for entry in &mut self.lines[line] {
            if !keep(*entry & ((1 << PAYLOAD) - 1)) {
                *entry = 0;
            }
        }
    }

    /// The line of a key, its tag in place, and the end of that where it is long. A tag is never zero, so that zero is no
    /// entry.
    #[inline]
    fn place(&self, key: u32) -> (usize, u32, u32) {
        let hash = u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let lines = self.lines.len() as u64;
        let line = high(u64::from(high(hash)).wrapping_mul(lines));
        let low = high(hash << 32);
        (ix(line), (low >> PAYLOAD).max(1) << PAYLOAD, low << (32 - PAYLOAD) >> 28)
    }

    /// What is remembered of this content, and forgets it.
    #[inline]
    pub(super) fn take(&mut self, key: u32) -> Option<u32> {
        if self.lines.is_empty() {
            return None;
        }
        let (at, tag, end) = self.place(key);
        let mask = (1 << PAYLOAD) - 1;
        let line = &mut self.lines[at];
        // Most lookups find nothing: that is one comparison of the whole line.
        if !line.iter().fold(false, |found, entry| found | (entry & !mask == tag)) {
            return None;
        }
        let ends = if LONG { self.ends[at] } else { 0 };
        let ends_so = |way: u32| !LONG || ends >> (4 * way) & 15 == end;
        let way = (0..).zip(line.iter()).position(|(way, entry)| entry & !mask == tag && ends_so(way))?;
        Some(core::mem::take(&mut line[way]) & mask)
    }

    /// Remembers; the oldest of the line is forgotten where the line is full.
    #[inline]
    pub(super) fn put(&mut self, key: u32, payload: u32) {
        if self.lines.is_empty() {
            return;
        }
        let (at, tag, end) = self.place(key);
        let line = &mut self.lines[at];
        let hole = line.iter().position(|entry| *entry == 0).unwrap_or(WAYS - 1);
        line.copy_within(..hole, 1);
        line[0] = tag | payload;
        if LONG {
            let behind = u32::MAX << (4 * hole) << 4;
            let ends = &mut self.ends[at];
            *ends = *ends & behind | (*ends << 4 | end) & !behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::len32;

    #[test]
    fn a_full_line_forgets_its_oldest_and_taking_forgets_too() {
        let mut ghost = Ghost::<8, true>::new();
        ghost.start(8, 4).unwrap();
        // One line, so that all keys share it.
        let keys: Vec<u32> = (0..9).map(|token| key_of(None, &[token])).collect();
        for (at, &key) in keys.iter().enumerate() {
            ghost.put(key, u32::try_from(at).unwrap());
        }
        assert_eq!(ghost.take(keys[0]), None);
        assert_eq!(ghost.take(keys[1]), Some(1));
        assert_eq!(ghost.take(keys[1]), None);
        // The hole that was left is filled before anything else is forgotten.
        ghost.put(keys[0], 7);
        assert_eq!((ghost.take(keys[2]), ghost.take(keys[0])), (Some(2), Some(7)));
    }

    #[test]
    fn content_that_was_evicted_several_times_is_found_as_often_the_newest_first() {
        let mut ghost = Ghost::<8, false>::new();
        ghost.start(8, 4).unwrap();
        let key = key_of(None, &[1]);
        // At the end the whole line is of this content.
        for times in 1..=8 {
            (0..times).for_each(|payload| ghost.put(key, payload));
            let found: Vec<u32> = core::iter::from_fn(|| ghost.take(key)).collect();
            assert!(found.into_iter().eq((0..times).rev()), "{times} times");
        }
    }

    #[test]
    fn a_memory_has_room_for_whole_lines_and_one_at_least() {
        fn check<const LONG: bool>(num_blocks: u32, bytes: usize, lines: usize) {
            let mut ghost = Ghost::<8, LONG>::new();
            assert_eq!((ghost.num_lines(), ghost.take(1)), (0, None));
            ghost.put(1, 0);
            ghost.start(num_blocks, bytes).unwrap();
            assert_eq!(ghost.num_lines(), lines);
        }
        // (blocks, bytes per block): 9 × 8 are two lines of 32 bytes and two entries that make none, or two of 36.
        for (num_blocks, bytes, short, long) in [(1, 4, 1, 1), (8, 4, 1, 1), (9, 8, 2, 2), (24, 4, 3, 2), (7, 36, 7, 7)]
        {
            check::<false>(num_blocks, bytes, short);
            check::<true>(num_blocks, bytes, long);
        }
    }

    #[test]
    fn what_is_put_is_found_with_its_payload_and_nothing_else_is() {
        // 128 lines and 512 keys: four a line, and where these spread like chance, a line has to forget 0.033 keys of
        // them, so four keys are lost in all. Another key is found once in 2^24 entries that it meets, and here 100,000
        // keys meet four each.
        let mut ghost = Ghost::<8, false>::new();
        ghost.start(1_024, 4).unwrap();
        let keys = |tokens: core::ops::Range<u32>| tokens.map(|token| key_of(None, &[token]));
        for (key, at) in keys(0..512).zip(0..) {
            ghost.put(key, at % 256);
        }
        assert_eq!(keys(1_000..101_000).filter(|&key| ghost.take(key).is_some()).count(), 0);
        let found: Vec<_> = keys(0..512).map(|key| ghost.take(key)).collect();
        assert!(found.iter().zip(0..).all(|(found, at)| found.is_none_or(|found| found == at % 256)));
        assert!(found.iter().flatten().count() > 500, "{}", found.iter().flatten().count());
    }

    #[test]
    fn long_tags_tell_apart_what_differs_in_their_ends_alone_wherever_it_moves_in_its_line() {
        // Of one line: it, and the low half of the hash, are all that places a key.
        let mut ghost = Ghost::<19, true>::new();
        ghost.start(1, 36).unwrap();
        // What undoes the multiplication, modulo 2^32.
        let factor = 0x7F4A_7C15_u32;
        let inverse =
            (0..5).fold(factor, |inverse, _| inverse.wrapping_mul(2_u32.wrapping_sub(factor.wrapping_mul(inverse))));
        let key = |end: u32| (0x1234 << 19 | end << 15 | 77).wrapping_mul(inverse);
        let mut model = [None; WAYS];
        let mut random = 1_u32;
        for payload in 0..10_000 {
            random = random.wrapping_mul(0x915F_77F5).wrapping_add(1);
            let end = random >> 28;
            assert_eq!(ghost.place(key(end)), (0, 0x1234 << 19, end));
            if random >> 20 & 1 == 0 {
                ghost.put(key(end), payload);
                let hole = model.iter().position(Option::is_none).unwrap_or(WAYS - 1);
                model[..=hole].rotate_right(1);
                model[0] = Some((end, payload));
            } else {
                let way = model.iter().position(|entry| entry.is_some_and(|(other, _)| other == end));
                let expected = way.and_then(|way| model[way].take()).map(|(_, payload)| payload);
                assert_eq!(ghost.take(key(end)), expected);
            }
        }
    }

    #[test]
    fn a_sweep_forgets_what_is_not_kept_in_one_line() {
        let mut ghost = Ghost::<8, false>::new();
        ghost.start(16, 4).unwrap();
        let mut keys: [Vec<u32>; 2] = Default::default();
        for key in (0..200).map(|token| key_of(None, &[token])) {
            let line = &mut keys[ghost.place(key).0];
            if line.len() < 8 {
                ghost.put(key, len32(line.len()));
                line.push(key);
            }
        }
        ghost.sweep(1, |payload| payload % 3 == 0);
        let mut left = |line: usize| keys[line].iter().filter_map(|&key| ghost.take(key)).collect::<Vec<_>>();
        assert_eq!(left(0), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(left(1), [0, 3, 6]);
    }

    /// By the formula in Python, whose numbers have no end:
    /// ```text
    /// S[0] = 0x9E3779B9, S[i + 1] = (S[i] * 0x85EBCA77 + 0x7F4A7C15) % 2**32
    /// hash = 0, G = 0x9E3779B97F4A7C15
    /// per 16 tokens t:  sum = (t[0] + S[0]) % 2**32 * ((t[1] + S[1]) % 2**32) + ... + (t[14] ...) * (t[15] ...) % 2**64
    /// of the rest:      sum = 0, per token (sum ^ (t[i] + S[i]) % 2**32) * 0xD6E8FEB86659FD93 % 2**64
    /// after each:       hash = (hash ^ sum ^ sum >> 32) * G % 2**64
    /// key = (hash ^ hash >> 29 ^ (parent + 1, or 0 for none) << 31) * 0xBF58476D1CE4E5B9 % 2**64 >> 32
    /// ```
    #[test]
    fn keys_are_the_same_on_every_machine() {
        for (len, none, parent) in [
            (1, 0xd36a_7588, 0x44f8_02ac),
            (15, 0x93c3_5539, 0x0550_e25d),
            (16, 0x4e91_d5eb, 0xc01f_630f),
            (17, 0x452c_ed31, 0xd39f_600d),
            (48, 0x61eb_58f4, 0xf05d_cbd1),
        ] {
            let tokens: Vec<u32> = (0..len).map(|at: u32| (at * at + 1).wrapping_mul(0x0100_0193)).collect();
            assert_eq!((key_of(None, &tokens), key_of(Some(0), &tokens)), (none, parent), "{len} tokens");
            // A parent of 2^32 - 1 is 2^63 in front of the last multiplication, which is by an odd number: the top bit.
            assert_eq!(key_of(Some(u32::MAX), &tokens), none ^ 1 << 31);
        }
    }

    #[test]
    fn a_key_depends_on_what_is_in_front() {
        let first = key_of(None, &[1, 2]);
        assert_ne!(key_of(Some(first), &[3]), key_of(None, &[3]));
        assert_ne!(key_of(None, &[1, 2, 3, 4]), key_of(None, &[3, 4, 1, 2]));
        assert_ne!(key_of(Some(first), &[3, 4]), key_of(Some(first), &[4, 3]));
    }
}
