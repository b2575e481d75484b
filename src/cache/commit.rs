//! What becomes of a step: commit, abort, retire.

use crate::evict::Evict;
use alloc::vec::Vec;
use core::ops::Range;

use super::KvCache;
use super::blocks::Blocks;
use super::plain;
use super::plan::parent_of;
use crate::block::BlockRef;
use crate::error::StepError;
use crate::id::{BlockId, SeqId, Slot, StepId, TokenId, ix};
use crate::sequence::Sequence;

/// What a step did for one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<'a> {
    /// All input tokens of the row hold real K and V. Tokens that were planned by count stay unknown: their blocks
    /// are never shared.
    All,
    /// The first so many input tokens do; the rest is rolled back. For a row with drafts that is one (the token that
    /// was certain) plus the accepted drafts; skipped tokens count.
    Accept(u32),
    /// For a row planned by count: the ids of the first tokens; the rest is rolled back.
    Ids(&'a [TokenId]),
}

/// An open step.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Default)]
pub(super) struct OpenStep {
    id: u64,
    pub(super) rows: Vec<OpenRow>,
    /// Blocks that it computes in full.
    pub(super) published: Vec<BlockId>,
}

/// A row of an open step, and how its sequence was before.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRow {
    pub(super) seq: SeqId,
    pub(super) start: u32,
    /// Where a plain append is written.
    pub(super) slot: Slot,
    pub(super) table_len: u32,
    /// Leading table entries that were as in the step before that named the sequence.
    pub(super) unchanged: u32,
    pub(super) count: u32,
    pub(super) drafts: u32,
    pub(super) lookahead: u32,
    /// Whether it is a [plain append](super::plain).
    pub(super) plain: bool,
    pub(super) by_count: bool,
    /// Whether it replaced the tail by a copy.
    pub(super) cow: bool,
}

impl OpenStep {
    pub(super) fn id(&self) -> StepId {
        StepId::new(self.id)
    }

    /// Gives the step its id.
    pub(super) fn start(&mut self, id: StepId) {
        self.id = id.get();
        self.published.clear();
    }
}

impl OpenRow {
    /// A place for a row.
    pub(super) const BLANK: Self = Self {
        seq: SeqId::from_u64(0),
        start: 0,
        slot: Slot::new(0),
        table_len: 0,
        unchanged: 0,
        count: 0,
        drafts: 0,
        lookahead: 0,
        plain: false,
        by_count: false,
        cow: false,
    };

    /// How many tokens an outcome accepts, if it may.
    fn accepted(&self, row: usize, outcome: &Outcome<'_>) -> Result<u32, StepError> {
        let most = self.count;
        // What is no draft and known by id may have been found by others since: it is all or nothing, by abort.
        let least = if self.by_count { 0 } else { most - self.drafts };
        let accepted = match *outcome {
            Outcome::All => ix(most),
            Outcome::Accept(accepted) => ix(accepted),
            Outcome::Ids(_) if !self.by_count => return Err(StepError::IdsGivenTwice { row }),
            Outcome::Ids(ids) => ids.len(),
        };
        match u32::try_from(accepted) {
            Ok(accepted) if (least..=most).contains(&accepted) => Ok(accepted),
            _ => Err(StepError::Accepted { row, accepted, least, most }),
        }
    }
}

