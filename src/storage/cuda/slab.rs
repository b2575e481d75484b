//! Pinned memory that the device reads or writes by itself, and when it is done with that.
#![allow(unsafe_code)]

use alloc::sync::Arc;

use cudarc::driver::CudaContext;

use super::driver::fault;
use super::memory::{Event, PinnedWords, bind};
use super::stream::Turn;
use crate::storage::StorageError;

/// Words that host and device use in turns.
#[derive(Debug)]
pub(super) struct Slab {
    words: PinnedWords,
    /// Behind the last work that uses the words.
    done: Event,
    context: Arc<CudaContext>,
}

impl Slab {
    /// So many zeros.
    pub(super) fn new(context: &Arc<CudaContext>, words: u64) -> Result<Self, StorageError> {
        let refusal = StorageError::NoBuffers { bytes: words.saturating_mul(4) };
        let words = usize::try_from(words).map_err(|_| refusal)?;
        let (words, done) = (PinnedWords::zeroed(context, words)?, Event::new(context)?);
        Ok(Self { words, done, context: Arc::clone(context) })
    }

    /// The words, when the device is done with them.
    pub(super) fn words(&mut self) -> Result<&mut [u32], StorageError> {
        self.wait()?;
        Ok(self.words.words())
    }

    /// Waits until the device is done with the words.
    pub(super) fn wait(&self) -> Result<(), StorageError> {
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::SlabNotAwaited) {
            return Ok(());
        }
        self.done.wait()
    }

    /// Whether the device is done with the words.
    pub(super) fn is_done(&self) -> Result<bool, StorageError> {
        self.done.is_done()
    }

    /// Tells the device to copy the first `len` words to `to`.
    ///
    /// # Safety
    /// `to` has room for them until that is done.
    pub(super) unsafe fn send(&self, turn: &Turn<'_>, len: usize, to: u64) -> Result<(), StorageError> {
        // SAFETY: `to` by the contract; the stream is one of the context, which is current, by the invariant of `Turn`.
        unsafe { self.words.send(len, to, turn.stream()) }.map_err(fault("cuMemcpyHtoDAsync"))?;
        self.mark(turn)
    }

    /// The device uses the words until all that the stream was told so far is done.
    pub(super) fn mark(&self, turn: &Turn<'_>) -> Result<(), StorageError> {
        // SAFETY: the stream is one of the context by the invariant of `Turn`.
        unsafe { self.done.record(turn.stream()) }.map_err(|error| {
            // Then nobody would know when.
            let _ = self.context.synchronize();
            fault("cuEventRecord")(error)
        })
    }

    /// Makes a stream wait until the device is done with the words.
    pub(super) fn hold(&self, turn: &Turn<'_>) -> Result<(), StorageError> {
        // SAFETY: a stream may wait for events of any context.
        unsafe { self.done.hold(turn.stream()) }.map_err(fault("cuStreamWaitEvent"))
    }

    /// Where the device finds the words: pinned memory has one address for all.
    pub(super) fn first(&self) -> u64 {
        self.words.first()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let _ = bind(&self.context);
        // An error means that the context is lost, and that nobody uses its memory any more.
        let _ = self.done.wait();
    }
}
