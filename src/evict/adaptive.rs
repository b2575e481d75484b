//! Learns online what is worth keeping, and is LRU where that does not pay.

mod clock;
mod learned;
mod recency;
mod record;
mod trust;

use alloc::vec::Vec;

use super::ghost::{Ghost, key_of};
use super::{Content, Evict, Now};
use crate::error::ConfigError;
use crate::id::{BlockId, ix};
use crate::list::{Links, List};
use clock::Clock;
use learned::{Learned, Life, class_of_uses};
use recency::Recency;
use record::{MOST_USES, Record, State};
use trust::Trust;

/// Keeps what is likely to be found again soon, by what it learns online, and is LRU where that does not pay.
///
/// # The idea
/// Chains that were found again are found again more than others; those that came back after a short gap come back after
/// a short one; a request that adds little to what was known goes on, one that adds much does not; the very end of a
/// chain is hardly ever found, where prompts end inside a block. How strong each of these is differs from trace to
/// trace, so it is learned. A candidate's *rank* is
///
/// ```text
/// rank = wait / worth          wait = max(age, gap)          worth = uses^s × odds^(2s/3)
/// ```
///
/// and the highest goes first. The *age* is how long it has been idle, the *gap* the running mean of the gaps between
/// its uses; of a block used once it is the median first gap of all blocks. So `age / worth` decides among blocks
/// overdue, and a block whose gap is longer than the pool lives does not get in the way of those that come back sooner.
/// Where LRU's lifetime is between a quarter of the median first gap and the whole, waiting makes a return likelier up to
/// the gap, and unlikelier from there on: the wait is `gap - age / 4`, and then `age × (age / gap)^(1/4)`.
/// The *odds* are those of blocks of its kind to come back, relative to all; the kind is the binary logarithm of how many
/// blocks of its chain were new, or being the end of a chain. What was used once, of a kind with less than 2^-3.5, about
/// an eleventh, of the overall odds, goes at once. The exponent `s` is 5/4, 1, 3/4 or 1/2 as LRU's lifetime is below half
/// the median first gap, the gap, twice the gap, or longer: the chance to come back falls faster late than early, and the
/// faster it falls, the less more worth buys. From the median on gaps count half.
///
/// Gaps and uses of evicted content are remembered in a bounded memory. Only the two last blocks of a chain and every
/// sixth are, so that a chain of 24 takes six entries: the blocks in front of one that is computed again were there
/// when it was, so they take over what is known of it when the chain becomes idle, last block first.
///
/// # LRU where it does not pay
/// From the ages in the memory follows for every block that comes back whether LRU would have kept it, and from those of
/// the candidates, how many blocks LRU would have that were evicted here. Hits lost so far, and those that may be asked
/// for yet at the odds so far, are kept within a 384th of all blocks, by evicting nothing but what LRU would not have
/// either; when the odds turn, up to a pool of blocks may be lost in addition: see `trust.rs`. The account is kept by
/// blocks and by requests.
///
/// Age, gap and lifetime are counted in blocks that became idle, relative to the pool: no constant is in blocks, and no
/// clock is read. Where requests share a beginning and differ in how much they add, a parent may rank above a child; then
/// this policy relies on the cache to take the last descendant (of up to 4 % of the victims in the table below).
///
/// # Complexity
/// O(1) a call, and at most 128 list fronts to look at once for every 16 blocks that became idle, or when the best list
/// runs out. 16 bytes a block: 8 of its own and 8 for what is remembered, 16 samples for 9 blocks; less than 4 KiB besides.
///
/// # Measured
/// Block hits in percent on Mooncake's conversation trace (12,031 requests, 288,500 blocks of 512 tokens, 36.64 % of
/// them seen before); every request is served at once.
///
/// | blocks | 500 | 1000 | 2000 | 3000 | 5000 | 7000 | 10000 | 15000 | 20000 | 30000 |
/// |---|---|---|---|---|---|---|---|---|---|---|
/// | LRU | 4.22 | 4.45 | 5.43 | 6.53 | 11.18 | 15.91 | 21.16 | 25.53 | 28.78 | 32.57 |
/// | this | 6.20 | 8.19 | 11.58 | 13.87 | 17.65 | 20.08 | 23.95 | 27.48 | 30.06 | 33.14 |
///
/// What blocks are called moves these: it says which of them share a line of the memory, where the oldest is forgotten. The
/// file's own numbers are one draw of many; of 16 renamings each, the mean and the range in percent, where a block is two
/// tokens, its renamed id and 0, and where it is 16, the renamed id and 15 at random:
///
/// | blocks | 1000 | 2000 | 5000 | 10000 | 20000 |
/// |---|---|---|---|---|---|
/// | the file's numbers | 8.19 | 11.58 | 17.65 | 23.95 | 30.06 |
/// | 2 tokens, mean | 8.19 | 11.46 | 17.66 | 23.94 | 30.04 |
/// | range | 8.08–8.36 | 11.37–11.63 | 17.56–17.74 | 23.89–24.00 | 29.96–30.08 |
/// | 16 tokens, mean | 8.16 | 11.45 | 17.63 | 23.94 | 30.05 |
/// | range | 8.06–8.24 | 11.34–11.57 | 17.51–17.83 | 23.87–23.99 | 29.99–30.09 |
///
/// Two runs that differ in names alone are up to 0.3 points apart up to 5,000 blocks, and 0.1 above: of two versions of
/// this policy, compare means over renamings. The memory takes content for other at one lookup in 16,000: its tags have 17
/// bits, and a line eight. By 13 bits it would be one in 1,000, and where many of these look like hits that LRU would have
/// had, this policy evicts like LRU for a while: at 1,000 blocks that cost up to a point. Keys have 28 bits, so that from
/// about 10,000 blocks on equal keys are more than equal tags alone: at a million blocks one lookup in 150 meets one.
///
/// On 36 synthetic kinds of traffic (phases, cycles, scans, skewed choice, drift, conversations, bursts, trees, and some
/// of these by turns) and pools of 36 to 50,000 blocks, 148 pairs, the worst loss against LRU was 0.42 points of blocks
/// and of requests, and the mean gain 3.7 points. It can be more where traffic makes this policy learn that what LRU keeps
/// is not asked for, and then asks for all of it, as when a cycle larger than the pool gives way to sets that just fit it:
/// of 1,440 pairs drawn at random from such traffic, 78 lost more than half a point, and the worst of them 1.9. That is
/// no bound: what can be lost at once is up to a pool of blocks, which is much of a trace of few pools. A cycle of 240
/// chains of 5 blocks, one after the other, and then a set of 97 new ones, all of them and all of them again; three times
/// over, the 240 the same each time and the 97 new: that cost 7.3 points in 500 blocks and 1.2 in 1,000, and repeated 30
/// times 0.7. Of Mooncake's trace the first 1,000 requests cost 0.51 points in 20,000 blocks. For such traffic take
/// [`Lru`](super::Lru).
///
/// All of this is of requests that are served at once. Where requests overlap and hold less than about an eighth of the
/// pool, the account takes LRU's room for larger than it is, and this policy may stay LRU for good: of up to three requests
/// at a time in 1,000 blocks, chosen with skew, it found 26.6 % of the tokens, as LRU does, and 40.6 % of up to two (LRU
/// 27.4). Where they overlap and their set changes in phases and just fits, it lost up to 2.3 points.
///
/// # Source
/// The pieces are known: ranks of `uses / age` from hyperbolic caching (Blankstein et al., USENIX ATC 2017), distances
/// between uses from LRU-K (O'Neil et al., SIGMOD 1993), remembering what was evicted from ARC (Megiddo and Modha, FAST
/// 2003), learned odds by class from LHD (Beckmann et al., NSDI 2018). Kinds, the sampling of chains and the account
/// against LRU are this crate's.
#[derive(Clone, Debug)]
pub struct Adaptive {
    records: Vec<Record>,
    ghost: Ghost<PAYLOAD, true>,
    /// By class of gap and level: each in the order in which its blocks became idle.
    lists: [List; NUM_LISTS],
    /// A bit per list that is not empty.
    filled: u128,
    clock: Clock,
    run: Run,
    learned: Learned,
    recency: Recency,
    trust: Trust,
    choice: Choice,
    /// The next line of the ghost to sweep.
    sweep: usize,
    buckets: u32,
}

