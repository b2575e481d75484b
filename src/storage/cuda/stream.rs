//! The stream of a call, and the order of calls on different ones.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use core::ffi::c_void;
use core::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaStream, sys};

use super::driver::{self, Capture, fault};
use super::memory::{Event, bind};
use crate::storage::StorageError;

/// The stream that a call enqueues its work on: `&stream` of `cudarc`, or the handle of any other binding.
///
/// Calls of one storage run in the order in which they are made, on whatever streams: where the stream changes, the new
/// one waits for the old one.
#[derive(Clone, Copy, Debug)]
pub struct CudaExec<'a> {
    stream: Stream<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Stream<'a> {
    Shared(&'a Arc<CudaStream>),
    Raw(sys::CUstream, PhantomData<&'a ()>),
}

impl<'a> From<&'a Arc<CudaStream>> for CudaExec<'a> {
    fn from(stream: &'a Arc<CudaStream>) -> Self {
        Self { stream: Stream::Shared(stream) }
    }
}

impl CudaExec<'_> {
    /// A stream by its handle (`CUstream` or `cudaStream_t`): null is the legacy default stream.
    ///
    /// # Safety
    /// It is a stream of the context of the storage that it is given to, and stays one until that storage is dropped or
    /// was called with another stream.
    pub const unsafe fn from_raw(handle: *mut c_void) -> Self {
        Self { stream: Stream::Raw(handle.cast(), PhantomData) }
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        match self.stream {
            Stream::Shared(stream) => stream.cu_stream(),
            Stream::Raw(handle, _) => handle,
        }
    }
}

/// The handle of the per-thread default stream, which is another stream on every thread.
const PER_THREAD: usize = 2;

/// Whether what a stream is told becomes part of a graph. The stream is one of the current context: as all that come here,
/// kept alive, or by the contract of `from_raw`.
fn is_capturing(stream: sys::CUstream) -> Result<bool, StorageError> {
    // SAFETY: a stream of the current context, see above.
    let capture = unsafe { driver::capture_of(stream) }?;
    Ok(capture != Capture::None)
}

/// The stream of the last call, kept alive where it can be.
#[derive(Debug)]
enum Last {
    None,
    Shared(Arc<CudaStream>),
    Raw(sys::CUstream),
}

impl Last {
    fn handle(&self) -> Option<sys::CUstream> {
        match self {
            Self::None => None,
            Self::Shared(stream) => Some(stream.cu_stream()),
            Self::Raw(handle) => Some(*handle),
        }
    }
}

/// Keeps calls in their order.
///
/// Invariant: `last` is a stream of the context.
#[derive(Debug)]
pub(super) struct Order {
    last: Mutex<Last>,
    event: Event,
    context: Arc<CudaContext>,
}

// SAFETY: handles of streams may be used from any thread.
unsafe impl Send for Order {}
// SAFETY: as above; `last` is behind a mutex.
unsafe impl Sync for Order {}

/// The right to enqueue work on a stream, which nobody else has meanwhile.
///
/// Invariant: `stream` is a stream of the storage's context, which is current.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    stream: sys::CUstream,
    _order: MutexGuard<'a, Last>,
}

impl Order {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, StorageError> {
        Ok(Self { last: Mutex::new(Last::None), event: Event::new(context)?, context: Arc::clone(context) })
    }

    /// Waits for the work of the last call where it was on another stream, and makes the context current.
    pub(super) fn enter(&self, exec: CudaExec<'_>) -> Result<Turn<'_>, StorageError> {
        self.take_turn(exec, false)
    }

    /// The same for work that calls after it do not wait for.
    pub(super) fn enter_beside(&self, exec: CudaExec<'_>) -> Result<Turn<'_>, StorageError> {
        self.take_turn(exec, true)
    }

    fn take_turn(&self, exec: CudaExec<'_>, beside: bool) -> Result<Turn<'_>, StorageError> {
        if matches!(exec.stream, Stream::Shared(stream) if stream.context() != &self.context) {
            return Err(StorageError::OtherContext);
        }
        bind(&self.context).map_err(fault("cuCtxSetCurrent"))?;
        let stream = exec.handle();
        if stream.addr() == PER_THREAD {
            return Err(StorageError::PerThreadStream);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::StreamsNotOrdered) {
            *last = Last::None;
        }
        let changed = last.handle() != Some(stream);
        // What is captured waits for nothing outside of its graph, nor the reverse: either would break the capture.
        if changed && is_capturing(stream)? {
            return Ok(Turn { stream, _order: last });
        }
        if let Some(before) = last.handle().filter(|_| changed) {
            if is_capturing(before)? {
                return Err(StorageError::Capturing);
            }
            // SAFETY: a stream of the context by the invariant: kept alive, or by the contract of `from_raw`.
            unsafe { self.event.record(before) }.map_err(fault("cuEventRecord"))?;
            // SAFETY: a stream of the context, as was checked or by the contract of `from_raw`.
            unsafe { self.event.hold(stream) }.map_err(fault("cuStreamWaitEvent"))?;
        }
        if !beside && changed {
            *last = match exec.stream {
                Stream::Shared(stream) => Last::Shared(Arc::clone(stream)),
                Stream::Raw(handle, _) => Last::Raw(handle),
            };
        }
        Ok(Turn { stream, _order: last })
    }
}

impl Turn<'_> {
    pub(super) const fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Whether what is enqueued becomes part of a graph instead of being run.
    pub(super) fn is_capturing(&self) -> Result<bool, StorageError> {
        Ok(self.capture()? != Capture::None)
    }

    /// Of which graph it becomes a part.
    pub(super) fn capture(&self) -> Result<Capture, StorageError> {
        // SAFETY: a stream of the current context by the invariant.
        unsafe { driver::capture_of(self.stream) }
    }
}
