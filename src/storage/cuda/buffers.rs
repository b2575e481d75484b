//! The metadata of a step in device memory: fixed addresses, filled by one copy and one small kernel.
//!
//! A step is written, packed, to a slab of pinned memory. One copy takes it to the device, where `pk_prepare` puts its
//! parts where kernels look for them. There are several slabs, each of which knows when its copy is done: the host waits only
//! when it is that many steps ahead of the device.
#![allow(unsafe_code)]

use alloc::sync::Arc;

use cudarc::driver::CudaContext;

use super::kernels::{Grid, Kernels};
use super::limits::CudaLimits;
use super::memory::DeviceMemory;
use super::params;
use super::slab::Slab;
use super::stream::Turn;
use crate::id::{ix, len32};
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
        Ok(Self { limits, slabs, next: 0, packed, _fixed: fixed, _tables: tables, addresses })
    }

    /// Where kernels find the step.
    pub(super) const fn addresses(&self) -> params::Step {
        self.addresses
    }

    /// That a step, already [checked](crate::storage::check), fits the buffers.
    pub(super) fn check(&self, step: &Step, tables: &GroupStep) -> Result<(), StorageError> {
        let limits = &self.limits;
        let blocks = step.rows().iter().map(|row| row.seq_len().div_ceil(tables.block_size())).max().unwrap_or(0);
        for (what, given, max) in [
            ("rows in the step", len32(step.rows().len()), limits.max_rows),
            ("query tokens in the step", step.num_tokens(), limits.max_tokens),
            ("copies in the step", len32(tables.copies().len()), limits.max_copies),
            ("blocks in a row", blocks, limits.max_row_blocks),
        ] {
            if given > max {
                return Err(StorageError::Limit { what, given: u64::from(given), max: u64::from(max) });
            }
        }
        Ok(())
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
        // SAFETY: the kernel reads what is packed and writes rows, tokens, copies and entries of tables, of which there
        // are no more than `check` lets pass, and for which `new` has allocated.
        unsafe { kernels.prepare.launch(turn, grid, &params) }
    }
}

/// Words of the parts that kernels read, saturating.
pub(super) fn fixed_words(limits: &CudaLimits) -> u64 {
    let [rows, tokens, copies] = [limits.max_rows, limits.max_tokens, limits.max_copies].map(u64::from);
    // Sums and products of a few 32-bit numbers.
    COUNTS as u64 + rows * ROW as u64 + tokens * TOKEN as u64 + copies * COPY as u64
}

/// Words of the tables.
pub(super) fn table_words(limits: &CudaLimits) -> u64 {
    u64::from(limits.max_rows) * u64::from(limits.max_row_blocks)
}

/// Words of the largest packed step, saturating.
pub(super) fn packed_words(limits: &CudaLimits) -> u64 {
    let edits = u64::from(limits.max_rows) * EDIT as u64;
    fixed_words(limits).saturating_add(edits).saturating_add(table_words(limits))
}

/// Writes a step: counts, rows, the rows of tokens, slots, copies, edits, entries. Returns the words written, of which
/// there are no more than [`packed_words`].
///
/// Every row takes the table of its own number, whole.
fn pack(words: &mut [u32], step: &Step, tables: &GroupStep) -> usize {
    let mut to = Writer { words, len: 0 };
    let rows = len32(step.rows().len());
    let blocks = |row: &StepRow| row.seq_len().div_ceil(tables.block_size());
    to.put([rows, step.num_tokens(), len32(tables.copies().len()), rows]);
    for (row, index) in step.rows().iter().zip(0..) {
        to.put([row.start, row.len, row.first_token, index]);
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
        to.put([index, 0, blocks(row), first]);
        first += blocks(row);
    }
    for (row, index) in step.rows().iter().zip(0..) {
        to.extend(tables.table(index)[..ix(blocks(row))].iter().map(|block| block.get()));
    }
    to.len
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
