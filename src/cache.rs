//! The front that an engine holds: sequences, and steps over them.
//!
//! Floor 3. A step is planned, run and committed:
//! ```text
//! plan(rows, &mut Step)     all or nothing: copies, slots, tables, lengths, or why there is no room
//! run                       storage.prepare · copy_blocks · per layer: write_kv, attend      (the engine's stream)
//! commit(StepId, outcomes)  lengths become real; full blocks are sealed and named
//! abort(StepId)             the step, and every later one, never happened
//! ```
//! A step commits as soon as its work is *enqueued* on the stream that runs all later steps; several steps may be open,
//! and they commit in order. Full blocks of an open step are found by later rows and steps, which run behind it and are
//! aborted with it, and by nobody else before it commits: nobody is served content that was not computed.

mod ages;
mod blocks;
mod check;
mod commit;
mod create;
mod events;
mod fork;
mod handles;
mod invalidate;
mod pin;
mod plain;
mod plan;
mod view;

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

use crate::block::BlockAllocator;
use crate::error::{ConfigError, SequenceError};
use crate::evict::{Evict, Lru, Now};
use crate::id::{BlockId, GroupId, SeqId, StepId};
use crate::sequence::Sequence;
use blocks::Blocks;
use commit::OpenStep;
use create::Nodes;
use events::Sink;
use handles::Sequences;
use plan::Draft;

pub use check::IntegrityError;
pub use commit::Outcome;
pub use create::{Created, Fit, Prefix};
pub use fork::Release;
pub use invalidate::Invalidate;
pub use pin::{PinId, Pinned};
pub use plan::{Row, RowTokens};
pub use view::ViewRow;

/// The default number of tokens in a block.
pub const DEFAULT_BLOCK_SIZE: u32 = 16;

/// What a cache is made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CacheConfig {
    /// Blocks of the pool, as in the storage's layout; at most 2^29, and fewer than 2^32 slots.
    pub num_blocks: u32,
    /// Tokens of a block; at most 2^20.
    pub block_size: u32,
    /// Keep block 0 back as the block that padded rows write to. Costs one block of capacity; on by default.
    pub scratch: bool,
    /// Keep released blocks that a step names from being reused, or rewritten by who finds them again, until
    /// [`KvCache::retire`]. For engines whose later work does not all run on the stream of the step; off by default.
    /// What a sequence itself rewrites after a truncation or a rollback is not kept from its own older steps.
    pub withhold: bool,
    /// Keep books on how long blocks live and wait, by the clock of [`KvCache::set_time`]; 16 bytes a block. Off by
    /// default.
    pub ages: bool,
    /// Seed of the hash that finds scopes. Results do not depend on it.
    pub hash_seed: u64,
}

impl CacheConfig {
    /// A cache of `num_blocks` blocks of `block_size` tokens. One of them is kept back as the scratch block: see
    /// [`with_scratch`](Self::with_scratch).
    pub const fn new(num_blocks: u32, block_size: u32) -> Self {
        Self { num_blocks, block_size, scratch: true, withhold: false, ages: false, hash_seed: 0 }
    }

    /// With or without a scratch block. Without padded rows none is needed, and all blocks are for sequences.
    pub const fn with_scratch(self, scratch: bool) -> Self {
        Self { scratch, ..self }
    }

    /// With or without withholding.
    pub const fn with_withhold(self, withhold: bool) -> Self {
        Self { withhold, ..self }
    }

    /// The fence to release the blocks behind of a sequence that `step` is the newest to name.
    fn fence(&self, step: u64) -> u64 {
        if self.withhold { step } else { 0 }
    }

    /// With or without books on the ages of blocks.
    pub const fn with_ages(self, ages: bool) -> Self {
        Self { ages, ..self }
    }

    /// With a seed for the hash of scopes: a secret one keeps tenants from provoking collisions, which would cost time.
    pub const fn with_hash_seed(self, hash_seed: u64) -> Self {
        Self { hash_seed, ..self }
    }
}

