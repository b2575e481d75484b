//! The CUDA storage where things go wrong, and in every order in which they may go right: what only an emulator can ask
//! for.
#![allow(unsafe_code)]

mod common;

use common::{begin, configure, every_order};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result, sys};
use paged_kv::BlockId;
use paged_kv::layout::{DType, KvLayout, KvShape, LayerLayout, Plane};
use paged_kv::step::{BlockCopy, Step, TableRow};
use paged_kv::storage::{
    AttendParams, CpuStorage, CpuTensor, CpuTensorMut, CudaLimits, CudaStorage, CudaTensor, CudaTensorMut, KvStorage,
    StorageError,
};
use std::sync::Arc;

const KV_HEADS: usize = 2;
const Q_HEADS: usize = 4;
const DIM: usize = 16;
const BLOCK_SIZE: u32 = 4;
const LIMITS: CudaLimits = CudaLimits::new(4, 32, 8);

fn layout() -> KvLayout {
    KvLayout::per_layer(&KvShape::new(1, 2, 16, DType::F16), 12, BLOCK_SIZE).unwrap()
}

/// Numbers between −1 and 1 that look random: the fractions of multiples of the golden ratio.
fn numbers(seed: u32, len: usize) -> Vec<f32> {
    let number = |at: usize| (f64::from(seed) * 0.7548 + (at + 1) as f64 * 0.618_033_988_749_895).fract() * 2.0 - 1.0;
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    (0..len).map(|at| number(at) as f32).collect()
}

/// A prompt of nine tokens; then it is forked, and both go on: three blocks each, the last one copied.
fn steps() -> [Step; 2] {
    let ids = |ids: [u32; 3]| ids.map(BlockId::new);
    let (parent, child) = (ids([5, 0, 7]), ids([5, 0, 3]));
    let prompt = TableRow { start: 0, len: 9, blocks: &parent };
    let rows = [TableRow { start: 9, len: 1, blocks: &parent }, TableRow { start: 9, len: 2, blocks: &child }];
    let copy = BlockCopy { src: parent[2], dst: child[2] };
    [Step::from_tables(BLOCK_SIZE, &[prompt], &[]).unwrap(), Step::from_tables(BLOCK_SIZE, &rows, &[copy]).unwrap()]
}

/// Outputs of both steps on the CPU.
fn expected() -> Vec<f32> {
    let mut storage = CpuStorage::new(layout()).unwrap();
    let mut all = Vec::new();
    for (step, seed) in steps().iter().zip(1..) {
        let tokens = step.num_tokens() as usize;
        storage.prepare((), step, 4).unwrap();
        storage.copy_blocks(()).unwrap();
        let kv = [tokens, KV_HEADS, DIM];
        let (k, v) = (numbers(seed, tokens * KV_HEADS * DIM), numbers(seed + 5, tokens * KV_HEADS * DIM));
        storage.write_kv((), 0, CpuTensor::new(&k, kv), CpuTensor::new(&v, kv)).unwrap();
        let heads = [tokens, Q_HEADS, DIM];
        let q = numbers(9, tokens * Q_HEADS * DIM);
        let mut out = vec![0.0; q.len()];
        let to = CpuTensorMut::new(&mut out, heads);
        storage.attend((), 0, CpuTensor::new(&q, heads), to, &AttendParams::new(16)).unwrap();
        all.extend(out);
    }
    all
}

/// What went wrong, whoever says so.
#[derive(Debug, PartialEq)]
enum Fault {
    Storage(StorageError),
    Driver(u32),
}

impl From<StorageError> for Fault {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl From<cudarc::driver::DriverError> for Fault {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::Driver(error.0 as u32)
    }
}