impl<E: Evict> KvCache<E> {
    /// Makes the oldest open step real: one outcome per row, in the order of the plan. Rows whose sequence was freed
    /// take any outcome. To be called as soon as the work of the step is enqueued on the stream that runs all later
    /// steps; it need not have run.
    ///
    /// # Errors
    /// [`StepError`]; then nothing changed.
    ///
    /// # Complexity
    /// O(rows + blocks filled + blocks rolled back).
    pub fn commit(&mut self, step: StepId, outcomes: &[Outcome<'_>]) -> Result<(), StepError> {
        let open = self.oldest(step)?;
        if open.rows.len() != outcomes.len() {
            return Err(StepError::OutcomeCount { rows: open.rows.len(), outcomes: outcomes.len() });
        }
        for (index, (row, outcome)) in open.rows.iter().zip(outcomes).enumerate() {
            let Some(seq) = self.seqs.get(row.seq) else { continue };
            if row.accepted(index, outcome)? < row.count && seq.open_rows > 1 {
                return Err(StepError::LaterStepOpen { row: index, seq: row.seq });
            }
        }
        self.apply(outcomes.iter().copied());
        Ok(())
    }

    /// [`commit`](Self::commit) with [`Outcome::All`] for every row.
    ///
    /// # Errors
    /// [`StepError`]; then nothing changed.
    pub fn commit_all(&mut self, step: StepId) -> Result<(), StepError> {
        self.oldest(step)?;
        self.apply(core::iter::repeat(Outcome::All));
        Ok(())
    }

    fn oldest(&self, step: StepId) -> Result<&OpenStep, StepError> {
        match self.open.front() {
            Some(oldest) if oldest.id() == step => Ok(oldest),
            Some(oldest) if self.open.iter().any(|open| open.id() == step) => {
                Err(StepError::OutOfOrder { step, oldest: oldest.id() })
            }
            _ => Err(StepError::NotOpen { step }),
        }
    }

    /// Commits the oldest step with outcomes that were checked.
    fn apply<'a>(&mut self, outcomes: impl Iterator<Item = Outcome<'a>>) {
        let Some(open) = self.open.pop_front() else { return };
        for &block in &open.published {
            // A block whose holders all left meanwhile is somebody else's by now, or nobody's.
            if self.blocks.index.is_computed_by(block, open.id) {
                self.blocks.set_computed(block);
            }
        }
        for (row, outcome) in open.rows.iter().zip(outcomes) {
            if row.plain {
                plain::commit(&mut self.seqs, row);
            } else {
                self.commit_row(row, outcome);
            }
        }
        self.spare.push(open);
        self.deliver();
    }

    fn commit_row(&mut self, row: &OpenRow, outcome: Outcome<'_>) {
        let Self { blocks, seqs, reserved, .. } = self;
        let size = blocks.size;
        let Some(seq) = seqs.get_mut(row.seq) else { return };
        let accepted = row.accepted(0, &outcome).unwrap_or(row.count);
        let end = row.start + accepted;
        let tail_start = seq.tail_start(size);
        seq.open_rows -= 1;
        if accepted < row.count {
            seq.planned = end;
            seq.tail.truncate(ix(end - tail_start));
        }
        if row.by_count {
            seq.unknown_rows -= 1;
            match outcome {
                Outcome::Ids(ids) => {
                    let from = ix(row.start - tail_start);
                    if let Some(places) = seq.tail.get_mut(from..from + ids.len()) {
                        places.copy_from_slice(ids);
                    }
                }
                _ if accepted > 0 => seq.anonymous_from = seq.anonymous_from.min(row.start),
                _ => {}
            }
        }
        let fence = seq.fence;
        if row.cow
            && let Some((_, block)) = seq.displaced.take()
        {
            blocks.pool.end_displaced(block.id());
            blocks.release(block, fence);
        }
        let filled = size.index(row.start)..size.index(end);
        name_blocks(blocks, seq, filled.clone());
        for index in filled {
            blocks.retain(seq, index);
        }
        seq.set_committed(end, size);
        if seq.open_rows == 0 {
            let target = size.blocks_of(seq.planned + seq.lookahead);
            let freed = shrink(blocks, seq, target, fence);
            seq.regain_claim(freed, reserved);
        }
        seq.plain = plain::ready(blocks, seq);
    }

    /// Undoes a step and every later one, newest first: lengths, tables and shares of their sequences are as before
    /// it. Cached content that the plans evicted stays evicted, and a claim comes back as far as its blocks do.
    ///
    /// # Errors
    /// [`StepError::NotOpen`]; then nothing changed.
    pub fn abort(&mut self, step: StepId) -> Result<(), StepError> {
        if !self.open.iter().any(|open| open.id() == step) {
            return Err(StepError::NotOpen { step });
        }
        while let Some(open) = self.open.pop_back() {
            for row in open.rows.iter().rev() {
                self.abort_row(row);
            }
            // What nobody will compute loses its name, also where a fork of a freed sequence still holds the block.
            for &block in &open.published {
                if self.blocks.index.is_computed_by(block, open.id) {
                    self.blocks.unpublish(block);
                }
            }
            let done = open.id() == step;
            self.spare.push(open);
            if done {
                break;
            }
        }
        self.deliver();
        Ok(())
    }

