//! A storage on the device and one of the CPU that do the same.

use alloc::sync::Arc;
use alloc::vec::Vec;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result};

use super::super::{CudaLimits, CudaStorage, CudaTensor, CudaTensorMut};
use crate::id::{BlockId, ix};
use crate::layout::{DType, KvLayout, KvShape};
use crate::step::{BlockCopy, Step, TableRow};
use crate::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage};

pub(super) const KV_HEADS: usize = 2;
pub(super) const Q_HEADS: usize = 6;
pub(super) const DIM: usize = 24;
pub(super) const BLOCK_SIZE: u32 = 8;
pub(super) const BLOCKS: u32 = 40;
pub(super) const LAYERS: u32 = 2;
pub(super) const LIMITS: CudaLimits = CudaLimits::new(6, 64, 12);

/// Numbers between −1 and 1 that look random: the fractions of multiples of the golden ratio.
pub(super) fn numbers(seed: u32, len: usize) -> Vec<f32> {
    let number = |at: usize| (f64::from(seed) * 0.7548 + (at + 1) as f64 * 0.618_033_988_749_895).fract() * 2.0 - 1.0;
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    (0..len).map(|at| number(at) as f32).collect()
}

/// Positions `start .. start + len` of a sequence in these blocks.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) blocks: Vec<u32>,
}

pub(super) fn row(start: u32, len: u32, blocks: impl IntoIterator<Item = u32>) -> Row {
    Row { start, len, blocks: blocks.into_iter().collect() }
}

pub(super) fn step(rows: &[Row], copies: &[(u32, u32)]) -> Step {
    step_of(BLOCK_SIZE, rows, copies)
}

/// The same in blocks of another size.
pub(super) fn step_of(block_size: u32, rows: &[Row], copies: &[(u32, u32)]) -> Step {
    let blocks: Vec<Vec<_>> = rows.iter().map(|row| row.blocks.iter().copied().map(BlockId::new).collect()).collect();
    let rows: Vec<_> =
        rows.iter().zip(&blocks).map(|(row, blocks)| TableRow { start: row.start, len: row.len, blocks }).collect();
    let copy = |&(src, dst): &(u32, u32)| BlockCopy { src: BlockId::new(src), dst: BlockId::new(dst) };
    Step::from_tables(block_size, &rows, &copies.iter().map(copy).collect::<Vec<_>>()).unwrap()
}

pub(super) struct Rig {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    pub(super) cuda: CudaStorage,
    pub(super) cpu: CpuStorage,
}

pub(super) fn layout(dtype: DType) -> KvLayout {
    let [kv_heads, dim] = [KV_HEADS, DIM].map(|x| u32::try_from(x).unwrap());
    KvLayout::per_layer(&KvShape::new(LAYERS, kv_heads, dim, dtype), BLOCKS, BLOCK_SIZE).unwrap()
}

/// Outputs and log-sum-exps of one layer.
pub(super) type Outputs = (Vec<f32>, Vec<f32>);

impl Rig {
    pub(super) fn new(dtype: DType) -> Self {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let cuda = CudaStorage::new(&context, layout(dtype), LIMITS).unwrap();
        Self { context, stream, cuda, cpu: CpuStorage::new(layout(dtype)).unwrap() }
    }

    /// Device memory with these numbers; with one, where there are none, as there is no memory of no bytes.
    pub(super) fn upload(&self, numbers: &[f32]) -> CudaSlice<f32> {
        self.stream.clone_htod(if numbers.is_empty() { &[0.0][..] } else { numbers }).unwrap()
    }

    /// Prepares both storages and runs the copies.
    pub(super) fn prepare(&mut self, step: &Step) {
        self.cuda.prepare((&self.stream).into(), step, 6).unwrap();
        self.cuda.copy_blocks((&self.stream).into()).unwrap();
        self.prepare_cpu(step);
    }

    pub(super) fn prepare_cpu(&mut self, step: &Step) {
        self.cpu.prepare((), step, 6).unwrap();
        self.cpu.copy_blocks(()).unwrap();
    }

    /// Writes the same numbers to a layer of both.
    pub(super) fn write(&mut self, layer: u32, tokens: usize, seed: u32) {
        let (k, v) = (numbers(seed, tokens * KV_HEADS * DIM), numbers(seed + 50, tokens * KV_HEADS * DIM));
        let (on_k, on_v) = (self.upload(&k), self.upload(&v));
        let shape = [tokens, KV_HEADS, DIM];
        let (on_k, on_v) = (CudaTensor::new(&on_k, &self.stream, shape), CudaTensor::new(&on_v, &self.stream, shape));
        self.cuda.write_kv((&self.stream).into(), layer, on_k, on_v).unwrap();
        self.write_cpu(layer, tokens, seed);
    }