/// Classes of gaps: an octave each, around half a turnover of the pool to 64.
const GAPS: usize = 8;
/// Levels of worth: the square root of an octave each.
const LEVELS: usize = 16;
const NUM_LISTS: usize = GAPS * LEVELS;
/// Of the ghost's entries: kind 3, gap 3, uses 4, time 9 bits; 13 are left for the tag, and four more are beside.
const PAYLOAD: u32 = 10 + clock::ROUGH_BITS;
/// Uses remembered, of what was evicted.
const MOST_REMEMBERED: u8 = 15;

/// The sequence that is giving its blocks back.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// No block yet.
    begins: bool,
    /// Blocks before this one.
    len: u32,
    kind: u8,
    /// The lowest gap of blocks used more than once.
    gap: u8,
    /// What was remembered of the block before this one.
    memory: Option<Record>,
}

/// The list whose front goes next.
#[derive(Clone, Copy, Debug)]
struct Choice {
    list: u8,
    /// The rank of the second: as long as the front has no lower one, it is the right choice.
    second: u64,
    /// Blocks that became idle since it was made.
    idles: u32,
}

const NO_CHOICE: Choice = Choice { list: 0, second: u64::MAX, idles: 0 };

/// The octave of the lowest class of gaps.
const LOWEST: u8 = 5;

