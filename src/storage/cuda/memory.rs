//! Memory and events of the driver, each given back when it is dropped.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::driver::fault;
use super::params::PlainData;
use crate::storage::StorageError;

/// Device memory, zeroed when it was made.
///
/// Invariant: `first` is an allocation of `bytes` bytes of the context, or 0 where these are none.
pub(super) struct DeviceMemory {
    first: u64,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl DeviceMemory {
    /// `bytes` zeros; `refusal` says what to answer where there is no room. Waits until they are there.
    pub(super) fn zeroed(context: &Arc<CudaContext>, bytes: u64, refusal: StorageError) -> Result<Self, StorageError> {
        let bytes = usize::try_from(bytes).map_err(|_| refusal)?;
        if bytes == 0 {
            return Ok(Self { first: 0, bytes, context: Arc::clone(context) });
        }
        bind(context).map_err(fault("cuCtxSetCurrent"))?;
        let _beside = BesideCaptures::new();
        // SAFETY: `bytes` is not zero; the context is current.
        let first = unsafe { result::malloc_sync(bytes) }.map_err(or(refusal, "cuMemAlloc"))?;
        let memory = Self { first, bytes, context: Arc::clone(context) };
        // SAFETY: the allocation that was just made has so many bytes.
        unsafe { result::memset_d8_sync(first, 0, bytes) }.map_err(fault("cuMemsetD8"))?;
        // A memset of device memory may return before it is done, and the engine's streams need not wait for it.
        context.synchronize().map_err(fault("cuCtxSynchronize"))?;
        Ok(memory)
    }

    /// What `items` are, for kernels to read.
    pub(super) fn holding<T: PlainData>(context: &Arc<CudaContext>, items: &[T]) -> Result<Self, StorageError> {
        let bytes = size_of_val(items) as u64;
        let memory = Self::zeroed(context, bytes, StorageError::NoBuffers { bytes })?;
        if bytes > 0 {
            let _beside = BesideCaptures::new();
            // SAFETY: the allocation that was just made has so many bytes.
            unsafe { result::memcpy_htod_sync(memory.first, items) }.map_err(fault("cuMemcpyHtoD"))?;
            // The call may return when the items are on their way.
            context.synchronize().map_err(fault("cuCtxSynchronize"))?;
        }
        Ok(memory)
    }

    /// Its address; 0 where there are no bytes.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.first != 0 {
            let _ = bind(&self.context);
            let _beside = BesideCaptures::new();
            // SAFETY: allocated in `zeroed`, given back only here. The driver waits for the work that uses it. An error
            // means that the context is lost, and the memory with it.
            let _ = unsafe { result::free_sync(self.first) };
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes at {:#x}]", self.bytes, self.first)
    }
}

/// Host memory that the device reads by itself: 32-bit words.
///
/// Invariant: `first` begins `len` words that were written, of an allocation of the driver.
pub(super) struct PinnedWords {
    first: NonNull<u32>,
    len: usize,
    context: Arc<CudaContext>,
}

impl PinnedWords {
    /// `len` zeros, of at least one.
    pub(super) fn zeroed(context: &Arc<CudaContext>, len: usize) -> Result<Self, StorageError> {
        let len = len.max(1);
        let bytes = len.saturating_mul(4);
        let refusal = StorageError::NoBuffers { bytes: bytes as u64 };
        bind(context).map_err(fault("cuCtxSetCurrent"))?;
        let _beside = BesideCaptures::new();
        // Not write-combined: memory of that kind is written in order or slowly.
        // SAFETY: `bytes` is not zero; the context is current.
        let first = unsafe { result::malloc_host(bytes, 0) }.map_err(or(refusal, "cuMemHostAlloc"))?;
        let first = NonNull::new(first.cast::<u32>()).ok_or(refusal)?;
        // SAFETY: the allocation has room for `len` words, and the driver aligns to more than four bytes.
        unsafe { first.write_bytes(0, len) };
        Ok(Self { first, len, context: Arc::clone(context) })
    }

    /// The address of the first, for the host and for the device.
    pub(super) fn first(&self) -> u64 {
        self.first.as_ptr().expose_provenance() as u64
    }

    /// The words. The device must be done with what it was told to read from them: the caller has waited for it.
    pub(super) const fn words(&mut self) -> &mut [u32] {
        // SAFETY: `len` words by the invariant, borrowed as `self` is; the device is done with them by the contract.
        unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }

