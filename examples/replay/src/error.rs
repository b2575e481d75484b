//! Everything that can end a run, one line each.

use std::path::PathBuf;

use crate::options::OptionsError;
use crate::play::PlayError;
use crate::plot::PlotError;
use crate::policy::Policy;
use crate::trace::TraceError;

/// Why a run ended without its results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The trace.
    #[error("{}: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: TraceError,
    },
    /// The cache.
    #[error("a cache of {capacity} blocks, policy {policy}: {source}")]
    Cache {
        /// Its size.
        capacity: u32,
        /// Its policy.
        policy: Policy,
        /// What it said.
        source: PlayError,
    },
    /// The picture.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// Standard output cannot be written to.
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
}
