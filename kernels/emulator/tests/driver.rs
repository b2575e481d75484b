//! The driver: what it refuses, and that missing synchronisation comes out as wrong values.
#![allow(unsafe_code)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::{begin, configure, context, function, launch, launch_result, ptx, shape};
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, result,
};

#[repr(C)]
#[derive(Clone, Copy)]
struct Add {
    data: u64,
    count: i32,
    amount: i32,
}

// SAFETY: plain numbers, as the kernel has them.
unsafe impl DeviceRepr for Add {}

const COUNT: usize = 96;
const COUNT_I32: i32 = 96;
const SCHEDULES: [&str; 8] = ["lazy", "eager", "2", "3", "4", "5", "6", "7"];

fn add(context: &Arc<CudaContext>) -> CudaFunction {
    function::<Add>(context, "test_add")
}

fn launch_add(stream: &Arc<CudaStream>, add: &CudaFunction, data: u64, amount: i32) {
    launch(stream, add, shape(3, 32, 0), &Add { data, count: COUNT_I32, amount });
}

fn address(stream: &Arc<CudaStream>, data: &CudaSlice<i32>) -> u64 {
    data.device_ptr(stream).0
}

/// Copies from pinned memory. Not by cudarc's slices, which themselves wait before the buffer is used again.
fn copy_in(stream: &Arc<CudaStream>, to: u64, from: *const i32) -> Result<(), DriverError> {
    // SAFETY: both sides are as long as this. That the host may write to its side too early is what is tested.
    unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), 4 * COUNT, stream.cu_stream()) }.result()
}

fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.err().map_or(CUresult::CUDA_SUCCESS, |error| error.0)
}

fn begin_capture(stream: &Arc<CudaStream>) {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
}

fn end_capture(stream: &Arc<CudaStream>) -> Result<Option<CudaGraph>, DriverError> {
    stream.end_capture(CUgraphInstantiate_flags(0))
}

/// The values that a program gives over the schedules, which may also end in an error.
fn outcomes(program: impl Fn() -> Result<Vec<i32>, DriverError>) -> BTreeSet<Vec<i32>> {
    SCHEDULES
        .iter()
        .map(|schedule| {
            configure(&format!("schedule={schedule}"));
            program().unwrap_or_default()
        })
        .collect()
}

#[test]
fn a_staging_buffer_reused_too_early_gives_wrong_values() {
    let _turn = begin("");
    let program = |wait: bool| {
        let (context, stream) = context();
        let add = add(&context);
        let data: CudaSlice<i32> = stream.alloc_zeros(COUNT)?;
        // SAFETY: written before it is read.
        let mut staging = unsafe { context.alloc_pinned::<i32>(COUNT) }?;
        staging.as_mut_slice()?.fill(5);
        let at = staging.as_ptr()? as *mut i32;
        copy_in(&stream, address(&stream, &data), at)?;
        let copied = stream.record_event(None)?;
        launch_add(&stream, &add, address(&stream, &data), 1);
        if wait {
            copied.synchronize()?;
        }
        // SAFETY: the buffer is alive and as long as this.
        unsafe { at.write_bytes(0, COUNT) };
        stream.clone_dtoh(&data)
    };
    assert_eq!(outcomes(|| program(true)), BTreeSet::from([vec![6; COUNT]]));
    assert_eq!(outcomes(|| program(false)), BTreeSet::from([vec![1; COUNT], vec![6; COUNT]]));
}

#[test]
fn a_missing_wait_between_streams_gives_wrong_values() {
    let _turn = begin("");
    let program = |wait: bool| {
        let (context, first) = context();
        let second = context.new_stream()?;
        let add = add(&context);
        let data: CudaSlice<i32> = first.alloc_zeros(COUNT)?;
        first.synchronize()?;
        launch_add(&first, &add, address(&first, &data), 10);
        if wait {
            second.wait(&first.record_event(None)?)?;
        }
        let mut copy = vec![0; COUNT];
        // SAFETY: the addresses are of memory that both sides hold.
        unsafe { result::memcpy_dtoh_async(&mut copy, address(&first, &data), second.cu_stream())? };
        second.synchronize()?;
        Ok(copy)
    };
    assert_eq!(outcomes(|| program(true)), BTreeSet::from([vec![10; COUNT]]));
    assert_eq!(outcomes(|| program(false)), BTreeSet::from([vec![0; COUNT], vec![10; COUNT]]));
}

