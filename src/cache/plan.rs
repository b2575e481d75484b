//! Planning a step: all or nothing.
//!
//! A plan has two halves. The first *drafts* it: it looks at every row, counts, and marks what later rows of the same
//! plan must see (references to hits, tails that stop being shared or findable, content that will be computed). All of
//! it can be undone exactly, and is, when the blocks do not suffice; it evicts nothing. The second half *executes* the
//! draft and cannot fail. `fits` is the first half alone.

mod draft;
mod execute;

use smallvec::SmallVec;

use super::blocks::Blocks;
use super::{Fit, KvCache};
use crate::block::BlockAllocator;
use crate::error::{PlanError, Shortfall};
use crate::evict::Evict;
use crate::id::{BlockId, SeqId, StepId, TokenId, len32};
use crate::prefix::index::Parent;
use crate::sequence::Sequence;
use crate::step::Step;

pub(super) use draft::Draft;
pub(super) use execute::allocate;

/// The input tokens of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowTokens<'a> {
    /// Tokens by id.
    Ids(&'a [TokenId]),
    /// So many tokens, whose ids are given at commit, or never (prompt embeddings).
    Count(u32),
}

/// One sequence's part in a step to be planned: tokens that follow its planned length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Row<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// The input tokens.
    pub tokens: RowTokens<'a>,
    /// How many trailing tokens are speculative: a commit may roll them back, and nobody finds them before.
    pub drafts: u32,
    /// Tokens behind these that a later launch may write without planning: their blocks are put into the table.
    pub lookahead: u32,
}

impl<'a> Row<'a> {
    /// A row of tokens by id.
    pub const fn ids(seq: SeqId, ids: &'a [TokenId]) -> Self {
        Self { seq, tokens: RowTokens::Ids(ids), drafts: 0, lookahead: 0 }
    }

    /// A row of tokens whose ids are not known yet: asynchronous scheduling plans the next step before the tokens of
    /// this one are sampled.
    pub const fn count(seq: SeqId, count: u32) -> Self {
        Self { seq, tokens: RowTokens::Count(count), drafts: 0, lookahead: 0 }
    }

    /// The same with so many trailing drafts.
    pub const fn with_drafts(self, drafts: u32) -> Self {
        Self { drafts, ..self }
    }

    /// The same with lookahead.
    pub const fn with_lookahead(self, tokens: u32) -> Self {
        Self { lookahead: tokens, ..self }
    }
}

