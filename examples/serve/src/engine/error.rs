//! Why requests cannot be run, or could not be run to their end.

use core::error::Error;

use paged_kv::error::{ConfigError, LayoutError};
use paged_kv::storage::StorageError;

use crate::model::ModelError;

/// Why requests cannot be run, or could not be run to their end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A prompt without tokens.
    #[error("prompt {number} comes to no token")]
    EmptyPrompt {
        /// Its number, from 1.
        number: usize,
    },
    /// A request longer than what the model was made for.
    #[error(
        "prompt {number} is too long: {prompt} tokens and --max-tokens {max_tokens} are more than the model's context of \
         {context_len}"
    )]
    TooLong {
        /// Its number, from 1.
        number: usize,
        /// Tokens of its prompt.
        prompt: usize,
        /// Tokens that it may generate.
        max_tokens: u32,
        /// The longest context.
        context_len: u32,
    },
    /// A request of more sequences than may be in flight.
    #[error("prompt {number} needs {width} sequences at once and --max-batch allows {max_batch}")]
    TooWide {
        /// Its number, from 1.
        number: usize,
        /// Its samples or hypotheses.
        width: u32,
        /// Most sequences in flight.
        max_batch: u32,
    },
    /// A request that could not run to its end even with the whole cache to itself.
    #[error(
        "prompt {number} never fits: {prompt} tokens and --max-tokens {max_tokens} for {width} sequences may take \
         {blocks} blocks of {block_size} and the cache has {num_blocks}"
    )]
    NeverFits {
        /// Its number, from 1.
        number: usize,
        /// Tokens of its prompt.
        prompt: usize,
        /// Tokens that each of its sequences may generate.
        max_tokens: u32,
        /// Its samples or hypotheses.
        width: u32,
        /// Blocks that it may hold.
        blocks: u64,
        /// Tokens in a block.
        block_size: u32,
        /// Blocks of the cache.
        num_blocks: u32,
    },
    /// Hypotheses live by sharing.
    #[error("--beam needs --policy paged: hypotheses share their blocks")]
    ContiguousBeams,
    /// The cache cannot have this geometry.
    #[error("the cache is impossible: {0}")]
    Layout(#[from] LayoutError),
    /// The cache cannot have this geometry.
    #[error("the cache is impossible: {0}")]
    Config(#[from] ConfigError),
    /// There is no memory for so many blocks.
    #[error("--num-blocks {num_blocks}: {bytes} bytes for keys and values cannot be had")]
    NoMemory {
        /// Blocks of the cache.
        num_blocks: u32,
        /// Bytes of all of them.
        bytes: u64,
    },
    /// The memory of the cache reported an error.
    #[error("the cache's memory failed: {0}")]
    Storage(#[from] StorageError),
    /// The forward pass failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The cache refused what the engine asked for.
    #[error("the cache refused a call: {0}")]
    Bookkeeping(Box<dyn Error + Send + Sync>),
    /// Whoever watches could not be told.
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    /// No sequence can move.
    #[error("no request can go on")]
    Stuck,
}

impl EngineError {
    /// For calls that the engine's own rules should have kept from failing.
    pub(super) fn bookkeeping(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Bookkeeping(Box::new(error))
    }
}