#[test]
fn memory_freed_while_another_stream_uses_it_is_found() {
    let _turn = begin("");
    let program = |wait: bool| {
        let (context, first) = context();
        let second = context.new_stream()?;
        let add = add(&context);
        let data: CudaSlice<i32> = first.alloc_zeros(COUNT)?;
        first.synchronize()?;
        let at = data.leak();
        launch_add(&second, &add, at, 10);
        if wait {
            first.wait(&second.record_event(None)?)?;
        }
        // SAFETY: the allocation is the stream's and nobody frees it again.
        unsafe { result::free_async(at, first.cu_stream()) }?;
        first.synchronize()?;
        second.synchronize()?;
        Ok(vec![1])
    };
    assert_eq!(outcomes(|| program(true)), BTreeSet::from([vec![1]]));
    assert_eq!(outcomes(|| program(false)), BTreeSet::from([vec![], vec![1]]));
}

#[test]
fn memory_is_not_there_before_the_stream_has_allocated_it() {
    let _turn = begin("");
    let (context, first) = context();
    let second = context.new_stream().unwrap();
    let add = add(&context);
    // SAFETY: never read on this side.
    let data: CudaSlice<i32> = unsafe { first.alloc(COUNT) }.unwrap();
    let at = data.leak();
    launch_add(&second, &add, at, 10);
    assert_eq!(code(second.synchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(
        cuda_emulator::report().contains("before the stream came to the allocation"),
        "{}",
        cuda_emulator::report()
    );
}

#[test]
fn fresh_memory_is_nan() {
    let _turn = begin("");
    let (_context, stream) = context();
    // SAFETY: any bits are a number.
    let data = unsafe { stream.alloc::<f32>(100) }.unwrap();
    assert!(stream.clone_dtoh(&data).unwrap().iter().all(|value| value.is_nan()));
}

#[test]
fn graphs_replay_with_what_memory_holds_then() {
    let _turn = begin("");
    for schedule in SCHEDULES {
        configure(&format!("schedule={schedule}"));
        let (context, stream) = context();
        let add = add(&context);
        let mut data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
        // SAFETY: written before it is read.
        let mut pinned = unsafe { context.alloc_pinned::<i32>(COUNT) }.unwrap();
        let at = pinned.as_mut_ptr().unwrap();
        // Before the capture: cudarc waits here for the event of the last write, which is outside.
        let device = address(&stream, &data);
        stream.synchronize().unwrap();
        begin_capture(&stream);
        copy_in(&stream, device, at).unwrap();
        launch_add(&stream, &add, device, 3);
        let graph = end_capture(&stream).unwrap().unwrap();
        for value in [1, 20] {
            pinned.as_mut_slice().unwrap().fill(value);
            graph.launch().unwrap();
            assert_eq!(stream.clone_dtoh(&data).unwrap(), vec![value + 3; COUNT], "{schedule}");
        }
        stream.memset_zeros(&mut data).unwrap();
        assert_eq!(cuda_emulator::report(), "");
    }
}

#[test]
fn branches_of_a_graph_run_in_either_order_but_after_their_fork() {
    let _turn = begin("");
    for schedule in SCHEDULES {
        configure(&format!("schedule={schedule}"));
        let (context, stream) = context();
        let branch = context.new_stream().unwrap();
        let add = add(&context);
        let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
        let other: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
        stream.synchronize().unwrap();
        let (at, there) = (address(&stream, &data), address(&stream, &other));
        begin_capture(&stream);
        launch_add(&stream, &add, at, 1);
        branch.wait(&stream.record_event(None).unwrap()).unwrap();
        // SAFETY: both are as long as this.
        unsafe { result::memcpy_dtod_async(there, at, 4 * COUNT, branch.cu_stream()) }.unwrap();
        stream.wait(&branch.record_event(None).unwrap()).unwrap();
        launch_add(&stream, &add, at, 1);
        let graph = end_capture(&stream).unwrap().unwrap();
        graph.launch().unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&data).unwrap(), vec![4; COUNT], "{schedule}");
        assert_eq!(stream.clone_dtoh(&other).unwrap(), vec![3; COUNT], "{schedule}");
    }
}