/// Counts of a cache, now and since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks that sequences can use: those of the pool, less the scratch block.
    pub capacity: u32,
    /// Blocks that could be allocated now: free and cached ones.
    pub available: u32,
    /// Of these and of the pending ones, blocks whose content is kept for reuse.
    pub cached: u32,
    /// Blocks that come back at a [`retire`](KvCache::retire).
    pub pending: u32,
    /// Blocks that sequences and pins hold.
    pub held: u32,
    /// Of these, blocks with more than one reference.
    pub shared: u32,
    /// Blocks that are reserved for sequences and not taken yet.
    pub reserved: u32,
    /// Living sequences.
    pub sequences: u32,
    /// Living pins.
    pub pins: u32,
    /// Steps planned and neither committed nor aborted.
    pub open_steps: u32,
    /// Tokens of all prompts that were looked up, ever.
    pub prompt_tokens: u64,
    /// Tokens that were found and not computed again, ever: the sum of `found_tokens` and `skipped_tokens`.
    pub hit_tokens: u64,
    /// Of these, tokens found at `create`.
    pub found_tokens: u64,
    /// Of the tokens found, those in a block of which only a part was reused.
    pub part_tokens: u64,
    /// Tokens that rows skipped, since a plan found them, or a row before computed them; those of steps that were aborted
    /// included.
    pub skipped_tokens: u64,
    /// Copies planned, ever.
    pub copies: u64,
    /// Blocks whose content was lost to an allocation, ever: cached ones, and those that a hit shared in part and
    /// overwrote, since there was no other left to copy to.
    pub evictions: u64,
    /// Sums over blocks evicted while [`CacheConfig::ages`] is on, in units of the caller's clock: time from when their
    /// content could be found to when it went. Divided by `aged_evictions` it is the mean life of content. It saturates.
    pub resident_time: u64,
    /// The same, from when the last holder let go.
    pub idle_time: u64,
    /// Blocks in these sums.
    pub aged_evictions: u64,
}

/// Counters that only grow.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    prompt_tokens: u64,
    found_tokens: u64,
    part_tokens: u64,
    skipped_tokens: u64,
    copies: u64,
}

/// A paged KV-cache: which sequence has its K and V where. It owns no tensor memory; see the [module](self) for the
/// life of a step and [the crate](crate) for the decode loop.
///
/// The policy `E` says which idle block loses its content when memory is needed.
#[cfg_attr(test, derive(Clone))]
pub struct KvCache<E = Lru> {
    config: CacheConfig,
    blocks: Blocks<E>,
    seqs: Sequences,
    pins: Sequences,
    sink: Sink,
    now: Now,
    /// Open steps, the oldest first.
    open: VecDeque<OpenStep>,
    /// Buffers of steps that are over.
    spare: Vec<OpenStep>,
    draft: Draft,
    /// Scratch for lookups.
    nodes: Nodes,
    next_step: u64,
    /// Counts plans that were tried, to find a sequence that stands in one twice.
    plans: u64,
    /// Sum of all claims, in blocks; never more than are available.
    reserved: u32,
    counters: Counters,
}

/// Counts and no tokens: prompts are nobody's business in a log.
impl<E: Evict> fmt::Debug for KvCache<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache").field("config", &self.config).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl KvCache {
    /// A cache without sequences, which evicts by [`Lru`]; [`with_policy`](Self::with_policy) takes another.
    ///
    /// # Errors
    /// [`ConfigError`]: a block size of zero or beyond 2^20, no block left for sequences, more than 2^29 blocks or 2^32 - 1
    /// slots, or bookkeeping for which the allocator gives no memory. That is all that is looked at: a system that
    /// overcommits, as Linux does, promises more than it has, and ends a process that writes to it. Much of the bookkeeping
    /// is written to here, the rest as blocks get content.
    pub fn new(config: CacheConfig) -> Result<Self, ConfigError> {
        Self::with_policy(config, Lru::new())
    }
}

