//! New sequences: what of a prompt is there already, whether the rest fits, and claims on what it will need.

use smallvec::SmallVec;

use super::KvCache;
use super::blocks::{Blocks, Part, Walk};
use super::commit::shrink;
use crate::block::BlockAllocator;
use crate::error::{CreateError, SequenceError, Shortfall};
use crate::evict::Evict;
use crate::id::{SeqId, TokenId, ix, len32};
use crate::prefix::index::Parent;
use crate::prefix::{Query, Scope};
use crate::sequence::{Claim, Sequence};

/// Nodes of a lookup: those of prompts of 512 tokens in blocks of 16 without an allocation.
pub(super) type Nodes = SmallVec<[u32; 32]>;

/// What [`KvCache::peek`] found of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Prefix {
    /// Leading tokens whose K and V are in the cache.
    pub cached_tokens: u32,
    /// Blocks that hold them and could be allocated now: a hit takes them off the blocks available.
    pub idle_blocks: u32,
}

/// What is found of a prompt: the nodes of whole blocks, and a part of the block behind them.
#[derive(Clone, Copy, Debug)]
struct Found {
    part: Option<Part>,
    /// Leading tokens found.
    tokens: u32,
}

/// A sequence that [`KvCache::create`] made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Created {
    /// Its handle.
    pub seq: SeqId,
    /// Leading tokens of the prompt whose K and V it has already. Plan the tokens behind these, and only these: what is
    /// planned is appended.
    pub cached_tokens: u32,
}

/// Whether something fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// It would succeed now.
    Now,
    /// Not now, but in an empty pool. Rows that do so one by one, and not all in one step, are here too: plan fewer.
    Later(Shortfall),
    /// Not even in an empty pool.
    Never,
}

impl<E: Evict> KvCache<E> {
    /// How much of a prompt is in the cache: for ordering a queue. Changes nothing, holds nothing: the answer may be
    /// stale at the next call.
    ///
    /// # Errors
    /// As [`create`](Self::create), for prompts that are wrong in themselves.
    ///
    /// # Complexity
    /// O(tokens found).
    pub fn peek(&self, scope: &Scope, tokens: &[TokenId], query: Query<'_>) -> Result<Prefix, CreateError> {
        self.check_prompt(tokens, &query)?;
        let Some(scope) = self.blocks.index.scopes.find(scope) else { return Ok(Prefix::default()) };
        let mut nodes = Nodes::new();
        let found = self.find(scope, tokens, query, &mut nodes);
        let blocks = nodes.iter().filter_map(|&node| self.blocks.index.entry(node));
        let blocks = blocks.chain(found.part.map(|part| part.block));
        Ok(Prefix {
            cached_tokens: found.tokens,
            idle_blocks: blocks.map(|block| u32::from(self.blocks.pool.is_idle(block))).sum(),
        })
    }

    /// A sequence for a prompt, which starts with what of the prompt is in the cache, and takes references on it. At
    /// least one token is left to compute. What the rest needs is taken when it is planned; see
    /// [`fits_prompt`](Self::fits_prompt) and [`reserve`](Self::reserve).
    ///
    /// A hit does not end at the border of a block: of the blocks that may follow, the one that agrees longest with the
    /// prompt is shared as far as it does, and copied by the plan that writes behind that. Where there is no block left
    /// to copy to, and nobody else holds it, the plan overwrites it; while somebody else does, the plan has to wait, and
    /// [`fits_prompt`](Self::fits_prompt) says so beforehand. Of blocks that agree in tokens and differ in extras, 64 are
    /// looked at.
    ///
    /// A hit never takes blocks that are reserved for others: it is then shorter.
    ///
    /// # Errors
    /// [`CreateError`]; then nothing changed. A prompt larger than the pool is refused at once.
    ///
    /// # Complexity
    /// O(tokens found), and O(n log n) for n ranges of retention.
    pub fn create(&mut self, scope: &Scope, tokens: &[TokenId], query: Query<'_>) -> Result<Created, CreateError> {
        self.check_prompt(tokens, &query)?;
        if !self.seqs.has_room(1) {
            return Err(CreateError::TooManySequences);
        }
        self.begin_request();
        let mut nodes = core::mem::take(&mut self.nodes);
        let scope = self.blocks.index.scopes.acquire(scope);
        let found = self.find(scope, tokens, query, &mut nodes);
        let mut sequence = self.seqs.fresh(scope, query.to_owned());
        self.adopt(&nodes, found.part, &mut sequence);
        nodes.clear();
        self.nodes = nodes;
        let cached_tokens = sequence.committed;
        let in_part = cached_tokens % self.config.block_size;
        sequence.tail.extend_from_slice(&tokens[ix(cached_tokens - in_part)..ix(cached_tokens)]);
        self.counters.prompt_tokens += tokens.len() as u64;
        self.counters.found_tokens += u64::from(cached_tokens);
        self.counters.part_tokens += u64::from(in_part);
        Ok(Created { seq: self.seqs.insert(sequence), cached_tokens })
    }

