//! Each fault of a kernel is found, and the report names the kernel, the block, the thread and the line.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;

use common::{begin, configure, context, every_order, function, launch, launch_result, shape};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig};

#[repr(C)]
#[derive(Clone, Copy)]
struct Fault {
    data: u64,
    mode: i32,
    unused: i32,
}

// SAFETY: plain numbers, as the kernel has them.
unsafe impl DeviceRepr for Fault {}

#[repr(C)]
#[derive(Clone, Copy)]
struct Touch {
    address: u64,
    result: u64,
    mode: i32,
    block: i32,
    thread: i32,
    unused: i32,
}

// SAFETY: as above.
unsafe impl DeviceRepr for Touch {}

const LOAD: i32 = 0;
const STORE: i32 = 1;
const LOAD_16: i32 = 2;
const COPY_ASYNC: i32 = 3;

/// Kernels are instrumented only where `AddressSanitizer` is not, which stops the process at what it finds.
fn instrumented() -> bool {
    cuda_emulator::sanitizer_runtime().is_none()
}

/// What a launch on 512 zeros ends with, and the messages.
fn outcome(kernel: &str, mode: i32, shape: LaunchConfig) -> (Result<(), CUresult>, String) {
    let (context, stream) = context();
    let function = function::<Fault>(&context, kernel);
    let data = stream.alloc_zeros::<u32>(512).unwrap();
    let parameters = Fault { data: data.device_ptr(&stream).0, mode, unused: 0 };
    let launched = launch_result(&stream, &function, shape, &parameters);
    let result = launched.and_then(|()| stream.synchronize()).map_err(|error| error.0);
    (result, cuda_emulator::report())
}

/// In every order the launch fails with the code, and the report says all of `says`.
fn must_fail(kernel: &str, mode: i32, shape: LaunchConfig, code: CUresult, says: &[&str]) {
    for order in every_order() {
        configure(&order);
        let (result, report) = outcome(kernel, mode, shape);
        assert_eq!(result, Err(code), "{kernel} {mode} {order}: {report}");
        for part in says.iter().chain(&[kernel]) {
            assert!(report.contains(part), "{kernel} {mode} {order}: `{part}` is not in: {report}");
        }
    }
    configure("");
}

const FAILED: CUresult = CUresult::CUDA_ERROR_LAUNCH_FAILED;
const ILLEGAL_ADDRESS: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

#[test]
fn missing_barriers_are_races() {
    let _turn = begin("");
    if !instrumented() {
        return;
    }
    let block = shape(1, 128, 512);
    must_fail("test_missing_barrier", 0, block, FAILED, &["block (0,0,0) thread", "faulty.cu:", "races with"]);
    must_fail("test_missing_barrier", 1, block, FAILED, &["faulty.cu:", "races with"]);
    must_fail("test_missing_second_barrier", 0, block, FAILED, &["faulty.cu:", "races with"]);
}

#[test]
fn missing_waits_for_copies_are_found() {
    let _turn = begin("");
    if !instrumented() {
        return;
    }
    let warp = shape(1, 32, 512);
    must_fail("test_missing_copy_wait", 0, warp, FAILED, &["in flight", "faulty.cu:"]);
    must_fail("test_missing_copy_wait", 1, warp, FAILED, &["in flight", "faulty.cu:"]);
    // By the order, a lane reads its neighbour's place before the neighbour has begun, waited, or met it.
    must_fail("test_missing_copy_wait", 2, warp, FAILED, &["of shared memory at", "faulty.cu:"]);
    must_fail("test_missing_copy_wait", 3, warp, FAILED, &["of shared memory at", "faulty.cu:5"]);
}

