//! The decode kernel's host side: which layers it takes, and plans that belong to the step that runs.
//!
//! What it computes, the suite compares with float64.

use alloc::sync::Arc;
use alloc::vec::Vec;

use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr, sys};

use super::super::{CudaKernel, CudaLimits, CudaStorage, CudaTensor, CudaTensorMut};
use super::found;
use super::rig::{Row, numbers, row, step_of};
use crate::id::ix;
use crate::layout::{DType, KvLayout, KvShape, LayerLayout, Plane};
use crate::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage};

/// A query head of 64 elements, three to a KV head.
const DIM: usize = 64;
const Q_HEADS: usize = 3;
const BLOCK_SIZE: u32 = 16;
/// Query tokens of the tensors that graphs are captured with.
const TOKENS: usize = 8;
/// What layers see: five ways of attending, one more than there are buffers for plans.
const WINDOWS: [Option<u32>; 6] = [None, Some(100), Some(700), None, Some(33), Some(1200)];

/// The longest context is 2,400 tokens, which makes five splits of 512.
fn limits(fixed_splits: bool) -> CudaLimits {
    CudaLimits::new(6, 2400, 2400 / BLOCK_SIZE).with_fixed_splits(fixed_splits)
}

/// A storage on the device, one of the CPU that does the same, and tensors at addresses that do not change.
pub(super) struct Engine {
    stream: Arc<CudaStream>,
    cuda: CudaStorage,
    cpu: CpuStorage,
    k: CudaSlice<f32>,
    v: CudaSlice<f32>,
    _q: CudaSlice<f32>,
    out: Vec<CudaSlice<f32>>,
    lse: Vec<CudaSlice<f32>>,
    /// Of K, V, queries, outputs and log-sum-exps, for each layer.
    addresses: Vec<[u64; 5]>,
}

/// Numbers that need no rounding to f16.
fn halves(seed: u32, len: usize) -> Vec<f32> {
    numbers(seed, len).into_iter().map(|x| half::f16::from_f32(x).to_f32()).collect()
}

impl Engine {
    pub(super) fn new(fixed_splits: bool) -> Self {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let layout = KvLayout::per_layer(&KvShape::new(6, 1, 64, DType::F16), 160, BLOCK_SIZE).unwrap();
        let cuda = CudaStorage::new(&context, layout.clone(), limits(fixed_splits)).unwrap();
        let nan = |len| stream.clone_htod(&alloc::vec![f32::NAN; len]).unwrap();
        let (k, v) = (nan(TOKENS * DIM), nan(TOKENS * DIM));
        let q = stream.clone_htod(&halves(99, TOKENS * Q_HEADS * DIM)).unwrap();
        let out: Vec<_> = WINDOWS.map(|_| nan(TOKENS * Q_HEADS * DIM)).into();
        let lse: Vec<_> = WINDOWS.map(|_| nan(TOKENS * Q_HEADS)).into();
        let of_layer = |(out, lse)| [&k, &v, &q, out, lse].map(|slice: &CudaSlice<f32>| slice.device_ptr(&stream).0);
        let addresses = out.iter().zip(&lse).map(of_layer).collect();
        let cpu = CpuStorage::new(layout).unwrap();
        Self { stream, cuda, cpu, k, v, _q: q, out, lse, addresses }
    }

    fn prepare(&mut self, rows: &[Row]) -> usize {
        let step = step_of(BLOCK_SIZE, rows, &[]);
        self.cuda.prepare((&self.stream).into(), &step, 6).unwrap();
        self.cuda.copy_blocks((&self.stream).into()).unwrap();
        self.cpu.prepare((), &step, 6).unwrap();
        self.cpu.copy_blocks(()).unwrap();
        ix(step.num_tokens())
    }

    /// Writes contexts to all layers.
    pub(super) fn feed(&mut self, rows: &[Row], seed: u32) {
        let tokens = self.prepare(rows);
        let (k, v) = (halves(seed, tokens * DIM), halves(seed + 50, tokens * DIM));
        let (on_k, on_v) = (self.stream.clone_htod(&k).unwrap(), self.stream.clone_htod(&v).unwrap());
        let shape = [tokens, 1, DIM];
        for layer in 0..6 {
            let tensor = |data| CudaTensor::new(data, &self.stream, shape);
            self.cuda.write_kv((&self.stream).into(), layer, tensor(&on_k), tensor(&on_v)).unwrap();
            self.cpu.write_kv((), layer, CpuTensor::new(&k, shape), CpuTensor::new(&v, shape)).unwrap();
        }
    }

