//! The metadata of a step in device memory: fixed addresses, filled by one copy and one small kernel.
//!
//! A step is written, packed, to a slab of pinned memory. One copy takes it to the device, where `pk_prepare` puts its
//! parts where kernels look for them. There are several slabs, each of which knows when its copy is done: the host waits only
//! when it is that many steps ahead of the device.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;

use cudarc::driver::CudaContext;

use super::kernels::{Grid, Kernels};
use super::limits::CudaLimits;
use super::memory::DeviceMemory;
use super::params;
use super::slab::Slab;
use super::stream::Turn;
use crate::id::{BlockId, SeqId, ix, len32};
use crate::step::{GroupStep, Step, StepRow};
use crate::storage::StorageError;

/// Slabs of pinned memory: one that the device reads, one that the host writes.
const SLABS: usize = 2;

/// Words of the counts, which begin a packed step: rows, tokens, copies, edits.
const COUNTS: usize = 4;

/// Words of a row: start, tokens, first token, table.
const ROW: usize = 4;

/// Words of a query token: its row, its slot.
const TOKEN: usize = 2;

/// Words of a copy: source, destination.
const COPY: usize = 2;

/// Tokens of a row, its context included: `PK_MAX_POSITION` of the kernels, whose positions and chunks are ints.
const MAX_POSITION: u32 = i32::MAX.unsigned_abs() - 1024;

/// Words of an edit of a table: the table, from where, how many, and where its entries begin.
const EDIT: usize = 4;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Buffers {
    limits: CudaLimits,
    slabs: [Slab; SLABS],
    next: usize,
    packed: DeviceMemory,
    /// Counts, rows, rows of tokens, slots, copies: in this order.
    _fixed: DeviceMemory,
    _tables: DeviceMemory,
    addresses: params::Step,
    /// Whose the tables are that are kept, and how many blocks of them.
    kept: Vec<Option<(SeqId, u32)>>,
}

impl Buffers {
    pub(super) fn new(context: &Arc<CudaContext>, limits: CudaLimits) -> Result<Self, StorageError> {
        let [rows, tokens] = [limits.max_rows, limits.max_tokens].map(u64::from);
        let words = packed_words(&limits);
        let device = |words: u64| {
            let bytes = words.saturating_mul(4);
            DeviceMemory::zeroed(context, bytes, StorageError::NoBuffers { bytes })
        };
        let (packed, fixed, tables) = (device(words)?, device(fixed_words(&limits))?, device(table_words(&limits))?);
        let counts = fixed.first();
        let row = counts + COUNTS as u64 * 4;
        let token_rows = row + rows * ROW as u64 * 4;
        let slots = token_rows + tokens * 4;
        let addresses = params::Step {
            counts,
            rows: row,
            token_rows,
            slots,
            copies: slots + tokens * 4,
            tables: tables.first(),
            table_len: i64::from(limits.max_row_blocks),
        };
        let slabs = [Slab::new(context, words)?, Slab::new(context, words)?];
        let mut kept = Vec::new();
        let tables_kept = ix(limits.max_sequences);
        kept.try_reserve_exact(tables_kept).map_err(|_| StorageError::NoBuffers { bytes: tables_kept as u64 })?;
        kept.resize(tables_kept, None);
        Ok(Self { kept, limits, slabs, next: 0, packed, _fixed: fixed, _tables: tables, addresses })
    }

    /// Where kernels find the step.
    pub(super) const fn addresses(&self) -> params::Step {
        self.addresses
    }

    /// That a step, already [checked](crate::storage::check), fits the buffers.
    pub(super) fn check(&self, step: &Step, tables: &GroupStep) -> Result<(), StorageError> {
        let limits = &self.limits;
        let end = |(index, row)| {
            let (from, blocks) = news(row, tables, index);
            from.saturating_add(len32(blocks.len()))
        };
        let blocks = step.rows().iter().enumerate().map(end).max().unwrap_or(0);
        let sequences = step.rows().iter().map(|row| row.seq.index().saturating_add(1)).max().unwrap_or(0);
        let sequences = if tables.changes_only { sequences } else { 0 };
        for (what, given, max) in [
            ("rows in the step", len32(step.rows().len()), limits.max_rows),
            ("query tokens in the step", step.num_tokens(), limits.max_tokens),
            ("copies in the step", len32(tables.copies().len()), limits.max_copies),
            ("blocks in a row", blocks, limits.max_row_blocks),
            ("sequences in the cache", sequences, limits.max_sequences),
        ] {
            if given > max {
                return Err(StorageError::Limit { what, given: u64::from(given), max: u64::from(max) });
            }
        }
        let tokens = step.rows().iter().map(StepRow::seq_len).max().unwrap_or(0);
        if tokens > MAX_POSITION {
            let (given, max) = (u64::from(tokens), u64::from(MAX_POSITION));
            return Err(StorageError::Limit { what: "tokens in a row", given, max });
        }
        if !tables.changes_only {
            return Ok(());
        }
        for (index, row) in step.rows().iter().enumerate() {
            let unchanged = tables.unchanged(index);
            let kept = self.kept[ix(row.seq.index())].filter(|(seq, _)| *seq == row.seq).map_or(0, |(_, kept)| kept);
            // A sequence may be in a view several times: its first row brings what the others build on.
            let brought = || step.rows()[..index].iter().position(|before| before.seq == row.seq);
            if unchanged > kept && brought().is_none_or(|first| unchanged > tables.table_len(first)) {
                return Err(StorageError::UnknownTable { row: index, unchanged, kept });
            }
        }
        Ok(())
    }

