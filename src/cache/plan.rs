//! Planning a step: all or nothing.
//!
//! A plan has two halves. The first *drafts* it: it looks at every row, counts, and marks what later rows of the same
//! plan must see (references to hits, tails that stop being shared or findable, content that will be computed). All of
//! it can be undone exactly, and is, when the blocks do not suffice; it evicts nothing. The second half *executes* the
//! draft and cannot fail. `fits` is the first half alone.

use alloc::vec::Vec;
use core::hash::BuildHasher;

use super::blocks::{Blocks, Walk};
use super::commit::{OpenRow, OpenStep};
use super::{Fit, KvCache};
use crate::block::{BlockAllocator, BlockRef};
use crate::error::{PlanError, Shortfall};
use crate::id::{BlockId, SeqId, StepId, TokenId, ix, len32};
use crate::prefix::index::{Hidden, Parent};
use crate::sequence::{Claim, Sequence};
use crate::step::{BlockCopy, Step};

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

/// The first half of a plan. Buffers are kept from plan to plan.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Default)]
pub(super) struct Draft {
    rows: Vec<DraftRow>,
    /// Nodes that rows adopt, row after row, each with the block that was held for it; `None` where a row before
    /// brings the block.
    hits: Vec<(u32, Option<BlockId>)>,
    /// Scratch for a walk.
    nodes: Vec<u32>,
    hidden: Vec<Hidden>,
    /// Nodes that rows bring blocks for, row after row.
    claims: Vec<u32>,
    /// Blocks to be taken from the pool.
    needed: u64,
    /// Claims of the rows' sequences, as they are and as they will be.
    claims_before: u64,
    claims_after: u64,
    query_tokens: u64,
    table_blocks: u64,
}

#[derive(Clone, Copy, Debug)]
struct DraftRow {
    seq: SeqId,
    /// Position of the first token.
    start: u32,
    count: u32,
    hits: u32,
    claims: u32,
    hidden: bool,
    /// The tail to be replaced by a copy, as an index of the table, and what undoes its mark.
    cow: Option<(u32, u32)>,
    table_target: u32,
    claim: Claim,
}

impl Draft {
    fn clear(&mut self) {
        let Self { rows, hits, nodes, hidden, claims, .. } = self;
        rows.clear();
        hits.clear();
        nodes.clear();
        hidden.clear();
        claims.clear();
        (self.needed, self.claims_before, self.claims_after) = (0, 0, 0);
        (self.query_tokens, self.table_blocks) = (0, 0);
    }
}