    /// Prepares a step and sets its K and V where graphs find them.
    pub(super) fn begin(&mut self, rows: &[Row], seed: u32) -> usize {
        let tokens = self.prepare(rows);
        let (k, v) = (halves(seed, TOKENS * DIM), halves(seed + 50, TOKENS * DIM));
        self.stream.memcpy_htod(&k, &mut self.k).unwrap();
        self.stream.memcpy_htod(&v, &mut self.v).unwrap();
        let shape = [tokens, 1, DIM];
        for layer in 0..6 {
            let (k, v) = (CpuTensor::new(&k[..tokens * DIM], shape), CpuTensor::new(&v[..tokens * DIM], shape));
            self.cpu.write_kv((), layer, k, v).unwrap();
        }
        tokens
    }

    /// Writes and attends on some layers, by the fixed addresses.
    pub(super) fn layers(&mut self, layers: core::ops::Range<u32>) {
        for layer in layers {
            let [k, v, q, out, lse] = self.addresses[ix(layer)];
            // SAFETY: device memory of these shapes, which outlives all graphs; one stream uses it.
            let [k, v] = [k, v].map(|first| unsafe { CudaTensor::from_raw::<f32>(first, [TOKENS, 1, DIM]) });
            self.cuda.write_kv((&self.stream).into(), layer, k, v).unwrap();
            let heads = [TOKENS, Q_HEADS, DIM];
            // SAFETY: as above.
            let q = unsafe { CudaTensor::from_raw::<f32>(q, heads) };
            // SAFETY: as above.
            let out = unsafe { CudaTensorMut::from_raw::<f32>(out, heads) };
            // SAFETY: as above.
            let out = unsafe { out.with_raw_lse(lse) };
            self.cuda.attend((&self.stream).into(), layer, q, out, &params(layer)).unwrap();
        }
    }

    pub(super) fn capture(&mut self, layers: core::ops::Range<u32>) -> CudaGraph {
        let stream = Arc::clone(&self.stream);
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        self.layers(layers);
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        stream.end_capture(flags).unwrap().unwrap()
    }

    /// Compares the outputs of all layers with the CPU's and poisons them.
    ///
    /// Queries are f16 already, so that only weights are rounded, by 2⁻¹¹ of each, or 2⁻²⁵ of the largest: outputs, means
    /// of numbers up to 1, are off by that, and by 2,400 × 2⁻²⁵ at most. Log-sum-exps are not.
    pub(super) fn check(&mut self, tokens: usize) {
        self.check_layers(0..6, tokens);
    }

    pub(super) fn check_layers(&mut self, layers: core::ops::Range<u32>, tokens: usize) {
        let near = 2.0_f32.powi(-11) + 2400.0 * 2.0_f32.powi(-25) + 1e-5;
        for layer in layers {
            let mut out = self.stream.clone_dtoh(&self.out[ix(layer)]).unwrap();
            let mut lse = self.stream.clone_dtoh(&self.lse[ix(layer)]).unwrap();
            assert!(out.split_off(tokens * Q_HEADS * DIM).iter().all(|x| x.to_bits() == 0), "padding gets zeros");
            assert!(lse.split_off(tokens * Q_HEADS).iter().all(|x| *x == f32::NEG_INFINITY), "padding sees nothing");
            let (mut want, mut want_lse) = (alloc::vec![0.0; out.len()], alloc::vec![0.0; lse.len()]);
            let q = halves(99, tokens * Q_HEADS * DIM);
            let shape = [tokens, Q_HEADS, DIM];
            let to = CpuTensorMut::new(&mut want, shape).with_lse(&mut want_lse);
            self.cpu.attend((), layer, CpuTensor::new(&q, shape), to, &params(layer)).unwrap();
            for (at, (got, want)) in out.iter().zip(&want).enumerate() {
                assert!((got - want).abs() < near, "layer {layer}, output {at}: {got} and {want}");
            }
            for (at, (got, want)) in lse.iter().zip(&want_lse).enumerate() {
                assert!((got - want).abs() < 1e-5, "layer {layer}, log-sum-exp {at}: {got} and {want}");
            }
            let nan = alloc::vec![f32::NAN; TOKENS * Q_HEADS * DIM];
            self.stream.memcpy_htod(&nan, &mut self.out[ix(layer)]).unwrap();
            self.stream.memcpy_htod(&nan[..TOKENS * Q_HEADS], &mut self.lse[ix(layer)]).unwrap();
        }
    }
}