    /// Forgets all tables.
    pub(super) fn forget(&mut self) {
        self.kept.fill(None);
    }

    /// Forgets the tables that the step writes to, and, once they are `written`, knows them.
    fn keep(&mut self, step: &Step, tables: &GroupStep, written: bool) {
        for (index, row) in step.rows().iter().enumerate() {
            if tables.changes_only {
                self.kept[ix(row.seq.index())] = written.then(|| (row.seq, tables.table_len(index)));
            } else if let Some(kept) = self.kept.get_mut(index) {
                *kept = None;
            }
        }
    }

    /// Sends a step that was checked. Where that fails, the device may have any part of it.
    pub(super) fn send(
        &mut self,
        turn: &Turn<'_>,
        kernels: &Kernels,
        step: &Step,
        tables: &GroupStep,
    ) -> Result<(), StorageError> {
        let slab = &mut self.slabs[self.next];
        let len = pack(slab.words()?, step, tables);
        // SAFETY: `packed` has room for the largest step that `check` lets pass, as the slab has.
        unsafe { slab.send(turn, len, self.packed.first()) }?;
        self.next = (self.next + 1) % SLABS;
        let params = params::Prepare { step: self.addresses, packed: self.packed.first() };
        let ctas = (step.num_tokens().div_ceil(1024)).max(len32(step.rows().len())).max(1);
        let grid = Grid { ctas, threads: 128, shared_bytes: 0 };
        self.keep(step, tables, false);
        // SAFETY: the kernel reads what is packed and writes rows, tokens, copies and entries of tables, of which there
        // are no more than `check` lets pass, and for which `new` has allocated.
        unsafe { kernels.prepare.launch(turn, grid, &params) }?;
        self.keep(step, tables, true);
        Ok(())
    }
}

/// Words of the parts that kernels read, saturating.
pub(super) fn fixed_words(limits: &CudaLimits) -> u64 {
    let [rows, tokens, copies] = [limits.max_rows, limits.max_tokens, limits.max_copies].map(u64::from);
    // Sums and products of a few 32-bit numbers.
    COUNTS as u64 + rows * ROW as u64 + tokens * TOKEN as u64 + copies * COPY as u64
}

/// Words of the tables: one for each row or sequence.
pub(super) fn table_words(limits: &CudaLimits) -> u64 {
    u64::from(limits.max_rows.max(limits.max_sequences)) * u64::from(limits.max_row_blocks)
}

/// Words of the largest packed step, saturating.
pub(super) fn packed_words(limits: &CudaLimits) -> u64 {
    let edits = u64::from(limits.max_rows) * EDIT as u64;
    let entries = u64::from(limits.max_rows) * u64::from(limits.max_row_blocks);
    fixed_words(limits).saturating_add(edits).saturating_add(entries)
}

/// Writes a step: counts, rows, the rows of tokens, slots, copies, edits, entries. Returns the words written, of which
/// there are no more than [`packed_words`].
///
/// A row of whole tables takes the table of its own number, one of changes that of its sequence.
fn pack(words: &mut [u32], step: &Step, tables: &GroupStep) -> usize {
    let mut to = Writer { words, len: 0 };
    let rows = len32(step.rows().len());
    let table_of = |row: &StepRow, index| if tables.changes_only { row.seq.index() } else { index };
    to.put([rows, step.num_tokens(), len32(tables.copies().len()), rows]);
    for (row, index) in step.rows().iter().zip(0..) {
        to.put([row.start, row.len, row.first_token, table_of(row, index)]);
    }
    for (row, index) in step.rows().iter().zip(0..) {
        to.fill(row.len, index);
    }
    to.extend(tables.slots().iter().map(|slot| slot.get()));
    for copy in tables.copies() {
        to.put([copy.src.get(), copy.dst.get()]);
    }
    let mut first = 0;
    for (row, index) in step.rows().iter().zip(0..) {
        let (from, blocks) = news(row, tables, ix(index));
        to.put([table_of(row, index), from, len32(blocks.len()), first]);
        first += len32(blocks.len());
    }
    for (row, index) in step.rows().iter().zip(0..) {
        to.extend(news(row, tables, index).1.iter().map(|block| block.get()));
    }
    to.len
}

/// What a row's table gets, and from where on. Of whole tables that is what the row's tokens need.
fn news<'a>(row: &StepRow, tables: &'a GroupStep, index: usize) -> (u32, &'a [BlockId]) {
    if tables.changes_only {
        return (tables.unchanged(index), tables.changed(index));
    }
    (0, &tables.table(index)[..ix(row.seq_len().div_ceil(tables.block_size()))])
}

/// Writes words one after the other.
struct Writer<'a> {
    words: &'a mut [u32],
    len: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, words: [u32; N]) {
        self.words[self.len..][..N].copy_from_slice(&words);
        self.len += N;
    }

    fn fill(&mut self, count: u32, word: u32) {
        self.words[self.len..][..ix(count)].fill(word);
        self.len += ix(count);
    }

    fn extend(&mut self, words: impl ExactSizeIterator<Item = u32>) {
        let count = words.len();
        for (place, word) in self.words[self.len..][..count].iter_mut().zip(words) {
            *place = word;
        }
        self.len += count;
    }
}