/// The class of gaps of an octave.
fn class_of(octave: u8) -> u8 {
    octave.clamp(LOWEST, 12) - LOWEST
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new()
    }
}

impl Adaptive {
    /// The policy.
    pub const fn new() -> Self {
        Self {
            records: Vec::new(),
            ghost: Ghost::new(),
            lists: [List::new(); NUM_LISTS],
            filled: 0,
            clock: Clock::new(),
            run: Run { begins: true, len: 0, kind: 0, gap: 15, memory: None },
            learned: Learned::new(),
            recency: Recency::new(),
            trust: Trust::new(),
            choice: NO_CHOICE,
            sweep: 0,
            buckets: 0,
        }
    }

    fn list_of(record: Record) -> u8 {
        class_of(record.gap()) << 4 | record.level()
    }

    /// How much the front of a list ought to go; 0 of an empty one.
    #[inline]
    fn rank(&self, list: u8) -> u64 {
        let Some(front) = self.lists[usize::from(list)].front() else { return 0 };
        let age = self.clock.now.wrapping_sub(self.records[ix(front)].since());
        if self.trust.is_bound() && self.recency.keeps(age) {
            return u64::from(age) + 1;
        }
        let (gap, level) = (list >> 4, u32::from(list & 15));
        let wait = wait(age, self.clock.middle(gap + LOWEST), self.learned.life);
        // By 2^(level / 2): 181 / 256 is the root of a half. Level 0 is for what never comes back.
        let weight = if level == 0 { 1 << 28 } else { 1 << (20 - level / 2) };
        let rank = if level % 2 == 1 { wait * weight * 181 / 256 } else { wait * weight };
        // Above every age, for when the trust is bound.
        rank + (1 << 17)
    }

    /// Looks at the fronts of all lists.
    fn choose(&mut self) {
        let (mut first, mut second, mut list) = (0, 0, 0);
        let mut left = self.filled;
        while left != 0 {
            let at = left.trailing_zeros().to_le_bytes()[0];
            left &= left - 1;
            let rank = self.rank(at);
            if rank > first {
                (second, first, list) = (first, rank, at);
            } else {
                second = second.max(rank);
            }
        }
        self.choice = Choice { list, second, idles: 0 };
    }

    /// Looks at the account against LRU.
    fn weigh(&mut self) {
        if self.trust.weigh(self.recency.missing()) {
            self.choice = NO_CHOICE;
        }
    }

    /// A block has become idle.
    fn pass_time(&mut self) {
        // Where nothing is ever evicted, no choice is made that would start the count anew.
        self.choice.idles = self.choice.idles.saturating_add(1);
        if !self.clock.pass() {
            return;
        }
        let missing = self.recency.missing();
        if self.recency.tick() {
            self.trust.missed(missing, self.recency.share());
            self.new_bucket();
        }
    }

    /// About 32 times a turnover: forgets old entries of the ghost before their clock comes round, and learns.
    #[cold]
    fn new_bucket(&mut self) {
        let clock = self.clock;
        for _ in 0..=self.ghost.num_lines() / 64 {
            self.ghost.sweep(self.sweep, |entry| clock.since_rough(time_of(entry)) <= clock.horizon());
            self.sweep = (self.sweep + 1) % self.ghost.num_lines();
        }
        self.buckets = self.buckets.wrapping_add(1);
        if self.buckets % 8 == 0 {
            self.learned.conclude(&self.clock, self.recency.cutoff());
        }
    }
}

