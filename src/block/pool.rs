//! The pool: reference counts, and the queue of idle blocks.
//!
//! Floor 1. An idle block keeps its content, and its identity if it has one, until it is taken from the front of the
//! queue. Blocks without identity go to the front when they become idle, the others to the back: the queue is the
//! simplest eviction policy, least recently used first. Invariants: a block has references or stands on exactly one
//! list, idle or withheld (between the two halves of a plan it may be both); the scratch block is neither.

use alloc::vec::Vec;

use super::{BlockAllocator, BlockRef, Identity};
use crate::error::ConfigError;
use crate::id::{BlockId, ix};
use crate::list::{Links, List, NIL};

/// Where a block stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// On no list: held, or the scratch block.
    Out,
    /// On the queue of idle blocks.
    Idle,
    /// Idle, but named by a step that is not retired.
    Withheld,
}

#[derive(Clone, Debug)]
struct Record {
    refs: u32,
    /// Of these, references that only wait for a commit to let go or an abort to take back.
    displaced: u32,
    /// Leading slots that an abort may make those references rely on again.
    displaced_len: u32,
    place: Place,
    identity: Option<Identity>,
    /// The newest step that named this block when a reference was released.
    fence: u64,
}

/// A pool of blocks, idle ones queued by age; see [`BlockAllocator`] for its use.
///
/// # Complexity
/// Every operation is O(1) and allocates nothing, but for construction.
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
pub struct BlockPool {
    records: Vec<Record>,
    links: Links,
    idle: List,
    withheld: List,
    capacity: u32,
    /// Blocks without references that have an identity.
    cached: u32,
    /// Blocks with more than one reference.
    shared: u32,
    retired: u64,
}

impl BlockPool {
    /// A pool of the blocks `0 .. num_blocks`.
    ///
    /// # Errors
    /// [`ConfigError`] for a pool without a block, or one too large for memory.
    pub fn new(num_blocks: u32) -> Result<Self, ConfigError> {
        Self::with_reserved(num_blocks, 0)
    }

    /// A pool of the blocks `reserved .. num_blocks`; those below are never handed out.
    pub(crate) fn with_reserved(num_blocks: u32, reserved: u32) -> Result<Self, ConfigError> {
        if num_blocks <= reserved || num_blocks == NIL {
            return Err(ConfigError::NoUsableBlock { num_blocks });
        }
        let no_memory = ConfigError::OutOfMemory { num_blocks };
        let mut records = Vec::new();
        records.try_reserve_exact(ix(num_blocks)).map_err(|_| no_memory)?;
        let record = Record { refs: 0, displaced: 0, displaced_len: 0, place: Place::Out, identity: None, fence: 0 };
        records.resize(ix(num_blocks), record);
        let mut pool = Self {
            records,
            links: Links::new(num_blocks).ok_or(no_memory)?,
            idle: List::new(),
            withheld: List::new(),
            capacity: num_blocks - reserved,
            cached: 0,
            shared: 0,
            retired: 0,
        };
        for id in reserved..num_blocks {
            pool.records[ix(id)].place = Place::Idle;
            pool.idle.push_back(&mut pool.links, id);
        }
        Ok(pool)
    }

