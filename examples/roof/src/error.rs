//! Everything that can end a run, one line each.

use paged_kv::error::{LayoutError, MalformedStep};
use paged_kv::storage::StorageError;

use crate::options::OptionsError;
use crate::plot::PlotError;

/// Why a run ended without its results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A pool that no layout describes.
    #[error("the pool cannot be laid out: {0}")]
    Layout(#[from] LayoutError),
    /// A shape that is no step.
    #[error("the shape is no step: {0}")]
    Step(#[from] MalformedStep),
    /// The storage, most of all where memory is missing.
    #[error("the storage: {0}")]
    Storage(#[from] StorageError),
    /// More memory than there is, which the system might only notice when it is written to.
    #[error(
        "the pool takes {needed_mib} MiB, and {available_mib} MiB of memory are available: see --pool-mib and --shapes"
    )]
    Memory {
        /// What a pool takes.
        needed_mib: u64,
        /// What is there.
        available_mib: u64,
    },
    /// Threads that the system does not give.
    #[error("threads cannot be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// The picture.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// Standard output cannot be written to.
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
}