/// The rough time of the ghost's entry.
fn time_of(entry: u32) -> u16 {
    let [low, high, ..] = (entry >> 10).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// How long a block is thought to be from its next use, in ticks, by its age and the gap between its uses.
#[inline]
fn wait(age: u16, gap: u64, life: Life) -> u64 {
    /// 256 × r^(1/4) for ratios r of 1, 5/4, 3/2, 7/4, 2, 5/2 and so on.
    const ROOTS: [u64; 64] = {
        let mut roots = [0; 64];
        let mut at = 0;
        while at < 64 {
            let ratio = (4 + at as u64 % 4) << (at / 4);
            roots[at] = (ratio << 30).isqrt().isqrt();
            at += 1;
        }
        roots
    };
    let age = u64::from(age);
    match life {
        Life::Short => age.max(gap),
        Life::Long => age.max(gap / 2),
        Life::Middle if age < gap => gap - age / 4,
        Life::Middle => {
            // In quarters: at least 4, below 2^18.
            let ratio = age * 4 / gap.max(1);
            let octave = ratio.max(4).ilog2() - 2;
            let root = ROOTS[ix(octave * 4 + (u32::try_from(ratio >> octave).unwrap_or(7) & 3))];
            age * root / 256
        }
    }
}

impl Evict for Adaptive {
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError> {
        self.records.try_reserve_exact(ix(num_blocks)).map_err(|_| ConfigError::OutOfMemory { num_blocks })?;
        self.records.resize(ix(num_blocks), Record::default());
        self.ghost.start(num_blocks, 8)?;
        self.clock = Clock::start(num_blocks);
        self.recency.start(num_blocks, self.clock.turnover);
        self.trust.start(num_blocks);
        Ok(())
    }

    fn tick(&mut self, _now: Now) {
        self.run.begins = true;
    }

    fn stored(&mut self, block: BlockId, content: &Content<'_>) {
        let mut parent_key = None;
        let mut fresh = 1;
        if let Some(parent) = content.parent {
            let parent = &mut self.records[parent.index()];
            parent.set_has_child();
            parent_key = Some(parent.key());
            if parent.state() == State::Fresh {
                fresh = parent.since().saturating_add(1);
            }
        }
        let mut record = Record::new(key_of(parent_key, content.tokens));
        record.set_since(fresh);
        if let Some(entry) = self.ghost.take(record.key()) {
            let age = self.clock.since_rough(time_of(entry));
            let [low, ..] = entry.to_le_bytes();
            record.set_kind(low & 7);
            record.set_gap((low >> 3 & 7) + LOWEST);
            record.set_uses((entry >> 6).to_le_bytes()[0] & MOST_REMEMBERED);
            record.set_since(self.clock.now.wrapping_sub(age));
            record.set_state(State::restored(self.recency.keeps(age)));
            self.learned.odds(record.uses(), record.kind()).back += 1;
        }
        self.records[block.index()] = record;
    }

    #[inline]
    fn reused(&mut self, block: BlockId) {
        let record = &mut self.records[block.index()];
        let state = record.state();
        match state {
            State::Fresh => {
                record.set_since(self.clock.now);
                record.set_state(State::FoundKept);
            }
            State::Restored | State::RestoredKept => record.set_state(State::found(state.is_kept())),
            State::Found | State::FoundKept => {}
            State::Idle | State::Sampled => {
                if state == State::Sampled {
                    self.learned.odds(record.uses(), record.kind()).back += 1;
                }
                // A lead that is in doubt is none.
                let age = self.clock.now.wrapping_sub(record.since());
                record.set_state(State::found(!self.recency.surely_gone(age)));
            }
        }
    }

    fn idle(&mut self, links: &mut Links, block: BlockId) {
        self.pass_time();
        let now = self.clock.now;
        let mut record = self.records[block.index()];
        if self.run.begins || !record.has_child() {
            let new = if record.state() == State::Fresh { record.since() } else { 0 };
            let kind = (u16::BITS - new.leading_zeros()).clamp(1, 7).to_le_bytes()[0];
            self.run = Run { begins: false, len: 0, kind, gap: 15, memory: None };
            self.trust.request();
        } else {
            self.run.len += 1;
        }

        // A block that is not remembered itself is as old as the one behind it: it was there when that was.
        if let (State::Fresh, Some(behind)) = (record.state(), self.run.memory) {
            record.set_uses(behind.uses());
            record.set_gap(behind.gap());
            record.set_since(behind.since());
            record.set_state(behind.state());
        }
        let state = record.state();
        self.run.memory = state.is_restored().then_some(record);

        let age = (state != State::Fresh).then(|| now.wrapping_sub(record.since()));
        match age {
            None => record.set_gap(self.learned.first_gap),
            Some(age) => {
                let octave = self.clock.octave(age);
                let mut gap = octave;
                if record.uses() == 1 {
                    self.learned.first_gaps[usize::from(octave)] += 1;
                } else {
                    let mean = (2 * self.clock.middle(record.gap()) + u64::from(age)) / 3;
                    gap = self.clock.octave(u16::try_from(mean).unwrap_or(u16::MAX));
                }
                self.run.gap = self.run.gap.min(gap);
                record.set_gap(self.run.gap);
                record.set_uses((record.uses() + 1).min(MOST_USES));
            }
        }

        self.recency.touch(age);
        self.trust.block(state.is_kept(), state.is_found());
        if self.run.len % 8 == 0 {
            self.weigh();
        }

        let kind = if self.run.len == 0 && !record.has_child() { 0 } else { self.run.kind };
        record.set_kind(kind);
        record.set_level(self.learned.levels[class_of_uses(record.uses())][usize::from(kind)]);
        record.set_since(now);
        if self.run.len < 2 || self.run.len % 6 == 5 {
            record.set_state(State::Sampled);
            self.learned.odds(record.uses(), kind).idle += 1;
        } else {
            record.set_state(State::Idle);
        }
        self.records[block.index()] = record;

        let at = Self::list_of(record);
        let list = &mut self.lists[usize::from(at)];
        if list.is_empty() {
            self.filled |= 1 << at;
            self.choice = NO_CHOICE;
        }
        list.push_back(links, block.get());
    }

    #[inline]
    fn remove(&mut self, links: &mut Links, block: BlockId) {
        let record = self.records[block.index()];
        self.recency.leave(self.clock.now.wrapping_sub(record.since()));
        let at = Self::list_of(record);
        let list = &mut self.lists[usize::from(at)];
        list.remove(links, block.get());
        if list.is_empty() {
            self.filled &= !(1 << at);
        }
    }

    #[inline]
    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        if self.choice.idles > 16 || self.rank(self.choice.list) < self.choice.second {
            self.choose();
        }
        self.lists[usize::from(self.choice.list)].front().map(BlockId::new)
    }

    #[inline]
    fn evicted(&mut self, block: BlockId) {
        let record = self.records[block.index()];
        let age = self.clock.now.wrapping_sub(record.since());
        if self.recency.evicted(age) {
            self.weigh();
        }
        if record.state() == State::Sampled && age <= self.clock.horizon() {
            let time = self.clock.rough(record.since());
            let entry = u32::from(time) << 10 | u32::from(record.uses().min(MOST_REMEMBERED)) << 6;
            self.ghost.put(record.key(), entry | u32::from(class_of(record.gap())) << 3 | u32::from(record.kind()));
        }
    }
}