    /// Gives a new sequence the blocks of these nodes, and the part of a block behind them, as far as nobody has reserved
    /// what they take off the blocks available.
    pub(super) fn adopt(&mut self, nodes: &[u32], part: Option<Part>, sequence: &mut Sequence) {
        let block_size = self.config.block_size;
        let Blocks { pool, index, .. } = &mut self.blocks;
        let mut spare = pool.available() - self.reserved;
        let blocks = nodes.iter().filter_map(|&node| index.entry(node)).chain(part.map(|part| part.block));
        for block in blocks {
            let Some(left) = spare.checked_sub(u32::from(pool.is_idle(block))) else { break };
            pool.hold(block);
            sequence.table.push(pool.take_held(block));
            pool.policy_mut().reused(block);
            spare = left;
        }
        let len = sequence.table.len();
        let mut cached_tokens = len * block_size;
        if let Some(part) = part.filter(|_| ix(len) > nodes.len()) {
            cached_tokens -= block_size - part.len;
        } else if ix(len) < nodes.len() || part.is_some() {
            // Cut short by a reservation, a hit must still end where it may.
            let query = sequence.query();
            let end = (0..=len).rev().find(|&len| query.may_end(len * block_size)).unwrap_or(0);
            shrink(&mut self.blocks, sequence, end, 0);
            cached_tokens = end * block_size;
        }
        if sequence.query.is_some() {
            (0..sequence.table.len()).for_each(|index| self.blocks.retain(sequence, index));
        }
        (sequence.planned, sequence.committed) = (cached_tokens, cached_tokens);
        sequence.found = sequence.table.len();
    }

    /// A sequence without a prompt: for prompt embeddings, whose rows are planned by count.
    ///
    /// # Errors
    /// [`CreateError::TooManySequences`].
    pub fn create_blank(&mut self, scope: &Scope) -> Result<SeqId, CreateError> {
        if !self.seqs.has_room(1) {
            return Err(CreateError::TooManySequences);
        }
        let scope = self.blocks.index.scopes.acquire(scope);
        let sequence = self.seqs.fresh(scope, None);
        Ok(self.seqs.insert(sequence))
    }

    /// Whether a prompt and `extra` tokens behind it (a first block of the answer, say) would find room: whether
    /// [`create`](Self::create) and one [`plan`](Self::plan) of so many tokens would succeed, now, or in an empty pool.
    /// Blocks that open steps are computing count as found, as they do in a plan; the last block of a prompt that is a
    /// whole number of blocks does not, since a plan of the prompt alone computes it.
    ///
    /// # Errors
    /// As [`create`](Self::create), for prompts that are wrong in themselves; too large is [`Fit::Never`].
    ///
    /// # Complexity
    /// O(tokens found).
    pub fn fits_prompt(
        &self,
        scope: &Scope,
        tokens: &[TokenId],
        query: Query<'_>,
        extra: u32,
    ) -> Result<Fit, CreateError> {
        match self.check_prompt(tokens, &query) {
            Err(CreateError::NeverFits { .. }) => return Ok(Fit::Never),
            other => other?,
        };
        // A pool has at most 2^32 - 1 slots, so that a longer sequence never fits.
        let Some(len) = len32(tokens.len()).checked_add(extra) else { return Ok(Fit::Never) };
        let blocks = len.div_ceil(self.config.block_size);
        if blocks > self.capacity() {
            return Ok(Fit::Never);
        }
        let (mut nodes, mut created) = (Nodes::new(), Nodes::new());
        if let Some(scope) = self.blocks.index.scopes.find(scope) {
            let limit = len32(tokens.len()).saturating_sub(1);
            let there = |node| self.blocks.index.entry(node).is_some();
            let (_, hits) = self.walk_blocks(scope, tokens, query, limit, there, &mut nodes);
            self.find(scope, tokens, query, &mut created);
            // The creation may go further, where it ends within a block, and the plan, where open steps compute what it
            // finds.
            nodes.truncate(hits.max(created.len()));
        }
        let found = nodes.iter().filter_map(|&node| self.blocks.index.entry(node));
        let held: u32 = found.map(|block| u32::from(!self.blocks.pool.is_idle(block))).sum();
        match self.room(u64::from(blocks - held), 0, 0) {
            Ok(()) => Ok(Fit::Now),
            Err(shortfall) => Ok(Fit::Later(shortfall)),
        }
    }

