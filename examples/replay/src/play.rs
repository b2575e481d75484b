//! A trace through the real cache.
//!
//! A request of tokens is what an engine would do: create, plan what was not found, commit, free.
//!
//! A request of ids must find its last block too, and the cache leaves one token of a prompt to compute. So an id is a
//! block of two tokens, the id and a marker, and the prompt has one odd token behind them, which is looked up and never
//! planned: it holds no block, and no capacity goes to it. Blocks of different ids differ in their first token, so that
//! they agree in none. The cache refuses a prompt by its length, odd token included; so that a prompt of exactly
//! `capacity` ids is not refused, the pool has one block more, which a sequence of one token holds from first to last.
//! A test holds the counts equal to those of a plain simulation.

use indicatif::ProgressBar;
use paged_kv::cache::{Release, Row};
use paged_kv::error::{ConfigError, CreateError, PlanError, SequenceError, StepError};
use paged_kv::{CacheConfig, Query, Scope, SeqId, Step, TokenId};

use crate::counts::Counts;
use crate::policy::{Cache, Policy};
use crate::trace::{Content, Request, Trace};

/// The second token of an id's block, and the one of the sequence that holds a block back.
const MARKER: TokenId = 0;
/// Behind the ids; no id, since fewer than 2^32 - 1 are told apart.
const ODD: TokenId = TokenId::MAX;
/// Requests between two updates of the progress bar.
const STRIDE: usize = 256;

/// Why a trace cannot be played.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlayError {
    /// The cache cannot be made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A request cannot begin.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A request cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step cannot be committed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A request cannot be freed.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// The policy is none that a cache can have.
    #[error("no cache can have this policy")]
    Offline,
}

/// Plays a trace through a cache of so many blocks.
///
/// # Errors
/// [`PlayError`]: the cache cannot be made. A request that is too large is counted as refused.
pub fn through_cache(trace: &Trace, policy: Policy, capacity: u32, bar: &ProgressBar) -> Result<Counts, PlayError> {
    // Where every block of the trace finds room, more blocks change nothing.
    let pool = u32::try_from(trace.blocks()).unwrap_or(u32::MAX).min(capacity).max(1);
    let ids = matches!(trace.content(), Content::Ids);
    let (num_blocks, block_size) = if ids { (pool.saturating_add(1), 2) } else { (pool, trace.block_size()) };
    let config = CacheConfig::new(num_blocks, block_size).with_scratch(false);
    let mut player = Player { cache: policy.cache(config)?.ok_or(PlayError::Offline)?, step: Step::new() };
    if ids {
        let private = Query::default().with_private(true);
        let held = player.cache.create(&Scope::default(), &[MARKER], private)?.seq;
        player.compute(held, &[MARKER])?;
    }
    let mut counts = Counts::default();
    let mut prompt = Vec::new();
    for (index, request) in trace.requests().enumerate() {
        if index % STRIDE == 0 {
            bar.inc(u64::try_from(STRIDE.min(trace.len() - index)).unwrap_or(0));
        }
        let size = (request.blocks, request.tokens);
        let found = if request.blocks > capacity {
            None
        } else if request.units.is_empty() {
            Some((0, 0))
        } else if ids {
            prompt.clear();
            prompt.extend(request.units.iter().flat_map(|&id| [id, MARKER]));
            let planned = prompt.len();
            prompt.push(ODD);
            let found = player.request(&prompt, planned)?;
            found.map(|tokens| ids_found(&request, tokens / 2, trace.block_size()))
        } else {
            let found = player.request(request.units, request.units.len())?;
            found.map(|tokens| (tokens / block_size, tokens))
        };
        match found {
            Some(found) => counts.add(size, found),
            None => counts.refuse(size),
        }
    }
    counts.evictions = player.cache.stats().evictions;
    Ok(counts)
}

/// What is found of a request of ids, in blocks and in tokens: all blocks but the last are full.
pub(crate) fn ids_found(request: &Request<'_>, blocks: u32, block_size: u32) -> (u32, u32) {
    (blocks, blocks.saturating_mul(block_size).min(request.tokens))
}

struct Player {
    cache: Cache,
    step: Step,
}

impl Player {
    /// One request, from its creation to its end; its first `planned` tokens are computed. Returns the tokens found, or
    /// `None` where the cache has no room for it.
    fn request(&mut self, prompt: &[TokenId], planned: usize) -> Result<Option<u32>, PlayError> {
        let created = self.cache.create(&Scope::default(), prompt, Query::default())?;
        let found = usize::try_from(created.cached_tokens).unwrap_or(usize::MAX);
        let rest = prompt.get(found..planned).unwrap_or(&[]);
        let computed = if rest.is_empty() { Ok(()) } else { self.compute(created.seq, rest) };
        self.cache.free(created.seq, Release::Cache)?;
        match computed {
            Ok(()) => Ok(Some(created.cached_tokens)),
            Err(PlayError::Plan(PlanError::Shortfall { .. } | PlanError::NeverFits { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn compute(&mut self, seq: SeqId, tokens: &[TokenId]) -> Result<(), PlayError> {
        let id = self.cache.plan(&[Row::ids(seq, tokens)], &mut self.step)?;
        Ok(self.cache.commit_all(id)?)
    }
}
