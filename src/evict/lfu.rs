//! Least frequently used first, with ageing.

use alloc::vec::Vec;

use super::{Content, Evict};
use crate::error::ConfigError;
use crate::id::{BlockId, ix};
use crate::list::{Links, List};

/// Lists in the ring: one for every key from the age of the pool to [`MOST_USES`] above it.
const RING: usize = 64;
const MOST_USES: u8 = 63;

/// Evicts what was used least; what was used often once and never since ages.
///
/// A block that becomes idle gets the *key* `age + uses`, with uses counted from its storing and up to 63. The lowest key
/// goes first, of equal ones the one idle longest, and the age of the pool rises to each victim's key (LFU-DA). So a
/// block of `n` uses outlives `n - 1` generations of blocks used once, and no longer.
///
/// A parent was used no less than its children and became idle no earlier, at an age no lower: chains that are released
/// last block first are evicted last block first.
///
/// # Complexity
/// O(1): keys in use span less than 64, so they are a ring of lists with a bit mask of those that are not empty. 2 bytes
/// a block.
///
/// # Source
/// Arlitt et al., *Evaluating content management techniques for Web proxy caches* (1999).
#[derive(Clone, Debug)]
pub struct Lfu {
    blocks: Vec<Block>,
    lists: [List; RING],
    filled: u64,
    /// The age, modulo the ring.
    age: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    uses: u8,
    list: u8,
}

impl Default for Lfu {
    fn default() -> Self {
        Self::new()
    }
}

impl Lfu {
    /// The policy.
    pub const fn new() -> Self {
        Self { blocks: Vec::new(), lists: [List::new(); RING], filled: 0, age: 0 }
    }
}

impl Evict for Lfu {
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError> {
        self.blocks.try_reserve_exact(ix(num_blocks)).map_err(|_| ConfigError::OutOfMemory { num_blocks })?;
        self.blocks.resize(ix(num_blocks), Block::default());
        Ok(())
    }

    #[inline]
    fn stored(&mut self, block: BlockId, _content: &Content<'_>) {
        self.blocks[block.index()].uses = 1;
    }

    #[inline]
    fn reused(&mut self, block: BlockId) {
        let block = &mut self.blocks[block.index()];
        block.uses = (block.uses + 1).min(MOST_USES);
    }

    #[inline]
    fn idle(&mut self, links: &mut Links, id: BlockId) {
        let block = &mut self.blocks[id.index()];
        block.list = (self.age + block.uses) % 64;
        self.lists[usize::from(block.list)].push_back(links, id.get());
        self.filled |= 1 << block.list;
    }

    #[inline]
    fn remove(&mut self, links: &mut Links, id: BlockId) {
        let at = self.blocks[id.index()].list;
        let list = &mut self.lists[usize::from(at)];
        list.remove(links, id.get());
        self.filled &= !(u64::from(list.is_empty()) << at);
    }

    #[inline]
    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        if self.filled == 0 {
            return None;
        }
        // The mask turned so that the age is bit 0: its lowest bit is the lowest key. It becomes the age even if nobody
        // evicts the block that is named; then the next victim has this key too.
        let above = self.filled.rotate_right(u32::from(self.age)).trailing_zeros();
        self.age = (self.age + above.to_le_bytes()[0]) % 64;
        self.lists[usize::from(self.age)].front().map(BlockId::new)
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::{Bench, store};
    use super::*;

    #[test]
    fn fewer_uses_go_first_and_of_equal_uses_the_longest_idle() {
        let mut bench = Bench::new(Lfu::new(), 4);
        store(&mut bench, &[0, 1, 2, 3]);
        bench.idle(&[0, 1, 2, 3]);
        bench.revive(0);
        bench.idle(&[0]);
        bench.revive(2);
        bench.idle(&[2]);
        bench.revive(2);
        bench.idle(&[2]);
        // Uses 2, 1, 3, 1.
        assert_eq!(bench.drain(), [1, 3, 0, 2]);
    }

    #[test]
    fn what_was_used_often_ages() {
        let mut bench = Bench::new(Lfu::new(), 2);
        store(&mut bench, &[0, 1]);
        bench.idle(&[0]);
        bench.revive(0);
        bench.revive(0);
        bench.idle(&[0, 1]);
        // Key of 0: age 0 + 3 uses. Block 1 is stored and evicted at keys 1, 2 and 3; at 3 block 0 was idle first.
        for _ in 0..2 {
            assert_eq!(bench.evict(), Some(1));
            store(&mut bench, &[1]);
            bench.idle(&[1]);
        }
        assert_eq!(bench.evict(), Some(0));
    }

    #[test]
    fn uses_beyond_the_ring_are_not_counted() {
        let mut bench = Bench::new(Lfu::new(), 2);
        store(&mut bench, &[0, 1]);
        for _ in 0..200 {
            bench.revive(0);
        }
        bench.idle(&[0, 1]);
        assert_eq!(bench.drain(), [1, 0]);
    }
}