const _: () = assert!(size_of::<Record>() == 8 && size_of::<Adaptive>() < 4096);

#[cfg(test)]
mod tests {
    use super::super::suite::{Bench, store};
    use super::*;

    fn record(bench: &Bench<Adaptive>, block: u32) -> Record {
        bench.policy.records[ix(block)]
    }

    /// Stores a chain with one token a block, the block's number, behind a block or none.
    fn store_chain(bench: &mut Bench<Adaptive>, mut parent: Option<u32>, blocks: core::ops::Range<u32>) {
        for block in blocks {
            bench.store(block, parent, &[block]);
            parent = Some(block);
        }
    }

    fn pass(bench: &mut Bench<Adaptive>, blocks: u32) {
        (0..blocks).for_each(|_| bench.policy.pass_time());
    }

    #[test]
    fn a_list_is_of_a_class_of_gaps_and_a_level() {
        assert_eq!([0, 4, 5, 6, 11, 12, 13, 15].map(class_of), [0, 0, 0, 1, 6, 7, 7, 7]);
        let mut expected = 0;
        for gap in 5..13 {
            for level in 0..16 {
                let mut record = Record::new(0);
                record.set_gap(gap);
                record.set_level(level);
                assert_eq!(Adaptive::list_of(record), expected);
                expected += 1;
            }
        }
    }

    #[test]
    fn the_rank_is_the_wait_by_the_worth_and_the_age_alone_of_what_a_bound_policy_must_keep() {
        let mut policy = Adaptive::new();
        policy.start(512).unwrap();
        let mut links = Links::new(512).unwrap();
        let mut ranks = |gap: u8, age: u16, bound: bool| {
            let mut ranks = [0; LEVELS];
            for (level, rank) in (0..).zip(&mut ranks) {
                let list = gap << 4 | level;
                assert_eq!(policy.rank(list), 0);
                policy.lists[usize::from(list)].push_back(&mut links, 3);
                policy.clock.now = policy.records[3].since() + age;
                if bound {
                    // One block behind, of one.
                    policy.trust.block(true, false);
                    policy.weigh();
                }
                *rank = policy.rank(list);
                policy.lists[usize::from(list)].remove(&mut links, 3);
            }
            ranks
        };
        // Classes begin at half a turnover.
        let never = ranks(0, 0, false)[0];
        for (gap, age, wait) in [(0, 0, 256), (0, 300, 300), (2, 300, 1024), (7, 65_535, 65_535)] {
            let found = ranks(gap, age, false);
            for (level, rank) in (1..).zip(&found[1..]) {
                // Half an octave a level; and above every age.
                let expected = f64::from(wait) * 2f64.powf(20.0 - f64::from(level) / 2.0) + f64::from(1 << 17);
                assert!((*rank as f64 / expected - 1.0).abs() < 1e-3, "gap {gap}, age {age}, level {level}: {rank}");
            }
            // What never comes back goes before all else.
            assert!(never > found[1]);
        }
        for age in [0, 300, u16::MAX] {
            assert_eq!(ranks(2, age, true), [u64::from(age) + 1; LEVELS]);
        }
    }