impl<S: BuildHasher> KvCache<S> {
    /// Plans one forward pass over the rows, into the caller's buffer.
    ///
    /// The tokens of a row follow the planned length of its sequence. Leading tokens that are in the cache, or that a
    /// row before computes, are *skipped*: see [`StepRow::skip`](crate::step::StepRow::skip). Run every row of the
    /// step, also one whose sequence is freed meanwhile: others may rely on what it computes.
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
        let result = match self.draft_rows(rows, &mut draft) {
            Ok(()) => Ok(self.execute(rows, &draft, step)),
            Err(error) => {
                self.undo(&draft);
                Err(error)
            }
        };
        draft.clear();
        self.draft = draft;
        result
    }

    /// Whether [`plan`](Self::plan) of these rows would succeed now, or later, or never: its own first half decides.
    ///
    /// # Errors
    /// [`PlanError`] for rows that are wrong in themselves.
    pub fn fits(&mut self, rows: &[Row<'_>]) -> Result<Fit, PlanError> {
        let mut draft = core::mem::take(&mut self.draft);
        let result = self.draft_rows(rows, &mut draft);
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

    fn draft_rows(&mut self, rows: &[Row<'_>], draft: &mut Draft) -> Result<(), PlanError> {
        self.plans += 1;
        for (index, row) in rows.iter().enumerate() {
            self.draft_row(index, row, draft)?;
        }
        let shortfall = self.room(draft.needed, draft.claims_before, draft.claims_after);
        shortfall.map_err(PlanError::from)
    }

    /// Whether so many blocks can be taken while the claims of others are kept: the one function that admission and
    /// allocation share. `claims_before` and `claims_after` are the claims of those who ask.
    pub(super) fn room(&self, needed: u64, claims_before: u64, claims_after: u64) -> Result<(), Shortfall> {
        let available = self.blocks.pool.available();
        let others = u64::from(self.reserved) - claims_before;
        if needed + others + claims_after <= u64::from(available) {
            return Ok(());
        }
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Err(Shortfall {
            needed: narrow(needed),
            free: narrow(u64::from(available).saturating_sub(others + claims_after)),
            pending: self.blocks.pool.pending(),
            group: Self::GROUP,
        })
    }

    /// Drafts one row; on an error the row itself has left nothing behind.
    fn draft_row(&mut self, index: usize, row: &Row<'_>, draft: &mut Draft) -> Result<(), PlanError> {
        let block_size = self.config.block_size;
        let capacity = self.blocks.pool.capacity();
        let unknown = PlanError::UnknownSequence { row: index, seq: row.seq };
        let seq = self.seqs.get_mut(row.seq).ok_or(unknown)?;
        if seq.mark == self.plans {
            return Err(PlanError::RepeatedSequence { row: index, seq: row.seq });
        }
        let too_long = PlanError::TooLong { row: index };
        let count = match row.tokens {
            RowTokens::Ids(ids) => u32::try_from(ids.len()).map_err(|_| too_long)?,
            RowTokens::Count(count) => count,
        };
        if count == 0 {
            return Err(PlanError::EmptyRow { row: index });
        }
        if row.drafts >= count {
            return Err(PlanError::TooManyDrafts { row: index, drafts: row.drafts, tokens: count });
        }
        let start = seq.planned;
        let end = start.checked_add(count).ok_or(too_long)?;
        let table_target = end.checked_add(row.lookahead).ok_or(too_long)?.div_ceil(block_size);
        if table_target > capacity {
            let group = Self::GROUP;
            return Err(PlanError::NeverFits { row: index, blocks: table_target, capacity, group });
        }
        let table_target = table_target.max(seq.table.len());
        draft.query_tokens += u64::from(count);
        draft.table_blocks += u64::from(table_target);
        if draft.query_tokens.max(draft.table_blocks) > u64::from(u32::MAX) {
            return Err(too_long);
        }

        // From here on nothing fails.
        seq.mark = self.plans;
        let mut drafted = DraftRow {
            seq: row.seq,
            start,
            count,
            hits: 0,
            claims: 0,
            hidden: false,
            cow: None,
            table_target,
            claim: seq.claim,
        };
        let mut idle_hits = 0;
        match row.tokens {
            RowTokens::Ids(ids) => {
                // One token at least is left to compute, and it is no draft.
                let limit = end - row.drafts - 1;
                idle_hits = draft_hits(&mut self.blocks, seq, ids, limit, draft, &mut drafted);
                seq.tail.extend_from_slice(ids);
            }
            RowTokens::Count(_) => seq.tail.resize(seq.tail.len() + ix(count), 0),
        }
        if drafted.hits == 0 && start % block_size != 0 {
            draft_tail(&mut self.blocks, seq, start / block_size, draft, &mut drafted);
        }
        if matches!(row.tokens, RowTokens::Ids(_)) {
            draft_claims(&mut self.blocks, seq, end - row.drafts, draft, &mut drafted);
        }
        let grown = (table_target - seq.table.len()).saturating_sub(drafted.hits) + idle_hits;
        draft.needed += u64::from(grown) + u64::from(drafted.cow.is_some());
        draft.claims_before += u64::from(seq.claim.blocks);
        let lacking = seq.claim.target.saturating_sub(table_target);
        drafted.claim.blocks = seq.claim.blocks.saturating_sub(grown).min(lacking);
        draft.claims_after += u64::from(drafted.claim.blocks);
        draft.rows.push(drafted);
        Ok(())
    }

    /// Undoes the first half, newest first, so that every list is as it was.
    fn undo(&mut self, draft: &Draft) {
        let mut hits = draft.hits.iter().rev();
        let mut hidden = draft.hidden.iter().rev();
        let mut claims = draft.claims.iter().rev();
        for row in draft.rows.iter().rev() {
            claims.by_ref().take(ix(row.claims)).for_each(|&node| self.blocks.index.unclaim(node));
            if let Some(&hidden) = row.hidden.then(|| hidden.next()).flatten() {
                self.blocks.index.unhide(hidden);
            }
            let Some(seq) = self.seqs.get_mut(row.seq) else { continue };
            if let Some((tail, before)) = row.cow.and_then(|(index, before)| Some((seq.table.get(index)?, before))) {
                self.blocks.pool.undo_displace(tail.id(), before);
            }
            seq.tail.truncate(ix(row.start - seq.tail_start(self.config.block_size)));
            for (_, block) in hits.by_ref().take(ix(row.hits)) {
                if let Some(block) = block {
                    self.blocks.pool.unhold(*block);
                }
            }
        }
    }

    /// The second half.
    fn execute(&mut self, rows: &[Row<'_>], draft: &Draft, step: &mut Step) -> StepId {
        let id = StepId::new(self.next_step);
        self.next_step += 1;
        step.start(Some(id), self.config.block_size, self.scratch());
        // Nothing that the plan relies on may be evicted by what it allocates.
        for block in draft.hits.iter().filter_map(|hit| hit.1) {
            self.blocks.pool.detach(block);
        }
        for &hidden in &draft.hidden {
            self.blocks.index.finish_hide(hidden);
            self.blocks.pool.identify(hidden.block, None);
        }
        let mut open = self.spare.pop().unwrap_or_default();
        open.start(id);
        let mut hits = draft.hits.iter().copied();
        let mut claims = draft.claims.iter().copied();
        for (row, drafted) in rows.iter().zip(&draft.rows) {
            let hits = hits.by_ref().take(ix(drafted.hits));
            let claims = claims.by_ref().take(ix(drafted.claims));
            self.execute_row(row, drafted, hits, claims, &mut open, step);
        }
        self.open.push_back(open);
        id
    }

    fn execute_row(
        &mut self,
        row: &Row<'_>,
        drafted: &DraftRow,
        hits: impl Iterator<Item = (u32, Option<BlockId>)>,
        claims: impl Iterator<Item = u32>,
        open: &mut OpenStep,
        step: &mut Step,
    ) {
        let Self { blocks, seqs, config, reserved, counters, .. } = self;
        let Some(seq) = seqs.get_mut(row.seq) else { return };
        let block_size = config.block_size;
        let mut before = OpenRow {
            seq: row.seq,
            start: drafted.start,
            count: drafted.count,
            drafts: row.drafts,
            by_count: matches!(row.tokens, RowTokens::Count(_)),
            cow: drafted.cow.is_some(),
            table_len: seq.table.len(),
            lookahead: seq.lookahead,
            unchanged: 0,
        };
        for (node, block) in hits {
            let Some(block) = block.or_else(|| promised(blocks, node)) else { continue };
            seq.table.push(blocks.pool.take_held(block));
        }
        let group = &mut step.groups[0];
        if let Some((index, _)) = drafted.cow {
            if let Some(dst) = allocate(blocks) {
                let dst_id = dst.id();
                if let Ok(src) = seq.table.replace(index, dst) {
                    let copy = BlockCopy { src: src.id(), dst: dst_id };
                    seq.displaced = Some((index, src));
                    counters.copies += 1;
                    #[cfg(test)]
                    let skipped = crate::planted::is(crate::planted::Bug::SkippedCopy);
                    #[cfg(not(test))]
                    let skipped = false;
                    if !skipped {
                        group.copies.push(copy);
                    }
                }
            }
        }
        while seq.table.len() < drafted.table_target {
            let Some(block) = allocate(blocks) else { break };
            seq.table.push(block);
        }
        let skip = drafted.hits * block_size;
        let first = (drafted.start + skip) / block_size;
        for (node, index) in claims.zip(first..) {
            let Some(block) = seq.table.get(index).map(BlockRef::id) else { continue };
            blocks.publish(node, block, open.id().get());
            open.published.push(block);
        }
        seq.planned = drafted.start + drafted.count;
        seq.lookahead = row.lookahead;
        seq.open_rows += 1;
        seq.unknown_rows += u32::from(matches!(row.tokens, RowTokens::Count(_)));
        seq.last_step = open.id().get();
        *reserved = *reserved - seq.claim.blocks + drafted.claim.blocks;
        seq.claim = drafted.claim;
        counters.hit_tokens += u64::from(skip);
        let (start, len) = (drafted.start + skip, drafted.count - skip);
        before.unchanged = seq.table.take_unchanged();
        group.push_row(seq.table.ids(), start, len, before.unchanged);
        step.push(row.seq, skip, start, len);
        open.rows.push(before);
    }
}

/// The block that an earlier row of this plan has brought for a node, with a reference.
fn promised<S: BuildHasher>(blocks: &mut Blocks<S>, node: u32) -> Option<BlockId> {
    let block = blocks.index.entry(node);
    debug_assert!(block.is_some(), "the row that promised a block comes first");
    blocks.pool.hold(block?);
    block
}

/// A block that the first half has counted.
fn allocate<S: BuildHasher>(blocks: &mut Blocks<S>) -> Option<BlockRef> {
    let block = blocks.allocate();
    debug_assert!(block.is_some(), "the first half counted this block");
    block
}

/// Finds what of a row is in the cache already, and holds it. Returns how many idle blocks that takes.
fn draft_hits<S: BuildHasher>(
    blocks: &mut Blocks<S>,
    seq: &Sequence,
    ids: &[TokenId],
    limit: u32,
    draft: &mut Draft,
    drafted: &mut DraftRow,
) -> u32 {
    let block_size = blocks.block_size;
    let first = drafted.start / block_size;
    // Only whole blocks at the open end of the table can be adopted.
    if len32(ids.len()) <= block_size
        || drafted.start % block_size != 0
        || seq.table.len() != first
        || seq.unknown_rows > 0
        || seq.anonymous_from != u32::MAX
    {
        return 0;
    }
    let Some(parent) = parent_of(blocks, seq, first) else { return 0 };
    let walk = Walk { parent, tokens: ids, start: drafted.start, limit, query: seq.query() };
    let index = &blocks.index;
    draft.nodes.clear();
    let visible = |node| index.entry(node).is_some() || index.is_promised(node);
    drafted.hits = blocks.walk(&walk, &mut draft.nodes, visible);
    let mut idle = 0;
    for &node in &draft.nodes {
        let block = blocks.index.entry(node);
        if let Some(block) = block {
            idle += u32::from(blocks.pool.is_idle(block));
            blocks.pool.hold(block);
        }
        draft.hits.push((node, block));
    }
    idle
}

/// Decides how a partly filled tail is written: in place by its last holder, else in a copy.
fn draft_tail<S: BuildHasher>(
    blocks: &mut Blocks<S>,
    seq: &Sequence,
    index: u32,
    draft: &mut Draft,
    drafted: &mut DraftRow,
) {
    let Some(tail) = seq.table.get(index).map(BlockRef::id) else { return };
    let offset = drafted.start % blocks.block_size;
    if !blocks.pool.may_write(tail, offset) {
        // From now on a later row that shares this tail may be its last holder.
        drafted.cow = Some((index, blocks.pool.displace(tail, offset)));
    } else if let Some(node) = blocks.node_of(tail) {
        // It was full once, and what was found under its name is about to be overwritten.
        draft.hidden.push(blocks.index.hide(node, tail));
        drafted.hidden = true;
    }
}

/// Names the blocks that the row fills, for the rows behind it.
fn draft_claims<S: BuildHasher>(
    blocks: &mut Blocks<S>,
    seq: &Sequence,
    known_end: u32,
    draft: &mut Draft,
    drafted: &mut DraftRow,
) {
    let block_size = blocks.block_size;
    let first = drafted.start / block_size + drafted.hits;
    let end = known_end / block_size;
    if first >= end || seq.unknown_rows > 0 || seq.anonymous_from != u32::MAX || seq.query().private {
        return;
    }
    let last_hit = draft.hits.last().filter(|_| drafted.hits > 0);
    let Some(mut parent) = last_hit.map(|hit| Parent::Node(hit.0)).or_else(|| parent_of(blocks, seq, first)) else {
        return;
    };
    for index in first..end {
        let extras = seq.query().overlapping(index * block_size..(index + 1) * block_size);
        let node = blocks.index.claim(parent, seq.block_tokens(index, block_size), extras);
        draft.claims.push(node);
        drafted.claims += 1;
        parent = Parent::Node(node);
    }
}

/// What the block at `index` of a sequence's table follows, if that has a name.
pub(super) fn parent_of<S: BuildHasher>(blocks: &Blocks<S>, seq: &Sequence, index: u32) -> Option<Parent> {
    match index.checked_sub(1) {
        None => Some(Parent::Scope(seq.scope)),
        Some(before) => blocks.node_of(seq.table.get(before)?.id()).map(Parent::Node),
    }
}