    pub(super) fn write_cpu(&mut self, layer: u32, tokens: usize, seed: u32) {
        let (k, v) = (numbers(seed, tokens * KV_HEADS * DIM), numbers(seed + 50, tokens * KV_HEADS * DIM));
        let shape = [tokens, KV_HEADS, DIM];
        self.cpu.write_kv((), layer, CpuTensor::new(&k, shape), CpuTensor::new(&v, shape)).unwrap();
    }

    /// Attention of both, those of the device first.
    pub(super) fn attend(&mut self, layer: u32, tokens: usize, params: &AttendParams<'_>) -> [Outputs; 2] {
        let q = self.upload(&numbers(99, tokens * Q_HEADS * DIM));
        let mut out = self.upload(&alloc::vec![f32::NAN; tokens * Q_HEADS * DIM]);
        let mut lse = self.upload(&alloc::vec![f32::NAN; tokens * Q_HEADS]);
        let shape = [tokens, Q_HEADS, DIM];
        let to = CudaTensorMut::new(&mut out, &self.stream, shape).with_lse(&mut lse, &self.stream);
        let q = CudaTensor::new(&q, &self.stream, shape);
        self.cuda.attend((&self.stream).into(), layer, q, to, params).unwrap();
        let (mut out, mut lse) = (self.stream.clone_dtoh(&out).unwrap(), self.stream.clone_dtoh(&lse).unwrap());
        out.truncate(tokens * Q_HEADS * DIM);
        lse.truncate(tokens * Q_HEADS);
        [(out, lse), self.attend_cpu(layer, tokens, params)]
    }

    pub(super) fn attend_cpu(&mut self, layer: u32, tokens: usize, params: &AttendParams<'_>) -> Outputs {
        let shape = [tokens, Q_HEADS, DIM];
        let q = numbers(99, tokens * Q_HEADS * DIM);
        let (mut out, mut lse) = (alloc::vec![f32::NAN; q.len()], alloc::vec![f32::NAN; tokens * Q_HEADS]);
        let to = CpuTensorMut::new(&mut out, shape).with_lse(&mut lse);
        self.cpu.attend((), layer, CpuTensor::new(&q, shape), to, params).unwrap();
        (out, lse)
    }

    /// A whole step on both, compared.
    pub(super) fn run(&mut self, rows: &[Row], copies: &[(u32, u32)], seed: u32) {
        let step = step(rows, copies);
        self.prepare(&step);
        let tokens = ix(step.num_tokens());
        for layer in 0..LAYERS {
            self.write(layer, tokens, seed + layer);
            let [cuda, cpu] = self.attend(layer, tokens, &AttendParams::new(24));
            assert_near(&cuda, &cpu);
        }
        self.assert_same_bytes();
    }

    /// The bytes of an allocation on the device.
    pub(super) fn device_bytes(&self, index: u32) -> Vec<u8> {
        self.stream.synchronize().unwrap();
        let mut bytes = alloc::vec![0; self.cpu.allocation(index).unwrap().len()];
        // SAFETY: the allocation of the layout, which is as long in both storages.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.cuda.allocation(index).unwrap()) }.unwrap();
        bytes
    }

    pub(super) fn assert_same_bytes(&self) {
        for index in 0..LAYERS {
            assert!(self.device_bytes(index) == self.cpu.allocation(index).unwrap(), "allocation {index} differs");
        }
    }
}

/// Outputs below 1 in size and log-sum-exps of a few units, each a few dozen roundings from float64 on either side.
pub(super) fn assert_near((out, lse): &Outputs, (other_out, other_lse): &Outputs) {
    assert_eq!((out.len(), lse.len()), (other_out.len(), other_lse.len()));
    for (at, (a, b)) in out.iter().zip(other_out).enumerate() {
        assert!((a - b).abs() < 1e-5, "output {at}: {a} and {b}");
    }
    for (at, (a, b)) in lse.iter().zip(other_lse).enumerate() {
        assert!(a == b || (a - b).abs() < 1e-5, "log-sum-exp {at}: {a} and {b}");
    }
}
