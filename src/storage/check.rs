//! What every storage asks of a step and of a call, before it touches anything.

use core::f32::consts::LOG2_E;

use alloc::vec::Vec;

use super::{AttendParams, QueryMask, StorageError};
use crate::id::{BlockId, GroupId, ix};
use crate::layout::KvLayout;
use crate::step::{GroupStep, Step};

/// The check of steps, with the memory that it needs.
#[derive(Debug, Default)]
pub(super) struct Check {
    destinations: Vec<BlockId>,
}

impl Check {
    /// The tables of the group, if the step fits the layout: blocks that exist, tables and slots for all rows, and copies
    /// whose order does not matter. Tables may be of changes where the storage `keeps` them.
    pub(super) fn step<'a>(
        &mut self,
        layout: &KvLayout,
        group: GroupId,
        step: &'a Step,
        padded_rows: u32,
        keeps: bool,
    ) -> Result<&'a GroupStep, StorageError> {
        let tables = step.group(group).ok_or(StorageError::NoSuchGroup { group })?;
        if tables.changes_only && !keeps {
            return Err(StorageError::OnlyChanges);
        }
        if tables.block_size() != layout.block_size() {
            return Err(StorageError::BlockSize { step: tables.block_size(), layout: layout.block_size() });
        }
        let rows = step.rows().len();
        if rows > ix(padded_rows) {
            return Err(StorageError::PaddedRows { rows, padded_rows });
        }
        let num_blocks = layout.num_blocks();
        let exists = |block: BlockId| exist(&[block], num_blocks);
        tables.scratch().map_or(Ok(()), exists)?;
        let mut tokens = 0;
        for (row, index) in step.rows().iter().zip(0..) {
            let blocks = if tables.changes_only { tables.changed(index) } else { tables.table(index) };
            let end = row.start.checked_add(row.len);
            let covered = end.is_some_and(|end| end.div_ceil(layout.block_size()) <= tables.table_len(index));
            if !covered || row.first_token != tokens {
                return Err(StorageError::Inconsistent { row: index });
            }
            tokens += row.len;
            exist(blocks, num_blocks)?;
        }
        if tables.slots().len() != ix(tokens) {
            return Err(StorageError::Inconsistent { row: rows });
        }
        for slot in tables.slots() {
            exists(slot.block(layout.block_size()))?;
        }
        self.destinations.clear();
        for copy in tables.copies() {
            exists(copy.src)?;
            exists(copy.dst)?;
            self.destinations.push(copy.dst);
        }
        self.destinations.sort_unstable();
        if let Some(twice) = self.destinations.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StorageError::CopyOrder { block: twice[0] });
        }
        match tables.copies().iter().find(|copy| self.destinations.binary_search(&copy.src).is_ok()) {
            Some(copy) => Err(StorageError::CopyOrder { block: copy.src }),
            None => Ok(tables),
        }
    }
}

/// That these are blocks of the pool.
pub(super) fn exist(blocks: &[BlockId], num_blocks: u32) -> Result<(), StorageError> {
    match blocks.iter().find(|block| block.get() >= num_blocks) {
        Some(&block) => Err(StorageError::NoSuchBlock { block, num_blocks }),
        None => Ok(()),
    }
}

/// That no block is written twice.
pub(super) fn differ(blocks: &[BlockId]) -> Result<(), StorageError> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(StorageError::RepeatedBlock { block: pair[0] }),
        None => Ok(()),
    }
}

/// That parameters fit a call: `tokens` query tokens, at most `row_tokens` of them in one row, of `q_heads` heads.
pub(super) fn params(
    params: &AttendParams<'_>,
    q_heads: usize,
    tokens: usize,
    row_tokens: usize,
) -> Result<(), StorageError> {
    let AttendParams { scale, window, soft_cap, sinks, alibi_slopes: slopes, mask } = *params;
    if window == Some(0) {
        return Err(StorageError::NoWindow);
    }
    // What scores are multiplied by on either side of the tangent has to be a number.
    let usable = |cap: f32| cap > 0.0 && (cap * LOG2_E).is_finite() && (scale / cap).is_finite();
    if soft_cap.is_some_and(|cap| !usable(cap)) {
        return Err(StorageError::SoftCap);
    }
    for (param, given) in [("sinks", sinks), ("alibi_slopes", slopes)] {
        if let Some(given) = given.filter(|given| given.len() != q_heads) {
            return Err(StorageError::PerHead { param, given: given.len(), q_heads });
        }
    }
    mask.map_or(Ok(()), |mask| self::mask(mask, tokens, row_tokens))
}

/// That a mask fits a step of `tokens` query tokens, at most `row_tokens` of them in one row.
pub(super) fn mask(mask: QueryMask<'_>, tokens: usize, row_tokens: usize) -> Result<(), StorageError> {
    let QueryMask { words, words_per_token } = mask;
    let (expected, narrow) = (tokens.saturating_mul(ix(words_per_token)), row_tokens.div_ceil(64));
    if words.len() != expected || ix(words_per_token) < narrow {
        return Err(StorageError::Mask { words: words.len(), words_per_token, tokens, row_tokens });
    }
    Ok(())
}
