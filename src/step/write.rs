//! A step's metadata, written into the caller's memory in the forms that attention kernels read.
//!
//! Every writer takes a range of rows (so that prefill and decode rows of one step can go to different kernels), an
//! element type, and a buffer whose length decides how many padding rows are written. Nothing here allocates.

use core::ops::Range;

use super::{GroupStep, Step, StepRow};
use crate::error::WriteError;
use crate::id::{BlockId, ix};

/// An element type that kernels take their indices in: `u32`, `i32` or `i64`.
pub trait IndexElem: Copy + sealed::Sealed {
    /// The number as this type.
    ///
    /// # Errors
    /// [`WriteError::Overflow`] where the type is too small.
    fn from_index(value: u64) -> Result<Self, WriteError>;

    /// −1, which kernels read as "no slot", or `None` for an unsigned type.
    fn no_slot() -> Option<Self>;

    /// The numbers of as many blocks as there are places.
    ///
    /// # Errors
    /// [`WriteError::Overflow`] where the type is too small.
    fn write_blocks(blocks: &[BlockId], out: &mut [Self]) -> Result<(), WriteError>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

macro_rules! index_elem {
    ($($ty:ty: $no_slot:expr),*) => {$(
        impl IndexElem for $ty {
            #[inline]
            fn from_index(value: u64) -> Result<Self, WriteError> {
                Self::try_from(value).map_err(|_| WriteError::Overflow { value })
            }

            #[inline]
            fn no_slot() -> Option<Self> {
                $no_slot
            }

            #[inline]
            fn write_blocks(blocks: &[BlockId], out: &mut [Self]) -> Result<(), WriteError> {
                // One check for all, so that the loop is as fast as a copy.
                let most = blocks.iter().fold(0, |most, block| most.max(block.get()));
                Self::from_index(u64::from(most))?;
                for (place, block) in out.iter_mut().zip(blocks) {
                    *place = Self::try_from(block.get()).unwrap_or_default();
                }
                Ok(())
            }
        }
    )*};
}

index_elem!(u32: None, i32: Some(-1), i64: Some(-1));

/// What stands in rows behind the last one, where a captured graph runs a fixed number of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Padding {
    /// Row 0 of the range once more, with slot −1, so that nothing is written. Wants a signed slot type.
    AliasFirst,
    /// A row of one token in the scratch block, which holds garbage that nobody reads.
    Scratch,
}

/// One entry of a table that changed since the last step that named the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableEdit {
    /// [`SeqId::index`](crate::SeqId::index) of the sequence: its row in a storage that keeps one row per sequence.
    pub seq_index: u32,
    /// The place in the table.
    pub column: u32,
    /// The block that now stands there.
    pub block: BlockId,
}

/// Writes one element after another, counting what did not fit.
struct Out<'a, I> {
    buffer: &'a mut [I],
    len: usize,
}

impl<'a, I: IndexElem> Out<'a, I> {
    fn new(buffer: &'a mut [I]) -> Self {
        Self { buffer, len: 0 }
    }

    fn push(&mut self, value: u64) -> Result<(), WriteError> {
        self.push_elem(I::from_index(value)?);
        Ok(())
    }

    fn push_elem(&mut self, elem: I) {
        if let Some(place) = self.buffer.get_mut(self.len) {
            *place = elem;
        }
        self.len += 1;
    }

    fn extend(&mut self, blocks: &[BlockId]) -> Result<(), WriteError> {
        if let Some(places) = self.buffer.get_mut(self.len..).and_then(|rest| rest.get_mut(..blocks.len())) {
            I::write_blocks(blocks, places)?;
        }
        self.len += blocks.len();
        Ok(())
    }

    fn finish(self) -> Result<usize, WriteError> {
        if self.len > self.buffer.len() {
            return Err(WriteError::TooSmall { needed: self.len, given: self.buffer.len() });
        }
        Ok(self.len)
    }
}

impl Step {
    fn row_range(&self, rows: &Range<usize>) -> Result<&[StepRow], WriteError> {
        let all = self.rows();
        all.get(rows.clone()).ok_or(WriteError::NoSuchRows { end: rows.end, rows: all.len() })
    }

    fn whole_tables(&self) -> Result<&GroupStep, WriteError> {
        let group = self.tables();
        if group.changes_only { Err(WriteError::NoTables) } else { Ok(group) }
    }