/// One step on a storage.
fn run(storage: &mut CudaStorage, stream: &Arc<CudaStream>, step: &Step, seed: u32) -> Result<Vec<f32>, Fault> {
    let tokens = step.num_tokens() as usize;
    let kv = [tokens, KV_HEADS, DIM];
    let heads = [tokens, Q_HEADS, DIM];
    let upload = |numbers: Vec<f32>| stream.clone_htod(&numbers);
    let k = upload(numbers(seed, tokens * KV_HEADS * DIM))?;
    let v = upload(numbers(seed + 5, tokens * KV_HEADS * DIM))?;
    let q = upload(numbers(9, tokens * Q_HEADS * DIM))?;
    let mut out = upload(vec![f32::NAN; tokens * Q_HEADS * DIM])?;
    storage.prepare(stream.into(), step, 4)?;
    storage.copy_blocks(stream.into())?;
    let (k, v) = (CudaTensor::new(&k, stream, kv), CudaTensor::new(&v, stream, kv));
    storage.write_kv(stream.into(), 0, k, v)?;
    let to = CudaTensorMut::new(&mut out, stream, heads);
    let q = CudaTensor::new(&q, stream, heads);
    storage.attend(stream.into(), 0, q, to, &AttendParams::new(16))?;
    Ok(stream.clone_dtoh(&out)?)
}

/// Both steps, on a storage of their own.
fn scenario() -> Result<Vec<f32>, Fault> {
    CudaStorage::probe()?;
    let context = CudaContext::new(0)?;
    // A stream for each step: the second waits for the first.
    let streams = [context.new_stream()?, context.new_stream()?];
    let mut storage = CudaStorage::new(&context, layout(), LIMITS)?;
    let mut all = Vec::new();
    for ((step, stream), seed) in steps().iter().zip(&streams).zip(1..) {
        all.extend(run(&mut storage, stream, step, seed)?);
    }
    Ok(all)
}