    /// Takes the first block of the queue, with one reference. Also gives the identity that the block had and, by
    /// this, has lost: whoever keeps an index of identities must drop that entry.
    pub fn take(&mut self) -> Option<(BlockRef, Option<Identity>)> {
        let id = self.idle.head();
        let record = self.records.get_mut(ix(id))?;
        debug_assert_eq!(record.refs, 0, "a block that was matched is taken off the queue before any is evicted");
        self.idle.remove(&mut self.links, id);
        record.refs = 1;
        record.place = Place::Out;
        let lost = record.identity.take();
        self.cached -= u32::from(lost.is_some());
        Some((BlockRef(BlockId::new(id)), lost))
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

    /// Whether a holder may write the block from `offset` on: no other holds it, but for those that wait for a commit,
    /// and these rely on nothing from there on; and no step that a former holder withholds it for is still to retire.
    #[inline]
    pub(crate) fn may_write(&self, block: BlockId, offset: u32) -> bool {
        let may = |record: &Record| {
            record.refs - record.displaced == 1 && record.displaced_len <= offset && record.fence <= self.retired
        };
        self.records.get(block.index()).is_some_and(may)
    }

    /// Marks one of a block's references as displaced by a copy-on-write, of a holder that may come back to `len` of
    /// its slots. Returns what [`undo_displace`](Self::undo_displace) wants.
    pub(crate) fn displace(&mut self, block: BlockId, len: u32) -> u32 {
        let record = &mut self.records[block.index()];
        record.displaced += 1;
        let before = record.displaced_len;
        record.displaced_len = before.max(len);
        before
    }

    /// Undoes [`displace`](Self::displace), newest first.
    pub(crate) fn undo_displace(&mut self, block: BlockId, before: u32) {
        let record = &mut self.records[block.index()];
        record.displaced -= 1;
        record.displaced_len = before;
    }

    /// A displaced reference is back, or about to be released. With several, the longest length stays until all are.
    pub(crate) fn end_displaced(&mut self, block: BlockId) {
        let record = &mut self.records[block.index()];
        record.displaced -= 1;
        if record.displaced == 0 {
            record.displaced_len = 0;
        }
    }

    /// Whether the block is on the queue, i.e. counted by [`available`](BlockAllocator::available).
    pub(crate) fn is_idle(&self, block: BlockId) -> bool {
        self.records.get(block.index()).is_some_and(|record| record.refs == 0 && record.place == Place::Idle)
    }

    /// Counts one more reference and leaves the block on its list: the first half of a plan, which may be undone.
    pub(crate) fn hold(&mut self, block: BlockId) {
        if let Some(record) = self.records.get_mut(block.index()) {
            self.cached -= u32::from(record.refs == 0 && record.identity.is_some());
            // Sticky at the top: a block shared 2^32 - 1 times is never released, rather than released too early.
            self.shared += u32::from(record.refs == 1);
            record.refs = record.refs.saturating_add(1);
        }
    }

    /// Undoes [`hold`](Self::hold), before [`take_held`](Self::take_held).
    pub(crate) fn unhold(&mut self, block: BlockId) {
        let record = &mut self.records[block.index()];
        record.refs -= 1;
        self.shared -= u32::from(record.refs == 1);
        self.cached += u32::from(record.refs == 0 && record.identity.is_some());
    }

    /// Takes a held block off its list.
    pub(crate) fn detach(&mut self, block: BlockId) {
        let Some(record) = self.records.get_mut(block.index()) else { return };
        match record.place {
            Place::Out => {}
            Place::Idle => self.idle.remove(&mut self.links, block.get()),
            Place::Withheld => self.withheld.remove(&mut self.links, block.get()),
        }
        record.place = Place::Out;
    }

    /// The reference that [`hold`](Self::hold) counted.
    pub(crate) fn take_held(&mut self, block: BlockId) -> BlockRef {
        self.detach(block);
        BlockRef(block)
    }

    /// Gives a reference back, of a holder that step `fence` was the last to name. With the last reference the block
    /// becomes idle, or is withheld until `fence` is retired. Returns whether it is on the queue now.
    pub(crate) fn release_after(&mut self, block: BlockRef, fence: u64) -> bool {
        let id = block.id();
        let Some(record) = self.records.get_mut(id.index()) else { return false };
        if record.refs == 0 || record.refs == u32::MAX {
            return false;
        }
        record.refs -= 1;
        record.fence = record.fence.max(fence);
        if record.refs > 0 {
            self.shared -= u32::from(record.refs == 1);
            return false;
        }
        self.cached += u32::from(record.identity.is_some());
        if record.fence > self.retired {
            record.place = Place::Withheld;
            self.withheld.push_back(&mut self.links, id.get());
            return false;
        }
        self.enqueue(id.get());
        true
    }

    /// Puts an idle block on the queue, at the end where its kind goes.
    fn enqueue(&mut self, id: u32) {
        let record = &mut self.records[ix(id)];
        record.place = Place::Idle;
        match record.identity {
            Some(_) => self.idle.push_back(&mut self.links, id),
            None => self.idle.push_front(&mut self.links, id),
        }
    }

    /// Takes the identity of an idle block away, so that it is the next to be taken.
    pub(crate) fn forget(&mut self, block: BlockId) {
        let record = &mut self.records[block.index()];
        self.cached -= u32::from(record.identity.take().is_some());
        if record.place == Place::Idle {
            self.idle.remove(&mut self.links, block.get());
            self.enqueue(block.get());
        }
    }

    /// Lets go of what was withheld for steps up to `step`.
    ///
    /// # Complexity
    /// O(blocks withheld).
    pub(crate) fn retire(&mut self, step: u64) {
        self.retired = self.retired.max(step);
        let mut id = self.withheld.head();
        while id != NIL {
            let next = List::after(&self.links, id);
            if self.records[ix(id)].fence <= self.retired {
                self.withheld.remove(&mut self.links, id);
                self.enqueue(id);
            }
            id = next;
        }
    }

    /// Checks the lists against the counts; `expected` gives references and displaced ones of each block.
    pub(crate) fn check(&self, expected: impl Fn(BlockId) -> (u32, u32)) -> Result<(), &'static str> {
        let mut on_list = alloc::vec![Place::Out; self.records.len()];
        for (list, place) in [(&self.idle, Place::Idle), (&self.withheld, Place::Withheld)] {
            let mut len = 0;
            for id in list.iter(&self.links) {
                if len == list.len() || on_list[ix(id)] != Place::Out {
                    return Err("a block is on two lists, or a list is longer than it says");
                }
                on_list[ix(id)] = place;
                len += 1;
            }
            if len != list.len() {
                return Err("a list is shorter than it says");
            }
        }
        let idle = self.records.iter().filter(|record| record.refs == 0);
        if idle.filter(|record| record.identity.is_some()).count() != ix(self.cached) {
            return Err("the number of cached blocks is wrong");
        }
        if self.records.iter().filter(|record| record.refs > 1).count() != ix(self.shared) {
            return Err("the number of shared blocks is wrong");
        }
        let first = self.records.len() - ix(self.capacity);
        for (index, record) in self.records.iter().enumerate() {
            let block = BlockId::new(crate::id::len32(index));
            if record.place != on_list[index] {
                return Err("a block is not where its record says");
            }
            if (record.refs, record.displaced) != expected(block) {
                return Err("a reference count is not the number of holders");
            }
            if record.displaced == 0 && record.displaced_len > 0 {
                return Err("a block waits for a holder that does not come back");
            }
            if index < first {
                if record.refs > 0 || record.place != Place::Out {
                    return Err("a reserved block is in use");
                }
            } else if (record.refs > 0) != (record.place == Place::Out) {
                return Err("a block is neither held nor idle, or both");
            }
        }
        Ok(())
    }