    /// Query length and sequence length of a padding row.
    fn padding_lens(&self, rows: &[StepRow], padding: Padding) -> Result<(u32, u32), WriteError> {
        match padding {
            Padding::AliasFirst => rows.first().map(|row| (row.len, row.seq_len())).ok_or(WriteError::CannotPad),
            Padding::Scratch => self.tables().scratch().map(|_| (1, 1)).ok_or(WriteError::CannotPad),
        }
    }

    /// Length of every sequence after the step: `[rows + padding rows]`, the buffer's length.
    ///
    /// # Errors
    /// [`WriteError`]; what the buffer then holds is not specified.
    pub fn write_seq_lens<I: IndexElem>(
        &self,
        rows: Range<usize>,
        padding: Padding,
        seq_lens: &mut [I],
    ) -> Result<(), WriteError> {
        let rows = self.row_range(&rows)?;
        let total = seq_lens.len();
        let mut out = Out::new(seq_lens);
        for row in rows {
            out.push(u64::from(row.seq_len()))?;
        }
        if total > rows.len() {
            let (_, seq_len) = self.padding_lens(rows, padding)?;
            for _ in rows.len()..total {
                out.push(u64::from(seq_len))?;
            }
        }
        out.finish().map(|_| ())
    }

    /// Running sum of the query lengths, from 0: `[rows + padding rows + 1]`, the buffer's length.
    ///
    /// # Errors
    /// [`WriteError`]; what the buffer then holds is not specified.
    pub fn write_cu_seqlens<I: IndexElem>(
        &self,
        rows: Range<usize>,
        padding: Padding,
        cu_seqlens: &mut [I],
    ) -> Result<(), WriteError> {
        let rows = self.row_range(&rows)?;
        let total = cu_seqlens.len();
        let mut out = Out::new(cu_seqlens);
        let mut sum = 0_u64;
        out.push(sum)?;
        for row in rows {
            sum += u64::from(row.len);
            out.push(sum)?;
        }
        if total > rows.len() + 1 {
            let (len, _) = self.padding_lens(rows, padding)?;
            for _ in rows.len() + 1..total {
                sum += u64::from(len);
                out.push(sum)?;
            }
        }
        out.finish().map(|_| ())
    }

    /// Position, in its sequence, of every query token: what rotary embeddings take. `[query tokens]`; the rest of
    /// the buffer is zero.
    ///
    /// # Errors
    /// [`WriteError`]; what the buffer then holds is not specified.
    pub fn write_positions<I: IndexElem>(&self, rows: Range<usize>, positions: &mut [I]) -> Result<(), WriteError> {
        let rows = self.row_range(&rows)?;
        let total = positions.len();
        let mut out = Out::new(positions);
        for row in rows {
            for position in row.start..row.seq_len() {
                out.push(u64::from(position))?;
            }
        }
        for _ in out.len..total {
            out.push(0)?;
        }
        out.finish().map(|_| ())
    }

    /// Block tables of a fixed width: `[rows + padding rows, columns]`, where the buffer's length divided by
    /// `columns` gives the rows. Lookahead blocks are included. Entries behind a row's blocks name the scratch block,
    /// or the row's own first block where none is reserved: valid to load, never to be used.
    ///
    /// # Errors
    /// [`WriteError`]; what the buffer then holds is not specified.
    pub fn write_block_tables<I: IndexElem>(
        &self,
        rows: Range<usize>,
        columns: usize,
        padding: Padding,
        tables: &mut [I],
    ) -> Result<(), WriteError> {
        self.row_range(&rows)?;
        let group = self.whole_tables()?;
        let given = tables.len();
        if columns == 0 || !given.is_multiple_of(columns) || given / columns < rows.len() {
            let needed = rows.len().saturating_mul(columns.max(1));
            return Err(WriteError::TooSmall { needed, given });
        }
        let total = given / columns;
        let mut chunks = tables.chunks_exact_mut(columns);
        for index in 0..total {
            let Some(out) = chunks.next() else { break };
            let table = if index < rows.len() {
                group.table(rows.start + index)
            } else {
                match padding {
                    Padding::AliasFirst if rows.is_empty() => return Err(WriteError::CannotPad),
                    Padding::AliasFirst => group.table(rows.start),
                    Padding::Scratch => {
                        group.scratch.as_ref().map(core::slice::from_ref).ok_or(WriteError::CannotPad)?
                    }
                }
            };
            if table.len() > columns {
                return Err(WriteError::RowTooWide { row: rows.start + index, blocks: table.len(), columns });
            }
            let fill = group.scratch.or(table.first().copied()).unwrap_or(BlockId::new(0));
            let fill = I::from_index(u64::from(fill.get()))?;
            let (held, behind) = out.split_at_mut(table.len());
            I::write_blocks(table, held)?;
            behind.fill(fill);
        }
        Ok(())
    }

