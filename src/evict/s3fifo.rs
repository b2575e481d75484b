//! Two queues: content used once must prove itself in a small one.

use alloc::vec::Vec;

use super::ghost::{Ghost, key_of};
use super::{Content, Evict};
use crate::error::ConfigError;
use crate::id::{BlockId, ix};
use crate::list::{Links, List};

/// Generations of the main queue in use at a time: of uses, 3 count beyond the first two.
const RING: usize = 4;
/// The list of the small queue, behind those of the main one.
const SMALL: u8 = 4;

/// S3-FIFO: what was used once waits in a *small* queue, a tenth of the pool; what was used again, or comes back soon
/// after it was evicted, in the *main* one.
///
/// While the small queue holds more than its tenth, its oldest block goes, and its key is remembered as long as about one
/// pool of further evictions takes; otherwise the main queue's. Scans and prompts that nobody repeats pass through the tenth.
///
/// Two things differ from the publication. A block that is found again leaves its queue because it is held, so the main
/// queue's second chances are generations counted beforehand: a block of `n` uses stands `min(n, 5) - 2` generations behind
/// the queue's front. SIEVE, which keeps what is found where it stands, has no such place at all and would be FIFO here. And
/// queues alone would break chains in the middle: a main block may have younger children in the small queue. The cache
/// then takes the last of those instead, which is what this policy wants, and so it relies on the cache for the law.
///
/// # Complexity
/// O(1). 6 bytes a block, and 4 for what it remembers.
///
/// # Source
/// Yang et al., *FIFO queues are all you need for cache eviction* (SOSP 2023).
#[derive(Clone, Debug)]
pub struct S3Fifo {
    blocks: Vec<Block>,
    /// The main queue's generations, and the small queue.
    lists: [List; RING + 1],
    /// The generation at the front, modulo the ring.
    front: u8,
    small_len: u32,
    ghost: Ghost<1, false>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    key: u32,
    uses: u8,
    list: u8,
}

impl Default for S3Fifo {
    fn default() -> Self {
        Self::new()
    }
}

impl S3Fifo {
    /// The policy.
    pub const fn new() -> Self {
        Self { blocks: Vec::new(), lists: [List::new(); RING + 1], front: 0, small_len: 0, ghost: Ghost::new() }
    }
}

impl Evict for S3Fifo {
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError> {
        self.blocks.try_reserve_exact(ix(num_blocks)).map_err(|_| ConfigError::OutOfMemory { num_blocks })?;
        self.blocks.resize(ix(num_blocks), Block::default());
        self.small_len = num_blocks / 10;
        self.ghost.start(num_blocks, 4)
    }

    #[inline]
    fn stored(&mut self, id: BlockId, content: &Content<'_>) {
        let key = key_of(content.parent.map(|parent| self.blocks[parent.index()].key), content.tokens);
        let uses = if self.ghost.take(key).is_some() { 2 } else { 1 };
        self.blocks[id.index()] = Block { key, uses, list: 0 };
    }

    #[inline]
    fn reused(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.index()];
        block.uses = (block.uses + 1).min(5);
    }

    #[inline]
    fn idle(&mut self, links: &mut Links, id: BlockId) {
        let block = &mut self.blocks[id.index()];
        block.list = if block.uses < 2 { SMALL } else { (self.front + block.uses - 2) % 4 };
        self.lists[usize::from(block.list)].push_back(links, id.get());
    }

    #[inline]
    fn remove(&mut self, links: &mut Links, id: BlockId) {
        self.lists[usize::from(self.blocks[id.index()].list)].remove(links, id.get());
    }

    #[inline]
    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        let small = &self.lists[usize::from(SMALL)];
        let main_is_empty = self.lists[..RING].iter().all(List::is_empty);
        if small.len() > self.small_len || main_is_empty {
            return small.front().map(BlockId::new);
        }
        while self.lists[usize::from(self.front)].is_empty() {
            self.front = (self.front + 1) % 4;
        }
        self.lists[usize::from(self.front)].front().map(BlockId::new)
    }

    #[inline]
    fn evicted(&mut self, id: BlockId) {
        let block = self.blocks[id.index()];
        if block.uses < 2 {
            self.ghost.put(block.key, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::{Bench, store};
    use super::*;

    #[test]
    fn what_was_used_once_goes_while_the_small_queue_has_more_than_its_tenth() {
        // A tenth of 20: two blocks.
        let mut bench = Bench::new(S3Fifo::new(), 20);
        store(&mut bench, &[0, 1, 2, 3, 4]);
        bench.idle(&[0, 1, 2, 3, 4]);
        bench.revive(0);
        bench.idle(&[0]);
        // Small: 1 2 3 4, main: 0. At two the small queue is small enough, and the main queue pays; then it is empty.
        assert_eq!(bench.drain(), [1, 2, 0, 3, 4]);
    }

    #[test]
    fn more_uses_are_more_second_chances_but_no_more_than_three() {
        let mut bench = Bench::new(S3Fifo::new(), 20);
        store(&mut bench, &[0, 1, 2]);
        for (block, uses) in [(0, 9), (1, 5), (2, 3)] {
            for _ in 1..uses {
                bench.revive(block);
            }
        }
        bench.idle(&[0, 1, 2]);
        assert_eq!(bench.drain(), [2, 0, 1]);
    }

    #[test]
    fn what_comes_back_soon_after_its_eviction_goes_to_the_main_queue() {
        let mut bench = Bench::new(S3Fifo::new(), 1);
        store(&mut bench, &[0]);
        bench.idle(&[0]);
        assert_eq!(bench.evict(), Some(0));
        store(&mut bench, &[0]);
        bench.idle(&[0]);
        assert!(!bench.policy.lists[0].is_empty());
    }

    #[test]
    fn what_the_main_queue_evicts_is_not_remembered() {
        let mut bench = Bench::new(S3Fifo::new(), 1);
        store(&mut bench, &[0]);
        bench.revive(0);
        bench.idle(&[0]);
        assert_eq!(bench.evict(), Some(0));
        store(&mut bench, &[0]);
        bench.idle(&[0]);
        assert_eq!(bench.policy.lists[usize::from(SMALL)].front(), Some(0));
    }
}