    /// Undoes every open step.
    pub fn abort_all(&mut self) {
        if let Some(oldest) = self.open.front().map(OpenStep::id) {
            // The oldest open step is open.
            let _ = self.abort(oldest);
        }
    }

    fn abort_row(&mut self, row: &OpenRow) {
        let Self { blocks, seqs, reserved, .. } = self;
        let size = blocks.size;
        let Some(seq) = seqs.get_mut(row.seq) else { return };
        let fence = seq.fence;
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::AbortForgetsBlock) && seq.table.len() > row.table_len {
            let _ = seq.table.pop();
        }
        seq.open_rows -= 1;
        // As long as before the row; or, where an older step has committed since, as long as the sequence wants.
        let wanted = size.blocks_of(row.start + row.lookahead);
        let len = if seq.open_rows == 0 { wanted } else { row.table_len };
        let freed = shrink(blocks, seq, len, fence);
        if row.cow
            && let Some((index, block)) = seq.displaced.take()
        {
            blocks.pool.end_displaced(block.id());
            if let Ok(copy) = seq.table.replace(index, block) {
                blocks.release(copy, fence);
            }
        }
        seq.found = seq.found.min(seq.table.len());
        seq.tail.truncate(ix(row.start - seq.tail_start(size)));
        seq.planned = row.start;
        seq.regain_names();
        seq.lookahead = row.lookahead;
        seq.unknown_rows -= u32::from(row.by_count);
        // A storage may have seen this step's edits, or not: the next step's must do for both.
        seq.table.touch(row.unchanged);
        seq.regain_claim(freed, reserved);
    }

    /// Tells that all work of this step, and of those before it, has run: what was withheld for it can be reused.
    /// Aborted steps that were enqueued count like others. Without withholding this does nothing.
    ///
    /// # Errors
    /// [`StepError::StillOpen`] while a step up to this one is open, [`StepError::NotOpen`] for one that was never
    /// planned.
    ///
    /// # Complexity
    /// O(blocks withheld).
    pub fn retire(&mut self, step: StepId) -> Result<(), StepError> {
        if step.get() == 0 || step.get() >= self.next_step {
            return Err(StepError::NotOpen { step });
        }
        if let Some(oldest) = self.open.front().map(OpenStep::id).filter(|&oldest| oldest <= step) {
            return Err(StepError::StillOpen { step: oldest });
        }
        self.blocks.pool.retire(step.get());
        Ok(())
    }

    /// What a caller could tell apart of the open steps, as numbers.
    #[cfg(test)]
    pub(super) fn snapshot_open(&self, out: &mut Vec<u64>) {
        for open in &self.open {
            out.push(open.id);
            for row in &open.rows {
                out.extend([row.seq.to_u64(), u64::from(row.start), u64::from(row.count)]);
            }
            out.extend(open.published.iter().map(|block| u64::from(block.get())));
        }
    }
}

/// Names full blocks of a sequence, as far as they have no name and their content is known.
fn name_blocks<E: Evict>(blocks: &mut Blocks<E>, seq: &Sequence, filled: Range<u32>) {
    let size = blocks.size;
    for index in filled {
        let Some(block) = seq.table.get(index).map(BlockRef::id) else { return };
        if blocks.node_of(block).is_some() {
            continue;
        }
        if (index + 1) * size.tokens() > seq.anonymous_from || seq.query().private {
            return;
        }
        let Some(parent) = parent_of(blocks, seq, index) else { return };
        let extras = seq.extras_of(index, size.tokens());
        let promise = blocks.index.promise(parent, seq.block_tokens(index, size), extras);
        blocks.publish(promise.node, block, 0);
    }
}

/// Gives the blocks of a table from `len` on back, the last one first; returns how many can be allocated now.
pub(super) fn shrink<E: Evict>(blocks: &mut Blocks<E>, seq: &mut Sequence, len: u32, fence: u64) -> u32 {
    seq.table.cut(len).map(|block| u32::from(blocks.release(block, fence))).sum()
}

impl Sequence {
    /// Blocks that came back go to the sequence's own claim first, as far as it still lacks them.
    pub(super) fn regain_claim(&mut self, freed: u32, reserved: &mut u32) {
        let lacking = self.claim.target.saturating_sub(self.table.len());
        let blocks = self.claim.blocks.saturating_add(freed).min(lacking);
        *reserved = *reserved - self.claim.blocks + blocks;
        self.claim.blocks = blocks;
    }
}