#[test]
fn shared_memory_ends_where_it_ends() {
    let _turn = begin("");
    if !instrumented() {
        return;
    }
    let thread = shape(1, 1, 100);
    for byte in [0, 99] {
        assert_eq!(outcome("test_shared_byte", byte, thread).0, Ok(()), "byte {byte}");
    }
    for byte in [-1, 100, 101, 200_000] {
        let says = format!("byte {byte} of shared memory, which has 100");
        must_fail("test_shared_byte", byte, thread, ILLEGAL_ADDRESS, &["a load of 1 bytes", &says, "faulty.cu:"]);
    }
    let (context, stream) = context();
    let function = function::<Fault>(&context, "test_shared_byte");
    launch(&stream, &function, thread, &Fault { data: 0, mode: 100, unused: 0 });
    assert_eq!(stream.synchronize().map_err(|error| error.0), Err(ILLEGAL_ADDRESS));
    let report = cuda_emulator::report();
    assert!(report.contains("a store of 1 bytes") && report.contains("byte 100 of shared memory"), "{report}");
}

#[test]
fn threads_that_do_not_meet_are_named() {
    let _turn = begin("");
    let block = shape(1, 64, 0);
    must_fail("test_divergence", 0, block, FAILED, &["threads meet at different __syncthreads"]);
    let timeout = CUresult::CUDA_ERROR_LAUNCH_TIMEOUT;
    must_fail(
        "test_divergence",
        1,
        block,
        timeout,
        &["block (0,0,0): deadlock: 32 of 64 live threads wait at __syncthreads", "thread 32 waits at shuffle, line"],
    );
    must_fail("test_divergence", 2, block, FAILED, &["lanes of one warp meet at different collectives"]);
    must_fail("test_divergence", 3, block, FAILED, &["mma"]);
    for order in every_order() {
        configure(&order);
        assert_eq!(outcome("test_divergence", 4, block), (Ok(()), String::new()), "{order}");
    }
}

/// Touches an address in thread 3 of block 2.
fn touch(stream: &Arc<CudaStream>, address: u64, mode: i32) -> (Result<u32, CUresult>, String) {
    let context = stream.context();
    let function = function::<Touch>(context, "test_touch");
    let result: CudaSlice<u32> = stream.alloc_zeros(1).unwrap();
    let result_address = result.device_ptr(stream).0;
    let parameters = Touch { address, result: result_address, mode, block: 2, thread: 3, unused: 0 };
    launch(stream, &function, shape(4, 32, 16), &parameters);
    let value = stream.clone_dtoh(&result).map(|values| values[0]).map_err(|error| error.0);
    (value, cuda_emulator::report())
}

/// An access that must fail, in an emulator that is then as new.
fn must_not_touch(address: impl Fn(&Arc<CudaStream>) -> u64, mode: i32, code: CUresult, says: &[&str]) {
    for options in ["", "order=reverse", "schedule=eager", "order=3,schedule=3", "guard=0"] {
        configure(options);
        let (_context, stream) = context();
        let (result, report) = touch(&stream, address(&stream), mode);
        assert_eq!(result, Err(code), "{options}: {report}");
        for part in says.iter().chain(&["test_touch: block (2,0,0) thread 3 faulty.cu:"]) {
            assert!(report.contains(part), "{options}: `{part}` is not in: {report}");
        }
        let again = stream.synchronize().map_err(|error| error.0);
        assert_eq!(again, Err(code), "the error sticks");
    }
    configure("");
}

#[test]
fn wild_pointers_end_the_launch_and_stick() {
    let _turn = begin("");
    for mode in [LOAD, STORE] {
        must_not_touch(|_| 64, mode, ILLEGAL_ADDRESS, &["null and 64 bytes"]);
        must_not_touch(|_| 0x1234_5678_9000, mode, ILLEGAL_ADDRESS, &["which is not device memory"]);
    }
    must_not_touch(|_| 0x1000, COPY_ASYNC, ILLEGAL_ADDRESS, &["cp.async reads outside device memory"]);
}

#[test]
fn host_memory_that_is_not_pinned_is_out_of_reach() {
    let _turn = begin("");
    let host = vec![1u32; 1024];
    let address = host.as_ptr().expose_provenance() as u64;
    must_not_touch(|_| address.next_multiple_of(16), COPY_ASYNC, ILLEGAL_ADDRESS, &["which is not device memory"]);
    if instrumented() {
        must_not_touch(|_| address, LOAD, ILLEGAL_ADDRESS, &["which is not device memory"]);
    }
}