    /// Block tables in compressed rows, as FlashInfer and others take them: row `r` has the blocks
    /// `indices[indptr[r] .. indptr[r + 1]]`, exactly ⌈sequence length / block size⌉ (no lookahead), and its last
    /// block holds `last_block_len[r]` tokens, 1 to the block size.
    ///
    /// `indptr: [rows + padding rows + 1]`, `last_block_len: [rows + padding rows]`; the latter's length decides.
    /// Returns how many `indices` were written.
    ///
    /// # Errors
    /// [`WriteError`]; what the buffers then hold is not specified.
    pub fn write_csr<I: IndexElem>(
        &self,
        rows: Range<usize>,
        padding: Padding,
        indptr: &mut [I],
        indices: &mut [I],
        last_block_len: &mut [I],
    ) -> Result<usize, WriteError> {
        let metas = self.row_range(&rows)?;
        let group = self.whole_tables()?;
        let total = last_block_len.len();
        if total < metas.len() {
            return Err(WriteError::TooSmall { needed: metas.len(), given: total });
        }
        let block_size = group.block_size.max(1);
        let (mut indptr, mut indices) = (Out::new(indptr), Out::new(indices));
        let mut last = Out::new(last_block_len);
        indptr.push(0)?;
        let scratch = group.scratch;
        for index in 0..total {
            let (table, seq_len) = match metas.get(index) {
                Some(row) => (group.table(rows.start + index), row.seq_len()),
                None => {
                    let (_, seq_len) = self.padding_lens(metas, padding)?;
                    match padding {
                        Padding::AliasFirst => (group.table(rows.start), seq_len),
                        Padding::Scratch => (scratch.as_slice(), seq_len),
                    }
                }
            };
            indices.extend(table.get(..ix(seq_len.div_ceil(block_size))).unwrap_or(table))?;
            indptr.push(indices.len as u64)?;
            last.push(u64::from((seq_len - 1) % block_size + 1))?;
        }
        indptr.finish()?;
        last.finish()?;
        indices.finish()
    }

    /// The slot of every query token, row after row: `[query tokens + padding tokens]`, the buffer's length. Padding
    /// tokens get −1 under [`Padding::AliasFirst`] and slots of the scratch block under [`Padding::Scratch`].
    ///
    /// # Errors
    /// [`WriteError`]; what the buffer then holds is not specified.
    pub fn write_slot_mapping<I: IndexElem>(
        &self,
        rows: Range<usize>,
        padding: Padding,
        slot_mapping: &mut [I],
    ) -> Result<(), WriteError> {
        let metas = self.row_range(&rows)?;
        let group = self.tables();
        let total = slot_mapping.len();
        let mut out = Out::new(slot_mapping);
        if let (Some(first), Some(last)) = (metas.first(), metas.last()) {
            let slots = group.slots.get(ix(first.first_token)..ix(last.first_token + last.len)).unwrap_or(&[]);
            for slot in slots {
                out.push(u64::from(slot.get()))?;
            }
        }
        for token in 0..total.saturating_sub(out.len) {
            match padding {
                Padding::AliasFirst => out.push_elem(I::no_slot().ok_or(WriteError::CannotPad)?),
                Padding::Scratch => {
                    let scratch = group.scratch.ok_or(WriteError::CannotPad)?;
                    let offset = token as u64 % u64::from(group.block_size.max(1));
                    out.push(u64::from(scratch.get()) * u64::from(group.block_size) + offset)?;
                }
            }
        }
        out.finish().map(|_| ())
    }

    /// The entries of the rows' tables that are not as they were in the last step that named the sequence, for a
    /// storage that keeps one table row per sequence on its device. Empty for rows that the step does not have.
    ///
    /// # Complexity
    /// O(changed entries).
    pub fn table_edits(&self, rows: Range<usize>) -> impl Iterator<Item = TableEdit> + '_ {
        let group: &GroupStep = self.tables();
        let metas = self.rows().get(rows.clone()).unwrap_or(&[]);
        metas.iter().zip(rows).flat_map(move |(meta, row)| {
            group.changed(row).iter().zip(group.unchanged(row)..).map(move |(&block, column)| TableEdit {
                seq_index: meta.seq.index(),
                column,
                block,
            })
        })
    }
}
