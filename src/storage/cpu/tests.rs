//! What the suite of all storages does not know: tensors with strides, element types, threads, and refusals.

mod bits;
mod memory;
mod prefixes;
mod refusals;
mod steps;
mod tensors;

use alloc::vec::Vec;

use super::*;
use crate::id::BlockId;
use crate::layout::{DType, KvShape};
use crate::step::{BlockCopy, TableRow};

/// Numbers between −1 and 1 that 16-bit formats hold exactly.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from(i16::try_from(state >> 24).unwrap() - 128) / 128.0
    };
    (0..count).map(|_| next()).collect()
}

fn ids<const N: usize>(ids: [u32; N]) -> [BlockId; N] {
    ids.map(BlockId::new)
}

/// 2 layers, 2 KV heads of 12 elements, 6 blocks of 4 tokens.
fn storage(dtype: DType) -> CpuStorage {
    CpuStorage::new(KvLayout::per_layer(&KvShape::new(2, 2, 12, dtype), 6, 4).unwrap()).unwrap()
}

/// A prompt of 6 tokens in blocks 5 and 2.
fn prompt(copies: &[BlockCopy]) -> Step {
    Step::from_tables(4, &[TableRow { start: 0, len: 6, blocks: &ids([5, 2]) }], copies).unwrap()
}

const Q: [usize; 3] = [6, 4, 12];
const KV: [usize; 3] = [6, 2, 12];

/// 1 / √16.
fn quarter<'a>() -> AttendParams<'a> {
    AttendParams::new(16)
}

/// A storage that was prepared for `prompt` and holds its K and V on layer 1.
fn written(dtype: DType) -> CpuStorage {
    let mut storage = storage(dtype);
    storage.prepare((), &prompt(&[]), 1).unwrap();
    let (k, v) = (numbers(144, 1), numbers(144, 2));
    storage.write_kv((), 1, CpuTensor::new(&k, KV), CpuTensor::new(&v, KV)).unwrap();
    storage
}

fn attended(storage: &CpuStorage, q: CpuTensor<'_>) -> Vec<u32> {
    let mut out = alloc::vec![f32::NAN; 288];
    storage.attend((), 1, q, CpuTensorMut::new(&mut out, Q), &quarter()).unwrap();
    out.into_iter().map(f32::to_bits).collect()
}

/// Everything that the memory holds.
fn bits(storage: &CpuStorage) -> Vec<u32> {
    let slots = |layer| (0..24).map(move |slot| (layer, Slot::new(slot)));
    let read = |(layer, slot)| {
        let (k, v) = storage.read_slot(layer, slot).unwrap();
        k.into_iter().chain(v).map(f32::to_bits)
    };
    slots(0).chain(slots(1)).flat_map(read).collect()
}
