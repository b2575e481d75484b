//! What can go wrong.

use std::path::PathBuf;

use paged_kv::error::{LayoutError, MalformedStep};
use paged_kv::storage::StorageError;
use paged_kv::storage::cudarc::driver::DriverError;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The command line.
    #[error("{0}")]
    Usage(String),
    /// The storage refuses, or there is no driver.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A shape is none.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A step is none.
    #[error(transparent)]
    Step(#[from] MalformedStep),
    /// The pool is too small.
    #[error("--pool-gib {0}: less than any shape takes, or more than is free")]
    Pool(f64),
    /// A file cannot be written.
    #[error("--json {}: cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The figures cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}