#[test]
fn pinned_memory_is_within_reach() {
    let _turn = begin("");
    let (context, stream) = context();
    // SAFETY: written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u32>(4) }.unwrap();
    pinned.as_mut_slice().unwrap().fill(77);
    let address = pinned.as_ptr().unwrap().expose_provenance() as u64;
    assert_eq!(touch(&stream, address, LOAD), (Ok(77), String::new()));
}

#[test]
fn allocations_end_where_they_end() {
    let _turn = begin("");
    let elements = 100;
    let end = |stream: &Arc<CudaStream>| {
        let memory = stream.alloc_zeros::<u32>(elements).unwrap();
        let address = memory.device_ptr(stream).0;
        std::mem::forget(memory);
        address + 4 * elements as u64
    };
    let (_context, stream) = context();
    assert_eq!(touch(&stream, end(&stream) - 4, LOAD), (Ok(0), String::new()));
    // A page further, there is nothing even without instrumentation.
    let says = ["bytes behind the end of an allocation of 400 bytes"];
    must_not_touch(|stream| end(stream) + 256, LOAD, ILLEGAL_ADDRESS, &says);
    must_not_touch(|stream| end(stream) + 256, STORE, ILLEGAL_ADDRESS, &says);
    must_not_touch(end, COPY_ASYNC, ILLEGAL_ADDRESS, &["cp.async", "0 bytes behind the end"]);
    if instrumented() {
        must_not_touch(end, LOAD, ILLEGAL_ADDRESS, &["0 bytes behind the end of an allocation of 400 bytes"]);
        must_not_touch(end, STORE, ILLEGAL_ADDRESS, &["0 bytes behind the end of an allocation of 400 bytes"]);
        must_not_touch(|stream| end(stream) - 408, LOAD, ILLEGAL_ADDRESS, &["8 bytes before an allocation"]);
    }
}

#[test]
fn freed_memory_is_out_of_reach() {
    let _turn = begin("");
    let freed = |stream: &Arc<CudaStream>| {
        let memory = stream.alloc_zeros::<u32>(100).unwrap();
        let address = memory.device_ptr(stream).0;
        drop(memory);
        address + 16
    };
    for mode in [LOAD, STORE, LOAD_16, COPY_ASYNC] {
        must_not_touch(freed, mode, ILLEGAL_ADDRESS, &["of an allocation of 400 bytes that was freed"]);
    }
}

#[test]
fn misaligned_accesses_fail() {
    let _turn = begin("");
    let misaligned = |stream: &Arc<CudaStream>| {
        let memory = stream.alloc_zeros::<u32>(100).unwrap();
        let address = memory.device_ptr(stream).0;
        std::mem::forget(memory);
        address + 4
    };
    let code = CUresult::CUDA_ERROR_MISALIGNED_ADDRESS;
    must_not_touch(misaligned, COPY_ASYNC, code, &["no multiple of 16"]);
    if instrumented() {
        must_not_touch(|stream| misaligned(stream) + 2, LOAD, code, &["a load of 4 bytes"]);
    }
}

#[test]
fn blocks_may_not_share_what_one_writes() {
    let _turn = begin("");
    if !instrumented() {
        return;
    }
    let blocks = shape(2, 1, 0);
    must_fail("test_blocks_share", 0, blocks, FAILED, &["of the same launch"]);
    must_fail(
        "test_blocks_share",
        1,
        blocks,
        FAILED,
        &["thread 0 faulty.cu:", "writes other bytes over what block number"],
    );
    for order in every_order() {
        configure(&order);
        for mode in [2, 3] {
            assert_eq!(outcome("test_blocks_share", mode, blocks), (Ok(()), String::new()), "{mode} {order}");
        }
    }
}

#[test]
fn threads_that_overflow_or_divide_by_zero_are_named() {
    let _turn = begin("");
    if !instrumented() {
        return;
    }
    let thread = shape(1, 1, 0);
    must_fail("test_alone", 0, thread, FAILED, &["block (0,0,0) thread 0", "the stack of the thread is full"]);
    if cfg!(not(target_arch = "x86_64")) {
        return; // other processors give a quotient, as the device does
    }
    must_fail("test_alone", 1, thread, FAILED, &["an integer division by zero"]);
}