    /// Tells the device to copy the first `len` words to `to`, once everything before it on the stream is done.
    ///
    /// # Safety
    /// `to` has room for them until the copy is done; the stream is one of the context, which is current.
    pub(super) unsafe fn send(&self, len: usize, to: u64, stream: sys::CUstream) -> Result<(), DriverError> {
        debug_assert!(len <= self.len, "the words are there");
        // SAFETY: so many words by the invariant.
        let words = unsafe { core::slice::from_raw_parts(self.first.as_ptr(), len.min(self.len)) };
        // SAFETY: room at `to`, and the stream, by the contract. The words stay until `self` is dropped, for which [`Slab`](super::slab::Slab) waits.
        unsafe { result::memcpy_htod_async(to, words, stream) }
    }
}

impl Drop for PinnedWords {
    fn drop(&mut self) {
        let _ = bind(&self.context);
        let _beside = BesideCaptures::new();
        // SAFETY: allocated in `zeroed`, given back only here; whoever holds it has waited for the device.
        let _ = unsafe { result::free_host(self.first.as_ptr().cast::<c_void>()) };
    }
}

// SAFETY: it owns its memory alone, as a `Box<[u32]>` does, and gives it out by its own borrows.
unsafe impl Send for PinnedWords {}
// SAFETY: as above; what a shared borrow can do, `send`, reads.
unsafe impl Sync for PinnedWords {}

impl fmt::Debug for PinnedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} words]", self.len)
    }
}

/// A point in the work of a stream.
///
/// Invariant: `event` is an event of the context.
pub(super) struct Event {
    event: sys::CUevent,
    context: Arc<CudaContext>,
}

impl Event {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, StorageError> {
        bind(context).map_err(fault("cuCtxSetCurrent"))?;
        let event =
            result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(fault("cuEventCreate"))?;
        Ok(Self { event, context: Arc::clone(context) })
    }

    /// Marks what the stream was told so far.
    ///
    /// # Safety
    /// The stream is one of the event's context.
    pub(super) unsafe fn record(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the event by the invariant, the stream by the contract.
        unsafe { result::event::record(self.event, stream) }
    }

    /// Makes a stream wait until what was marked is done.
    ///
    /// # Safety
    /// The stream is one of the event's context.
    pub(super) unsafe fn hold(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event by the invariant, the stream by the contract.
        unsafe { result::stream::wait_event(stream, self.event, flags) }
    }

    /// Waits until what was marked is done; does not where nothing was.
    pub(super) fn wait(&self) -> Result<(), StorageError> {
        let _beside = BesideCaptures::new();
        // SAFETY: the event by the invariant.
        unsafe { result::event::synchronize(self.event) }.map_err(fault("cuEventSynchronize"))
    }

    /// Whether what was marked is done, or nothing was.
    pub(super) fn is_done(&self) -> Result<bool, StorageError> {
        let _beside = BesideCaptures::new();
        // SAFETY: the event by the invariant.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(fault("cuEventQuery")(error)),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = bind(&self.context);
        // SAFETY: created in `new`, destroyed only here; the driver keeps what a stream still waits for.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

/// While it lives, what this thread asks of the driver is no matter to captures: to wait for an event, to allocate and to give
/// back would otherwise break a capture that somebody has begun in the mode that forbids it to all threads.
pub(super) struct BesideCaptures {
    before: sys::CUstreamCaptureMode,
}

impl BesideCaptures {
    pub(super) fn new() -> Self {
        Self { before: exchange(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }
    }
}

impl Drop for BesideCaptures {
    fn drop(&mut self) {
        exchange(self.before);
    }
}

/// Sets the mode of this thread, and gives the one before.
fn exchange(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: `mode` outlives the call, which writes another mode to it. An error, which there is none to expect, leaves it.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    mode
}

/// Makes the context current. `cudarc` first reports what went wrong in somebody's clean-up before, once, which is no matter
/// here, and binds when it is asked again.
pub(super) fn bind(context: &CudaContext) -> Result<(), DriverError> {
    context.bind_to_thread().or_else(|_| context.bind_to_thread())
}

/// Makes a word of device memory zero, once everything before it on the stream is done.
///
/// # Safety
/// There is such a word until it is done; the stream is one of the current context.
pub(super) unsafe fn clear_word(stream: sys::CUstream, word: u64) -> Result<(), StorageError> {
    // SAFETY: by the contract.
    unsafe { result::memset_d8_async(word, 0, 4, stream) }.map_err(fault("cuMemsetD8Async"))
}

/// The refusal where the driver says that there is no memory, else what it says.
fn or(refusal: StorageError, call: &'static str) -> impl Fn(DriverError) -> StorageError {
    move |error| match error {
        DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => refusal,
        other => fault(call)(other),
    }
}
