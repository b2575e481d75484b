//! Metadata for positions that exist: a step without appending.

use super::KvCache;
use crate::error::ViewError;
use crate::evict::Evict;
use crate::id::SeqId;
use crate::step::{Places, Step};

/// Positions of a sequence to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViewRow {
    /// The sequence; it may stand in several rows.
    pub seq: SeqId,
    /// Position of the first query token.
    pub start: u32,
    /// Query tokens: positions `start .. start + len`.
    pub len: u32,
}

impl<E: Evict> KvCache<E> {
    /// Writes the metadata of existing positions into `step`, for drafters and for scoring: planned positions and those
    /// of lookahead blocks. Nothing is appended, the cache does not change, and the step has no id.
    ///
    /// The slots are those of the positions, also where a block is shared: to write there, in layers that the step's
    /// writers do not write, is the caller's affair. Blocks that only a view names are not withheld.
    ///
    /// # Errors
    /// [`ViewError`]; then `step` is as it was.
    ///
    /// # Complexity
    /// O(query tokens + table entries).
    pub fn view(&self, rows: &[ViewRow], step: &mut Step) -> Result<(), ViewError> {
        let block_size = self.config.block_size;
        let (mut tokens, mut blocks) = (0_u64, 0_u64);
        for (row, index) in rows.iter().zip(0_usize..) {
            let unknown = ViewError::UnknownSequence { row: index, seq: row.seq };
            let seq = self.seqs.get(row.seq).ok_or(unknown)?;
            if row.len == 0 {
                return Err(ViewError::EmptyRow { row: index });
            }
            let end = u64::from(row.start) + u64::from(row.len);
            let held = u64::from(seq.table.len()) * u64::from(block_size);
            if end > held {
                return Err(ViewError::BeyondTable { row: index, end, held });
            }
            tokens += u64::from(row.len);
            blocks += u64::from(seq.table.len());
            if tokens.max(blocks) > u64::from(u32::MAX) {
                return Err(ViewError::TooLong { row: index });
            }
        }
        step.start(None, block_size, self.scratch(), Places::NONE);
        for row in rows {
            let Some(seq) = self.seqs.get(row.seq) else { continue };
            step.push(row.seq, 0, row.start, row.len);
            let group = &mut step.groups[0];
            group.push_row(|from| seq.table.ids_from(from), row.start, row.len, 0);
        }
        Ok(())
    }
}
