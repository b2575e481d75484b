//! Least recently used first; of blocks that became idle together, the end of the chain first.

use super::Evict;
use crate::error::ConfigError;
use crate::id::BlockId;
use crate::list::{Links, List};

/// Evicts what has been idle longest. A sequence gives its blocks back last block first, so that the end of a chain goes
/// before its start.
///
/// # Complexity
/// O(1), and no memory beside the links.
#[derive(Clone, Debug, Default)]
pub struct Lru {
    queue: List,
}

impl Lru {
    /// The policy.
    pub const fn new() -> Self {
        Self { queue: List::new() }
    }
}

impl Evict for Lru {
    fn start(&mut self, _num_blocks: u32) -> Result<(), ConfigError> {
        Ok(())
    }

    #[inline]
    fn wants_content(&self) -> bool {
        false
    }

    #[inline]
    fn idle(&mut self, links: &mut Links, block: BlockId) {
        self.queue.push_back(links, block.get());
    }

    #[inline]
    fn remove(&mut self, links: &mut Links, block: BlockId) {
        self.queue.remove(links, block.get());
    }

    #[inline]
    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        self.queue.front().map(BlockId::new)
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::{Bench, store};
    use super::*;

    #[test]
    fn the_longest_idle_goes_first() {
        let mut bench = Bench::new(Lru::new(), 3);
        store(&mut bench, &[0, 1, 2]);
        bench.idle(&[2, 1, 0]);
        bench.revive(2);
        bench.idle(&[2]);
        assert_eq!(bench.drain(), [1, 0, 2]);
    }

    #[test]
    fn content_that_nobody_looks_at_is_not_asked_for() {
        assert!(!Lru::new().wants_content());
    }
}
