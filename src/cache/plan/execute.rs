//! The second half of a plan: takes what the first half counted. Cannot fail.

use crate::evict::Evict;

use super::draft::{Draft, DraftRow};
use super::{Row, RowTokens};
use crate::block::BlockRef;
use crate::cache::KvCache;
use crate::cache::blocks::Blocks;
use crate::cache::commit::{OpenRow, OpenStep};
use crate::id::{BlockId, StepId, ix};
use crate::step::{BlockCopy, Step};

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
        let mut open = self.spare.pop().unwrap_or_default();
        open.start(id);
        let mut hits = draft.hits.iter().copied();
        let mut promises = draft.promises.iter().map(|promise| promise.node);
        for (row, drafted) in rows.iter().zip(&draft.rows) {
            if drafted.plain {
                self.execute_plain(drafted, &mut open, step);
                continue;
            }
            let hits = hits.by_ref().take(ix(drafted.hits));
            let promises = promises.by_ref().take(ix(drafted.promises));
            self.execute_row(row, drafted, hits, promises, &mut open, step);
        }
        self.open.push_back(open);
        id
    }

    /// What [`execute_row`](Self::execute_row) does, of a row that takes no block and names none.
    #[inline]
    fn execute_plain(&mut self, drafted: &DraftRow, open: &mut OpenStep, step: &mut Step) {
        let Some(seq) = self.seqs.get_mut(drafted.seq) else { return };
        let start = drafted.start;
        let unchanged = seq.table.take_unchanged();
        open.rows.push(OpenRow {
            seq: drafted.seq,
            start,
            count: 1,
            drafts: 0,
            by_count: false,
            cow: false,
            table_len: drafted.table_target,
            lookahead: 0,
            unchanged,
        });
        seq.planned = start + 1;
        seq.open_rows += 1;
        seq.last_step = open.id().get();
        step.groups[0].push_token(seq.table.ids(), start, unchanged);
        step.push(drafted.seq, 0, start, 1);
    }

    fn execute_row(
        &mut self,
        row: &Row<'_>,
        drafted: &DraftRow,
        hits: impl Iterator<Item = (u32, Option<BlockId>)>,
        promises: impl Iterator<Item = u32>,
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
            blocks.pool.policy_mut().reused(block);
            if let Some(retention) = seq.retention_of(at, block_size) {
                blocks.pool.policy_mut().retain(block, retention);
            }
        }
        let group = &mut step.groups[0];
        if let Some((index, _)) = drafted.cow.filter(|_| drafted.copies()) {
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
        counters.skipped_tokens += u64::from(skip);
        let (start, len) = (drafted.start + skip, drafted.count - skip);
        before.unchanged = seq.table.take_unchanged();
        group.push_row(seq.table.ids(), start, len, before.unchanged);
        step.push(row.seq, skip, start, len);
        open.rows.push(before);
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
