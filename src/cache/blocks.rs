//! The pool and the prefix index as one: every block that changes hands keeps both in step.

use core::hash::BuildHasher;
use core::num::NonZeroU64;
use core::ops::Range;

use crate::block::{BlockAllocator, BlockPool, BlockRef, Identity};
use crate::error::ConfigError;
use crate::id::{BlockId, TokenId, ix};
use crate::prefix::Query;
use crate::prefix::index::{OnIdle, Parent, PrefixIndex};

/// Blocks with their content's names.
#[derive(Clone, Debug)]
pub(super) struct Blocks<S> {
    pub(super) pool: BlockPool,
    pub(super) index: PrefixIndex<S>,
    pub(super) block_size: u32,
    /// Blocks that lost their identity to an allocation, ever.
    pub(super) evictions: u64,
}

/// The node that an identity of this cache names: its number, from 1.
fn node_named(identity: Identity) -> Option<u32> {
    u32::try_from(identity.get().get() - 1).ok()
}

/// A walk down the index along the tokens of a prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk<'a> {
    pub(super) parent: Parent,
    /// Tokens from position `start`, a multiple of the block size, on.
    pub(super) tokens: &'a [TokenId],
    pub(super) start: u32,
    /// The position that no hit may go beyond.
    pub(super) limit: u32,
    pub(super) query: Query<'a>,
}

impl<S: BuildHasher> Blocks<S> {
    pub(super) fn new(num_blocks: u32, reserved: u32, block_size: u32, hasher: S) -> Result<Self, ConfigError> {
        Ok(Self {
            pool: BlockPool::with_reserved(num_blocks, reserved)?,
            index: PrefixIndex::new(num_blocks, block_size, hasher)?,
            block_size,
            evictions: 0,
        })
    }

    /// The node that names a block's content.
    pub(super) fn node_of(&self, block: BlockId) -> Option<u32> {
        self.pool.identity(block).and_then(node_named)
    }

    /// Takes a block for new content.
    pub(super) fn allocate(&mut self) -> Option<BlockRef> {
        let (block, lost) = self.pool.take()?;
        if let Some(node) = lost.and_then(node_named) {
            self.evictions += 1;
            #[cfg(test)]
            if crate::planted::is(crate::planted::Bug::IdentitySurvivesReuse) {
                return Some(block);
            }
            self.index.vacate(node, block.id());
        }
        Some(block)
    }

    /// Names a block: it has the content of `node` once `step` commits (0: it has it now).
    pub(super) fn publish(&mut self, node: u32, block: BlockId, step: u64) {
        self.index.fill(node, block, step);
        self.pool.identify(block, NonZeroU64::new(u64::from(node) + 1).map(Identity::new));
    }

    /// Takes a block's name away, if it has one.
    pub(super) fn unpublish(&mut self, block: BlockId) {
        if let Some(node) = self.node_of(block) {
            self.index.vacate(node, block);
            self.pool.identify(block, None);
        }
    }

    /// Gives a reference back; `true` where the block can be allocated now.
    pub(super) fn release(&mut self, block: BlockRef, fence: u64) -> bool {
        if self.pool.refs(block.id()) == 1 {
            if let Some(node) = self.node_of(block.id()) {
                let pool = &self.pool;
                match self.index.on_idle(node, block.id(), |entry| pool.refs(entry) == 0) {
                    OnIdle::Keep => {}
                    OnIdle::Forget => self.pool.identify(block.id(), None),
                    OnIdle::Replace(entry) => self.pool.forget(entry),
                }
            }
        }
        self.pool.release_after(block, fence)
    }

    /// Gives a reference back, of content that is not worth keeping: with the last reference the identity goes, unless
    /// other content builds on it.
    pub(super) fn discard(&mut self, block: BlockRef, fence: u64) {
        let id = block.id();
        if self.pool.refs(id) == 1 && self.node_of(id).is_some_and(|node| !self.index.has_children(node)) {
            self.unpublish(id);
        }
        self.release(block, fence);
    }

    /// Appends the nodes that a walk finds and `visible` accepts, in order, up to the limit. Returns how many of them
    /// make the longest hit that ends where the query lets one end: the caller drops the rest. Changes nothing else.
    pub(super) fn walk(&self, walk: &Walk<'_>, nodes: &mut impl Extend<u32>, visible: impl Fn(u32) -> bool) -> usize {
        if walk.query.private {
            return 0;
        }
        let (mut parent, mut found, mut accepted) = (walk.parent, 0, 0);
        let size = self.block_size;
        for tokens in walk.tokens.chunks_exact(ix(size)) {
            let range: Range<u32> = walk.start + found * size..walk.start + (found + 1) * size;
            if range.end > walk.limit || walk.query.max_hit.is_some_and(|most| range.end > most) {
                break;
            }
            let Some(node) = self.index.find(parent, tokens, walk.query.overlapping(range.clone())) else { break };
            if !visible(node) {
                break;
            }
            parent = Parent::Node(node);
            found += 1;
            nodes.extend([node]);
            if walk.query.may_end(range.end) {
                accepted = found;
            }
        }
        ix(accepted)
    }
}
