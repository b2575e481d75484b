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
        if self.buckets.is_multiple_of(8) {
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
        if self.run.len.is_multiple_of(8) {
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
mod tests;
