//! What LRU would have kept, without keeping an LRU cache beside.

use crate::id::ix;

const BUCKETS: u16 = 128;

/// How many blocks, cached or not, were last idle when, and which of them are candidates: counts over a ring of
/// stretches of time.
///
/// An LRU cache holds the blocks used last, as many as fit. So it would still hold a block that was last idle no longer
/// ago than the *cutoff*: the age up to which as many different blocks were idle as there is room for beside what is
/// held. A candidate older than that takes the room of one that LRU would have and this cache has not: so many are
/// *missing*.
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
    /// Candidates, by the stretch in which they became idle; and all of them.
    idle: [u32; ix(BUCKETS as u32)],
    candidates: u32,
    /// Candidates that LRU would still have, and the bucket's of the cutoff, which get too old tick by tick.
    young: u32,
    ageing: u32,
    /// Candidates that LRU would have: as many as were left at the last eviction, for what is held takes from the room of
    /// both, and those since.
    room: u32,
    /// Evicted since the cutoff was found, though LRU would have kept them, and not made up for by new candidates.
    displaced: u32,
}

impl Recency {
    pub(super) const fn new() -> Self {
        Self {
            counts: [0; ix(BUCKETS as u32)],
            num_blocks: 0,
            width: 1,
            head: 0,
            into: 0,
            cutoff: None,
            idle: [0; ix(BUCKETS as u32)],
            candidates: 0,
            young: 0,
            ageing: 0,
            room: 0,
            displaced: 0,
        }
    }