impl<E: Evict> KvCache<E> {
    /// Plans one forward pass over the rows, into the caller's buffer.
    ///
    /// The tokens of a row follow the planned length of its sequence: after [`create`](Self::create) these are the
    /// tokens *behind* the cached ones, not the whole prompt. Leading tokens that are in the cache, or that a row before
    /// computes, are *skipped*: see [`StepRow::skip`](crate::step::StepRow::skip). Run every row of the step, also one
    /// whose sequence is freed meanwhile: others may rely on what it computes. A step of no rows is a step: it is open
    /// until it commits.
    ///
    /// # Errors
    /// [`PlanError`]; then nothing changed, and `step` is as it was.
    ///
    /// # Complexity
    /// O(tokens + table entries of the rows). Allocates nothing once its buffers have grown.
    ///
    /// # Source
    /// Kwon et al., SOSP 2023, sections 4.3 (growth) and 4.4 (copy-on-write).
    pub fn plan(&mut self, rows: &[Row<'_>], step: &mut Step) -> Result<StepId, PlanError> {
        let mut draft = core::mem::take(&mut self.draft);
        let mut drafted = self.draft_rows(rows, &mut draft);
        if let Err(PlanError::Shortfall { shortfall }) = &mut drafted
            && self.can_spend(&draft, shortfall)
        {
            self.spend(&mut draft);
            drafted = self.draft_rows(rows, &mut draft);
        }
        let result = match drafted {
            Ok(()) => Ok(self.execute(rows, &mut draft, step)),
            Err(error) => {
                self.undo(&draft);
                Err(error)
            }
        };
        draft.clear();
        self.draft = draft;
        self.deliver();
        result
    }

    /// Whether a draft that lacks blocks would not, if its rows overwrote what they are about to copy. As long as nobody
    /// else holds the block that a part was found in, the part never makes a plan fail that would fit without. Where two
    /// hold it and there is no block to copy it to, both wait ([`Fit::Later`]) until one of them is freed, or others are;
    /// [`fits_prompt`](Self::fits_prompt) says so beforehand to the second, since a block that is held is not available.
    /// Otherwise the shortfall leaves these copies out.
    fn can_spend(&self, draft: &Draft, shortfall: &mut Shortfall) -> bool {
        let spendable = len32(self.spendable(draft).count());
        shortfall.needed = shortfall.needed.saturating_sub(spendable);
        self.lacking(draft.needed, draft.claims_before, draft.claims_after) <= u64::from(spendable)
    }

    /// Ends a draft that can do without some copies, and gives the names of their sources up. Then nothing stands against
    /// drafting the rows again, since a block that a row has found is held and not among these.
    fn spend(&mut self, draft: &mut Draft) {
        let lacking = self.lacking(draft.needed, draft.claims_before, draft.claims_after);
        let lacking = usize::try_from(lacking).unwrap_or(usize::MAX);
        let blocks: SmallVec<[BlockId; 8]> = self.spendable(draft).take(lacking).collect();
        self.undo(draft);
        draft.clear();
        for block in blocks {
            self.blocks.unpublish(block);
            self.blocks.evictions += 1;
        }
    }

    /// Whether [`plan`](Self::plan) of these rows would succeed now, or later, or never: its own first half decides,
    /// in the cache's own buffers, which is why it takes `&mut self` though nothing changes.
    ///
    /// # Errors
    /// [`PlanError`] for rows that are wrong in themselves.
    pub fn fits(&mut self, rows: &[Row<'_>]) -> Result<Fit, PlanError> {
        let mut draft = core::mem::take(&mut self.draft);
        let mut result = self.draft_rows(rows, &mut draft);
        if let Err(PlanError::Shortfall { shortfall }) = &mut result
            && self.can_spend(&draft, shortfall)
        {
            result = Ok(());
        }
        self.undo(&draft);
        draft.clear();
        self.draft = draft;
        match result {
            Ok(()) => Ok(Fit::Now),
            Err(PlanError::Shortfall { shortfall }) => Ok(Fit::Later(shortfall)),
            Err(PlanError::NeverFits { .. }) => Ok(Fit::Never),
            Err(error) => Err(error),
        }
    }

    /// Blocks that there are too few, so that so many can be taken while the claims of others are kept: the one function
    /// that admission and allocation share. `claims_before` and `claims_after` are the claims of those who ask.
    fn lacking(&self, needed: u64, claims_before: u64, claims_after: u64) -> u64 {
        let others = u64::from(self.reserved) - claims_before;
        (needed + others + claims_after).saturating_sub(self.blocks.pool.available().into())
    }

    /// Whether [nothing lacks](Self::lacking), or the numbers.
    pub(super) fn room(&self, needed: u64, claims_before: u64, claims_after: u64) -> Result<(), Shortfall> {
        if self.lacking(needed, claims_before, claims_after) == 0 {
            return Ok(());
        }
        let claims = u64::from(self.reserved) - claims_before + claims_after;
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Err(Shortfall {
            needed: narrow(needed),
            free: narrow(u64::from(self.blocks.pool.available()).saturating_sub(claims)),
            pending: self.blocks.pool.pending(),
            group: Self::GROUP,
        })
    }
}

/// What the block at `index` of a sequence's table follows, if that has a name.
pub(super) fn parent_of<E: Evict>(blocks: &Blocks<E>, seq: &Sequence, index: u32) -> Option<Parent> {
    match index.checked_sub(1) {
        None => Some(Parent::Scope(seq.scope)),
        Some(before) => blocks.node_of(seq.table.get(before)?.id()).map(Parent::Node),
    }
}