    /// Everything that a caller could tell apart, as numbers.
    #[cfg(test)]
    pub(crate) fn snapshot(&self, out: &mut Vec<u64>) {
        for record in &self.records {
            out.extend([u64::from(record.refs), u64::from(record.displaced), record.place as u64, record.fence]);
            out.extend([u64::from(record.displaced_len), u64::from(record.identity.is_some())]);
        }
        out.extend(self.idle.iter(&self.links).map(u64::from));
        out.push(u64::MAX);
        out.extend(self.withheld.iter(&self.links).map(u64::from));
        out.push(self.retired);
    }
}

impl BlockAllocator for BlockPool {
    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn available(&self) -> u32 {
        self.idle.len()
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
        self.records.get(block.index()).map_or(0, |record| record.refs)
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU64;

    use super::*;

    fn identity(number: u64) -> Identity {
        Identity::new(NonZeroU64::new(number).unwrap())
    }

    #[test]
    fn a_fresh_pool_hands_out_ascending_ids_and_then_nothing() {
        let mut pool = BlockPool::with_reserved(4, 1).unwrap();
        let blocks: Vec<_> = core::iter::from_fn(|| pool.alloc()).collect();
        assert!(blocks.iter().map(|block| block.id().get()).eq([1, 2, 3]));
        assert_eq!((pool.available(), pool.capacity()), (0, 3));
    }

    #[test]
    fn the_last_release_makes_a_block_idle_and_not_one_before() {
        let mut pool = BlockPool::new(2).unwrap();
        let first = pool.alloc().unwrap();
        let second = pool.share(&first);
        assert_eq!(pool.refs(first.id()), 2);
        pool.release(first);
        assert_eq!((pool.refs(second.id()), pool.available()), (1, 1));
        pool.release(second);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn blocks_with_identity_are_taken_last_and_in_order_of_release() {
        let mut pool = BlockPool::new(3).unwrap();
        let [a, b, c] = [(); 3].map(|()| pool.alloc().unwrap());
        pool.set_identity(&a, Some(identity(1)));
        pool.set_identity(&b, Some(identity(2)));
        let ids = [a.id(), b.id(), c.id()];
        for block in [b, a, c] {
            pool.release(block);
        }
        // c has no identity; then b, released before a.
        let (first, lost) = pool.take().unwrap();
        assert_eq!((first.id(), lost), (ids[2], None));
        let (second, lost) = pool.take().unwrap();
        assert_eq!((second.id(), lost), (ids[1], Some(identity(2))));
    }

    #[test]
    fn revive_wants_the_identity_that_the_block_still_has() {
        let mut pool = BlockPool::new(1).unwrap();
        let block = pool.alloc().unwrap();
        let id = block.id();
        pool.set_identity(&block, Some(identity(7)));
        pool.release(block);
        assert!(pool.revive(id, identity(8)).is_none());
        let block = pool.revive(id, identity(7)).unwrap();
        assert_eq!((pool.refs(id), pool.available()), (1, 0));
        pool.release(block);
        let (block, lost) = pool.take().unwrap();
        assert_eq!(lost, Some(identity(7)));
        assert!(pool.revive(id, identity(7)).is_none(), "the content is gone with the identity");
        pool.release(block);
    }

    #[test]
    fn withheld_blocks_come_back_when_their_step_is_retired() {
        let mut pool = BlockPool::new(2).unwrap();
        let [a, b] = [(); 2].map(|()| pool.alloc().unwrap());
        assert!(!pool.release_after(a, 2));
        assert!(!pool.release_after(b, 1));
        assert_eq!((pool.available(), pool.pending()), (0, 2));
        pool.retire(1);
        assert_eq!((pool.available(), pool.pending()), (1, 1));
        pool.retire(2);
        assert_eq!((pool.available(), pool.pending()), (2, 0));
    }

    #[test]
    fn a_reference_of_another_pool_neither_panics_nor_frees() {
        let mut large = BlockPool::new(9).unwrap();
        let blocks: Vec<_> = core::iter::from_fn(|| large.alloc()).collect();
        let mut small = BlockPool::new(2).unwrap();
        for block in blocks {
            small.release(block);
        }
        assert_eq!(small.available(), 2);
    }

    #[test]
    fn a_reference_of_another_pool_neither_names_nor_holds_an_idle_block() {
        let mut other = BlockPool::new(2).unwrap();
        let foreign = other.alloc().unwrap();
        let mut pool = BlockPool::new(2).unwrap();
        pool.set_identity(&foreign, Some(identity(1)));
        let shared = pool.share(&foreign);
        assert_eq!((pool.identity(foreign.id()), pool.refs(foreign.id())), (None, 0));
        let (block, lost) = pool.take().unwrap();
        assert_eq!((block.id(), lost), (foreign.id(), None));
        pool.release(shared);
        pool.release(block);
        assert_eq!((pool.available(), pool.cached()), (2, 0));
        pool.check(|_| (0, 0)).unwrap();
    }

    #[test]
    fn pools_without_a_block_or_beyond_memory_are_refused() {
        assert_eq!(BlockPool::new(0).unwrap_err(), ConfigError::NoUsableBlock { num_blocks: 0 });
        assert_eq!(BlockPool::with_reserved(1, 1).unwrap_err(), ConfigError::NoUsableBlock { num_blocks: 1 });
        assert!(BlockPool::new(u32::MAX).is_err());
    }
}
