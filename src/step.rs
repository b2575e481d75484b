//! The plan of one forward pass, as plain data.
//!
//! Floor 2. A [`Step`] is all that control plane and data plane say to each other: copies to run first, the slot of
//! every token to write, the block table of every row, lengths. It is a reusable buffer. Its state of record lives in
//! the cache under its [`StepId`]; dropping a `Step` loses nothing but a copy of the plan.
//!
//! The tokens of a row, drawn for a row of 7 tokens whose first 4 need not be computed:
//! ```text
//! position   0 ............ start-skip ......... start ................ end
//!            |  in the cache  |  skip (found)     |  len (to compute)    |
//! row tokens                  0                   skip                   tokens.len()
//! ```

mod encode;
#[cfg(test)]
mod tests;
mod write;

use alloc::vec::Vec;

use smallvec::{SmallVec, smallvec};

use crate::error::MalformedStep;
use crate::id::{BlockId, BlockSize, GroupId, SeqId, Slot, StepId, ix, len32};

pub use write::{IndexElem, Padding, TableEdit};

/// One row of a step: the query tokens of one sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepRow {
    /// The sequence.
    pub seq: SeqId,
    /// Leading tokens of the row *not* to compute, because their K and V are in the cache already or are computed by
    /// a row before this one. The slot mapping and all query tensors leave them out.
    pub skip: u32,
    /// Position, in the sequence, of the first token to compute.
    pub start: u32,
    /// Tokens to compute: positions `start .. start + len`.
    pub len: u32,
    /// Where these tokens begin among the query tokens of the whole step.
    pub first_token: u32,
}

impl StepRow {
    /// Length of the sequence once the row is computed: what the last query token attends to, itself included.
    #[inline]
    pub const fn seq_len(&self) -> u32 {
        self.start.saturating_add(self.len)
    }
}

/// Copy the whole of block `src`, all layers, K, V and scales, to block `dst`. The copies of one step are safe in any
/// order, and run before the step's writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockCopy {
    /// The block to read.
    pub src: BlockId,
    /// The block to write.
    pub dst: BlockId,
}

/// Where the table of a row lies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RowTable {
    /// Where its blocks end in those of all rows. They begin where those of the row before end.
    pub(crate) end: u32,
    /// Leading blocks that are as in the last step that named the sequence.
    pub(crate) unchanged: u32,
}

/// Places for rows and for the blocks of their whole tables, to be written and not pushed. Until then they hold what they
/// held: in a decode loop nearly all of it is right already, and none is cleared first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) rows: usize,
    pub(crate) blocks: usize,
}

impl Places {
    /// None: what comes is pushed.
    pub(crate) const NONE: Self = Self { rows: 0, blocks: 0 };
}

/// What one group of layers needs for a step: copies, slots, tables.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupStep {
    pub(crate) block_size: u32,
    pub(crate) scratch: Option<BlockId>,
    pub(crate) copies: Vec<BlockCopy>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) rows: Vec<RowTable>,
    /// The blocks of all rows, lookahead included, or those of them that changed.
    pub(crate) blocks: Vec<BlockId>,
    /// The unchanged blocks are left out of `blocks`.
    pub(crate) changes_only: bool,
}

impl GroupStep {
    /// Tokens of a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The block that padded rows may write to, if the cache reserves one.
    pub fn scratch(&self) -> Option<BlockId> {
        self.scratch
    }

    /// Copies to run before anything is written. No destination is a source of another.
    pub fn copies(&self) -> &[BlockCopy] {
        &self.copies
    }

    /// Where K and V of every query token go, row after row: `[query tokens]`. Distinct within a planned step.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The blocks of row `row`, first position first: ⌈sequence length / block size⌉, then those of its lookahead.
    /// Empty for a row that the step does not have, and in a step [of changes](Step::of_changes).
    pub fn table(&self, row: usize) -> &[BlockId] {
        if self.changes_only { &[] } else { self.run(row) }
    }

    /// Number of blocks in the table of row `row`, lookahead included.
    pub fn table_len(&self, row: usize) -> u32 {
        let left_out = if self.changes_only { self.unchanged(row) } else { 0 };
        left_out + len32(self.run(row).len())
    }

