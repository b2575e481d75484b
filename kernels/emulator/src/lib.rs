//! The kernels of `paged-kv` as host C++ behind a stand-in CUDA driver, `libcuda.so`.
//!
//! [`load`] brings the library into the process; a later `dlopen("libcuda.so")`, as `cudarc` does it, then finds it by
//! its SONAME, without an environment variable. [`configure`] sets options and [`report`] gives the messages since the
//! last `reset`. The README beside this crate has the options and the limits.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The library that was built with this crate, or the one that `PAGED_KV_EMULATOR_LIBRARY` names: as a rule one with a
/// bug, to see whether tests object.
pub fn library() -> &'static Path {
    static OTHER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let other = OTHER.get_or_init(|| std::env::var_os("PAGED_KV_EMULATOR_LIBRARY").map(PathBuf::from));
    other.as_deref().unwrap_or(Path::new(env!("EMULATOR_LIBRARY")))
}

/// What has to be preloaded into a process that loads the library, if it was built with `AddressSanitizer`.
pub fn sanitizer_runtime() -> Option<&'static Path> {
    let runtime = env!("EMULATOR_SANITIZER_RUNTIME");
    (!runtime.is_empty()).then(|| Path::new(runtime))
}

/// Loads the library for the whole process, once.
///
/// # Panics
///
/// If it cannot be loaded, or if the process already holds another `libcuda.so`.
pub fn load() {
    exports();
}

/// Sets options, `"key=value,..."`.
///
/// # Panics
///
/// If one is unknown or malformed.
pub fn configure(options: &str) {
    let text = CString::new(options).expect("options have no NUL");
    // SAFETY: the function takes a string that ends with a NUL and keeps no part of it.
    let refused = unsafe { (exports().configure)(text.as_ptr()) };
    assert_eq!(refused, 0, "unknown options in `{options}`");
}

/// The last messages, one a line.
pub fn report() -> String {
    let mut buffer = vec![0u8; 256 * 1024];
    // SAFETY: the buffer has the length given.
    unsafe { (exports().report)(buffer.as_mut_ptr().cast(), buffer.len()) };
    let text = CStr::from_bytes_until_nul(&buffer).expect("the report ends with a NUL");
    text.to_string_lossy().into_owned()
}

/// Counts since the library was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Switches between threads.
    pub switches: u64,
    /// Operations of a warp.
    pub collectives: u64,
    /// Asynchronous copies of 16 bytes.
    pub async_copies: u64,
    /// Groups of eight rows that `ldmatrix` reads from fewer than eight groups of banks.
    pub bank_conflicts: u64,
}

/// What has been counted.
pub fn statistics() -> Statistics {
    let mut counts = [0u64; 4];
    // SAFETY: the function writes four numbers.
    unsafe { (exports().statistics)(counts.as_mut_ptr()) };
    let [switches, collectives, async_copies, bank_conflicts] = counts;
    Statistics { switches, collectives, async_copies, bank_conflicts }
}

type Configure = unsafe extern "C" fn(*const c_char) -> c_int;
type Report = unsafe extern "C" fn(*mut c_char, usize) -> usize;
type Count = unsafe extern "C" fn(*mut u64);

struct Exports {
    configure: Configure,
    report: Report,
    statistics: Count,
}

fn exports() -> &'static Exports {
    static EXPORTS: OnceLock<Exports> = OnceLock::new();
    EXPORTS.get_or_init(|| {
        let path = CString::new(library().to_str().expect("a path in UTF-8")).expect("a path has no NUL");
        // SAFETY: the library's initialisers register kernels and read one environment variable.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{}: {}", library().display(), last_error());
        // SAFETY: as above; the library is the one just loaded unless another of its SONAME came first.
        let by_name = unsafe { libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW) };
        assert_eq!(by_name, handle, "the process has another libcuda.so");
        Exports {
            // SAFETY: config.cpp defines the function with this signature.
            configure: unsafe { std::mem::transmute::<*mut c_void, Configure>(symbol(handle, c"emulator_configure")) },
            // SAFETY: as above.
            report: unsafe { std::mem::transmute::<*mut c_void, Report>(symbol(handle, c"emulator_report")) },
            // SAFETY: as above.
            statistics: unsafe { std::mem::transmute::<*mut c_void, Count>(symbol(handle, c"emulator_statistics")) },
        }
    })
}

fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the handle is that of a loaded library, which is never unloaded.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is missing: {}", last_error());
    address
}

fn last_error() -> String {
    // SAFETY: gives null or a string that stays until the next call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: see above.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