fn is_near(left: &[f32], right: &[f32]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn no_order_of_things_changes_a_bit() {
    let _turn = begin("");
    let first = scenario().unwrap();
    assert!(is_near(&first, &expected()));
    for order in every_order() {
        configure(&order);
        assert!(scenario().unwrap() == first, "{order}: {}", cuda_emulator::report());
    }
}

#[test]
fn an_old_driver_and_an_old_device_are_refused() {
    let _turn = begin("driver=11080");
    let old = Fault::Storage(StorageError::OldDriver { version: 11_080, needed: 12_000 });
    assert_eq!(scenario(), Err(old));
    configure("compute=75");
    assert_eq!(scenario(), Err(Fault::Storage(StorageError::OldDevice { capability: 75, needed: 80 })));
    // The oldest of both that will do.
    configure("driver=12000,compute=80");
    assert!(is_near(&scenario().unwrap(), &expected()));
}

#[test]
fn what_does_not_fit_the_device_is_said_and_leaves_nothing_behind() {
    let _turn = begin("memory=1000000");
    let context = CudaContext::new(0).unwrap();
    let before = context.mem_get_info().unwrap().0;
    let large = KvLayout::per_layer(&KvShape::new(3, 2, 16, DType::F16), 3000, BLOCK_SIZE).unwrap();
    // 3,000 blocks of 4 tokens, 2 heads, 32 elements of K and V of 2 bytes: two layers do not fit, one does.
    let refused = CudaStorage::new(&context, large, LIMITS).err();
    assert_eq!(refused, Some(StorageError::OutOfMemory { allocation: 0, bytes: 3000 * 4 * 2 * 32 * 2 }));
    let wide = CudaLimits::new(1000, 1000, 1000);
    let refused = CudaStorage::new(&context, layout(), wide).err();
    assert!(matches!(refused, Some(StorageError::NoBuffers { bytes: 4_000_000.. })), "{refused:?}");
    let endless = CudaLimits::new(u32::MAX, u32::MAX / 2, u32::MAX);
    assert!(matches!(CudaStorage::new(&context, layout(), endless).err(), Some(StorageError::NoBuffers { .. })));
    assert_eq!(context.mem_get_info().unwrap().0, before, "nothing is left allocated");
    drop(context);
    assert!(is_near(&scenario().unwrap(), &expected()));
}

/// Every call of the driver fails once, at every place where it is made.
#[test]
fn a_call_of_the_driver_that_fails_is_an_error_and_no_more() {
    const FUNCTIONS: [&str; 17] = [
        "cuDriverGetVersion",
        "cuDeviceGetAttribute",
        "cuCtxGetCurrent",
        "cuMemAlloc_v2",
        "cuMemsetD8_v2",
        "cuCtxSynchronize",
        "cuMemHostAlloc",
        "cuEventCreate",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuMemcpyHtoD_v2",
        "cuStreamGetCaptureInfo_v2",
        "cuEventSynchronize",
        "cuMemcpyHtoDAsync_v2",
        "cuEventRecord",
        "cuLaunchKernel",
        "cuMemsetD8Async",
    ];
    let _turn = begin("");
    let whole = expected();
    let free = || CudaContext::new(0).unwrap().mem_get_info().unwrap().0;
    let mut before = free();
    for function in FUNCTIONS {
        let mut failures = 0;
        for nth in 1.. {
            // CUDA_ERROR_UNKNOWN.
            configure(&format!("fail={function}:{nth}:999"));
            match scenario() {
                Err(_) => failures += 1,
                Ok(out) => {
                    assert!(is_near(&out, &whole), "{function}, call {nth}: wrong, and no error");
                    // Some calls do without what they asked: `cudarc` notes errors of clean-up, and goes on.
                    if nth > 60 || cuda_emulator::report().is_empty() {
                        break;
                    }
                }
            }
        }
        println!("{function}: {failures} failures");
        assert!(failures > 0, "{function} was never called");
        configure("");
        assert!(is_near(&scenario().unwrap(), &whole), "after {function} failed, all is as before");
        // `cudarc` loses a slice of its own where it then cannot have the events of it.
        if !["cuCtxGetCurrent", "cuEventCreate"].contains(&function) {
            assert_eq!(free(), before, "{function}: nothing is left allocated");
        }
        before = free();
    }
}

#[test]
fn a_step_that_could_not_be_sent_is_not_prepared_and_the_next_one_is() {
    let _turn = begin("");
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let mut storage = CudaStorage::new(&context, layout(), LIMITS).unwrap();
    let [prompt, forked] = steps();
    let mut all = run(&mut storage, &stream, &prompt, 1).unwrap();
    configure("fail=cuLaunchKernel:1:1");
    let refused = storage.prepare((&stream).into(), &forked, 4);
    assert_eq!(refused, Err(StorageError::Driver { call: "pk_prepare", code: 1 }));
    assert_eq!(storage.copy_blocks((&stream).into()), Err(StorageError::NotPrepared));
    all.extend(run(&mut storage, &stream, &forked, 2).unwrap());
    assert!(is_near(&all, &expected()));
}

#[test]
fn a_context_that_a_kernel_broke_is_lost_and_says_so() {
    let _turn = begin("schedule=eager");
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let mut storage = CudaStorage::new(&context, layout(), LIMITS).unwrap();
    let [prompt, _] = steps();
    storage.prepare((&stream).into(), &prompt, 4).unwrap();
    // SAFETY: it is not: that is the test. Nothing but the emulator's memory is asked for.
    let wild = || unsafe { CudaTensor::from_raw::<f32>(4096, [9, KV_HEADS, DIM]) };
    let broken = storage.write_kv((&stream).into(), 0, wild(), wild());
    let lost = Err(StorageError::ContextLost { code: 700 });
    assert_eq!(broken, lost);
    assert!(cuda_emulator::report().contains("pk_write_kv_f16"), "{}", cuda_emulator::report());
    assert_eq!(storage.prepare((&stream).into(), &prompt, 4), lost);
    drop(storage);
    drop(stream);
    drop(context);
    configure("");
    assert!(is_near(&scenario().unwrap(), &expected()));
}

/// A pool of five blocks that lie 5 GiB apart, heads 2.5 GiB, tokens 512 MiB: offsets beyond 2³² bytes and elements. The
/// device's memory is there where it is touched.
#[test]
fn offsets_have_64_bits() {
    const GIB: u64 = 1 << 30;
    let _turn = begin("memory=60000000000");
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let plane = |base_elems| Plane {
        base_elems,
        block_stride_elems: 5 * GIB / 2,
        head_stride_elems: 5 * GIB / 4,
        token_stride_elems: GIB / 4,
    };
    let layer =
        LayerLayout { k: plane(0), v: plane(64), scales: None, kv_heads: 2, k_dim: 16, v_dim: 16, allocation: 0 };
    let elems = 8 * 5 * GIB / 2;
    let sparse = KvLayout::custom(8, BLOCK_SIZE, DType::F16, vec![layer], vec![elems]).unwrap();
    // SAFETY: of some bytes; the context is current.
    let first = unsafe { result::malloc_sync(usize::try_from(elems * 2).unwrap()) }.unwrap();
    // SAFETY: the allocation has all elements, and outlives the storage.
    let mut storage = unsafe { CudaStorage::from_raw(&context, sparse, LIMITS, &[first]) }.unwrap();
    let mut all = Vec::new();
    for (step, seed) in steps().iter().zip(1..) {
        all.extend(run(&mut storage, &stream, step, seed).unwrap());
    }
    assert!(is_near(&all, &expected()), "{}", cuda_emulator::report());
    drop(storage);
    // SAFETY: allocated above, and used no more.
    unsafe { result::free_sync(first) }.unwrap();
}

/// Somebody captures in the mode that forbids all threads what might wait. A storage beside it, on another stream, is made,
/// polled and dropped, and the capture is whole.
#[test]
fn captures_of_others_are_left_alone() {
    let _turn = begin("");
    let context = CudaContext::new(0).unwrap();
    let (theirs, ours) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut storage = CudaStorage::new(&context, layout(), LIMITS).unwrap();
    let [prompt, forked] = steps();
    let mut all = run(&mut storage, &ours, &prompt, 1).unwrap();
    let mut records = storage.records(1).unwrap();
    storage.read_blocks((&ours).into(), &[BlockId::new(5)], &mut records).unwrap();
    theirs.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    while !records.is_done().unwrap() {}
    assert_eq!(records.bytes().unwrap().len(), storage.block_bytes());
    storage.prepare((&ours).into(), &forked, 4).unwrap();
    drop(CudaStorage::new(&context, layout(), LIMITS).unwrap());
    drop(records);
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    assert!(theirs.end_capture(flags).is_ok(), "{}", cuda_emulator::report());
    all.extend(run(&mut storage, &ours, &forked, 2).unwrap());
    assert!(is_near(&all, &expected()));
}

/// Two contexts' default streams have the same handle.
#[test]
fn memory_of_another_device_is_refused() {
    let _turn = begin("devices=2");
    let (here, there) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    let (stream, other) = (here.default_stream(), there.default_stream());
    let mut storage = CudaStorage::new(&here, layout(), LIMITS).unwrap();
    let [prompt, _] = steps();
    assert_eq!(storage.prepare((&other).into(), &prompt, 4), Err(StorageError::OtherContext));
    storage.prepare((&stream).into(), &prompt, 4).unwrap();
    let kv = [9, KV_HEADS, DIM];
    let data = |stream: &Arc<CudaStream>| -> CudaSlice<f32> { stream.alloc_zeros(9 * KV_HEADS * DIM).unwrap() };
    let (own, foreign) = (data(&stream), data(&other));
    let k = CudaTensor::new(&own, &stream, kv);
    let v = CudaTensor::new(&foreign, &other, kv);
    assert_eq!(storage.write_kv((&stream).into(), 0, k, v), Err(StorageError::OtherContext));
    let k = CudaTensor::new(&foreign, &stream, kv);
    let v = CudaTensor::new(&own, &stream, kv);
    assert_eq!(storage.write_kv((&stream).into(), 0, k, v), Err(StorageError::OtherContext));
}
