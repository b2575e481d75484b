//! A fixed little-endian encoding of a step, so that one rank plans and the others follow.
//!
//! ```text
//! "PKS2" | id u64 (0: none) | rows u32 | groups u16 |
//! rows ×   { seq u64, skip u32, start u32, len u32 } |
//! groups × { block_size u32, scratch u32 (2^32 - 1: none), changes only u32 (0 or 1),
//!            copies u32, copies × { src u32, dst u32 },
//!            rows × { blocks u32, unchanged u32 }, all blocks u32 …, if changes only: query tokens × { slot u32 } }
//! ```
//! Of a step with whole tables the slots follow and are not sent.

use alloc::vec::Vec;

use smallvec::SmallVec;

use super::{BlockCopy, GroupStep, Places, Step, has_slots};
use crate::error::MalformedStep;
use crate::id::{BlockId, SeqId, Slot, StepId, ix, len32};

const MAGIC: [u8; 4] = *b"PKS2";
const NO_SCRATCH: u32 = u32::MAX;

impl Step {
    /// Appends the encoding of this step to `bytes`. Equal steps have equal bytes, on every machine.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.id.map_or(0, StepId::get).to_le_bytes());
        let mut put = |value: u32| bytes.extend_from_slice(&value.to_le_bytes());
        put(len32(self.rows.len()));
        let groups = u16::try_from(self.groups.len()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&groups.to_le_bytes());
        let mut put = |value: u32| bytes.extend_from_slice(&value.to_le_bytes());
        for row in &self.rows {
            put(row.seq.index);
            put(row.seq.generation);
            put(row.skip);
            put(row.start);
            put(row.len);
        }
        for group in &self.groups {
            put(group.block_size);
            put(group.scratch.map_or(NO_SCRATCH, BlockId::get));
            put(u32::from(group.changes_only));
            put(len32(group.copies.len()));
            for copy in &group.copies {
                put(copy.src.get());
                put(copy.dst.get());
            }
            for row in 0..self.rows.len() {
                put(len32(group.run(row).len()));
                put(group.unchanged(row));
            }
            for block in &group.blocks {
                put(block.get());
            }
            if group.changes_only {
                group.slots.iter().for_each(|slot| put(slot.get()));
            }
        }
    }

    /// Reads a step that [`encode`](Self::encode) wrote at the start of `bytes`, and returns how many bytes it took.
    /// A step that writes more than `max_tokens` slots, all groups together, is refused: it is the one size that the
    /// bytes do not bound. With one group these are its query tokens.
    ///
    /// # Errors
    /// [`MalformedStep`] where the bytes are not a step; `self` is then as it was.
    ///
    /// # Complexity
    /// Time and memory linear in the bytes read plus `max_tokens`. Allocates.
    pub fn decode(&mut self, bytes: &[u8], max_tokens: u32) -> Result<usize, MalformedStep> {
        let mut input = Input { bytes, at: 0 };
        if input.take::<4>()? != MAGIC {
            return Err(MalformedStep::BadMagic);
        }
        let id = u64::from_le_bytes(input.take()?);
        let num_rows = input.u32()?;
        let num_groups = u16::from_le_bytes(input.take()?);
        if num_groups == 0 {
            return fault("a step has at least one group");
        }
        let mut step = Self { id: (id != 0).then(|| StepId::new(id)), rows: Vec::new(), groups: SmallVec::new() };
        for _ in 0..num_rows {
            let (index, generation) = (input.u32()?, input.u32()?);
            let (skip, start, len) = (input.u32()?, input.u32()?, input.u32()?);
            if len == 0 || start.checked_add(len).is_none() || skip > start {
                return fault("a row's positions");
            }
            if !step.push(SeqId { index, generation }, skip, start, len) {
                return fault("too many query tokens");
            }
            if step.num_tokens() > max_tokens {
                return fault("more query tokens than allowed");
            }
        }
        // Every group brings slots of its own.
        if u64::from(step.num_tokens()) * u64::from(num_groups) > u64::from(max_tokens) {
            return fault("more slots than allowed");
        }
        for _ in 0..num_groups {
            let group = input.group(&step)?;
            step.groups.push(group);
        }
        *self = step;
        Ok(input.at)
    }
}

fn fault<T>(what: &'static str) -> Result<T, MalformedStep> {
    Err(MalformedStep::Inconsistent { what })
}

/// Bytes, and how far they are read.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], MalformedStep> {
        let rest = self.bytes.get(self.at..).unwrap_or(&[]);
        let Some(taken) = rest.first_chunk::<N>() else {
            return Err(MalformedStep::Truncated { needed: self.at.saturating_add(N), given: self.bytes.len() });
        };
        self.at += N;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, MalformedStep> {
        self.take().map(u32::from_le_bytes)
    }

    fn group(&mut self, step: &Step) -> Result<GroupStep, MalformedStep> {
        let block_size = self.u32()?;
        if block_size == 0 {
            return fault("block size is zero");
        }
        let valid = |id: u32| {
            let block = BlockId::new(id);
            if has_slots(block, block_size) { Ok(block) } else { fault("a block has no slots") }
        };
        let mut group = GroupStep::default();
        let scratch = self.u32()?;
        let scratch = if scratch == NO_SCRATCH { None } else { Some(valid(scratch)?) };
        group.clear(block_size, scratch, Places::NONE);
        group.changes_only = match self.u32()? {
            0 => false,
            1 => true,
            _ => return fault("a flag is neither 0 nor 1"),
        };
        for _ in 0..self.u32()? {
            let (src, dst) = (valid(self.u32()?)?, valid(self.u32()?)?);
            group.copies.push(BlockCopy { src, dst });
        }
        let mut widths = Vec::new();
        for row in &step.rows {
            let (width, unchanged) = (self.u32()?, self.u32()?);
            let left_out = if group.changes_only { unchanged } else { 0 };
            let Some(len) = width.checked_add(left_out) else { return fault("a table is too long") };
            if len < row.seq_len().div_ceil(block_size) || unchanged > len {
                return fault("a table is shorter than its row");
            }
            widths.push((width, unchanged));
        }
        for (row, (width, unchanged)) in step.rows.iter().zip(widths) {
            // The bytes must be there before the table is believed, so that no length in them makes us allocate.
            let bytes = ix(width).checked_mul(4).and_then(|bytes| bytes.checked_add(self.at));
            if bytes.is_none_or(|end| end > self.bytes.len()) {
                let needed = bytes.unwrap_or(usize::MAX);
                return Err(MalformedStep::Truncated { needed, given: self.bytes.len() });
            }
            let mut table = Vec::with_capacity(ix(width));
            for _ in 0..width {
                table.push(valid(self.u32()?)?);
            }
            if group.changes_only {
                group.push_changes(&table, unchanged);
            } else {
                let table = |from| table.get(ix(from)..).unwrap_or(&[]).iter().copied();
                group.push_row(table, row.start, row.len, unchanged);
            }
        }
        if group.changes_only {
            for _ in 0..step.num_tokens() {
                let slot = Slot::new(self.u32()?);
                valid(slot.block(block_size).get())?;
                group.slots.push(slot);
            }
        }
        Ok(group)
    }
}