    #[test]
    fn the_wait_is_the_gap_or_the_age_and_bends_at_the_gap_where_lru_lives_nearly_as_long() {
        let waits = |life| [0, 500, 1000, 4000, 16_000].map(|age| wait(age, 1000, life));
        assert_eq!(waits(Life::Short), [1000, 1000, 1000, 4000, 16_000]);
        assert_eq!(waits(Life::Long), [500, 500, 1000, 4000, 16_000]);
        // By 4^(1/4), which is 1.414 (362 / 256), and by 16^(1/4).
        assert_eq!(waits(Life::Middle), [1000, 875, 1000, 4000 * 362 / 256, 32_000]);
        // The ratio is rounded down to a quarter of its octave: 5/4 of it at most.
        for age in 1000..=u16::MAX {
            let exact = f64::from(age) * (f64::from(age) / 1000.0).powf(0.25);
            let found = wait(age, 1000, Life::Middle) as f64;
            assert!(found <= exact + 1.0 && found * 1.25_f64.powf(0.25) >= exact * 0.99, "{age}: {found}, {exact}");
        }
    }

    #[test]
    fn what_was_found_often_outlives_a_scan_of_two_turnovers() {
        // Blocks 1 to 63 hold what is new again and again, block 0 is found in between: every 20 blocks or so.
        let mut bench = Bench::new(Adaptive::new(), 64);
        store(&mut bench, &[0]);
        bench.idle(&[0]);
        let mut token = 1000;
        let mut scan = |bench: &mut Bench<Adaptive>, blocks: u32, free: &mut alloc::vec::Vec<u32>| {
            for _ in 0..blocks {
                bench.request();
                let Some(block) = free.pop().or_else(|| bench.evict()) else { return false };
                if block == 0 {
                    return false;
                }
                token += 1;
                bench.store(block, None, &[token]);
                bench.idle(&[block]);
            }
            true
        };
        let mut free = (1..64).collect();
        // For as long as it takes until the account has a few blocks to spare: a 384th of 4,200.
        for _ in 0..200 {
            assert!(scan(&mut bench, 20, &mut free));
            bench.request();
            bench.revive(0);
            assert_eq!(record(&bench, 0).state(), State::FoundKept);
            bench.idle(&[0]);
        }
        // It is worth at least 31^(1/2), by class 2^(9/4), of the oldest of the others, which is a turnover old. LRU would
        // take it after 63 blocks.
        assert!(scan(&mut bench, 128, &mut free));
        bench.revive(0);
        assert_eq!(record(&bench, 0).state(), State::Found);
    }

    #[test]
    fn whether_lru_would_have_found_a_block_is_settled_when_it_was_idle_last() {
        use State::{Found, FoundKept, Fresh, Restored, RestoredKept};
        let mut bench = Bench::new(Adaptive::new(), 64);
        store(&mut bench, &[0]);
        pass(&mut bench, 10);
        // Of what is new, LRU would have kept it too.
        let pairs =
            [(Fresh, FoundKept), (Restored, Found), (RestoredKept, FoundKept), (Found, Found), (FoundKept, FoundKept)];
        for (held, found) in pairs {
            bench.policy.records[0].set_state(held);
            bench.revive(0);
            assert_eq!((record(&bench, 0).state(), record(&bench, 0).since()), (found, 10));
        }
    }

    #[test]
    fn a_list_that_others_overtook_is_no_choice_after_16_blocks_more() {
        let mut bench = Bench::new(Adaptive::new(), 64);
        store(&mut bench, &[0, 1]);
        // LRU evicts nothing, so half the gap counts: of 32 blocks for one, of 256 for the other.
        bench.policy.learned.first_gap = 5;
        bench.idle(&[0]);
        pass(&mut bench, 119);
        bench.policy.learned.first_gap = 8;
        bench.idle(&[1]);
        // Block 0 is 120 blocks old.
        assert_eq!(bench.victim(), Some(1));
        pass(&mut bench, 17);
        assert_eq!(bench.victim(), Some(0));
        // And no list stays marked that is empty.
        bench.drain();
        assert_eq!(bench.policy.filled, 0);
    }