#[test]
fn what_may_not_be_captured_ends_the_capture() {
    let _turn = begin("");
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    type Forbidden = (&'static str, fn(&Arc<CudaContext>, &Arc<CudaStream>) -> Result<(), DriverError>);
    let forbidden: [Forbidden; 5] = [
        ("an allocation inside a capture", |_, stream| stream.alloc_zeros::<u8>(16).map(drop)),
        ("cuStreamSynchronize", |_, stream| stream.synchronize()),
        ("cuCtxSynchronize", |context, _| context.synchronize()),
        ("cuMemHostAlloc", |context, _| {
            // SAFETY: never read.
            unsafe { context.alloc_pinned::<u8>(16) }.map(drop)
        }),
        ("cuModuleLoadData", |context, _| context.load_module(ptx("8.0", "sm_80", "test_add", 16)).map(drop)),
    ];
    for (what, call) in forbidden {
        configure("");
        let (context, stream) = context();
        stream.synchronize().unwrap();
        begin_capture(&stream);
        assert_eq!(code(call(&context, &stream)), unsupported, "{what}");
        assert_eq!(code(end_capture(&stream)), invalidated, "{what}");
        assert!(cuda_emulator::report().contains(what), "{what}: {}", cuda_emulator::report());
        assert_eq!(code(stream.synchronize()), CUresult::CUDA_SUCCESS, "the stream can be used again");
    }
}

#[test]
fn copies_of_pageable_memory_may_not_be_captured() {
    let _turn = begin("");
    let (_context, stream) = context();
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    let at = address(&stream, &data);
    stream.synchronize().unwrap();
    begin_capture(&stream);
    // SAFETY: the memory is as long as this.
    let copied = unsafe { result::memcpy_htod_async(at, &[1; COUNT], stream.cu_stream()) };
    assert_eq!(code(copied), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(code(end_capture(&stream)), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn a_branch_that_does_not_come_back_ends_the_capture() {
    let _turn = begin("");
    let (context, stream) = context();
    let branch = context.new_stream().unwrap();
    let add = add(&context);
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    stream.synchronize().unwrap();
    let at = address(&stream, &data);
    begin_capture(&stream);
    branch.wait(&stream.record_event(None).unwrap()).unwrap();
    launch_add(&branch, &add, at, 1);
    assert_eq!(code(end_capture(&stream)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // An event from outside cannot be waited for inside.
    let outside = branch.record_event(None).unwrap();
    begin_capture(&stream);
    assert_eq!(code(stream.wait(&outside)), CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(code(end_capture(&stream)), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn capacity_is_what_was_configured() {
    let _turn = begin("memory=1048576");
    let (context, stream) = context();
    let (free, total) = context.mem_get_info().unwrap();
    assert_eq!(total, 1 << 20);
    assert_eq!(code(stream.alloc_zeros::<u8>(free + 1)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let half = stream.alloc_zeros::<u8>(free / 2).unwrap();
    let rest = stream.alloc_zeros::<u8>(free - free / 2).unwrap();
    assert_eq!(code(stream.alloc_zeros::<u8>(1)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(context.mem_get_info().unwrap(), (0, total));
    drop(half);
    // A release that is queued makes room when it must.
    let again = stream.alloc_zeros::<u8>(free / 2).unwrap();
    drop((again, rest));
    stream.synchronize().unwrap();
    assert_eq!(context.mem_get_info().unwrap(), (free, total));
}

#[test]
fn failures_come_when_they_were_asked_for() {
    let _turn = begin("fail=cuMemAllocAsync:2:2,fail=cuLaunchKernel:1:701");
    let (context, stream) = context();
    let add = add(&context);
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    assert_eq!(code(stream.alloc_zeros::<i32>(COUNT)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(code(stream.alloc_zeros::<i32>(COUNT)), CUresult::CUDA_SUCCESS);
    let parameters = Add { data: address(&stream, &data), count: COUNT_I32, amount: 1 };
    let refused = launch_result(&stream, &add, shape(3, 32, 0), &parameters);
    assert_eq!(code(refused), CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    launch_result(&stream, &add, shape(3, 32, 0), &parameters).unwrap();
    assert_eq!(stream.clone_dtoh(&data).unwrap(), vec![1; COUNT], "the refused launch did nothing");
}

#[test]
fn drivers_and_devices_refuse_what_is_too_new() {
    let _turn = begin("");
    let (context, _stream) = context();
    let load = |version, target| code(context.load_module(ptx(version, target, "test_add", 16)));
    let (fine, version, binary) =
        (CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    // Driver, compute capability, PTX, target; from NVIDIA's table of PTX versions.
    for (driver, compute, ptx_version, target, expected) in [
        (12000, 90, "8.0", "sm_80", fine),
        (12000, 90, "8.1", "sm_80", version),
        (12080, 90, "8.7", "sm_90", fine),
        (12080, 90, "8.8", "sm_90", version),
        (13000, 90, "9.0", "sm_90a", fine),
        (13000, 90, "9.1", "sm_90", version),
        (13000, 80, "8.0", "sm_90", binary),
        (13000, 100, "8.0", "sm_90", fine),
        (13000, 100, "8.0", "sm_90a", binary),
    ] {
        configure(&format!("driver={driver},compute={compute}"));
        assert_eq!(load(ptx_version, target), expected, "{driver} {compute} {ptx_version} {target}");
    }
}

#[test]
fn headers_of_kernels_are_checked() {
    let _turn = begin("");
    let (context, _stream) = context();
    let load = |name: &str, bytes, ask: &str| {
        context.load_module(ptx("8.0", "sm_80", name, bytes)).unwrap().load_function(ask).map(drop)
    };
    assert_eq!(code(load("test_add", 16, "test_add")), CUresult::CUDA_SUCCESS);
    assert_eq!(code(load("test_add", 24, "test_add")), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(cuda_emulator::report().contains("test_add: parameters of the PTX"), "{}", cuda_emulator::report());
    assert_eq!(code(load("test_sum", 16, "test_add")), CUresult::CUDA_ERROR_NOT_FOUND);
    assert_eq!(code(load("test_nothing", 16, "test_nothing")), CUresult::CUDA_ERROR_NOT_FOUND);
    let nonsense = cudarc::nvrtc::Ptx::from_src("nonsense");
    assert_eq!(code(context.load_module(nonsense)), CUresult::CUDA_ERROR_INVALID_PTX);
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    let _turn = begin("compute=86");
    let (context, stream) = context();
    let add = add(&context);
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    let parameters = Add { data: address(&stream, &data), count: COUNT_I32, amount: 1 };
    let launch = |shape| code(launch_result(&stream, &add, shape, &parameters));
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(launch(shape(1, 1025, 0)), invalid);
    assert_eq!(launch(shape(0, 32, 0)), invalid);
    assert_eq!(launch(shape(1, 32, 49153)), invalid, "beyond 48 KiB a function has to ask");
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // A block of sm_86 has 99 KiB.
    assert_eq!(code(add.set_attribute(attribute, 99 * 1024 + 1)), invalid);
    add.set_attribute(attribute, 99 * 1024).unwrap();
    assert_eq!(launch(shape(1, 32, 99 * 1024)), CUresult::CUDA_SUCCESS);
    assert_eq!(launch(shape(1, 32, 99 * 1024 + 1)), invalid);
    stream.synchronize().unwrap();
}

#[test]
fn devices_are_told_apart() {
    let _turn = begin("devices=2");
    assert_eq!(CudaContext::device_count().unwrap(), 2);
    let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    assert_eq!(CudaContext::new(2).map(drop).map_err(|error| error.0), Err(CUresult::CUDA_ERROR_INVALID_DEVICE));
    second.bind_to_thread().unwrap();
    let stream = second.new_stream().unwrap();
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    let at = address(&stream, &data);
    let mut device = -1i32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: the attribute is an int.
    unsafe { sys::cuPointerGetAttribute((&raw mut device).cast(), attribute, at) }.result().unwrap();
    assert_eq!(device, 1);
    let mut owner = std::ptr::null_mut();
    // SAFETY: writes a handle.
    unsafe { sys::cuStreamGetCtx(stream.cu_stream(), &raw mut owner) }.result().unwrap();
    assert_eq!(owner, second.cu_ctx());
    // A function of one device's context does not run in a stream of the other's.
    first.bind_to_thread().unwrap();
    let add = add(&first);
    second.bind_to_thread().unwrap();
    let parameters = Add { data: at, count: COUNT_I32, amount: 1 };
    let refused = launch_result(&stream, &add, shape(3, 32, 0), &parameters);
    assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_HANDLE);
    stream.synchronize().unwrap();
}

#[test]
fn addresses_tell_their_allocation() {
    let _turn = begin("");
    let (_context, stream) = context();
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    let at = address(&stream, &data);
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, at + 17) }.result().unwrap();
    assert_eq!((base, bytes), (at, 4 * COUNT));
    // SAFETY: as above.
    let behind = unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, at + 4 * COUNT as u64) };
    assert_eq!(behind, CUresult::CUDA_ERROR_NOT_FOUND);
    assert_eq!(at % 256, 0);
}

#[test]
fn a_thread_without_a_context_is_refused() {
    let _turn = begin("");
    let (context, _stream) = context();
    let refused = std::thread::spawn(|| {
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes a handle.
        unsafe { sys::cuStreamCreate(&raw mut stream, 0) }
    });
    assert_eq!(refused.join().unwrap(), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    drop(context);
}

#[test]
fn handles_that_are_gone_are_refused() {
    let _turn = begin("");
    let (_context, stream) = context();
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    let at = data.leak();
    let other = stream.context().new_stream().unwrap();
    let handle = other.cu_stream();
    drop(other);
    // SAFETY: the driver looks a handle up before it follows it.
    assert_eq!(unsafe { sys::cuStreamSynchronize(handle) }, CUresult::CUDA_ERROR_INVALID_HANDLE);
    // SAFETY: freed once.
    unsafe { result::free_async(at, stream.cu_stream()) }.unwrap();
    // SAFETY: refused.
    let twice = unsafe { result::free_async(at, stream.cu_stream()) };
    assert_eq!(code(twice), CUresult::CUDA_ERROR_INVALID_VALUE);
    stream.synchronize().unwrap();
}

#[test]
fn events_are_done_when_their_work_is() {
    let _turn = begin("");
    let (context, stream) = context();
    let add = add(&context);
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    let at = address(&stream, &data);
    stream.synchronize().unwrap();
    launch_add(&stream, &add, at, 1);
    let event = stream.record_event(None).unwrap();
    assert!(!event.is_complete(), "nothing has waited for the kernel");
    let mut polls = 1;
    while !event.is_complete() {
        polls += 1;
    }
    assert!(polls <= 3, "{polls} polls for a kernel and a mark");
}

#[test]
fn batches_copy_all_and_need_a_stream_and_a_driver() {
    let _turn = begin("");
    let (_context, stream) = context();
    let from = stream.clone_htod(&(0..8).collect::<Vec<i32>>()).unwrap();
    let to: CudaSlice<i32> = stream.alloc_zeros(8).unwrap();
    let (source, target) = (address(&stream, &from), address(&stream, &to));
    let batch = |stream| {
        let mut targets = [target, target + 16];
        let mut sources = [source + 16, source];
        let mut sizes = [16, 16];
        // SAFETY: the runs lie in the two allocations; no attributes are given.
        unsafe {
            let none = std::ptr::null_mut();
            let (to, from, bytes) = (targets.as_mut_ptr(), sources.as_mut_ptr(), sizes.as_mut_ptr());
            sys::cuMemcpyBatchAsync_v2(to, from, bytes, 2, none, std::ptr::null_mut(), 0, stream)
        }
    };
    assert_eq!(batch(std::ptr::null_mut()), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(batch(stream.cu_stream()), CUresult::CUDA_SUCCESS);
    assert_eq!(stream.clone_dtoh(&to).unwrap(), [4, 5, 6, 7, 0, 1, 2, 3]);
    cuda_emulator::configure("driver=12000");
    assert_eq!(batch(stream.cu_stream()), CUresult::CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn copies_and_fills_stay_within_allocations() {
    let _turn = begin("");
    let (_context, stream) = context();
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    let at = address(&stream, &data);
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    // SAFETY: refused before anything is touched.
    assert_eq!(code(unsafe { result::memcpy_htod_async(at + 4, &[1; COUNT], stream.cu_stream()) }), invalid);
    // SAFETY: as above.
    assert_eq!(code(unsafe { result::memset_d8_async(at, 0, 4 * COUNT + 1, stream.cu_stream()) }), invalid);
    let mut host = [0; COUNT];
    // SAFETY: as above.
    assert_eq!(code(unsafe { result::memcpy_dtoh_async(&mut host, at - 4, stream.cu_stream()) }), invalid);
    // SAFETY: the memory is as long as this.
    unsafe { result::memset_d8_async(at, 1, 4 * COUNT, stream.cu_stream()) }.unwrap();
    assert_eq!(stream.clone_dtoh(&data).unwrap(), vec![0x0101_0101; COUNT]);
}

#[test]
fn devices_without_pools_allocate_at_once() {
    let _turn = begin("pools=0");
    let (context, stream) = context();
    assert!(!context.has_async_alloc());
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    assert_eq!(stream.clone_dtoh(&data).unwrap(), vec![0; COUNT]);
}

#[test]
fn after_a_reset_everything_works_again() {
    let _turn = begin("");
    let (context, stream) = context();
    let used = |context: &Arc<CudaContext>| {
        let (free, total) = context.mem_get_info().unwrap();
        total - free
    };
    let before = used(&context);
    let add = add(&context);
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    launch_add(&stream, &add, 64, 1);
    let event = stream.record_event(None).unwrap();
    drop(data); // its release is queued behind the kernel that fails
    assert_eq!(code(event.synchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    configure("");
    event.synchronize().unwrap();
    assert_eq!(used(&context), before);
    let data: CudaSlice<i32> = stream.alloc_zeros(COUNT).unwrap();
    launch_add(&stream, &add, address(&stream, &data), 1);
    assert_eq!(stream.clone_dtoh(&data).unwrap(), vec![1; COUNT]);
}
