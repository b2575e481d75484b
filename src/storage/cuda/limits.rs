//! What a storage is made for: its buffers have fixed sizes and addresses.

use super::buffers::{fixed_words, packed_words, table_words};
use super::masks::mask_words;

/// The largest step that a [`CudaStorage`](crate::storage::CudaStorage) takes.
///
/// Everything that a step needs on the device lies in buffers that are allocated once, so that no call allocates and a
/// captured graph finds its metadata where it was. [`device_bytes`](Self::device_bytes) says how much that is.
///
/// # Example
/// 256 sequences of up to 32,768 tokens in blocks of 16, up to 8,192 query tokens in a step. The tables take
/// 256 × 2,048 × 4 bytes = 2 MiB, and as much again where a step arrives; all together 4.5 MB.
/// ```
/// use paged_kv::storage::CudaLimits;
///
/// let limits = CudaLimits::new(256, 8192, 32_768 / 16);
/// let tables = 256 * 2048 * 4;
/// assert!((2 * tables..2 * tables + 400_000).contains(&limits.device_bytes()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CudaLimits {
    /// Rows of a step.
    pub max_rows: u32,
    /// Query tokens of a step, all rows together.
    pub max_tokens: u32,
    /// Blocks of a row, up to its last query token.
    pub max_row_blocks: u32,
    /// Sequences whose tables are kept, for steps of changes: those of the cache that have blocks or wait to get some.
    pub max_sequences: u32,
    /// Copies of a step. A step of a cache has at most one for each row.
    pub max_copies: u32,
    /// Words of 64 bits of a mask, per query token.
    pub max_mask_words: u32,
    /// See [`with_fixed_splits`](Self::with_fixed_splits).
    pub fixed_splits: bool,
}

impl CudaLimits {
    /// At most `max_rows` sequences in a step, `max_tokens` query tokens of all of them together, and `max_row_blocks`
    /// blocks of each: the longest context in blocks. As many kept tables and copies as rows; masks for
    /// rows of up to 64 query tokens.
    pub const fn new(max_rows: u32, max_tokens: u32, max_row_blocks: u32) -> Self {
        let (max_sequences, max_copies) = (max_rows, max_rows);
        Self { max_rows, max_tokens, max_row_blocks, max_sequences, max_copies, max_mask_words: 1, fixed_splits: false }
    }

    /// More sequences whose tables are kept than there are rows in a step.
    #[must_use]
    pub const fn with_sequences(self, max_sequences: u32) -> Self {
        Self { max_sequences, ..self }
    }

    /// Another number of copies: for steps that do not come from a cache.
    #[must_use]
    pub const fn with_copies(self, max_copies: u32) -> Self {
        Self { max_copies, ..self }
    }

    /// Other masks: a row has at most 64 × `max_mask_words` query tokens then.
    #[must_use]
    pub const fn with_mask_words(self, max_mask_words: u32) -> Self {
        Self { max_mask_words, ..self }
    }

    /// Whether work is cut at fixed positions of a context, so that no bit of a result depends on what else is in the step.
    ///
    /// Without, the work of a step is dealt out evenly, which is the fastest: long contexts are cut wherever a share ends,
    /// and what is summed in which order then depends on the other rows. With fixed splits a context is cut where a
    /// multiple of a number of tokens begins: a sixteenth of the longest that these limits allow, and at least 512. One
    /// long row is then worked on by 16 groups of threads at most for each KV head, and partial results take more memory.
    #[must_use]
    pub const fn with_fixed_splits(self, fixed_splits: bool) -> Self {
        Self { fixed_splits, ..self }
    }

    /// Bytes of device memory that the metadata of steps takes, beside the pool. What attention needs beside depends on the
    /// layout and on the device: [`CudaStorage::device_bytes`](crate::storage::CudaStorage::device_bytes) has it.
    pub fn device_bytes(&self) -> u64 {
        let words = packed_words(self).saturating_add(fixed_words(self)).saturating_add(table_words(self));
        words.saturating_add(mask_words(self)).saturating_mul(4)
    }
}