    #[test]
    fn of_a_chain_the_last_two_blocks_and_every_sixth_are_sampled() {
        let mut bench = Bench::new(Adaptive::new(), 64);
        let sampled = |bench: &Bench<Adaptive>, blocks: core::ops::Range<u32>| -> Vec<u32> {
            let sampled = |&block: &u32| record(bench, block).state() == State::Sampled;
            blocks.clone().rev().filter(sampled).map(|block| blocks.end - 1 - block).collect()
        };
        bench.request();
        store_chain(&mut bench, None, 0..24);
        bench.idle(&(0..24).rev().collect::<Vec<_>>());
        assert_eq!(sampled(&bench, 0..24), [0, 1, 5, 11, 17, 23]);
        // The end is a kind of its own, and 24 new blocks are five binary digits.
        let kinds = |bench: &Bench<Adaptive>| [23, 22, 12, 3, 2, 0].map(|block| record(bench, block).kind());
        assert_eq!(kinds(&bench), [0, 5, 5, 5, 5, 5]);
        assert_eq!([0, 5].map(|kind| bench.policy.learned.odds(1, kind).idle), [1, 5]);

        // A request of its beginning alone begins anew, with nothing new, and its last block is no end of a chain. Of
        // what it finds, block 0 was a sample.
        bench.request();
        (0..4).for_each(|block| bench.revive(block));
        assert_eq!(bench.policy.learned.odds(1, 5).back, 1);
        bench.idle(&[3, 2, 1, 0]);
        assert_eq!(sampled(&bench, 0..4), [0, 1]);
        assert_eq!(kinds(&bench), [0, 5, 5, 1, 1, 1]);

        // One that adds three blocks.
        bench.request();
        (0..4).for_each(|block| bench.revive(block));
        store_chain(&mut bench, Some(3), 30..33);
        bench.idle(&[32, 31, 30, 3, 2, 1, 0]);
        assert_eq!([32, 31, 30].map(|block| record(&bench, block).kind()), [0, 2, 2]);
        assert_eq!(kinds(&bench), [0, 5, 5, 2, 2, 2]);

        // Two that end within one request are two chains.
        bench.request();
        store_chain(&mut bench, None, 40..43);
        store_chain(&mut bench, None, 50..51);
        bench.idle(&[42, 41, 40, 50]);
        assert_eq!([42, 41, 40, 50].map(|block| record(&bench, block).kind()), [0, 2, 2, 0]);
    }

    #[test]
    fn a_chain_that_is_computed_again_is_as_old_as_what_is_remembered_of_it() {
        let mut bench = Bench::new(Adaptive::new(), 64);
        bench.request();
        store_chain(&mut bench, None, 0..24);
        bench.idle(&(0..24).rev().collect::<Vec<_>>());
        assert_eq!(bench.drain().len(), 24);
        // A turnover later, with six blocks more.
        pass(&mut bench, 64 - 24);
        bench.request();
        store_chain(&mut bench, None, 0..30);
        bench.idle(&(0..30).rev().collect::<Vec<_>>());
        let known = |block| (record(&bench, block).uses(), record(&bench, block).gap());
        let found: Vec<_> = (0..30).map(known).collect();
        // Nothing is known of what is new but the gap to begin with, which is a turnover.
        assert_eq!(found, [[(2, 6); 24].as_slice(), &[(1, 6); 6]].concat());
        // First gaps, all of a turnover or so.
        assert_eq!(bench.policy.learned.first_gaps.iter().sum::<u32>(), 24);
        assert_eq!(bench.policy.learned.first_gaps[6], 24);
        // Six samples of one use came back: the end and five of others.
        assert_eq!([0, 5].map(|kind| bench.policy.learned.odds(1, kind).back), [1, 5]);
    }

    #[test]
    fn what_is_remembered_of_evicted_content_is_its_uses_kind_gap_and_age() {
        for (uses, kind, gap) in [(1, 0, 5), (2, 1, 12), (3, 5, 6), (12, 2, 9), (15, 7, 11), (31, 7, 15)] {
            let mut bench = Bench::new(Adaptive::new(), 512);
            store(&mut bench, &[0, 1]);
            let evict = |bench: &mut Bench<Adaptive>, block: u32, state: State| {
                let record = &mut bench.policy.records[ix(block)];
                record.set_uses(uses);
                record.set_kind(kind);
                record.set_gap(gap);
                record.set_state(state);
                record.set_since(bench.policy.clock.now);
                bench.policy.evicted(BlockId::new(block));
            };
            evict(&mut bench, 0, State::Sampled);
            evict(&mut bench, 1, State::Idle);
            pass(&mut bench, 1000);
            bench.store(2, None, &[0]);
            bench.store(3, None, &[1]);
            let found = record(&bench, 2);
            // Of uses four bits are kept, and of gaps eight octaves.
            assert_eq!((found.uses(), found.kind(), found.gap()), (uses.min(15), kind, gap.min(12)));
            // Half a unit, a 32nd of a turnover.
            assert!(bench.policy.clock.now.wrapping_sub(found.since()).abs_diff(1000) <= 16, "{}", found.since());
            assert_eq!(found.state(), State::RestoredKept);
            assert_eq!(bench.policy.learned.odds(uses, kind).back, 1);
            // What was no sample is new.
            assert_eq!((record(&bench, 3).uses(), record(&bench, 3).state()), (1, State::Fresh));
        }
    }

