//! Blocks: references to them, and who hands them out.
//!
//! Floor 1. A [`BlockRef`] is one unit of reference count. It cannot be cloned and does not release itself, so every
//! unit is handed on by value and given back once: releasing twice does not compile.
//! ```compile_fail,E0382
//! # use paged_kv::block::{BlockAllocator, BlockPool};
//! let mut pool = BlockPool::new(8).unwrap();
//! let block = pool.alloc().unwrap();
//! pool.release(block);
//! pool.release(block); // the value has moved
//! ```
//! ```compile_fail,E0599
//! # use paged_kv::block::{BlockAllocator, BlockPool};
//! let mut pool = BlockPool::new(8).unwrap();
//! let block = pool.alloc().unwrap();
//! let twice = block.clone(); // share(&block) counts the second reference
//! ```

mod pool;

use core::num::NonZeroU32;

use crate::id::BlockId;

pub use pool::BlockPool;
pub(crate) use pool::Displaced;

/// One unit of a block's reference count. Move-only: to have two, [`share`](BlockAllocator::share).
#[cfg_attr(test, derive(Clone))] // A simulation copies whole caches; nobody else can.
#[must_use = "a reference that is dropped keeps its block out of the pool for ever"]
#[derive(PartialEq, Eq, Debug)]
pub struct BlockRef(BlockId);

impl BlockRef {
    /// The block. An id alone gives no right to it.
    #[inline]
    pub const fn id(&self) -> BlockId {
        self.0
    }
}

/// What names the content of a sealed block: any number but zero. Two blocks with the same identity hold the same
/// content; who assigns identities sees to that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Identity(NonZeroU32);

impl Identity {
    /// The identity with this number.
    pub const fn new(number: NonZeroU32) -> Self {
        Self(number)
    }

    /// The number of this identity.
    pub const fn get(self) -> NonZeroU32 {
        self.0
    }
}

/// Who hands out blocks and counts references to them.
///
/// References of one allocator mean nothing to another; passing one is a bug that the counts then show, and never
/// undefined behaviour or a panic.
pub trait BlockAllocator {
    /// Blocks that this allocator manages.
    fn capacity(&self) -> u32;

    /// Blocks that [`alloc`](Self::alloc) could hand out now.
    fn available(&self) -> u32;

    /// Takes a block out of the pool, with one reference; `None` where none is left.
    fn alloc(&mut self) -> Option<BlockRef>;

    /// One more reference to the same block.
    fn share(&mut self, block: &BlockRef) -> BlockRef;

    /// Gives a reference back. With the last one the block becomes idle.
    fn release(&mut self, block: BlockRef);

    /// References to a block that are held now; 0 for an idle block and for one that does not exist.
    fn refs(&self, block: BlockId) -> u32;
}
