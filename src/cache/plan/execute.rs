//! The second half of a plan: takes what the first half counted. Cannot fail.

use alloc::vec::Vec;

use super::draft::{Draft, DraftRow};
use super::{Row, RowTokens};
use crate::block::BlockRef;
use crate::cache::KvCache;
use crate::cache::blocks::Blocks;
use crate::cache::commit::OpenRow;
use crate::evict::Evict;
use crate::id::{BlockId, SeqId, StepId, ix};
use crate::step::{BlockCopy, GroupStep, RowTable, Step, StepRow};

/// Where a row is written.
struct Places<'a> {
    meta: &'a mut StepRow,
    table: &'a mut RowTable,
    before: &'a mut OpenRow,
    group: &'a mut GroupStep,
    published: &'a mut Vec<BlockId>,
}

impl<E: Evict> KvCache<E> {
    /// The second half.
    pub(super) fn execute(&mut self, rows: &[Row<'_>], draft: &Draft, step: &mut Step) -> StepId {
        let id = StepId::new(self.next_step);
        self.next_step += 1;
        step.start(Some(id), self.config.block_size, self.scratch());
        // Nothing that the plan relies on may be evicted by what it allocates.
        for block in draft.hits.iter().filter_map(|hit| hit.1) {
            self.blocks.pool.detach(block);
        }
        self.blocks.begin_allocations();
        let mut open = self.spare.pop().unwrap_or_default();
        open.start(id);
        let Step { rows: metas, groups, .. } = step;
        let group = &mut groups[0];
        // Every row has its place in advance: it is written there and not pushed.
        let mut tables = core::mem::take(&mut group.rows);
        tables.resize(rows.len(), RowTable::default());
        metas.resize(rows.len(), StepRow::BLANK);
        open.rows.resize(rows.len(), OpenRow::BLANK);
        let mut hits = draft.hits.iter().copied();
        let mut promises = draft.promises.iter().map(|promise| promise.node);
        let mut special = draft.rows.iter().peekable();
        let mut first_token = 0;
        let places = metas.iter_mut().zip(&mut tables).zip(&mut open.rows);
        for ((index, row), ((meta, table), before)) in rows.iter().enumerate().zip(places) {
            let into = Places { meta, table, before, group, published: &mut open.published };
            if let Some(drafted) = special.next_if(|special| special.row == index) {
                let hits = hits.by_ref().take(ix(drafted.hits));
                let promises = promises.by_ref().take(ix(drafted.promises));
                self.execute_row(row, drafted, id, hits, promises, into);
            } else {
                self.execute_plain(row.seq, id, into);
            }
            meta.first_token = first_token;
            first_token += meta.len;
        }
        group.rows = tables;
        self.open.push_back(open);
        id
    }

    /// What [`execute_row`](Self::execute_row) does, of a row that takes no block and names none.
    #[inline]
    fn execute_plain(&mut self, id: SeqId, step: StepId, into: Places<'_>) {
        let Some(seq) = self.seqs.get_mut(id) else { return };
        let start = seq.planned;
        let (index, offset) = self.blocks.size.split(start);
        let Some(tail) = seq.table.get(index).map(BlockRef::id) else { return };
        let unchanged = seq.table.take_unchanged();
        *into.before = OpenRow { seq: id, start, count: 1, table_len: index + 1, unchanged, ..OpenRow::BLANK };
        seq.planned = start + 1;
        seq.open_rows += 1;
        seq.last_step = step.get();
        *into.table = into.group.push_blocks(|from| seq.table.ids_from(from), unchanged);
        into.group.slots.push(tail.slot(offset, self.config.block_size));
        *into.meta = StepRow { seq: id, start, len: 1, ..StepRow::BLANK };
    }

    fn execute_row(
        &mut self,
        row: &Row<'_>,
        drafted: &DraftRow,
        step: StepId,
        hits: impl Iterator<Item = (u32, Option<BlockId>)>,
        promises: impl Iterator<Item = u32>,
        into: Places<'_>,
    ) {
        let Places { group, published, .. } = into;
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
        let mut part = drafted.cow.filter(|_| drafted.hits > 0);
        for (node, block) in hits {
            let Some(block) = block.or_else(|| promised(blocks, node)) else { continue };
            let held = blocks.pool.take_held(block);
            let at = match part.take() {
                Some((index, _)) => {
                    seq.displaced = seq.table.replace(index, held).ok().map(|part| (index, part));
                    index
                }
                None => {
                    seq.table.push(held);
                    seq.table.len() - 1
                }
            };
            if at <= seq.found {
                seq.found = at + 1;
            }
            blocks.pool.policy_mut().reused(block);
            blocks.retain(seq, at);
        }
        if let Some((index, _)) = drafted.cow.filter(|_| drafted.copies()) {
            seq.found = seq.found.min(index);
            if let Some(dst) = allocate(blocks) {
                let dst_id = dst.id();
                if let Ok(src) = seq.table.replace(index, dst) {
                    let copy = BlockCopy { src: src.id(), dst: dst_id };
                    seq.displaced = Some((index, src));
                    #[cfg(test)]
                    if crate::planted::is(crate::planted::Bug::PartLetGo) && blocks.node_of(copy.src).is_some() {
                        if let Some((_, src)) = seq.displaced.take() {
                            blocks.pool.end_displaced(copy.src);
                            blocks.release(src, 0);
                        }
                    }
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
        let skip = drafted.skip(block_size);
        let first = (drafted.start + skip) / block_size;
        for (node, index) in promises.zip(first..) {
            let Some(block) = seq.table.get(index).map(BlockRef::id) else { continue };
            blocks.publish(node, block, step.get());
            published.push(block);
        }
        seq.planned = drafted.start + drafted.count;
        seq.lookahead = row.lookahead;
        seq.open_rows += 1;
        seq.unknown_rows += u32::from(matches!(row.tokens, RowTokens::Count(_)));
        seq.last_step = step.get();
        *reserved = *reserved - seq.claim.blocks + drafted.claim.blocks;
        seq.claim = drafted.claim;
        counters.skipped_tokens += u64::from(skip);
        let (start, len) = (drafted.start + skip, drafted.count - skip);
        before.unchanged = seq.table.take_unchanged();
        *into.table = group.push_blocks(|from| seq.table.ids_from(from), before.unchanged);
        group.push_slots(seq.table.ids_from(start / block_size), start, len);
        *into.meta = StepRow { seq: row.seq, skip, start, len, first_token: 0 };
        *into.before = before;
    }
}

/// The block that an earlier row of this plan has brought for a node, with a reference.
fn promised<E: Evict>(blocks: &mut Blocks<E>, node: u32) -> Option<BlockId> {
    let block = blocks.index.entry(node);
    debug_assert!(block.is_some(), "the row that promised a block comes first");
    blocks.pool.hold(block?);
    block
}

/// A block that the first half has counted.
fn allocate<E: Evict>(blocks: &mut Blocks<E>) -> Option<BlockRef> {
    let block = blocks.allocate();
    debug_assert!(block.is_some(), "the first half counted this block");
    block
}
