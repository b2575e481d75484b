//! The first half of a plan: looks at every row, counts, and marks what later rows must see. Evicts nothing, and can be
//! undone.

use crate::evict::Evict;
use alloc::vec::Vec;

use super::{Row, RowTokens, parent_of};
use crate::block::{BlockAllocator, BlockRef, Displaced};
use crate::cache::KvCache;
use crate::cache::blocks::{Blocks, Walk};
use crate::cache::commit::{OpenRow, OpenStep};
use crate::cache::plain;
use crate::error::PlanError;
use crate::id::{BlockId, BlockSize, SeqId, ix, len32};
use crate::prefix::index::{Parent, Promise};
use crate::sequence::{Claim, Sequence};

/// The first half of a plan. Buffers are kept from plan to plan.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Default)]
pub(in crate::cache) struct Draft {
    /// The step that it becomes. [Plain appends](plain) are in place there; they need no draft.
    pub(super) open: OpenStep,
    /// Rows of the batch so far.
    planned: usize,
    /// Those among them that are no plain appends, in order.
    pub(super) rows: Vec<DraftRow>,
    /// Nodes that rows adopt, row after row, each with the block that was held for it; `None` where a row before
    /// brings the block.
    pub(super) hits: Vec<(u32, Option<BlockId>)>,
    /// Scratch for a walk.
    nodes: Vec<u32>,
    /// Nodes that rows bring blocks for, row after row.
    pub(super) promises: Vec<Promise>,
    /// Blocks to be taken from the pool.
    pub(super) needed: u64,
    /// Claims of the rows' sequences, as they are and as they will be.
    pub(super) claims_before: u64,
    pub(super) claims_after: u64,
    query_tokens: u64,
    /// Blocks in the tables of all rows, as they will be.
    pub(super) table_blocks: u64,
}

/// A row that is no plain append.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftRow {
    pub(super) seq: SeqId,
    /// Position of the first token.
    pub(super) start: u32,
    pub(super) count: u32,
    pub(super) hits: u32,
    pub(super) promises: u32,
    /// The tail to be replaced by a copy, or by the first hit, as an index of the table, and what undoes its mark.
    pub(super) cow: Option<(u32, Displaced)>,
    pub(super) table_target: u32,
    pub(super) claim: Claim,
}

impl DraftRow {
    /// Whether the row copies its tail.
    pub(super) fn copies(&self) -> bool {
        self.cow.is_some() && self.hits == 0
    }

    /// Blocks that hits add to the table: the first may take the place of a tail.
    pub(super) fn new_hits(&self) -> u32 {
        self.hits - u32::from(self.cow.is_some() && self.hits > 0)
    }

    /// Leading tokens of the row that hits bring.
    pub(super) fn skip(&self, size: BlockSize) -> u32 {
        if self.hits == 0 { 0 } else { self.hits * size.tokens() - size.offset(self.start) }
    }
}

impl Draft {
    pub(super) fn clear(&mut self) {
        let Self { rows, hits, nodes, promises, .. } = self;
        self.planned = 0;
        rows.clear();
        hits.clear();
        nodes.clear();
        promises.clear();
        (self.needed, self.claims_before, self.claims_after) = (0, 0, 0);
        (self.query_tokens, self.table_blocks) = (0, 0);
    }
}

