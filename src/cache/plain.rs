//! Plain appends: what most rows of most steps are, by a short way.
//!
//! A plain append is one certain token, known by id, that fills no block and ends a table without lookahead. It goes into a
//! block that is open, that nobody else holds and nobody finds; or into a new one, of which no claim knows. Its plan names
//! no block, and its commit has nothing to give back. A sequence that is [`ready`] for some has all that they need in one
//! place ([`Plain`]). A row is checked against that and planned as it is checked: should a later row fail, it is
//! [taken back](take_back). Every other row goes the general way, through a draft, which would find out the same, and more.

use super::blocks::Blocks;
use super::commit::OpenRow;
use super::handles::Sequences;
use super::plan::{Row, RowTokens, allocate};
use crate::block::{BlockAllocator, BlockRef};
use crate::evict::Evict;
use crate::sequence::{Plain, Sequence};

/// What a sequence is ready for.
pub(super) fn ready<E: Evict>(blocks: &Blocks<E>, seq: &Sequence) -> Plain {
    let block_size = blocks.size.tokens();
    let (index, offset) = blocks.size.split(seq.planned);
    let len = seq.table.len();
    if len != index + u32::from(offset > 0) || seq.lookahead > 0 || seq.table.unchanged() != len {
        return Plain::NONE;
    }
    let rows = block_size - 1 - offset;
    match seq.table.get(index).map(BlockRef::id) {
        None if seq.claim.blocks == 0 && len < blocks.pool.capacity() => {
            Plain { rows, slot: Plain::NO_SLOT, blocks: len + 1 }
        }
        Some(tail) if blocks.pool.is_own(tail) => Plain { rows, slot: tail.slot(offset, block_size), blocks: len },
        _ => Plain::NONE,
    }
}

/// Plans rows as long as they are plain appends, into `before`; returns how many were. `plan` is the number of this plan.
/// Adds the blocks that the rows need, and the blocks in their tables.
pub(super) fn append(
    seqs: &mut Sequences,
    plan: u64,
    rows: &[Row<'_>],
    before: &mut [OpenRow],
    (needed, table_blocks): (&mut u64, &mut u64),
) -> usize {
    let mut appended = 0;
    for (row, before) in rows.iter().zip(before) {
        let (RowTokens::Ids(&[token]), 0, 0) = (row.tokens, row.drafts, row.lookahead) else { break };
        let Some(seq) = seqs.get_plain(row.seq) else { break };
        let (start, Plain { rows, slot, blocks }) = (seq.planned, seq.plain);
        let sum = *table_blocks + u64::from(blocks);
        if rows == 0 || seq.mark == plan || sum > u64::from(u32::MAX) {
            break;
        }
        let mut table_len = blocks;
        if slot == Plain::NO_SLOT {
            table_len -= 1;
            *needed += 1;
        }
        *before = OpenRow {
            seq: row.seq,
            start,
            slot,
            table_len,
            unchanged: table_len,
            count: 1,
            plain: true,
            ..OpenRow::BLANK
        };
        seq.mark = plan;
        seq.planned = start + 1;
        seq.open_rows += 1;
        seq.plain.rows = rows - 1;
        seq.plain.slot = slot.next();
        seq.tail.push(token);
        *table_blocks = sum;
        appended += 1;
    }
    appended
}

/// Undoes [`append`].
pub(super) fn take_back(seqs: &mut Sequences, before: &[OpenRow]) {
    #[cfg(test)]
    if crate::planted::is(crate::planted::Bug::AppendsNotTakenBack) {
        return;
    }
    for row in before.iter().filter(|row| row.plain) {
        let Some(seq) = seqs.get_plain(row.seq) else { continue };
        seq.tail.pop();
        seq.planned = row.start;
        seq.open_rows -= 1;
        seq.plain.rows += 1;
        seq.plain.slot = row.slot;
    }
}

/// Takes the block of a plain append that begins one, when nothing can fail any more.
#[inline(never)]
pub(super) fn open_block<E: Evict>(blocks: &mut Blocks<E>, seqs: &mut Sequences, row: &mut OpenRow) {
    let Some(seq) = seqs.get_plain(row.seq) else { return };
    let Some(block) = allocate(blocks) else { return };
    row.slot = block.id().slot(0, blocks.size.tokens());
    seq.plain.slot = row.slot.next();
    seq.table.push(block);
    seq.table.take_unchanged();
}

/// Commits a plain append.
#[inline]
pub(super) fn commit(seqs: &mut Sequences, row: &OpenRow) {
    let Some(seq) = seqs.get_plain(row.seq) else { return };
    seq.open_rows -= 1;
    seq.committed = row.start + 1;
}

#[cfg(test)]
impl<E: Evict> super::KvCache<E> {
    /// Sends the next row of every sequence the general way.
    pub(super) fn forget_plain(&mut self) {
        self.seqs.iter_mut().for_each(drop);
    }

    /// Plain appends of the newest open step.
    pub(super) fn num_plain(&self) -> usize {
        self.open.back().map_or(0, |open| open.rows.iter().filter(|row| row.plain).count())
    }
}
