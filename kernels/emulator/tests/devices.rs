//! The decode kernel on devices with less room for each group of threads: it then has fewer pages on their way.
#![allow(unsafe_code)]

mod common;

use common::{begin, configure};
use cudarc::driver::CudaContext;
use paged_kv::BlockId;
use paged_kv::layout::{DType, KvLayout, KvShape};
use paged_kv::step::{Step, TableRow};
use paged_kv::storage::{
    AttendParams, CpuStorage, CpuTensor, CpuTensorMut, CudaKernel, CudaLimits, CudaStorage, CudaTensor, CudaTensorMut,
    KvStorage,
};

/// Multiples of 1/16 between −1 and 1: queries that need no rounding to f16.
fn numbers(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| ((at * 7 + seed * 5 + at / 9) % 33) as f32 / 16.0 - 1.0).collect()
}

#[test]
fn rings_are_as_long_as_the_device_allows() {
    let _turn = begin("");
    // 164 KiB of a multiprocessor, 100 and 228; of a group of threads one less.
    for compute in [80, 86, 90] {
        configure(&format!("compute={compute}"));
        for (dtype, dim) in [64, 128, 256].into_iter().flat_map(|dim| [(DType::F16, dim), (DType::F8E4M3, dim)]) {
            let context = CudaContext::new(0).unwrap();
            let stream = context.new_stream().unwrap();
            let layout = KvLayout::per_layer(&KvShape::new(1, 1, dim, dtype), 10, 16).unwrap();
            let mut cuda = CudaStorage::new(&context, layout.clone(), CudaLimits::new(2, 200, 10)).unwrap();
            assert_eq!(cuda.kernel(0), Ok(CudaKernel::Decode));
            let mut cpu = CpuStorage::new(layout).unwrap();
            let blocks = [7, 2, 9, 0, 5, 1, 3, 8, 4].map(BlockId::new);
            let dim = dim as usize;
            // A context, then two query tokens of nine heads.
            for (start, len) in [(0, 130), (130, 2)] {
                let step = Step::from_tables(16, &[TableRow { start, len, blocks: &blocks }], &[]).unwrap();
                let tokens = len as usize;
                let (k, v) = (numbers(1 + tokens, tokens * dim), numbers(2 + tokens, tokens * dim));
                let shape = [tokens, 1, dim];
                cuda.prepare((&stream).into(), &step, 2).unwrap();
                cpu.prepare((), &step, 2).unwrap();
                let (on_k, on_v) = (stream.clone_htod(&k).unwrap(), stream.clone_htod(&v).unwrap());
                let tensor = |data| CudaTensor::new(data, &stream, shape);
                cuda.write_kv((&stream).into(), 0, tensor(&on_k), tensor(&on_v)).unwrap();
                cpu.write_kv((), 0, CpuTensor::new(&k, shape), CpuTensor::new(&v, shape)).unwrap();
            }
            let (heads, params) = ([2, 9, dim], AttendParams::new(u32::try_from(dim).unwrap()));
            let q = numbers(3, 2 * 9 * dim);
            let mut want = vec![0.0; q.len()];
            cpu.attend((), 0, CpuTensor::new(&q, heads), CpuTensorMut::new(&mut want, heads), &params).unwrap();
            let on_q = stream.clone_htod(&q).unwrap();
            let mut out = stream.clone_htod(&vec![f32::NAN; q.len()]).unwrap();
            let to = CudaTensorMut::new(&mut out, &stream, heads);
            cuda.attend((&stream).into(), 0, CudaTensor::new(&on_q, &stream, heads), to, &params).unwrap();
            let out = stream.clone_dtoh(&out).unwrap();
            // Weights are rounded to f16, by 2^-11 of each; V is at most 1, and the rest is f32.
            let near = 2.0_f32.powi(-11) + 132.0 * 2.0_f32.powi(-25) + 1e-5;
            let far = out.iter().zip(&want).position(|(a, b)| (a - b).is_nan() || (a - b).abs() >= near);
            assert_eq!(far, None, "compute {compute}, {dtype:?}, {dim}");
            assert_eq!(cuda_emulator::report(), "", "compute {compute}, {dtype:?}, {dim}");
        }
    }
}
