//! The pool: reference counts, blank blocks, and the candidates of an eviction policy.
//!
//! Floor 1. An idle block keeps its content, and its identity if it has one, until it is taken. Blocks without identity
//! are *blank* and taken first, the last one in first; the others are the candidates of the policy. Invariants: a block
//! has references or stands on exactly one list, that of blank ones, the policy's, or that of withheld ones (between the
//! two halves of a plan it may be both); the scratch block is neither.

mod check;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::{BlockAllocator, BlockRef, Identity};
use crate::error::ConfigError;
use crate::evict::{Evict, Lru};
use crate::id::{BlockId, ix, len32};
use crate::list::{Links, List, NIL};

/// Eight bytes a block.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// References; the top bit tells that the block stands on a list.
    refs: u32,
    identity: Option<Identity>,
}

const LISTED: u32 = 1 << 31;

/// Sticky: a block shared so often is never released, rather than released too early.
const MOST_REFS: u32 = LISTED - 1;

impl Record {
    #[inline]
    const fn refs(&self) -> u32 {
        self.refs & MOST_REFS
    }

    #[inline]
    const fn is_listed(&self) -> bool {
        self.refs & LISTED != 0
    }
}

/// References that only wait for a commit to let go or an abort to take back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Displaced {
    count: u32,
    /// Leading slots that an abort may make those references rely on again.
    len: u32,
}

/// A pool of blocks; see [`BlockAllocator`] for its use. The policy `E` says which block with an identity is taken when
/// no blank one is left.
///
/// # Complexity
/// Every operation is O(1), but for what the policy costs, and allocates nothing, but for construction.
///
/// # Example
/// A prompt of 7 tokens in blocks of 4 takes two blocks, the ninth token a third. Here the pool is prepared so that
/// they are blocks 7, 1 and 3, as in the figure of the paper.
/// ```
/// use paged_kv::block::{BlockAllocator, BlockPool};
///
/// let mut pool = BlockPool::new(8)?;
/// let mut all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
/// for wanted in [3, 1, 7] {
///     let at = all.iter().position(|block| block.id().get() == wanted).unwrap();
///     pool.release(all.remove(at)); // the last one in is the first one out
/// }
/// let table: Vec<u32> = (0..3).map(|_| pool.alloc().unwrap().id().get()).collect();
/// assert_eq!(table, [7, 1, 3]);
/// # Ok::<(), paged_kv::error::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockPool<E = Lru> {
    records: Vec<Record>,
    pub(crate) links: Links,
    blank: List,
    withheld: List,
    pub(crate) policy: E,
    capacity: u32,
    /// Blocks on the lists of blank ones and of the policy.
    available: u32,
    /// Blocks without references that have an identity.
    cached: u32,
    /// Blocks with more than one reference.
    shared: u32,
    displaced: HashMap<u32, Displaced, FixedState>,
    /// Per block the newest step that named it when a reference was released; empty without withholding.
    fences: Vec<u64>,
    retired: u64,
}

impl BlockPool {
    /// A pool of the blocks `0 .. num_blocks`, least recently used first.
    ///
    /// # Errors
    /// [`ConfigError`] for a pool without a block, or one too large for memory.
    pub fn new(num_blocks: u32) -> Result<Self, ConfigError> {
        Self::with_policy(num_blocks, Lru::new())
    }
}

impl<E: Evict> BlockPool<E> {
    /// A pool of the blocks `0 .. num_blocks` under a policy.
    ///
    /// The policy hears of blocks that come and go. What they hold is known to who names them: tell it through
    /// [`policy_mut`](Self::policy_mut) where the policy asks for that.
    ///
    /// # Errors
    /// [`ConfigError`] for a pool without a block, or one too large for memory.
    pub fn with_policy(num_blocks: u32, policy: E) -> Result<Self, ConfigError> {
        Self::with_reserved(num_blocks, 0, false, policy)
    }