fn params(layer: u32) -> AttendParams<'static> {
    AttendParams { window: WINDOWS[ix(layer)], ..AttendParams::new(64) }
}

/// A context of 1,500 tokens, one of 40, and a prompt.
pub(super) fn long() -> [Row; 3] {
    [row(1500, 1, 10..104), row(40, 2, 110..113), row(0, 3, [120])]
}

pub(super) fn fed(fixed_splits: bool) -> Engine {
    let mut engine = Engine::new(fixed_splits);
    engine.feed(&[row(0, 1500, 10..104), row(0, 40, 110..113)], 1);
    engine
}

#[test]
fn a_graph_plans_for_the_step_of_its_replay() {
    if !found() {
        return;
    }
    for fixed_splits in [false, true] {
        let mut engine = fed(fixed_splits);
        // Captured with one token that sees itself.
        engine.begin(&[row(0, 1, [130])], 2);
        let graph = engine.capture(0..6);
        for (rows, seed) in [(&long()[..], 3), (&[row(0, 1, [131])], 4), (&[], 5), (&[row(1501, 8, 10..105)], 6)] {
            let tokens = engine.begin(rows, seed);
            graph.launch().unwrap();
            engine.check(tokens);
        }
        // And captured with a long one.
        engine.begin(&long(), 3);
        let graph = engine.capture(0..6);
        for (rows, seed) in [(&[row(0, 1, [131])][..], 4), (&long(), 5)] {
            let tokens = engine.begin(rows, seed);
            graph.launch().unwrap();
            engine.check(tokens);
        }
    }
}

/// Two graphs that are captured with one step, and calls outside of them before, between and behind.
pub(super) fn graphs_in_pieces() {
    let mut engine = fed(false);
    let short = [row(0, 1, [130])];
    let tokens = engine.begin(&short, 2);
    engine.layers(0..6);
    engine.check(tokens);
    let first = engine.capture(0..3);
    engine.layers(0..3);
    let second = engine.capture(3..6);
    engine.layers(3..6);
    engine.check(tokens);
    for (rows, seed) in [(&long()[..], 3), (&short, 4), (&long(), 5)] {
        let tokens = engine.begin(rows, seed);
        // The later one first: it has no plan of the earlier one's.
        second.launch().unwrap();
        first.launch().unwrap();
        engine.check(tokens);
        // The step's own plans, before and after a replay that makes others.
        engine.layers(0..6);
        engine.check(tokens);
        engine.layers(4..6);
        first.launch().unwrap();
        engine.layers(3..4);
        engine.check(tokens);
        second.launch().unwrap();
        engine.layers(0..3);
        engine.check(tokens);
    }
}

#[test]
fn graphs_in_pieces_and_calls_between_each_have_their_plan() {
    if found() {
        graphs_in_pieces();
    }
}

/// Steps of the same tensors, one after the other, of which the plans could be taken for each other's.
pub(super) fn steps_of_other_rows() {
    let mut engine = fed(false);
    let steps = [row(1500, 1, 10..104), row(0, 1, [130]), row(40, 1, 110..113), row(1501, 1, 10..104)];
    for (step, seed) in steps.iter().zip(2..) {
        let tokens = engine.begin(core::slice::from_ref(step), seed);
        // Two ways of attending, each of which has its buffer.
        engine.layers(0..2);
        engine.check_layers(0..2, tokens);
        engine.layers(0..2);
        engine.check_layers(0..2, tokens);
    }
}

