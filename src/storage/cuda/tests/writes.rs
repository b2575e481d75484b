//! K and V on their way to the pool, and tensors of all types and strides.

use alloc::vec::Vec;

use half::{bf16, f16};

use super::super::{CudaTensor, CudaTensorMut};
use super::found;
use super::rig::{BLOCK_SIZE, DIM, KV_HEADS, Q_HEADS, Rig, assert_near, layout, numbers, row, step};
use crate::layout::DType;
use crate::storage::{AttendParams, CpuTensor, CudaStorage, KvStorage};

const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8];

/// Numbers where conversions turn: ties between neighbours, the largest and beyond, subnormals, and all sorts of NaN.
fn odd_numbers(len: usize) -> Vec<f32> {
    let odd = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        448.0,
        449.0,
        464.0,
        -480.0,
        65_504.0,
        65_520.0,
        -70_000.0,
        3.39e38,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MIN_POSITIVE,
        1e-40,
        -1e-45,
        6.1e-5,
        5.96e-8,
        2.98e-8,
        2.99e-8,
        0.001_953_125,
        0.000_976_562_5,
        0.000_976_6,
        0.015_625,
        1.0625,
        1.1875,
        1.000_488_3,
        1.001_464_8,
        1.003_906_2,
        1.011_718_8,
    ];
    let nans = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff, 0x7fa5_5a5a];
    let all: Vec<f32> = odd.into_iter().chain(nans.map(f32::from_bits)).collect();
    // Whole heads without NaN and infinities too, as integers have a scale in common.
    let tame = numbers(3, len);
    (0..len).map(|at| if at / DIM % 3 == 2 { tame[at] } else { all[(at * 7 + at / DIM) % all.len()] }).collect()
}

#[test]
fn what_is_stored_is_what_the_cpu_stores_bit_for_bit() {
    if !found() {
        return;
    }
    for dtype in DTYPES {
        for form in 0..3 {
            let mut rig = Rig::new(dtype);
            let rows = [row(3, 5, [7, 1]), row(0, 11, [30, 2])];
            rig.prepare(&step(&rows, &[]));
            let shape = [16, KV_HEADS, DIM];
            let (k, v) = (odd_numbers(16 * KV_HEADS * DIM), numbers(8, 16 * KV_HEADS * DIM));
            macro_rules! write {
                ($convert:expr) => {{
                    let k: Vec<_> = k.iter().copied().map($convert).collect();
                    let v: Vec<_> = v.iter().copied().map($convert).collect();
                    let words = |data: &[_]| data.to_vec();
                    let (on_k, on_v) = (device(&rig, &words(&k)), device(&rig, &words(&v)));
                    // SAFETY: device memory of these elements, which lives until the end of the block.
                    let tensor = |first| unsafe { tensor_of(first, &k, shape) };
                    let (on_k, on_v) = (tensor(on_k.first()), tensor(on_v.first()));
                    rig.cuda.write_kv((&rig.stream).into(), 1, on_k, on_v).unwrap();
                    rig.cpu.write_kv((), 1, CpuTensor::new(&k, shape), CpuTensor::new(&v, shape)).unwrap();
                    rig.stream.synchronize().unwrap();
                }};
            }
            match form {
                0 => write!(|x: f32| x),
                1 => write!(f16::from_f32),
                _ => write!(bf16::from_f32),
            }
            let (device, host) = (rig.device_bytes(1), rig.cpu.allocation(1).unwrap());
            let differs = device.iter().zip(host).position(|(a, b)| a != b);
            assert!(differs.is_none(), "{dtype:?} from form {form}: byte {differs:?}");
        }
    }
}

/// Device memory of 16-bit or 32-bit elements.
struct Words(cudarc::driver::CudaSlice<u8>, u64);

impl Words {
    fn first(&self) -> u64 {
        let _ = &self.0;
        self.1
    }
}

fn device<T: Copy>(rig: &Rig, data: &[T]) -> Words {
    use cudarc::driver::DevicePtr;
    // SAFETY: plain numbers without padding, borrowed.
    let bytes = unsafe { core::slice::from_raw_parts(data.as_ptr().cast::<u8>(), size_of_val(data)) };
    let slice = rig.stream.clone_htod(bytes).unwrap();
    let first = slice.device_ptr(&rig.stream).0;
    Words(slice, first)
}

/// # Safety
/// As [`CudaTensor::from_raw`].
unsafe fn tensor_of<'a, T: crate::storage::Element>(first: u64, _: &[T], shape: [usize; 3]) -> CudaTensor<'a> {
    // SAFETY: by the contract.
    unsafe { CudaTensor::from_raw::<T>(first, shape) }
}