    /// For a pool of so many blocks, with so many ticks to a turnover of the pool.
    pub(super) fn start(&mut self, num_blocks: u32, turnover_ticks: u16) {
        (self.num_blocks, self.room) = (num_blocks, num_blocks);
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

    /// Whether LRU would have evicted it beyond doubt: the cutoff is half a bucket off at times.
    #[inline]
    pub(super) fn surely_gone(&self, age: u16) -> bool {
        !self.keeps(age.saturating_sub(self.width / 2))
    }

    /// Blocks that LRU would have and this cache has not.
    #[inline]
    pub(super) fn missing(&self) -> u32 {
        let old = if self.cutoff.is_none() { 0 } else { self.candidates.saturating_sub(self.young) };
        old + self.displaced
    }

    /// The share of LRU's lifetime that a bucket is, in 1/256.
    pub(super) fn share(&self) -> u32 {
        self.cutoff.map_or(0, |cutoff| u32::from(self.width) * 256 / u32::from(cutoff.max(1)))
    }

    /// The bucket of an age, if it is not out of the ring.
    #[inline]
    fn bucket(&self, age: u16) -> Option<usize> {
        let behind = age.saturating_sub(self.into).div_ceil(self.width);
        (behind < BUCKETS).then(|| self.behind(behind))
    }

    #[inline]
    fn behind(&self, buckets: u16) -> usize {
        usize::from((self.head + BUCKETS - buckets) % BUCKETS)
    }

    /// A block becomes a candidate; the age is how long ago it did before, if anybody remembers.
    #[inline]
    pub(super) fn touch(&mut self, age: Option<u16>) {
        if let Some(at) = age.and_then(|age| self.bucket(age)) {
            self.counts[at] = self.counts[at].saturating_sub(1);
        }
        self.counts[usize::from(self.head)] += 1;
        self.idle[usize::from(self.head)] += 1;
        self.candidates += 1;
        self.young += 1;
        self.room = (self.room + 1).min(self.num_blocks);
        self.displaced = self.displaced.saturating_sub(1);
    }

    /// A candidate of this age is none any more.
    #[inline]
    pub(super) fn leave(&mut self, age: u16) {
        self.candidates = self.candidates.saturating_sub(1);
        if let Some(at) = self.bucket(age) {
            self.idle[at] = self.idle[at].saturating_sub(1);
        }
        if self.keeps(age) {
            self.young = self.young.saturating_sub(1);
        }
    }

    /// A block of this age is evicted. Whether it is time to look at the account.
    #[inline]
    pub(super) fn evicted(&mut self, age: u16) -> bool {
        self.room = self.candidates;
        if !self.keeps(age) {
            return false;
        }
        self.displaced += 1;
        self.displaced.is_multiple_of(8)
    }

    /// A tick has passed. Whether it began a bucket.
    ///
    /// # Complexity
    /// O(1) but for the first tick of a bucket, which looks at as many buckets as hold what LRU would: about 32.
    pub(super) fn tick(&mut self) -> bool {
        self.into += 1;
        if self.into < self.width {
            let share = |ticks: u16| self.ageing * u32::from(ticks) / u32::from(self.width);
            self.young = self.young.saturating_sub(share(self.into) - share(self.into - 1));
            return false;
        }
        self.into = 0;
        self.head = (self.head + 1) % BUCKETS;
        self.counts[usize::from(self.head)] = 0;
        self.idle[usize::from(self.head)] = 0;
        self.displaced -= if self.is_busy() { self.displaced } else { self.displaced.div_ceil(8) };
        self.find_cutoff();
        true
    }

    /// Whether requests hold so much for long that LRU's room is much less than the pool. Else the room moves with each
    /// request, and the pool is the better measure.
    fn is_busy(&self) -> bool {
        self.room < self.num_blocks - self.num_blocks / 8
    }

    fn find_cutoff(&mut self) {
        (self.cutoff, self.young, self.ageing) = (None, 0, 0);
        let mut room = if self.is_busy() { self.room.max(1) } else { self.num_blocks };
        for behind in 1..BUCKETS {
            let at = self.behind(behind);
            let (count, idle) = (self.counts[at], self.idle[at]);
            if count >= room {
                // No more than the whole, since room is at most the count, which is not zero: room never is.
                let part = |whole: u32| u64::from(whole) * u64::from(room) / u64::from(count);
                self.cutoff = u16::try_from(part(self.width.into())).ok().map(|part| (behind - 1) * self.width + part);
                self.young += u32::try_from(part(idle)).unwrap_or(idle);
                self.ageing = idle.min(u32::MAX / u32::from(self.width));
                return;
            }
            self.young += idle;
            room -= count;
        }
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
        // It may be half a bucket more. A bucket is a quarter of it.
        assert!(!recency.surely_gone(36) && recency.surely_gone(37));
        assert_eq!(recency.share(), 256 / 4);
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
        assert_eq!((recency.cutoff(), recency.share()), (None, 0));
        assert!(recency.keeps(u16::MAX) && !recency.surely_gone(u16::MAX));
    }

    #[test]
    fn a_block_older_than_the_ring_is_counted_once_more_and_one_within_it_moves() {
        // 128 buckets of eight ticks, that of now included.
        for (age, counted) in [(127 * 8, 2), (127 * 8 + 1, 3), (128 * 8, 3), (u16::MAX, 3)] {
            let mut recency = Recency::new();
            recency.start(64, 64);
            recency.touch(None);
            (0..127 * 8).for_each(|_| _ = recency.tick());
            // Another, so that there is one to be taken from now.
            recency.touch(None);
            recency.touch(Some(age));
            assert_eq!(recency.counts.iter().sum::<u32>(), counted, "{age} ticks ago");
        }
    }

    #[test]
    fn what_is_older_than_the_cutoff_is_what_lru_has_more() {
        let mut recency = Recency::new();
        recency.start(64, 64);
        // Two new blocks a tick, all of them candidates, until the pool is full.
        let ticks = |recency: &mut Recency, evicted: fn(u16) -> u16| {
            for _ in 0..32_u16 {
                for _ in 0..2 {
                    let age = evicted(32);
                    if age > 0 {
                        recency.leave(age);
                        recency.evicted(age);
                    }
                    recency.touch(None);
                }
                recency.tick();
            }
        };
        ticks(&mut recency, |_| 0);
        assert_eq!(recency.missing(), 0);
        // Evicting the oldest is what LRU does.
        ticks(&mut recency, |oldest| oldest);
        assert_eq!((recency.cutoff(), recency.missing()), (Some(32), 0));
        // Evicting what was idle eight ticks ago instead keeps an old one for each: after 32 ticks, all but the 16 of the
        // last eight.
        ticks(&mut recency, |_| 8);
        assert_eq!(recency.missing(), 48);
    }

    /// A pool of 64 blocks in which two new ones a tick become idle, for so many ticks, of which eight are a bucket.
    /// Where there are `most` candidates, the oldest goes before each.
    fn filled(most: u32, ticks: u16) -> Recency {
        let mut recency = Recency::new();
        recency.start(64, 64);
        for tick in 0..ticks {
            for new in 0..2 {
                if recency.candidates >= most {
                    let oldest = u16::try_from((recency.candidates + new) / 2).unwrap().min(tick);
                    recency.leave(oldest);
                    recency.evicted(oldest);
                }
                recency.touch(None);
            }
            recency.tick();
        }
        recency
    }

    #[test]
    fn a_candidate_is_missing_to_lru_from_the_tick_on_in_which_it_is_too_old() {
        // 128 candidates, of which 64 are older than 32 ticks; and two more with each tick.
        let mut recency = filled(u32::MAX, 64);
        for more in (0..32).step_by(2) {
            assert_eq!((recency.missing(), recency.cutoff()), (64 + more, Some(32)));
            recency.touch(None);
            recency.touch(None);
            recency.tick();
        }
    }

    #[test]
    fn the_room_is_what_is_not_held_where_requests_hold_more_than_an_eighth() {
        // Two candidates a tick.
        assert_eq!(filled(48, 128).cutoff(), Some(24));
        assert_eq!(filled(55, 128).cutoff(), Some(27));
        assert_eq!(filled(56, 128).cutoff(), Some(32));
        assert_eq!(filled(64, 128).cutoff(), Some(32));
        // There, what was evicted against LRU counts for as long as its bucket.
        let mut recency = filled(48, 128);
        recency.leave(0);
        recency.evicted(0);
        assert_eq!(recency.missing(), 1);
        (0..8).for_each(|_| _ = recency.tick());
        assert_eq!(recency.displaced, 0);
    }

    #[test]
    fn what_was_evicted_against_lru_is_missing_until_others_took_its_place() {
        let mut recency = filled(64, 128);
        assert_eq!(recency.missing(), 0);
        // The account is looked at after every eighth of them.
        for evicted in 1..=32 {
            recency.leave(16);
            assert_eq!(recency.evicted(16), evicted % 8 == 0);
            assert_eq!(recency.missing(), evicted);
            // And LRU's victims are none of them.
            assert!(!recency.evicted(33));
        }
        for left in (16..32).rev() {
            recency.touch(None);
            assert_eq!(recency.displaced, left);
        }
    }

    #[test]
    fn an_eighth_of_what_was_evicted_against_lru_is_forgotten_with_each_bucket() {
        let mut recency = filled(64, 128);
        (0..60).for_each(|_| _ = recency.evicted(16));
        recency.room = 64;
        for left in [52, 45, 39] {
            (0..8).for_each(|_| _ = recency.tick());
            assert_eq!(recency.displaced, left);
        }
    }
}