#[test]
fn a_step_has_its_own_plans() {
    if found() {
        steps_of_other_rows();
    }
}

/// The decode kernel takes aligned heads of some sizes of some types; the rest is for the naive one.
#[test]
fn the_layout_says_which_kernel_a_layer_runs_on() {
    if !found() {
        return;
    }
    let context = CudaContext::new(0).unwrap();
    let limits = CudaLimits::new(2, 16, 4);
    let (decode, naive) = (Ok(CudaKernel::Decode), Ok(CudaKernel::Naive));
    for (dtype, dim, v_dim, block_size, expected) in [
        (DType::F16, 64, 64, 16, decode),
        (DType::BF16, 128, 128, 48, decode),
        (DType::F8E4M3, 256, 256, 32, decode),
        (DType::F32, 64, 64, 16, naive),
        (DType::I8, 64, 64, 16, naive),
        (DType::F16, 80, 80, 16, naive),
        (DType::F16, 128, 64, 16, naive),
        (DType::F16, 64, 64, 8, naive),
    ] {
        let shape = KvShape::new(1, 2, dim, dtype).with_v_dim(v_dim);
        let layout = KvLayout::per_layer(&shape, 4, block_size).unwrap();
        let storage = CudaStorage::new(&context, layout, limits).unwrap();
        assert_eq!(storage.kernel(0), expected, "{dtype:?}, {dim}, {v_dim}, {block_size}");
        assert!(storage.kernel(1).is_err());
        // Workspaces are there where they are needed.
        let more = storage.device_bytes() - limits.device_bytes();
        assert_eq!(more > 0, expected == decode, "{more} bytes");
    }
    // Rows of f16 that begin at multiples of 16 bytes, of 8, and of 16 from a first that is one of 2.
    for (base_elems, token_stride_elems, expected) in [(8, 64, decode), (0, 68, naive), (1, 64, naive)] {
        let plane = |base_elems| Plane {
            base_elems,
            block_stride_elems: 16 * token_stride_elems,
            head_stride_elems: 16 * 4 * token_stride_elems,
            token_stride_elems,
        };
        let (k, v) = (plane(base_elems), plane(base_elems + 4 * 16 * token_stride_elems));
        let layer = LayerLayout { k, v, scales: None, kv_heads: 1, k_dim: 64, v_dim: 64, allocation: 0 };
        let elems = 16 + 8 * 16 * token_stride_elems;
        let layout = KvLayout::custom(4, 16, DType::F16, alloc::vec![layer], alloc::vec![elems]).unwrap();
        let storage = CudaStorage::new(&context, layout, limits).unwrap();
        assert_eq!(storage.kernel(0), expected, "from {base_elems}, each {token_stride_elems}");
    }
}

/// Its size does not depend on rows and contexts but by the plans, of 32 bytes for a query token and 4 for a row, of which
/// there are 8, each with a head of 16 bytes.
#[test]
fn the_workspace_is_as_large_as_the_device() {
    if !found() {
        return;
    }
    let context = CudaContext::new(0).unwrap();
    let layout = KvLayout::per_layer(&KvShape::new(1, 2, 128, DType::F16), 4, 16).unwrap();
    let of = |limits: CudaLimits| {
        let storage = CudaStorage::new(&context, layout.clone(), limits).unwrap();
        storage.device_bytes()
            - limits.device_bytes()
            - 8 * u64::from(16 + 4 * limits.max_rows + 32 * limits.max_tokens)
    };
    let small = of(CudaLimits::new(4, 16, 64));
    assert_eq!(of(CudaLimits::new(256, 8192, 4096)), small);
    // Partials of 16 columns of 128 elements and two numbers, f32: two of each CTA, and with fixed splits of 4,096 tokens
    // (the longest context is 65,536) 16 and one.
    assert_eq!(small % (2 * 16 * 130 * 4), 0);
    assert_eq!(of(CudaLimits::new(4, 16, 4096).with_fixed_splits(true)), small / 2 * 17);
    // Of 512 tokens, where 1,024 is the longest.
    assert_eq!(of(CudaLimits::new(4, 16, 64).with_fixed_splits(true)), small / 2 * 3);
    let _ = context;
}