    /// Claims the blocks that a sequence needs to reach a length of `tokens`: plans of others leave them alone, so
    /// that two half-prefilled prompts cannot starve each other. A later call replaces the claim; a length that the
    /// sequence has reached drops it. What a copy-on-write of a forked tail takes is not covered.
    ///
    /// # Errors
    /// [`SequenceError`]; then nothing changed.
    pub fn reserve(&mut self, seq: SeqId, tokens: u32) -> Result<(), SequenceError> {
        let capacity = self.blocks.pool.capacity();
        let target = tokens.div_ceil(self.config.block_size);
        let sequence = self.seqs.get(seq).ok_or(SequenceError::Unknown { seq })?;
        if target > capacity {
            return Err(SequenceError::NeverFits { blocks: target, capacity, group: Self::GROUP });
        }
        let before = sequence.claim.blocks;
        let blocks = target.saturating_sub(sequence.table.len());
        self.room(0, u64::from(before), u64::from(blocks)).map_err(|shortfall| Shortfall {
            needed: blocks,
            free: self.blocks.pool.available() - (self.reserved - before),
            ..shortfall
        })?;
        self.reserved = self.reserved - before + blocks;
        if let Some(sequence) = self.seqs.get_mut(seq) {
            // A length that is reached is not claimed again when the sequence is cut.
            let target = if tokens > sequence.committed { target } else { 0 };
            sequence.claim = Claim { target, blocks };
        }
        Ok(())
    }

    pub(super) fn check_prompt(&self, tokens: &[TokenId], query: &Query<'_>) -> Result<(), CreateError> {
        if tokens.is_empty() {
            return Err(CreateError::EmptyPrompt);
        }
        let too_long = CreateError::TooLong { tokens: tokens.len() };
        let len = u32::try_from(tokens.len()).map_err(|_| too_long)?;
        let (blocks, capacity) = (len.div_ceil(self.config.block_size), self.capacity());
        if blocks > capacity {
            return Err(CreateError::NeverFits { blocks, capacity, group: Self::GROUP });
        }
        query.check()
    }

    /// Finds what `create` would: the nodes of leading whole blocks, and a part of one block behind them.
    fn find(&self, scope: u32, tokens: &[TokenId], query: Query<'_>, nodes: &mut Nodes) -> Found {
        // At least one token is left to compute.
        let limit = len32(tokens.len()).saturating_sub(1);
        let computed = |node| self.blocks.index.computed_entry(node).is_some();
        let (walk, hits) = self.walk_blocks(scope, tokens, query, limit, computed, nodes);
        // Where no hit may end at the border of the last block that is there, one may behind it, or within it.
        for len in (hits..=nodes.len()).rev() {
            let start = len32(len) * self.config.block_size;
            let parent = len.checked_sub(1).map_or(walk.parent, |last| Parent::Node(nodes[last]));
            let tokens = walk.tokens.get(ix(start)..).unwrap_or(&[]);
            if let Some(part) = self.blocks.part(&Walk { parent, tokens, start, ..walk }) {
                nodes.truncate(len);
                return Found { part: Some(part), tokens: start + part.len };
            }
        }
        nodes.truncate(hits);
        Found { part: None, tokens: len32(hits) * self.config.block_size }
    }

    /// Finds the nodes of a prompt's leading whole blocks that `visible` accepts; returns how many make the longest hit that
    /// ends where one may.
    pub(super) fn walk_blocks<'a>(
        &self,
        scope: u32,
        tokens: &'a [TokenId],
        query: Query<'a>,
        limit: u32,
        visible: impl Fn(u32) -> bool,
        nodes: &mut Nodes,
    ) -> (Walk<'a>, usize) {
        let walk = Walk { parent: Parent::Scope(scope), tokens, start: 0, limit, query };
        let hits = self.blocks.walk(&walk, nodes, visible);
        (walk, hits)
    }
}