impl<E: Evict> KvCache<E> {
    pub(super) fn draft_rows(&mut self, rows: &[Row<'_>], draft: &mut Draft) -> Result<(), PlanError> {
        self.plans += 1;
        draft.open.rows.resize(rows.len(), OpenRow::BLANK);
        loop {
            self.append_plain(rows, draft);
            let Some(row) = rows.get(draft.planned) else { break };
            self.draft_row(draft.planned, row, draft)?;
            draft.open.rows[draft.planned].plain = false;
            draft.planned += 1;
        }
        let shortfall = self.room(draft.needed, draft.claims_before, draft.claims_after);
        shortfall.map_err(PlanError::from)
    }

    /// Plans the rows that come next, as long as they are plain appends.
    fn append_plain(&mut self, rows: &[Row<'_>], draft: &mut Draft) {
        // A step has no number for more query tokens.
        let room = u64::from(u32::MAX) - draft.query_tokens;
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let (rows, before) = (&rows[draft.planned..], &mut draft.open.rows[draft.planned..]);
        let rows = rows.get(..room).unwrap_or(rows);
        let counts = (&mut draft.needed, &mut draft.table_blocks);
        let appended = plain::append(&mut self.seqs, self.plans, rows, before, counts);
        draft.planned += appended;
        draft.query_tokens += appended as u64;
    }

    /// Drafts one row; on an error the row itself has left nothing behind.
    fn draft_row(&mut self, index: usize, row: &Row<'_>, draft: &mut Draft) -> Result<(), PlanError> {
        let size = self.blocks.size;
        let capacity = self.blocks.pool.capacity();
        let unknown = PlanError::UnknownSequence { row: index, seq: row.seq };
        let seq = self.seqs.get_plain(row.seq).ok_or(unknown)?;
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
        let table_target = size.blocks_of(end.checked_add(row.lookahead).ok_or(too_long)?);
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
        let mut drafted =
            DraftRow { seq: row.seq, start, count, hits: 0, promises: 0, cow: None, table_target, claim: seq.claim };
        let mut idle_hits = 0;
        match row.tokens {
            RowTokens::Ids(ids) => {
                // One token at least is left to compute, and it is no draft.
                let limit = end - row.drafts - 1;
                seq.tail.extend_from_slice(ids);
                idle_hits = draft_hits(&mut self.blocks, seq, len32(ids.len()), limit, draft, &mut drafted);
            }
            RowTokens::Count(_) => seq.tail.resize(seq.tail.len() + ix(count), 0),
        }
        let (index, offset) = size.split(start);
        if drafted.hits == 0 && offset != 0 {
            draft_tail(&mut self.blocks, seq, (index, offset), &mut drafted);
        }
        if matches!(row.tokens, RowTokens::Ids(_)) {
            draft_promises(&mut self.blocks, seq, end - row.drafts, draft, &mut drafted);
        }
        let grown = (table_target - seq.table.len()).saturating_sub(drafted.new_hits()) + idle_hits;
        draft.needed += u64::from(grown) + u64::from(drafted.copies());
        draft.claims_before += u64::from(seq.claim.blocks);
        let lacking = seq.claim.target.saturating_sub(table_target);
        drafted.claim.blocks = seq.claim.blocks.saturating_sub(grown).min(lacking);
        draft.claims_after += u64::from(drafted.claim.blocks);
        draft.rows.push(drafted);
        Ok(())
    }

    /// Blocks that rows are about to copy although nobody else holds them: the rows could write them themselves if their
    /// content were given up. Only while the draft stands.
    pub(super) fn spendable<'a>(&'a self, draft: &'a Draft) -> impl Iterator<Item = BlockId> + 'a {
        let source = |row: &DraftRow| {
            let (index, _) = row.cow.filter(|_| row.copies())?;
            let block = self.seqs.get(row.seq)?.table.get(index)?.id();
            self.blocks.pool.is_spendable(block).then_some(block)
        };
        draft.rows.iter().filter_map(source)
    }

    /// Undoes the first half, newest first, so that every list is as it was.
    pub(super) fn undo(&mut self, draft: &Draft) {
        let mut hits = draft.hits.iter().rev();
        let mut promises = draft.promises.iter().rev();
        for row in draft.rows.iter().rev() {
            promises.by_ref().take(ix(row.promises)).for_each(|&it| self.blocks.index.unpromise(it));
            let Some(seq) = self.seqs.get_plain(row.seq) else { continue };
            if let Some((tail, before)) = row.cow.and_then(|(index, before)| Some((seq.table.get(index)?, before))) {
                self.blocks.pool.undo_displace(tail.id(), before);
            }
            seq.tail.truncate(ix(row.start - seq.tail_start(self.blocks.size)));
            for (_, block) in hits.by_ref().take(ix(row.hits)) {
                if let Some(block) = block {
                    self.blocks.pool.unhold(*block);
                }
            }
        }
        plain::take_back(&mut self.seqs, &draft.open.rows[..draft.planned]);
        self.blocks.index.trim();
    }
}

/// Finds what of a row, whose tokens are in the tail by now, is in the cache already, and holds it. Returns how many idle
/// blocks that takes.
fn draft_hits<E: Evict>(
    blocks: &mut Blocks<E>,
    seq: &Sequence,
    count: u32,
    limit: u32,
    draft: &mut Draft,
    drafted: &mut DraftRow,
) -> u32 {
    let (first, offset) = blocks.size.split(drafted.start);
    // Only whole blocks at the open end of the table can be adopted.
    if offset + count <= blocks.size.tokens() || seq.unknown_rows > 0 || seq.anonymous_from != u32::MAX {
        return 0;
    }
    // A part of a block that others can find gives way to a whole one, which came since the part was found.
    let part = (offset != 0).then(|| seq.table.get(first).map(BlockRef::id)).flatten();
    let at_end = seq.table.len() == first + u32::from(part.is_some());
    if !at_end || (offset != 0 && part.is_none_or(|block| blocks.node_of(block).is_none())) {
        return 0;
    }
    let Some(parent) = parent_of(blocks, seq, first) else { return 0 };
    let start = drafted.start - offset;
    let tokens = seq.tail.get(ix(start - seq.tail_start(blocks.size))..).unwrap_or(&[]);
    let walk = Walk { parent, tokens, start, limit, query: seq.query() };
    let index = &blocks.index;
    draft.nodes.clear();
    let visible = |node| index.entry(node).is_some() || index.is_promised(node);
    let hits = blocks.walk(&walk, &mut draft.nodes, visible);
    draft.nodes.truncate(hits);
    drafted.hits = len32(hits);
    if let Some((part, &node)) = part.zip(draft.nodes.first()) {
        // The part is held until the commit: an idle block in its place would be one more than without.
        if blocks.index.entry(node).is_some_and(|block| blocks.pool.is_idle(block)) {
            drafted.hits = 0;
            return 0;
        }
        drafted.cow = Some((first, blocks.pool.displace(part, offset)));
    }
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

/// Decides how a partly filled tail is written: in place by its last holder, if nobody can find it, else in a copy.
fn draft_tail<E: Evict>(blocks: &mut Blocks<E>, seq: &Sequence, (index, offset): (u32, u32), drafted: &mut DraftRow) {
    let Some(tail) = seq.table.get(index).map(BlockRef::id) else { return };
    if !blocks.pool.may_write(tail, offset) {
        // From now on a later row that shares this tail may be its last holder.
        drafted.cow = Some((index, blocks.pool.displace(tail, offset)));
    }
}

/// Names the blocks that the row fills, for the rows behind it.
fn draft_promises<E: Evict>(
    blocks: &mut Blocks<E>,
    seq: &Sequence,
    known_end: u32,
    draft: &mut Draft,
    drafted: &mut DraftRow,
) {
    let size = blocks.size;
    let first = size.index(drafted.start) + drafted.hits;
    let end = size.index(known_end);
    if first >= end || seq.unknown_rows > 0 || seq.anonymous_from != u32::MAX || seq.query().private {
        return;
    }
    let last_hit = draft.hits.last().filter(|_| drafted.hits > 0);
    let Some(mut parent) = last_hit.map(|hit| Parent::Node(hit.0)).or_else(|| parent_of(blocks, seq, first)) else {
        return;
    };
    for index in first..end {
        let extras = seq.extras_of(index, size.tokens());
        let promise = blocks.index.promise(parent, seq.block_tokens(index, size), extras);
        draft.promises.push(promise);
        drafted.promises += 1;
        parent = Parent::Node(promise.node);
    }
}