    /// A pool of the blocks `reserved .. num_blocks`; those below are never handed out.
    pub(crate) fn with_reserved(
        num_blocks: u32,
        reserved: u32,
        withhold: bool,
        mut policy: E,
    ) -> Result<Self, ConfigError> {
        if num_blocks <= reserved || num_blocks == NIL {
            return Err(ConfigError::NoUsableBlock { num_blocks });
        }
        let no_memory = ConfigError::OutOfMemory { num_blocks };
        let mut records = Vec::new();
        records.try_reserve_exact(ix(num_blocks)).map_err(|_| no_memory)?;
        records.resize(ix(num_blocks), Record { refs: 0, identity: None });
        let mut fences = Vec::new();
        if withhold {
            fences.try_reserve_exact(ix(num_blocks)).map_err(|_| no_memory)?;
            fences.resize(ix(num_blocks), 0);
        }
        policy.start(num_blocks)?;
        let mut pool = Self {
            records,
            links: Links::new(num_blocks).ok_or(no_memory)?,
            blank: List::new(),
            withheld: List::new(),
            policy,
            capacity: num_blocks - reserved,
            available: num_blocks - reserved,
            cached: 0,
            shared: 0,
            displaced: HashMap::default(),
            fences,
            retired: 0,
        };
        for id in reserved..num_blocks {
            pool.records[ix(id)].refs = LISTED;
            pool.blank.push_back(&mut pool.links, id);
        }
        Ok(pool)
    }

    /// The policy.
    pub fn policy(&self) -> &E {
        &self.policy
    }

    /// The policy, to be told what blocks hold.
    pub fn policy_mut(&mut self) -> &mut E {
        &mut self.policy
    }

    /// Takes a block, with one reference: a blank one, or else the policy's victim. Also gives the identity that the
    /// block had and, by this, has lost: whoever keeps an index of identities must drop that entry.
    pub fn take(&mut self) -> Option<(BlockRef, Option<Identity>)> {
        if let Some(block) = self.take_blank() {
            return Some((block, None));
        }
        let victim = self.victim()?;
        let lost = self.identity(victim);
        Some((self.evict(victim), lost))
    }

    /// Takes a blank block.
    #[inline]
    pub(crate) fn take_blank(&mut self) -> Option<BlockRef> {
        let id = self.blank.front()?;
        debug_assert_eq!(self.records[ix(id)].refs(), 0, "a block without identity is found by nobody");
        self.blank.remove(&mut self.links, id);
        self.records[ix(id)].refs = 1;
        self.available -= 1;
        Some(BlockRef(BlockId::new(id)))
    }

    /// The candidate that the policy would evict.
    #[inline]
    pub(crate) fn victim(&mut self) -> Option<BlockId> {
        match self.policy.victim(&self.links) {
            Some(block) if self.is_candidate(block) => Some(block),
            _ => self.any_candidate(),
        }
    }

    /// What stands in for a policy that names a block which is no candidate, or none though there are some: a wrong
    /// policy may cost hits, but neither a held block nor a plan.
    #[cold]
    fn any_candidate(&self) -> Option<BlockId> {
        if self.available == self.blank.len() {
            return None;
        }
        (0..len32(self.records.len())).map(BlockId::new).find(|&block| self.is_candidate(block))
    }

    /// Whether the block is on the policy's list, and held by nobody.
    #[inline]
    pub(crate) fn is_candidate(&self, block: BlockId) -> bool {
        self.records.get(block.index()).is_some_and(|record| record.refs == LISTED && record.identity.is_some())
            && !self.is_fenced(block)
    }

    /// Takes a candidate, whose identity goes.
    #[inline]
    pub(crate) fn evict(&mut self, block: BlockId) -> BlockRef {
        self.policy.remove(&mut self.links, block);
        self.policy.evicted(block);
        self.records[block.index()] = Record { refs: 1, identity: None };
        self.available -= 1;
        self.cached -= 1;
        BlockRef(block)
    }

    /// The way back from an id: one more reference, if the block still has this identity. O(1) for idle blocks too.
    pub fn revive(&mut self, block: BlockId, identity: Identity) -> Option<BlockRef> {
        if self.identity(block) != Some(identity) {
            return None;
        }
        self.hold(block);
        Some(self.take_held(block))
    }

    /// The identity of a block.
    #[inline]
    pub fn identity(&self, block: BlockId) -> Option<Identity> {
        self.records.get(block.index())?.identity
    }

    /// Seals a block under an identity, or takes its identity away.
    pub fn set_identity(&mut self, block: &BlockRef, identity: Option<Identity>) {
        // An idle block here is one that the reference is not of: it comes from another pool.
        if self.refs(block.id()) > 0 {
            self.identify(block.id(), identity);
        }
    }

