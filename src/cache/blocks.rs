//! The pool and the prefix index as one: every block that changes hands keeps both in step.

use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::ops::Range;

use super::ages::Ages;
use crate::block::{BlockAllocator, BlockPool, BlockRef, Identity};
use crate::error::ConfigError;
use crate::evict::{Content, Evict};
use crate::id::{BlockId, BlockSize, TokenId, ix, len32};
use crate::prefix::Query;
use crate::prefix::index::{Key, OnIdle, Parent, PrefixIndex};
use crate::sequence::Sequence;

/// Blocks with their content's names.
#[derive(Clone, Debug)]
pub(super) struct Blocks<E> {
    pub(super) pool: BlockPool<E>,
    pub(super) index: PrefixIndex,
    pub(super) size: BlockSize,
    /// Blocks that lost their identity to an allocation, ever.
    pub(super) evictions: u64,
    /// When blocks were stored and let go, if anybody asked.
    pub(super) ages: Ages,
    /// What the policy named when a block below it went instead, and what that hung on. Only within a plan.
    descent: Option<(BlockId, BlockId)>,
    /// Scratch for what an invalidation takes names off.
    cleared: Vec<BlockId>,
}

/// The node that an identity of this cache names: its number, from 1.
#[inline]
fn node_named(identity: Identity) -> u32 {
    identity.get().get() - 1
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

impl Walk<'_> {
    /// The position that no hit may go beyond, the query's wish included.
    fn end(&self) -> u32 {
        self.query.max_hit.map_or(self.limit, |most| most.min(self.limit))
    }
}

/// A block that agrees with what follows a walk's whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) block: BlockId,
    /// Leading tokens of it that agree; at least one, fewer than all or all but for the limit.
    pub(super) len: u32,
}

impl<E: Evict> Blocks<E> {
    pub(super) fn new(config: &super::CacheConfig, policy: E) -> Result<Self, ConfigError> {
        let &super::CacheConfig { num_blocks, block_size, hash_seed, .. } = config;
        Ok(Self {
            pool: BlockPool::with_reserved(num_blocks, u32::from(config.scratch), config.withhold, policy)?,
            index: PrefixIndex::new(num_blocks, block_size, hash_seed)?,
            size: BlockSize::new(block_size),
            evictions: 0,
            ages: Ages::new(num_blocks, config.ages)?,
            descent: None,
            cleared: Vec::new(),
        })
    }

    /// The node that names a block's content.
    #[inline]
    pub(super) fn node_of(&self, block: BlockId) -> Option<u32> {
        self.pool.identity(block).map(node_named)
    }

    /// Before the first of a plan's allocations. While they last, nothing changes below a node but by what they evict.
    pub(super) fn begin_allocations(&mut self) {
        self.descent = None;
    }