    /// The blocks of row `row` behind the [unchanged](Self::unchanged) ones.
    pub fn changed(&self, row: usize) -> &[BlockId] {
        let from = if self.changes_only { 0 } else { ix(self.unchanged(row)) };
        self.run(row).get(from..).unwrap_or(&[])
    }

    fn run(&self, row: usize) -> &[BlockId] {
        let Some(table) = self.rows.get(row) else { return &[] };
        let from = row.checked_sub(1).and_then(|before| self.rows.get(before)).map_or(0, |before| before.end);
        self.blocks.get(ix(from)..ix(table.end)).unwrap_or(&[])
    }

    /// Leading blocks of row `row` that are the same as when a step last named its sequence. What is behind them is
    /// new to a storage that keeps one table row per sequence.
    pub fn unchanged(&self, row: usize) -> u32 {
        self.rows.get(row).map_or(0, |table| table.unchanged)
    }

    /// Empties the tables, but for [`Places`].
    pub(crate) fn clear(&mut self, block_size: u32, scratch: Option<BlockId>, places: Places) {
        self.block_size = block_size;
        self.scratch = scratch;
        self.copies.clear();
        self.slots.clear();
        self.rows.resize(places.rows, RowTable::default());
        self.blocks.resize(if self.changes_only { 0 } else { places.blocks }, BlockId::new(0));
    }

    /// Appends the table of a row, whose blocks from an index on `table` gives, and its slots: those of the positions
    /// `start .. start + len`, which the table covers.
    pub(crate) fn push_row<I: Iterator<Item = BlockId>>(
        &mut self,
        table: impl Fn(u32) -> I,
        start: u32,
        len: u32,
        unchanged: u32,
    ) {
        let row = self.push_blocks(&table, unchanged);
        self.rows.push(row);
        self.push_slots(table, start, len);
    }

    /// Appends the slots of the positions `start .. start + len`, in the blocks that `table` gives from an index on.
    pub(crate) fn push_slots<I: Iterator<Item = BlockId>>(&mut self, table: impl Fn(u32) -> I, start: u32, len: u32) {
        let (index, mut offset) = BlockSize::new(self.block_size).split(start);
        let (mut blocks, mut left) = (table(index), len);
        while left > 0 {
            let Some(block) = blocks.next() else {
                debug_assert!(false, "the table covers the row");
                break;
            };
            let run = left.min(self.block_size - offset);
            let first = block.slot(offset, self.block_size).get();
            self.slots.extend((first..first.saturating_add(run)).map(Slot::new));
            (offset, left) = (0, left - run);
        }
    }

    /// Appends what changed of a table, as it was sent.
    fn push_changes(&mut self, changed: &[BlockId], unchanged: u32) {
        self.blocks.extend_from_slice(changed);
        self.rows.push(RowTable { end: len32(self.blocks.len()), unchanged });
    }

    /// Appends the blocks of a table; returns where they lie.
    #[inline]
    pub(crate) fn push_blocks<I: Iterator<Item = BlockId>>(
        &mut self,
        table: impl Fn(u32) -> I,
        unchanged: u32,
    ) -> RowTable {
        if !self.changes_only {
            self.blocks.extend(table(0));
        } else {
            for block in table(unchanged) {
                self.blocks.push(block);
            }
        }
        RowTable { end: len32(self.blocks.len()), unchanged }
    }
}

/// The plan of one forward pass; see the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    pub(crate) id: Option<StepId>,
    pub(crate) rows: Vec<StepRow>,
    pub(crate) groups: SmallVec<[GroupStep; 1]>,
}

impl Default for Step {
    fn default() -> Self {
        Self { id: None, rows: Vec::new(), groups: smallvec![GroupStep::default()] }
    }
}

/// A row of a step that is put together by hand; see [`Step::from_tables`].
#[derive(Clone, Copy, Debug)]
pub struct TableRow<'a> {
    /// Position of the first query token.
    pub start: u32,
    /// Query tokens: positions `start .. start + len`.
    pub len: u32,
    /// The block table: enough blocks for `start + len` positions.
    pub blocks: &'a [BlockId],
}