    /// [`set_identity`](Self::set_identity) of a block that is held.
    pub(crate) fn identify(&mut self, block: BlockId, identity: Option<Identity>) {
        if let Some(record) = self.records.get_mut(block.index()) {
            record.identity = identity;
        }
    }

    /// Blocks that are withheld from [`take`](Self::take) until a step is retired.
    pub fn pending(&self) -> u32 {
        self.withheld.len()
    }

    /// Idle blocks, withheld ones included, that have an identity.
    pub fn cached(&self) -> u32 {
        self.cached
    }

    /// Blocks with more than one reference.
    pub fn shared(&self) -> u32 {
        self.shared
    }

    /// Whether a step that named the block, when a former holder let go of it, is still to retire.
    #[inline]
    fn is_fenced(&self, block: BlockId) -> bool {
        self.fences.get(block.index()).is_some_and(|&fence| fence > self.retired)
    }

    /// Whether a holder is the only one, nobody finds the block, and nobody withholds it: as long as its holder hands it
    /// to no other, nobody but the holder can change that.
    #[inline]
    pub(crate) fn is_own(&self, block: BlockId) -> bool {
        let record = self.records.get(block.index());
        record.is_some_and(|record| record.refs() == 1 && record.identity.is_none()) && !self.is_fenced(block)
    }

    /// Whether a holder may write the block from `offset` on: it has no name under which others find it; no other holds
    /// it, but for those that wait for a commit, and these rely on nothing from there on; and no step that a former
    /// holder withholds it for is still to retire.
    #[inline]
    pub(crate) fn may_write(&self, block: BlockId, offset: u32) -> bool {
        let Some(record) = self.records.get(block.index()) else { return false };
        if record.identity.is_some() || self.is_fenced(block) {
            return false;
        }
        let refs = record.refs();
        refs == 1 || self.displaced_of(block).is_some_and(|gone| refs - gone.count == 1 && gone.len <= offset)
    }

    /// Whether nobody but its one holder stands against writing a block, if its content is given up.
    pub(crate) fn is_spendable(&self, block: BlockId) -> bool {
        self.identity(block).is_some() && self.refs(block) == 1 && !self.is_fenced(block)
    }

    #[inline]
    fn displaced_of(&self, block: BlockId) -> Option<&Displaced> {
        if self.displaced.is_empty() { None } else { self.displaced.get(&block.get()) }
    }

    /// Marks one of a block's references as displaced by a copy-on-write, of a holder that may come back to `len` of
    /// its slots. Returns what [`undo_displace`](Self::undo_displace) wants.
    pub(crate) fn displace(&mut self, block: BlockId, len: u32) -> Displaced {
        let entry = self.displaced.entry(block.get()).or_default();
        let before = *entry;
        *entry = Displaced { count: before.count + 1, len: before.len.max(len) };
        before
    }

    /// Undoes [`displace`](Self::displace), newest first.
    pub(crate) fn undo_displace(&mut self, block: BlockId, before: Displaced) {
        if before.count == 0 {
            self.displaced.remove(&block.get());
        } else {
            self.displaced.insert(block.get(), before);
        }
    }

    /// A displaced reference is back, or about to be released. With several, the longest length stays until all are.
    pub(crate) fn end_displaced(&mut self, block: BlockId) {
        let Some(entry) = self.displaced.get_mut(&block.get()) else { return };
        entry.count -= 1;
        if entry.count == 0 {
            self.displaced.remove(&block.get());
        }
    }

    /// Whether the block is counted by [`available`](BlockAllocator::available).
    #[inline]
    pub(crate) fn is_idle(&self, block: BlockId) -> bool {
        self.records.get(block.index()).is_some_and(|record| record.refs == LISTED) && !self.is_fenced(block)
    }

    /// Counts one more reference and leaves the block on its list: the first half of a plan, which may be undone.
    #[inline]
    pub(crate) fn hold(&mut self, block: BlockId) {
        if let Some(record) = self.records.get_mut(block.index()) {
            let refs = record.refs();
            self.cached -= u32::from(refs == 0 && record.identity.is_some());
            self.shared += u32::from(refs == 1);
            record.refs += u32::from(refs < MOST_REFS);
        }
    }

    /// Undoes [`hold`](Self::hold), before [`take_held`](Self::take_held).
    pub(crate) fn unhold(&mut self, block: BlockId) {
        let record = &mut self.records[block.index()];
        record.refs -= 1;
        let refs = record.refs();
        self.shared -= u32::from(refs == 1);
        self.cached += u32::from(refs == 0 && record.identity.is_some());
    }