    /// Takes a block for new content.
    #[inline]
    pub(super) fn allocate(&mut self) -> Option<BlockRef> {
        if let Some(block) = self.pool.take_blank() {
            return Some(block);
        }
        let mut victim = self.pool.victim()?;
        let mut node = self.node_of(victim)?;
        #[cfg(test)]
        let parent_first = crate::planted::is(crate::planted::Bug::ParentFirst);
        #[cfg(not(test))]
        let parent_first = false;
        if self.index.has_children(node) && !parent_first {
            victim = self.last_below(victim)?;
            node = self.node_of(victim)?;
            if self.index.has_children(node) && self.index.is_only(node, victim) && !self.index.is_promised(node) {
                // What is withheld below will not be found any more.
                self.clear_below(Parent::Node(node));
            }
        }
        let block = self.pool.evict(victim);
        self.evictions += 1;
        self.ages.evicted(victim);
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::IdentitySurvivesReuse) {
            return Some(block);
        }
        self.index.vacate(node, victim, &mut self.pool.links);
        Some(block)
    }

    /// What goes for a block on which others build: a child goes before its parent, whatever the policy says. A policy
    /// that names the head of a long chain names it again and again, so the way down is not begun anew each time.
    #[cold]
    fn last_below(&mut self, named: BlockId) -> Option<BlockId> {
        let known = self.descent.filter(|&(above, at)| above == named && self.pool.is_candidate(at));
        let from = known.map_or(named, |known| known.1);
        let below = self.index.last_below(self.node_of(from)?, |block| self.pool.is_candidate(block));
        let victim = below.unwrap_or(from);
        self.descent = match self.index.parent(self.node_of(victim)?) {
            Parent::Node(parent) if victim != named => self.index.entry(parent).map(|at| (named, at)),
            _ => None,
        };
        Some(victim)
    }

    /// Names a block: it has the content of `node` once `step` commits (0: it has it now).
    #[inline]
    pub(super) fn publish(&mut self, node: u32, block: BlockId, step: u64) {
        self.index.fill(node, block, step, &mut self.pool.links);
        self.pool.identify(block, NonZeroU32::new(node + 1).map(Identity::new));
        if step == 0 {
            self.stored(node, block);
        }
    }

    /// A block has the content of its node from now on.
    #[inline]
    pub(super) fn set_computed(&mut self, block: BlockId) {
        if let Some(node) = self.node_of(block) {
            self.index.set_computed(node, block, &mut self.pool.links);
            self.stored(node, block);
        }
    }

    #[inline]
    fn stored(&mut self, node: u32, block: BlockId) {
        self.ages.stored(block);
        if !self.pool.policy().wants_content() {
            return;
        }
        let (parent, scope) = match self.index.parent(node) {
            Parent::Scope(scope) => (None, Some(&**self.index.scopes.get(scope))),
            Parent::Node(parent) => (self.index.entry(parent), None),
        };
        let content = Content { scope, parent, tokens: self.index.tokens(node), extras: self.index.extras(node) };
        self.pool.policy_mut().stored(block, &content);
    }

    /// Takes a block's name away, if it has one. What builds on it cannot be found any more, and loses its name too.
    pub(super) fn unpublish(&mut self, block: BlockId) {
        let Some(node) = self.node_of(block) else { return };
        if !self.index.is_only(node, block) || !self.index.has_children(node) {
            self.index.vacate(node, block, &mut self.pool.links);
            self.pool.forget(block);
        } else {
            self.clear(node);
        }
    }

    /// Takes the names off all blocks of a node and of what hangs below it; returns how many there were.
    pub(super) fn clear(&mut self, node: u32) -> u32 {
        self.index.clear(node, &mut self.pool.links, &mut self.cleared);
        let mut count = 0;
        while let Some(block) = self.cleared.pop() {
            self.pool.forget(block);
            count += 1;
        }
        count
    }

    /// Takes the names off all that follows a parent; returns how many there were.
    pub(super) fn clear_below(&mut self, parent: Parent) -> u32 {
        let mut count = 0;
        while let Some(child) = self.index.first_child(parent) {
            count += self.clear(child);
        }
        count
    }

    /// Tells the policy how a sequence wants a block of its table kept, if it said so. What nobody can find is not kept.
    pub(super) fn retain(&mut self, seq: &Sequence, index: u32) {
        let Some(retention) = seq.retention_of(index, self.size.tokens()) else { return };
        let block = seq.table.get(index).map(BlockRef::id);
        if let Some(block) = block.filter(|&block| self.node_of(block).is_some()) {
            self.pool.policy_mut().retain(block, retention);
        }
    }

    /// Gives a reference back; `true` where the block can be allocated now.
    #[inline]
    pub(super) fn release(&mut self, block: BlockRef, fence: u64) -> bool {
        let id = block.id();
        if self.pool.refs(id) == 1
            && let Some(node) = self.node_of(id)
        {
            if !self.index.is_alone(id) {
                self.release_name(node, id);
            }
            self.ages.idle(id);
        }
        self.pool.release_after(block, fence)
    }

    /// Before the last reference to a block goes that is not the only one of its node.
    #[cold]
    fn release_name(&mut self, node: u32, block: BlockId) {
        if !self.index.is_computed(block) && self.index.is_only(node, block) {
            // Content may be computed before what it builds on, and that be given up.
            self.clear_below(Parent::Node(node));
        }
        let Self { pool, index, .. } = self;
        let mut links = core::mem::take(&mut pool.links);
        let fate = index.on_idle(node, block, &mut links, |entry| pool.refs(entry) == 0);
        pool.links = links;
        match fate {
            OnIdle::Keep => {}
            OnIdle::Forget => pool.identify(block, None),
            OnIdle::Replace(entry) => pool.forget(entry),
        }
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

    /// Whether open steps compute a node's content, and nobody has it yet.
    fn is_coming(&self, node: u32) -> bool {
        self.index.entry(node).is_some_and(|block| !self.index.is_computed(block))
    }

    /// Appends the nodes that a walk finds and `visible` accepts, in order, up to the limit. Returns how many of them
    /// make the longest hit that ends where the query lets one end: the caller drops the rest. Changes nothing else.
    #[inline]
    pub(super) fn walk(&self, walk: &Walk<'_>, nodes: &mut impl Extend<u32>, visible: impl Fn(u32) -> bool) -> usize {
        if walk.query.private {
            return 0;
        }
        let size = self.size.tokens();
        let most = walk.end().saturating_sub(walk.start) / size;
        let (mut parent, mut found, mut accepted) = (walk.parent, 0, 0);
        for tokens in walk.tokens.chunks_exact(ix(size)).take(ix(most)) {
            let range: Range<u32> = walk.start + found * size..walk.start + (found + 1) * size;
            let end = range.end;
            let Some(node) = self.index.find(parent, &Key { tokens, extras: walk.query.overlapping(range) }) else {
                break;
            };
            if !visible(node) {
                break;
            }
            parent = Parent::Node(node);
            found += 1;
            nodes.extend([node]);
            if walk.query.may_end(end) {
                accepted = found;
            }
        }
        ix(accepted)
    }

    /// Of the blocks that may follow `parent` at position `walk.start`, the one that agrees longest with the tokens
    /// there, cut to where the query lets a hit end. None if an open step computes the whole block: the plan will find
    /// that.
    pub(super) fn part(&self, walk: &Walk<'_>) -> Option<Part> {
        if walk.query.private {
            return None;
        }
        let size = self.size.tokens();
        let most = walk.end().checked_sub(walk.start).filter(|&most| most > 0)?.min(size);
        let range = walk.start..walk.start + size.min(len32(walk.tokens.len()));
        let tokens = walk.tokens.get(..ix(range.end - range.start))?;
        let key = Key { tokens, extras: walk.query.overlapping(range) };
        if most == size && self.index.find(walk.parent, &key).is_some_and(|node| self.is_coming(node)) {
            return None;
        }
        let (node, len) = self.index.best_part(walk.parent, &key, walk.start)?;
        let block = self.index.computed_entry(node)?;
        let len = (1..=len.min(most)).rev().find(|&len| walk.query.may_end(walk.start + len))?;
        #[cfg(test)]
        let len = if crate::planted::is(crate::planted::Bug::PartTooLong) { most.min(len + 1) } else { len };
        Some(Part { block, len })
    }
}
