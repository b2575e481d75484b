//! From logical to physical: the block table of a sequence.
//!
//! Floor 2. The table owns one reference to each of its blocks. Position p lies in entry p / `block_size`.

use alloc::vec::Vec;

use crate::block::{BlockAllocator, BlockRef};
use crate::id::{BlockId, Slot, ix, len32};

/// The blocks of one sequence, first position first.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<BlockRef>,
    /// Leading entries that are as when a step last named the sequence.
    unchanged: u32,
}

impl BlockTable {
    /// A table without blocks.
    pub const fn new() -> Self {
        Self { blocks: Vec::new(), unchanged: 0 }
    }

    /// Number of blocks.
    #[inline]
    pub fn len(&self) -> u32 {
        len32(self.blocks.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block at an index of the table.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&BlockRef> {
        self.blocks.get(ix(index))
    }

    /// The blocks in order.
    #[inline]
    pub fn ids(&self) -> impl ExactSizeIterator<Item = BlockId> + DoubleEndedIterator + '_ {
        self.blocks.iter().map(BlockRef::id)
    }

    /// Writes the blocks to a place that has room for just them.
    #[inline]
    pub(crate) fn copy_ids(&self, to: &mut [BlockId]) {
        debug_assert_eq!(to.len(), self.blocks.len());
        copy_ids(&self.blocks, to);
    }

    /// The blocks from an index on.
    #[inline]
    pub(crate) fn ids_from(&self, index: u32) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.get(ix(index)..).unwrap_or(&[]).iter().map(BlockRef::id)
    }

    /// Where the token at `position` lies; `None` beyond the table.
    ///
    /// # Example
    /// With blocks of 16, token 40 lies in the third block of its sequence, at offset 8.
    /// ```
    /// use paged_kv::block::{BlockAllocator, BlockPool};
    /// use paged_kv::table::BlockTable;
    ///
    /// let mut pool = BlockPool::new(8)?;
    /// let mut table = BlockTable::new();
    /// for _ in 0..3 {
    ///     table.push(pool.alloc().unwrap());
    /// }
    /// let slot = table.slot(40, 16).unwrap();
    /// assert_eq!((slot.block(16), slot.offset(16)), (table.get(2).unwrap().id(), 8));
    /// assert_eq!(table.slot(48, 16), None);
    /// # table.release_all(&mut pool);
    /// # Ok::<(), paged_kv::error::ConfigError>(())
    /// ```
    pub fn slot(&self, position: u32, block_size: u32) -> Option<Slot> {
        let block = self.get(position.checked_div(block_size)?)?;
        Some(block.id().slot(position % block_size, block_size))
    }

    /// Appends a block.
    pub fn push(&mut self, block: BlockRef) {
        self.blocks.push(block);
    }

    /// Takes the last block off.
    pub fn pop(&mut self) -> Option<BlockRef> {
        let block = self.blocks.pop();
        self.unchanged = self.unchanged.min(self.len());
        block
    }

    /// Takes the blocks from `len` on off, the last one first. Whoever calls this takes all of them.
    #[inline]
    pub(crate) fn cut(&mut self, len: u32) -> impl Iterator<Item = BlockRef> + '_ {
        self.unchanged = self.unchanged.min(len);
        let from = ix(len).min(self.blocks.len());
        self.blocks.drain(from..).rev()
    }

    /// Puts another block in the place of one, which is returned; `Err(block)` where there is none.
    ///
    /// # Errors
    /// The block that was to be put, where `index` is not in the table.
    pub fn replace(&mut self, index: u32, block: BlockRef) -> Result<BlockRef, BlockRef> {
        match self.blocks.get_mut(ix(index)) {
            Some(place) => {
                self.unchanged = self.unchanged.min(index);
                Ok(core::mem::replace(place, block))
            }
            None => Err(block),
        }
    }

    /// Gives all blocks back, the last one first.
    pub fn release_all(&mut self, allocator: &mut impl BlockAllocator) {
        while let Some(block) = self.pop() {
            allocator.release(block);
        }
    }

    /// Takes note that a step names the table as it is, and returns how many leading entries are as in the last one.
    #[inline]
    pub(crate) fn take_unchanged(&mut self) -> u32 {
        core::mem::replace(&mut self.unchanged, len32(self.blocks.len()))
    }

    /// Forgets that a step named entries from `index` on.
    pub(crate) fn touch(&mut self, index: u32) {
        self.unchanged = self.unchanged.min(index);
    }

    /// Leading entries that are as when a step last named the sequence.
    pub(crate) fn unchanged(&self) -> u32 {
        self.unchanged
    }
}

/// A function of its own, since as such it is one call of `memcpy`: inlined, the compiler cannot know that the two do not
/// overlap, and copies a table of 32 blocks in four times as many instructions.
#[inline(never)]
fn copy_ids(from: &[BlockRef], to: &mut [BlockId]) {
    for (to, block) in to.iter_mut().zip(from) {
        *to = block.id();
    }
}