    /// Takes a held block off its list.
    #[inline]
    pub(crate) fn detach(&mut self, block: BlockId) {
        if self.records.get(block.index()).is_some_and(Record::is_listed) {
            self.unlist(block);
        }
    }

    fn unlist(&mut self, block: BlockId) {
        let fenced = self.is_fenced(block);
        let record = &mut self.records[block.index()];
        record.refs &= !LISTED;
        if fenced {
            return self.withheld.remove(&mut self.links, block.get());
        }
        self.available -= 1;
        match record.identity {
            Some(_) => self.policy.remove(&mut self.links, block),
            None => self.blank.remove(&mut self.links, block.get()),
        }
    }

    /// The reference that [`hold`](Self::hold) counted.
    #[inline]
    pub(crate) fn take_held(&mut self, block: BlockId) -> BlockRef {
        self.detach(block);
        BlockRef(block)
    }

    /// Gives a reference back, of a holder that step `fence` was the last to name. With the last reference the block
    /// becomes idle, or is withheld until `fence` is retired. Returns whether it can be taken now.
    #[inline]
    pub(crate) fn release_after(&mut self, block: BlockRef, fence: u64) -> bool {
        let id = block.id();
        let Some(record) = self.records.get_mut(id.index()) else { return false };
        let refs = record.refs();
        if refs == 0 || refs == MOST_REFS {
            return false;
        }
        record.refs -= 1;
        let fenced = match self.fences.get_mut(id.index()) {
            Some(newest) => {
                *newest = fence.max(*newest);
                *newest > self.retired
            }
            None => false,
        };
        if refs > 1 {
            self.shared -= u32::from(refs == 2);
            return false;
        }
        record.refs = LISTED;
        let named = record.identity.is_some();
        self.cached += u32::from(named);
        if fenced {
            self.withheld.push_back(&mut self.links, id.get());
            return false;
        }
        self.make_available(id, named);
        true
    }

    #[inline]
    fn make_available(&mut self, block: BlockId, named: bool) {
        self.available += 1;
        if named {
            self.policy.idle(&mut self.links, block);
        } else {
            self.blank.push_front(&mut self.links, block.get());
        }
    }

    /// Makes an idle block one that can be taken.
    #[inline]
    fn enlist(&mut self, block: BlockId) {
        let record = &mut self.records[block.index()];
        record.refs |= LISTED;
        let named = record.identity.is_some();
        self.make_available(block, named);
    }

    /// Takes the identity of a block away, so that it is the next to be taken if it is idle.
    pub(crate) fn forget(&mut self, block: BlockId) {
        let Some(&Record { refs, identity: Some(_) }) = self.records.get(block.index()) else { return };
        self.cached -= u32::from(refs & MOST_REFS == 0);
        if refs & LISTED == 0 || self.is_fenced(block) {
            self.records[block.index()].identity = None;
            return;
        }
        self.unlist(block);
        self.records[block.index()].identity = None;
        self.enlist(block);
    }

    /// Lets go of what was withheld for steps up to `step`.
    ///
    /// # Complexity
    /// O(blocks withheld).
    pub(crate) fn retire(&mut self, step: u64) {
        let mut id = self.withheld.head();
        while id != NIL {
            let (block, next) = (BlockId::new(id), List::after(&self.links, id));
            if self.fences[block.index()] <= step {
                self.withheld.remove(&mut self.links, id);
                self.enlist(block);
            }
            id = next;
        }
        self.retired = self.retired.max(step);
    }
}

impl<E: Evict> BlockAllocator for BlockPool<E> {
    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn available(&self) -> u32 {
        self.available
    }

    fn alloc(&mut self) -> Option<BlockRef> {
        self.take().map(|(block, _)| block)
    }

    fn share(&mut self, block: &BlockRef) -> BlockRef {
        // A reference of another pool must not hold a block that is idle in this one.
        if self.refs(block.id()) > 0 {
            self.hold(block.id());
        }
        BlockRef(block.id())
    }

    fn release(&mut self, block: BlockRef) {
        self.release_after(block, 0);
    }

    fn refs(&self, block: BlockId) -> u32 {
        self.records.get(block.index()).map_or(0, Record::refs)
    }
}