/// Queries, outputs and strides as a projection of 16 bits leaves them: `[tokens, q, k, v]` in one row.
#[test]
fn tensors_of_16_bits_with_strides_go_in_and_out() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::BF16);
    let rows = [row(0, 9, [7, 1]), row(0, 3, [30])];
    rig.prepare(&step(&rows, &[]));
    let width = (Q_HEADS + 2 * KV_HEADS) * DIM;
    let fused: Vec<bf16> = numbers(4, 12 * width).into_iter().map(bf16::from_f32).collect();
    let words = device(&rig, &fused);
    let part = |heads: usize, skipped: usize| {
        let first = words.first() + (skipped * DIM * 2) as u64;
        // SAFETY: inside of `words`, with these strides; it lives until the end.
        unsafe { tensor_of(first, &fused, [12, heads, DIM]) }.with_strides(width, DIM)
    };
    let on_cpu =
        |heads, skipped: usize| CpuTensor::new(&fused[skipped * DIM..], [12, heads, DIM]).with_strides(width, DIM);
    let (k, v) = (Q_HEADS, Q_HEADS + KV_HEADS);
    rig.cuda.write_kv((&rig.stream).into(), 0, part(KV_HEADS, k), part(KV_HEADS, v)).unwrap();
    rig.cpu.write_kv((), 0, on_cpu(KV_HEADS, k), on_cpu(KV_HEADS, v)).unwrap();
    rig.assert_same_bytes();

    let params = AttendParams::new(24);
    let mut expected = alloc::vec![0.0; 12 * Q_HEADS * DIM];
    let to = crate::storage::CpuTensorMut::new(&mut expected, [12, Q_HEADS, DIM]);
    rig.cpu.attend((), 0, on_cpu(Q_HEADS, 0), to, &params).unwrap();
    // Outputs with a gap of 5 behind each token.
    let token_stride = Q_HEADS * DIM + 5;
    let out = device(&rig, &alloc::vec![f16::NAN; 12 * token_stride]);
    // SAFETY: inside of `out`, which lives until the end.
    let to = unsafe { CudaTensorMut::from_raw::<f16>(out.first(), [12, Q_HEADS, DIM]) };
    let to = to.with_strides(token_stride, DIM);
    rig.cuda.attend((&rig.stream).into(), 0, part(Q_HEADS, 0), to, &params).unwrap();
    let bytes = rig.stream.clone_dtoh(&out.0).unwrap();
    let got: Vec<f32> = bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
    for (token, got) in got.chunks(token_stride).enumerate() {
        let (heads, gap) = got.split_at(Q_HEADS * DIM);
        assert!(gap.iter().all(|x| x.is_nan()), "the gap was written to");
        for (got, want) in heads.iter().zip(&expected[token * Q_HEADS * DIM..]) {
            // Below 1: half of the last place is 2⁻¹².
            assert!((got - want).abs() < 2.0_f32.powi(-12) + 1e-5, "token {token}: {got} and {want}");
        }
    }
}

#[test]
fn tokens_of_padding_get_zeros_and_write_nothing() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F16);
    let rows = [row(BLOCK_SIZE, 1, [4, 5]), row(0, 2, [6])];
    rig.prepare(&step(&rows, &[]));
    // Three tokens, and five of padding.
    let shape = [8, KV_HEADS, DIM];
    let (k, v) = (rig.upload(&numbers(1, 8 * KV_HEADS * DIM)), rig.upload(&numbers(51, 8 * KV_HEADS * DIM)));
    let (k, v) = (CudaTensor::new(&k, &rig.stream, shape), CudaTensor::new(&v, &rig.stream, shape));
    rig.cuda.write_kv((&rig.stream).into(), 0, k, v).unwrap();
    rig.write_cpu(0, 3, 1);
    rig.assert_same_bytes();
    // The CPU has its numbers from the front of the same row, so that they agree for the step's tokens.
    let params = AttendParams::new(24).with_sinks(&[0.5; Q_HEADS]);
    let cpu = rig.attend_cpu(0, 3, &params);
    let q = rig.upload(&numbers(99, 8 * Q_HEADS * DIM));
    let mut out = rig.upload(&alloc::vec![f32::NAN; 8 * Q_HEADS * DIM]);
    let mut lse = rig.upload(&alloc::vec![f32::NAN; 8 * Q_HEADS]);
    let to = CudaTensorMut::new(&mut out, &rig.stream, [8, Q_HEADS, DIM]).with_lse(&mut lse, &rig.stream);
    let q = CudaTensor::new(&q, &rig.stream, [8, Q_HEADS, DIM]);
    rig.cuda.attend((&rig.stream).into(), 0, q, to, &params).unwrap();
    let (out, lse) = (rig.stream.clone_dtoh(&out).unwrap(), rig.stream.clone_dtoh(&lse).unwrap());
    let (out, out_padding) = out.split_at(3 * Q_HEADS * DIM);
    let (lse, lse_padding) = lse.split_at(3 * Q_HEADS);
    assert_near(&(out.to_vec(), lse.to_vec()), &cpu);
    assert!(out_padding.iter().all(|x| x.to_bits() == 0));
    assert!(lse_padding.iter().all(|x| *x == f32::NEG_INFINITY));
}

#[test]
fn a_pool_of_the_engine_is_used_and_left() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F16);
    // The pool of one storage is the engine's memory for another, which is dropped first.
    let firsts = [rig.cuda.allocation(0).unwrap(), rig.cuda.allocation(1).unwrap()];
    let limits = super::rig::LIMITS;
    // SAFETY: the allocations of the same layout, which outlive the storage.
    let adopted = unsafe { CudaStorage::from_raw(&rig.context, layout(DType::F16), limits, &firsts) }.unwrap();
    let owner = core::mem::replace(&mut rig.cuda, adopted);
    rig.run(&[row(0, 20, [7, 1, 9])], &[], 5);
    rig.cuda = owner;
    rig.assert_same_bytes();
    rig.run(&[row(20, 3, [7, 1, 9])], &[], 6);
}
