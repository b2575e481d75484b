//! How long blocks live and wait, by the caller's clock: books that are kept only where the configuration asks.

use alloc::vec::Vec;

use crate::error::ConfigError;
use crate::id::{BlockId, ix};

/// Sums over the blocks that were evicted; see [`Stats`](super::Stats).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Lives {
    pub(super) blocks: u64,
    pub(super) resident: u64,
    pub(super) idle: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Age {
    stored: u64,
    idle: u64,
}

/// Empty where nobody asked.
#[derive(Clone, Debug)]
pub(super) struct Ages {
    blocks: Vec<Age>,
    pub(super) now: u64,
    pub(super) lives: Lives,
}

impl Ages {
    pub(super) fn new(num_blocks: u32, kept: bool) -> Result<Self, ConfigError> {
        let mut blocks = Vec::new();
        if kept {
            blocks.try_reserve_exact(ix(num_blocks)).map_err(|_| ConfigError::OutOfMemory { num_blocks })?;
            blocks.resize(ix(num_blocks), Age::default());
        }
        Ok(Self { blocks, now: 0, lives: Lives::default() })
    }

    #[inline]
    pub(super) fn stored(&mut self, block: BlockId) {
        if let Some(age) = self.blocks.get_mut(block.index()) {
            *age = Age { stored: self.now, idle: self.now };
        }
    }

    #[inline]
    pub(super) fn idle(&mut self, block: BlockId) {
        if let Some(age) = self.blocks.get_mut(block.index()) {
            age.idle = self.now;
        }
    }

    #[inline]
    pub(super) fn evicted(&mut self, block: BlockId) {
        if let Some(age) = self.blocks.get(block.index()) {
            self.lives.blocks += 1;
            // A clock of nanoseconds that is set late makes lives of half a century: a few of them fill 64 bits.
            self.lives.resident = self.lives.resident.saturating_add(self.now - age.stored);
            self.lives.idle = self.lives.idle.saturating_add(self.now - age.idle);
        }
    }
}