impl<E: Evict> KvCache<E> {
    /// A cache that evicts by another policy; a `Box<dyn Evict>` is one.
    ///
    /// # Errors
    /// As [`new`](KvCache::new).
    pub fn with_policy(config: CacheConfig, policy: E) -> Result<Self, ConfigError> {
        let CacheConfig { num_blocks, block_size, .. } = config;
        if block_size == 0 {
            return Err(ConfigError::ZeroBlockSize);
        }
        if block_size > 1 << 20 {
            return Err(ConfigError::BlockTooLarge { block_size });
        }
        if num_blocks > 1 << 29 {
            return Err(ConfigError::TooManyBlocks { num_blocks });
        }
        if num_blocks.checked_mul(block_size).is_none() {
            return Err(ConfigError::TooManySlots { num_blocks, block_size });
        }
        Ok(Self {
            config,
            blocks: Blocks::new(&config, policy)?,
            seqs: Sequences::default(),
            pins: Sequences::default(),
            sink: Sink::default(),
            now: Now::default(),
            open: VecDeque::new(),
            spare: Vec::new(),
            draft: Draft::default(),
            nodes: Nodes::new(),
            next_step: 1,
            plans: 0,
            reserved: 0,
            counters: Counters::default(),
        })
    }

    /// Sets the clock, in any unit: for policies that let wishes expire, and for the ages of blocks. A clock that goes
    /// backwards stands still.
    pub fn set_time(&mut self, now: u64) {
        self.now.time = self.now.time.max(now);
        self.blocks.ages.now = self.now.time;
        self.blocks.pool.policy_mut().tick(self.now);
    }

    fn begin_request(&mut self) {
        self.now.requests += 1;
        self.blocks.pool.policy_mut().tick(self.now);
    }

    /// The eviction policy.
    pub fn policy(&self) -> &E {
        self.blocks.pool.policy()
    }

    /// What this cache was made from.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> u32 {
        self.config.block_size
    }

    /// Blocks that sequences can use.
    pub fn capacity(&self) -> u32 {
        self.blocks.pool.capacity()
    }

    /// The block that padded rows may write to.
    pub fn scratch(&self) -> Option<BlockId> {
        self.config.scratch.then(|| BlockId::new(0))
    }

    /// What the cache knows of a sequence.
    ///
    /// # Errors
    /// [`SequenceError::Unknown`] for a stale handle.
    pub fn sequence(&self, seq: SeqId) -> Result<&Sequence, SequenceError> {
        self.seqs.get(seq).ok_or(SequenceError::Unknown { seq })
    }

    /// The living sequences.
    pub fn sequences(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        self.seqs.iter()
    }

    /// The open steps, the oldest first.
    pub fn open_steps(&self) -> impl ExactSizeIterator<Item = StepId> + '_ {
        self.open.iter().map(OpenStep::id)
    }

    /// References to a block that sequences and pins hold, those included that wait for a commit.
    pub fn refs(&self, block: BlockId) -> u32 {
        self.blocks.pool.refs(block)
    }

    /// Counts, now and since the start. O(1).
    pub fn stats(&self) -> Stats {
        let pool = &self.blocks.pool;
        Stats {
            capacity: pool.capacity(),
            available: pool.available(),
            cached: pool.cached(),
            pending: pool.pending(),
            held: pool.capacity() - pool.available() - pool.pending(),
            shared: pool.shared(),
            reserved: self.reserved,
            sequences: self.seqs.len(),
            pins: self.pins.len(),
            open_steps: crate::id::len32(self.open.len()),
            prompt_tokens: self.counters.prompt_tokens,
            hit_tokens: self.counters.found_tokens + self.counters.skipped_tokens,
            found_tokens: self.counters.found_tokens,
            part_tokens: self.counters.part_tokens,
            skipped_tokens: self.counters.skipped_tokens,
            copies: self.counters.copies,
            evictions: self.blocks.evictions,
            resident_time: self.blocks.ages.lives.resident,
            idle_time: self.blocks.ages.lives.idle,
            aged_evictions: self.blocks.ages.lives.blocks,
        }
    }

    /// The only group, so far.
    const GROUP: GroupId = GroupId::new(0);
}