impl Step {
    /// An empty buffer, to be filled by [`plan`](crate::KvCache::plan) or [`view`](crate::KvCache::view).
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer for storages that keep a table for every sequence: of each row's table it is given only what changed
    /// since the last step that named the sequence ([`table_edits`](Self::table_edits)), and planning a decode step costs
    /// the same for any length of context. It has no whole tables to read or write.
    pub fn of_changes() -> Self {
        let mut step = Self::default();
        step.groups[0].changes_only = true;
        step
    }

    /// A step without a cache behind it: for engines that keep their own tables and want a storage's attention, and
    /// for tests of storages. The rows get the handles 0, 1, 2, …; the step has no id.
    ///
    /// # Errors
    /// [`MalformedStep::Inconsistent`] where a table is shorter than its row, a block lies outside `u32` slots, a row
    /// is empty, or the step has too many tokens.
    pub fn from_tables(block_size: u32, rows: &[TableRow<'_>], copies: &[BlockCopy]) -> Result<Self, MalformedStep> {
        let fault = |what| Err(MalformedStep::Inconsistent { what });
        if block_size == 0 {
            return fault("block size is zero");
        }
        let mut step = Self::new();
        step.start(None, block_size, None, Places::NONE);
        for (row, index) in rows.iter().zip(0_u32..) {
            if row.len == 0 {
                return fault("a row is empty");
            }
            let Some(end) = row.start.checked_add(row.len) else {
                return fault("a row is too long");
            };
            if row.blocks.len() < ix(end.div_ceil(block_size)) {
                return fault("a table is shorter than its row");
            }
            if row.blocks.iter().any(|block| !has_slots(*block, block_size)) {
                return fault("a block has no slots");
            }
            let seq = SeqId { index, generation: 0 };
            if !step.push(seq, 0, row.start, row.len) {
                return fault("too many query tokens");
            }
            let Some(group) = step.groups.first_mut() else { break };
            if u32::try_from(group.blocks.len() + row.blocks.len()).is_err() {
                return fault("too many blocks");
            }
            let table = |from| row.blocks.get(ix(from)..).unwrap_or(&[]).iter().copied();
            group.push_row(table, row.start, row.len, 0);
        }
        let group = &mut step.groups[0];
        if copies.iter().any(|copy| !has_slots(copy.src, block_size) || !has_slots(copy.dst, block_size)) {
            return fault("a copied block has no slots");
        }
        group.copies.extend_from_slice(copies);
        Ok(step)
    }

    /// The id under which this step is open in its cache; `None` for a view, a step by hand, or an empty buffer.
    pub fn id(&self) -> Option<StepId> {
        self.id
    }

    /// The rows, in the order of the plan.
    pub fn rows(&self) -> &[StepRow] {
        &self.rows
    }

    /// Query tokens of all rows together.
    #[inline]
    pub fn num_tokens(&self) -> u32 {
        self.rows.last().map_or(0, |row| row.first_token + row.len)
    }

    /// The tables of the first group: the only one of a model whose layers are alike.
    pub fn tables(&self) -> &GroupStep {
        &self.groups[0]
    }

    /// The tables of a group.
    pub fn group(&self, group: GroupId) -> Option<&GroupStep> {
        self.groups.get(group.index())
    }

    /// Empties the buffer, but for [`Places`], and gives it an id.
    pub(crate) fn start(&mut self, id: Option<StepId>, block_size: u32, scratch: Option<BlockId>, places: Places) {
        self.id = id;
        self.rows.resize(places.rows, StepRow::BLANK);
        self.groups.truncate(1);
        self.groups[0].clear(block_size, scratch, places);
    }

    /// Appends a row's numbers; `false` where the query tokens of the step overflow `u32`.
    #[inline]
    pub(crate) fn push(&mut self, seq: SeqId, skip: u32, start: u32, len: u32) -> bool {
        let first_token = self.num_tokens();
        if first_token.checked_add(len).is_none() {
            return false;
        }
        self.rows.push(StepRow { seq, skip, start, len, first_token });
        true
    }
}

impl StepRow {
    /// A place for a row.
    pub(crate) const BLANK: Self = Self { seq: SeqId::from_u64(0), skip: 0, start: 0, len: 0, first_token: 0 };
}

/// Whether every slot of the block has a `u32` number.
fn has_slots(block: BlockId, block_size: u32) -> bool {
    block.get().checked_add(1).and_then(|blocks| blocks.checked_mul(block_size)).is_some()
}
