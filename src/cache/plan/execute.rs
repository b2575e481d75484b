//! The second half of a plan: takes what the first half counted. Cannot fail.

use alloc::vec::Vec;

use super::draft::{Draft, DraftRow};
use super::{Row, RowTokens};
use crate::block::BlockRef;
use crate::cache::KvCache;
use crate::cache::blocks::Blocks;
use crate::cache::commit::OpenRow;
use crate::cache::handles::Sequences;
use crate::cache::plain;
use crate::evict::Evict;
use crate::id::{BlockId, StepId, ix, len32};
use crate::sequence::Plain;
use crate::step::{BlockCopy, GroupStep, Places, RowTable, Step, StepRow};

/// Where a row is written that is no plain append.
struct RowPlaces<'a> {
    before: &'a mut OpenRow,
    meta: &'a mut StepRow,
    published: &'a mut Vec<BlockId>,
    copies: &'a mut Vec<BlockCopy>,
}

impl<E: Evict> KvCache<E> {
    /// The second half.
    pub(super) fn execute(&mut self, rows: &[Row<'_>], draft: &mut Draft, step: &mut Step) -> StepId {
        let id = StepId::new(self.next_step);
        self.next_step += 1;
        let mut open = core::mem::replace(&mut draft.open, self.spare.pop().unwrap_or_default());
        open.start(id);
        let places = Places { rows: rows.len(), blocks: usize::try_from(draft.table_blocks).unwrap_or(usize::MAX) };
        step.start(Some(id), self.config.block_size, self.scratch(), places);
        // Nothing that the plan relies on may be evicted by what it allocates.
        for block in draft.hits.iter().filter_map(|hit| hit.1) {
            self.blocks.pool.detach(block);
        }
        self.blocks.begin_allocations();
        let mut hits = draft.hits.iter().copied();
        let mut promises = draft.promises.iter().map(|promise| promise.node);
        let mut drafted = draft.rows.iter();
        let fence = self.config.fence(id.get());
        let Step { rows: metas, groups, .. } = step;
        let group = &mut groups[0];
        let mut tables = core::mem::take(&mut group.rows);
        group.slots.reserve(rows.len());
        let (mut first_token, mut end) = (0, 0);
        let places = open.rows.iter_mut().zip(metas).zip(&mut tables);
        for (row, ((before, meta), table)) in rows.iter().zip(places) {
            let mut has_news = !group.changes_only || fence != 0;
            if before.plain {
                if before.slot == Plain::NO_SLOT {
                    has_news = true;
                    plain::open_block(&mut self.blocks, &mut self.seqs, before);
                }
                *meta = StepRow { seq: row.seq, start: before.start, len: 1, ..StepRow::BLANK };
                group.slots.push(before.slot);
            } else if let Some(drafted) = drafted.next() {
                has_news = true;
                let into = RowPlaces { before, meta, published: &mut open.published, copies: &mut group.copies };
                self.execute_row(row, drafted, id, &mut hits, &mut promises, into);
            }
            if has_news {
                end = write_table(&mut self.seqs, before, meta, fence, end, group);
            }
            *table = RowTable { end, unchanged: before.unchanged };
            meta.first_token = first_token;
            first_token += meta.len;
        }
        debug_assert_eq!(ix(end), group.blocks.len(), "every table is written, and nothing else is there");
        group.rows = tables;
        self.open.push_back(open);
        id
    }

    // Not inlined, like all that a plain append does not need: the loop over these would not find registers enough.
    #[inline(never)]
    fn execute_row(
        &mut self,
        row: &Row<'_>,
        drafted: &DraftRow,
        step: StepId,
        hits: &mut impl Iterator<Item = (u32, Option<BlockId>)>,
        promises: &mut impl Iterator<Item = u32>,
        into: RowPlaces<'_>,
    ) {
        let Self { blocks, seqs, reserved, counters, .. } = self;
        let Some(seq) = seqs.get_mut(row.seq) else { return };
        let size = blocks.size;
        let by_count = matches!(row.tokens, RowTokens::Count(_));
        *into.before = OpenRow {
            seq: row.seq,
            start: drafted.start,
            table_len: seq.table.len(),
            count: drafted.count,
            drafts: row.drafts,
            lookahead: seq.lookahead,
            by_count,
            cow: drafted.cow.is_some(),
            ..OpenRow::BLANK
        };
        let mut part = drafted.cow.filter(|_| drafted.hits > 0);
        for (node, block) in hits.take(ix(drafted.hits)) {
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
                    if crate::planted::is(crate::planted::Bug::PartLetGo)
                        && blocks.node_of(copy.src).is_some()
                        && let Some((_, src)) = seq.displaced.take()
                    {
                        blocks.pool.end_displaced(copy.src);
                        blocks.release(src, 0);
                    }
                    counters.copies += 1;
                    #[cfg(test)]
                    let skipped = crate::planted::is(crate::planted::Bug::SkippedCopy);
                    #[cfg(not(test))]
                    let skipped = false;
                    if !skipped {
                        into.copies.push(copy);
                    }
                }
            }
        }
        while seq.table.len() < drafted.table_target {
            let Some(block) = allocate(blocks) else { break };
            seq.table.push(block);
        }
        let skip = drafted.skip(size);
        let first = size.index(drafted.start + skip);
        for (node, index) in promises.take(ix(drafted.promises)).zip(first..) {
            let Some(block) = seq.table.get(index).map(BlockRef::id) else { continue };
            blocks.publish(node, block, step.get());
            into.published.push(block);
        }
        seq.planned = drafted.start + drafted.count;
        seq.lookahead = row.lookahead;
        seq.open_rows += 1;
        seq.unknown_rows += u32::from(by_count);
        *reserved = *reserved - seq.claim.blocks + drafted.claim.blocks;
        seq.claim = drafted.claim;
        counters.skipped_tokens += u64::from(skip);
        let (start, len) = (drafted.start + skip, drafted.count - skip);
        into.before.unchanged = seq.table.take_unchanged();
        *into.meta = StepRow { seq: row.seq, skip, start, len, first_token: 0 };
    }
}

/// Writes the blocks of a row, those of the rows before ending at `from`, and its slots where it is no plain append.
/// Returns where its blocks end.
#[inline(never)]
fn write_table(
    seqs: &mut Sequences,
    row: &OpenRow,
    meta: &StepRow,
    fence: u64,
    from: u32,
    group: &mut GroupStep,
) -> u32 {
    let Some(seq) = seqs.get_plain(row.seq) else { return from };
    if fence != 0 {
        seq.fence = fence;
    }
    if !row.plain {
        group.push_slots(|from| seq.table.ids_from(from), meta.start, meta.len);
    }
    if group.changes_only {
        group.blocks.extend(seq.table.ids_from(row.unchanged));
        return len32(group.blocks.len());
    }
    let end = from + seq.table.len();
    if let Some(places) = group.blocks.get_mut(ix(from)..ix(end)) {
        seq.table.copy_ids(places);
    }
    end
}

/// The block that an earlier row of this plan has brought for a node, with a reference.
fn promised<E: Evict>(blocks: &mut Blocks<E>, node: u32) -> Option<BlockId> {
    let block = blocks.index.entry(node);
    debug_assert!(block.is_some(), "the row that promised a block comes first");
    blocks.pool.hold(block?);
    block
}

/// A block that the first half has counted.
pub(in crate::cache) fn allocate<E: Evict>(blocks: &mut Blocks<E>) -> Option<BlockRef> {
    let block = blocks.allocate();
    debug_assert!(block.is_some(), "the first half counted this block");
    block
}
