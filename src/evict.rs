//! Which idle block goes first.
//!
//! Floor 1. A block that nobody holds keeps its content until its memory is needed. When that is, an [`Evict`] policy
//! names the victim. It is told what the blocks hold, when they are found again, and when they come and go as
//! candidates; the cache keeps the laws: blocks without content are taken first, a block that is held or pinned is never
//! a candidate, and no block goes before what builds on it (a policy that names one gets its last descendant evicted
//! instead).
//!
//! The policies here are O(1) or O(log n) and allocate at construction only. They depend on nothing but the calls, so
//! that several ranks that make the same calls evict the same blocks.

mod adaptive;
mod ghost;
mod lfu;
mod lru;
mod priority;
mod s3fifo;
#[cfg(test)]
mod suite;

use alloc::boxed::Box;
use core::fmt::Debug;

use crate::error::ConfigError;
use crate::id::{BlockId, TokenId};
use crate::list::Links;
use crate::prefix::{Extra, Scope};

pub use crate::prefix::Retention;
pub use adaptive::Adaptive;
pub use lfu::Lfu;
pub use lru::Lru;
pub use priority::Priority;
pub use s3fifo::S3Fifo;

/// What a block came to hold.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Content<'a> {
    /// A block with the content in front of it; `None` for a first block.
    pub parent: Option<BlockId>,
    /// The scope, of a first block; that of the others is their parent's.
    pub scope: Option<&'a Scope>,
    /// Its tokens.
    pub tokens: &'a [TokenId],
    /// The extras that overlap it.
    pub extras: &'a [Extra],
}

/// Time, as a policy knows it. Neither runs backwards.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Now {
    /// Requests that began, ever.
    pub requests: u64,
    /// The caller's clock, in units of the caller's choice; 0 as long as it was not set.
    pub time: u64,
}

/// A policy: see the [module](self) for what it decides and what the cache sees to.
///
/// Between [`idle`](Self::idle) and [`remove`](Self::remove) a block is a *candidate*, and its place in the [`Links`] is
/// the policy's to thread [`List`](crate::list::List)s through. Blocks of one sequence become idle last block first.
pub trait Evict: Debug {
    /// Called once, before all else, with the number of blocks in the pool.
    ///
    /// # Errors
    /// [`ConfigError::OutOfMemory`] where the state of so many does not fit into memory.
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError>;

    /// Whether [`stored`](Self::stored) is of use to the policy. One that says no is never told, and spares the cache the
    /// way to the content.
    fn wants_content(&self) -> bool {
        true
    }

    /// Time has passed: a request begins, or the caller set the clock.
    fn tick(&mut self, _now: Now) {}

    /// A held block got content that others can find from now on.
    fn stored(&mut self, _block: BlockId, _content: &Content<'_>) {}

    /// A request found the content of a block, candidate or not, and takes a reference. Where an open step computes the
    /// content, this comes before [`stored`](Self::stored); and that never comes if the step is aborted.
    fn reused(&mut self, _block: BlockId) {}

    /// A request that stored or reused a block has said how to keep it.
    fn retain(&mut self, _block: BlockId, _retention: Retention) {}

    /// A block with content lost its last reference: it is a candidate now.
    fn idle(&mut self, links: &mut Links, block: BlockId);

    /// A candidate is none any more: it is held again, was given up, or is being evicted.
    fn remove(&mut self, links: &mut Links, block: BlockId);

    /// The candidate to evict next, which stays a candidate until it is removed; `None` exactly if there is none.
    fn victim(&mut self, links: &Links) -> Option<BlockId>;

    /// The block that was just removed loses its content to an allocation.
    fn evicted(&mut self, _block: BlockId) {}
}

impl<E: Evict + ?Sized> Evict for Box<E> {
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError> {
        (**self).start(num_blocks)
    }

    fn wants_content(&self) -> bool {
        (**self).wants_content()
    }

    fn tick(&mut self, now: Now) {
        (**self).tick(now);
    }

    fn stored(&mut self, block: BlockId, content: &Content<'_>) {
        (**self).stored(block, content);
    }

    fn reused(&mut self, block: BlockId) {
        (**self).reused(block);
    }

    fn retain(&mut self, block: BlockId, retention: Retention) {
        (**self).retain(block, retention);
    }

    fn idle(&mut self, links: &mut Links, block: BlockId) {
        (**self).idle(links, block);
    }

    fn remove(&mut self, links: &mut Links, block: BlockId) {
        (**self).remove(links, block);
    }

    fn victim(&mut self, links: &Links) -> Option<BlockId> {
        (**self).victim(links)
    }

    fn evicted(&mut self, block: BlockId) {
        (**self).evicted(block);
    }
}