    #[test]
    fn the_memory_forgets_before_its_clock_comes_round() {
        // 4,096 blocks, 8 of which are a tick: a rough time of 9 bits comes round after 16,384 ticks, 32 turnovers.
        let mut bench = Bench::new(Adaptive::new(), 4096);
        let evict = |bench: &mut Bench<Adaptive>| {
            for block in 0..100 {
                store(bench, &[block]);
                let record = &mut bench.policy.records[ix(block)];
                record.set_state(State::Sampled);
                record.set_since(0);
                bench.policy.evicted(BlockId::new(block));
            }
        };
        let remembered = |bench: &Bench<Adaptive>| {
            let mut ghost = bench.policy.ghost.clone();
            (0..100).filter(|&block| ghost.take(record(bench, block).key()).is_some()).count()
        };
        evict(&mut bench);
        pass(&mut bench, 4096 * 28 - 256);
        assert_eq!(remembered(&bench), 100);
        pass(&mut bench, 4096 * 3);
        assert_eq!(remembered(&bench), 0);
        // What is as old when it is evicted is not remembered at all.
        evict(&mut bench);
        assert_eq!(remembered(&bench), 0);
    }

    #[test]
    fn a_bucket_sweeps_a_64th_of_the_memory_and_a_line() {
        // 8 bytes a block are 910 lines of 36, of which a 64th is 14, and 16 ticks of 8 blocks are a bucket.
        let mut bench = Bench::new(Adaptive::new(), 4096);
        for buckets in 1..100 {
            pass(&mut bench, 16 * 8);
            assert_eq!(bench.policy.sweep, buckets * 15 % 910);
        }
    }

    #[test]
    fn the_account_is_looked_at_with_the_first_block_of_a_chain_and_every_eighth_behind_it() {
        for looks in [0, 8, 16] {
            let mut bench = Bench::new(Adaptive::new(), 64);
            bench.request();
            store_chain(&mut bench, None, 0..24);
            bench.idle(&(24 - looks..24).rev().collect::<Vec<_>>());
            assert!(!bench.policy.trust.is_bound());
            // A block is lost, of less than 384.
            bench.policy.trust.block(true, false);
            bench.idle(&[23 - looks]);
            assert!(bench.policy.trust.is_bound(), "{looks} blocks behind");
        }
    }

    #[test]
    fn conclusions_are_drawn_four_times_a_turnover() {
        let mut bench = Bench::new(Adaptive::new(), 1024);
        for turn in 0..40 {
            let octave = 2 + turn % 2 * 5;
            bench.policy.learned.first_gaps = [0; 16];
            bench.policy.learned.first_gaps[octave] = 64;
            pass(&mut bench, 255);
            assert_ne!(usize::from(bench.policy.learned.first_gap), octave);
            pass(&mut bench, 1);
            assert_eq!(usize::from(bench.policy.learned.first_gap), octave);
        }
    }

    #[test]
    fn the_gap_is_the_running_mean_of_a_third_each_and_no_longer_than_that_of_what_is_behind() {
        let mut bench = Bench::new(Adaptive::new(), 512);
        store(&mut bench, &[0]);
        bench.idle(&[0]);
        // (2 × 512 + 4096) / 3 is 3.3 turnovers, and (2 × 2048 + 128) / 3 is 2.75.
        for (uses, age, octave) in [(2, 512, 6), (3, 4096, 8), (4, 128, 7)] {
            pass(&mut bench, age - 1);
            bench.revive(0);
            bench.idle(&[0]);
            assert_eq!((record(&bench, 0).uses(), record(&bench, 0).gap()), (uses, octave));
        }
        // Only the first was a first one.
        let first = bench.policy.learned.first_gaps;
        assert_eq!((first[6], first.iter().sum::<u32>()), (1, 1));

        bench.request();
        store_chain(&mut bench, Some(0), 1..2);
        let behind = &mut bench.policy.records[1];
        behind.set_state(State::Restored);
        behind.set_uses(5);
        behind.set_gap(5);
        behind.set_since(bench.policy.clock.now.wrapping_sub(256));
        bench.revive(0);
        bench.idle(&[1, 0]);
        assert_eq!((record(&bench, 1).gap(), record(&bench, 0).gap()), (5, 5));
    }

    #[test]
    fn uses_are_counted_up_to_31() {
        let mut bench = Bench::new(Adaptive::new(), 64);
        store(&mut bench, &[0]);
        for uses in 1..40 {
            bench.idle(&[0]);
            assert_eq!(record(&bench, 0).uses(), uses.min(31));
            bench.revive(0);
        }
    }
}
