//! Everything that can end a run, one line each.

use std::path::PathBuf;

use crate::download::DownloadError;
use crate::engine::EngineError;
use crate::model::ModelError;
use crate::options::OptionsError;
use crate::tokenizer::TokenizerError;

/// Why a run ended without its results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The default model.
    #[error(transparent)]
    Download(#[from] DownloadError),
    /// The model's file.
    #[error("{}: {source}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ModelError,
    },
    /// The tokeniser or the chat template in the model's file.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: TokenizerError,
    },
    /// The requests.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Standard output cannot be written to.
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
}
