//! The CUDA driver: whether there is one, and what its errors mean.
//!
//! `cudarc` loads the driver at its first call and panics where there is none, even while it formats an error. So it is
//! looked for here first, and errors are numbers.
#![allow(unsafe_code)]

use core::ffi::c_void;
use std::sync::OnceLock;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use crate::storage::StorageError;

/// The version of CUDA whose drivers read the kernels: PTX ISA 8.0 came with 12.0.
const NEEDED_VERSION: u32 = 12_000;

/// The compute capability that the kernels are compiled for, at least.
const NEEDED_CAPABILITY: u32 = 80;

/// What the driver's library is called.
const LIBRARIES: [&str; 3] = ["libcuda.so", "libcuda.so.1", "nvcuda.dll"];

/// That a driver can be loaded, and is recent enough.
pub(super) fn probe() -> Result<(), StorageError> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        LIBRARIES.iter().any(|name| {
            // SAFETY: the driver's initialisers are trusted, as by everybody who uses CUDA.
            let library = unsafe { libloading::Library::new(*name) };
            // It stays loaded: whoever asked is about to use it.
            library.map(core::mem::forget).is_ok()
        })
    });
    if !found {
        return Err(StorageError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: a plain query that every driver has, before `cuInit` too; `version` outlives it.
    let answer = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    answer.result().map_err(fault("cuDriverGetVersion"))?;
    let version = u32::try_from(version).unwrap_or(0);
    if version < NEEDED_VERSION {
        return Err(StorageError::OldDriver { version, needed: NEEDED_VERSION });
    }
    Ok(())
}

/// The compute capability of the context's device, times ten.
pub(super) fn capability(context: &CudaContext) -> Result<u32, StorageError> {
    let (major, minor) = context.compute_capability().map_err(fault("cuDeviceGetAttribute"))?;
    Ok(u32::try_from(10 * major + minor).unwrap_or(0))
}

/// That the context's device runs the kernels.
pub(super) fn check_device(context: &CudaContext) -> Result<(), StorageError> {
    let capability = capability(context)?;
    if capability < NEEDED_CAPABILITY {
        return Err(StorageError::OldDevice { capability, needed: NEEDED_CAPABILITY });
    }
    Ok(())
}

/// What the work of a stream becomes part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Capture {
    /// Nothing: it is run.
    None,
    /// A graph. No other capture of the process has the number.
    Number(u64),
    /// Some graph.
    Unknown,
}

/// `cuStreamGetCaptureInfo_v2`, with the last three, which are optional, untyped. Every driver since CUDA 11.3 has it;
/// `cudarc` only where it is built for headers of CUDA 12 or before.
type CaptureInfo = unsafe extern "C" fn(
    sys::CUstream,
    *mut sys::CUstreamCaptureStatus,
    *mut u64,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> sys::CUresult;

fn capture_info() -> Option<CaptureInfo> {
    static FOUND: OnceLock<Option<CaptureInfo>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        LIBRARIES.iter().find_map(|name| {
            // SAFETY: as in `probe`, which has loaded it before.
            let library = unsafe { libloading::Library::new(*name) }.ok()?;
            // SAFETY: the function has this type in all versions of CUDA.
            let function = unsafe { library.get::<CaptureInfo>(c"cuStreamGetCaptureInfo_v2") }.ok().map(|found| *found);
            core::mem::forget(library);
            function
        })
    })
}

/// The capture that a stream takes part in.
///
/// # Safety
/// The stream is one of the current context.
pub(super) unsafe fn capture_of(stream: sys::CUstream) -> Result<Capture, StorageError> {
    use sys::CUstreamCaptureStatus as Status;
    let (mut status, mut number) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
    let Some(capture_info) = capture_info() else {
        // SAFETY: by the contract.
        let status = unsafe { result::stream::is_capturing(stream) }.map_err(fault("cuStreamIsCapturing"))?;
        return Ok(if status == Status::CU_STREAM_CAPTURE_STATUS_NONE { Capture::None } else { Capture::Unknown });
    };
    let null = core::ptr::null_mut();
    // SAFETY: the stream by the contract; what is asked for outlives the call, and what is null is not.
    let answer = unsafe { capture_info(stream, &raw mut status, &raw mut number, null, null, null) };
    answer.result().map_err(fault("cuStreamGetCaptureInfo"))?;
    Ok(match status {
        Status::CU_STREAM_CAPTURE_STATUS_NONE => Capture::None,
        Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => Capture::Number(number),
        Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED => Capture::Unknown,
    })
}

/// Makes an error of the driver one of ours.
pub(super) fn fault(call: &'static str) -> impl Fn(DriverError) -> StorageError {
    move |DriverError(code)| {
        use sys::CUresult as Code;
        let number = code as u32;
        match code {
            Code::CUDA_ERROR_INVALID_PTX
            | Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | Code::CUDA_ERROR_NO_BINARY_FOR_GPU
            | Code::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => StorageError::Kernels { code: number },
            Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED => StorageError::ContextLost { code: number },
            Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            | Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            | Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            | Code::CUDA_ERROR_CAPTURED_EVENT => StorageError::Capturing,
            Code::CUDA_ERROR_STUB_LIBRARY => StorageError::NoDriver,
            _ => StorageError::Driver { call, code: number },
        }
    }
}
