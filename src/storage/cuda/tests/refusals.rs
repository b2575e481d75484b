//! What is refused, with the reason, and changes nothing.

use alloc::vec;

use super::super::{CudaExec, CudaLimits, CudaTensor, CudaTensorMut, MAX_CUDA_HEAD_DIM};
use super::found;
use super::rig::{DIM, KV_HEADS, LIMITS, Q_HEADS, Rig, layout, numbers, row, step};
use crate::layout::{DType, KvLayout, KvShape};
use crate::storage::{AttendParams, CudaStorage, KvStorage, QueryMask, StorageError};

#[test]
fn where_there_is_no_driver_that_is_said() {
    // On a machine without one this is the whole test; with one, that it does not fail.
    match CudaStorage::probe() {
        Ok(()) | Err(StorageError::NoDriver | StorageError::OldDriver { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_step_beyond_the_limits_is_refused() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let limit = |what, given, max| Err(StorageError::Limit { what, given, max });
    let rows: vec::Vec<_> = (0..7).map(|block| row(0, 1, [block])).collect();
    for (step, expected) in [
        (step(&rows, &[]), limit("rows in the step", 7, 6)),
        (step(&[row(0, 65, 0..9)], &[]), limit("query tokens in the step", 65, 64)),
        (step(&[row(97, 1, 0..13)], &[]), limit("blocks in a row", 13, 12)),
        (
            step(&[], &[(0, 10), (0, 11), (0, 12), (0, 13), (0, 14), (0, 15), (0, 16)]),
            limit("copies in the step", 7, 6),
        ),
        (step(&rows[..2], &[]), Err(StorageError::PaddedRows { rows: 2, padded_rows: 1 })),
    ] {
        let padded_rows = if expected == limit("rows in the step", 7, 6) { 7 } else { 1 };
        assert_eq!(rig.cuda.prepare((&rig.stream).into(), &step, padded_rows), expected);
    }
    // The step before is still the prepared one: none.
    let refused = rig.cuda.copy_blocks((&rig.stream).into());
    assert_eq!(refused, Err(StorageError::NotPrepared));
    // Lookahead does not count.
    rig.run(&[row(88, 8, 0..20)], &[], 1);
}

#[test]
fn layouts_that_no_kernel_takes_are_refused() {
    if !found() {
        return;
    }
    let rig = Rig::new(DType::F32);
    let shape = KvShape::new(2, 1, MAX_CUDA_HEAD_DIM + 1, DType::F16);
    let long = CudaStorage::new(&rig.context, KvLayout::per_layer(&shape, 2, 16).unwrap(), LIMITS);
    let (dim, max) = (MAX_CUDA_HEAD_DIM + 1, MAX_CUDA_HEAD_DIM);
    assert_eq!(long.err(), Some(StorageError::HeadTooLong { layer: 0, dim, max }));
    let many = KvLayout::per_layer(&KvShape::new(1, 1, 1, DType::I8), 1 << 27, 16).unwrap();
    let (given, max) = (1 << 31, (1 << 31) - 1);
    let slots = Some(StorageError::Limit { what: "slots in the pool", given, max });
    assert_eq!(CudaStorage::new(&rig.context, many, LIMITS).err(), slots);
    // SAFETY: refused before anything is used.
    let few = unsafe { CudaStorage::from_raw(&rig.context, layout(DType::F32), LIMITS, &[256]) };
    assert!(matches!(few, Err(StorageError::Limit { given: 1, max: 2, .. })), "{few:?}");
    // SAFETY: as above.
    let odd = unsafe { CudaStorage::from_raw(&rig.context, layout(DType::F32), LIMITS, &[256, 514]) };
    assert!(matches!(odd, Err(StorageError::Misaligned { .. })), "{odd:?}");
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let exec = |rig: &Rig| alloc::sync::Arc::clone(&rig.stream);
    let stream = exec(&rig);
    let data = rig.upload(&numbers(1, 4 * Q_HEADS * DIM));
    let tensor = |shape| CudaTensor::new(&data, &stream, shape);
    let kv = [4, KV_HEADS, DIM];
    assert_eq!(rig.cuda.write_kv((&stream).into(), 0, tensor(kv), tensor(kv)), Err(StorageError::NotPrepared));
    rig.prepare(&step(&[row(0, 4, [3])], &[]));
    let mut write = |layer, k, v| rig.cuda.write_kv((&stream).into(), layer, k, v);
    assert_eq!(write(2, tensor(kv), tensor(kv)), Err(StorageError::NoSuchLayer { layer: 2, layers: 2 }));
    let shape = |tensor, given| Err(StorageError::Shape { tensor, given, expected: kv });
    assert_eq!(write(0, tensor([4, 3, DIM]), tensor(kv)), shape("k", [4, 3, DIM]));
    assert_eq!(write(0, tensor(kv), tensor([3, KV_HEADS, DIM])), shape("v", [3, KV_HEADS, DIM]));
    assert_eq!(write(0, tensor([3, KV_HEADS, DIM]), tensor(kv)), shape("k", [3, KV_HEADS, DIM]));
    let long = tensor(kv).with_strides(1000, DIM);
    let (needed, given) = (3 * 1000 + DIM + DIM, 4 * Q_HEADS * DIM);
    assert_eq!(write(0, long, tensor(kv)), Err(StorageError::TooShort { tensor: "k", needed, given }));
    // SAFETY: refused before it is used.
    let odd = unsafe { CudaTensor::from_raw::<f32>(1026, kv) };
    assert_eq!(write(0, tensor(kv), odd), Err(StorageError::Misaligned { tensor: "v" }));
    let other = rig.context.new_stream().unwrap();
    let elsewhere = CudaTensor::new(&data, &other, kv);
    assert_eq!(write(0, elsewhere, tensor(kv)), Err(StorageError::OtherStream { tensor: "k" }));

    let heads = [4, Q_HEADS, DIM];
    let mut out = rig.upload(&vec![0.0; 4 * Q_HEADS * DIM]);
    let mut lse = rig.upload(&[0.0; 4 * Q_HEADS - 1]);
    let short = CudaTensorMut::new(&mut out, &stream, heads).with_lse(&mut lse, &stream);
    let params = AttendParams::new(24);
    let (needed, given) = (4 * Q_HEADS, 4 * Q_HEADS - 1);
    let refused = rig.cuda.attend((&stream).into(), 0, tensor(heads), short, &params);
    assert_eq!(refused, Err(StorageError::TooShort { tensor: "lse", needed, given }));
    let mut attend = |q, params: &AttendParams<'_>| {
        let to = CudaTensorMut::new(&mut out, &stream, heads);
        rig.cuda.attend((&stream).into(), 0, q, to, params)
    };
    let odd_heads = Err(StorageError::QueryHeads { q_heads: 5, kv_heads: KV_HEADS });
    assert_eq!(attend(tensor([4, 5, DIM]), &params), odd_heads);
    assert_eq!(attend(tensor(heads), &params.with_window(0)), Err(StorageError::NoWindow));
    let words = [0; 8];
    let wide = params.with_mask(QueryMask { words: &words, words_per_token: 2 });
    let what = "words of a mask per query token";
    assert_eq!(attend(tensor(heads), &wide), Err(StorageError::Limit { what, given: 2, max: 1 }));
    assert_eq!(attend(tensor(heads), &params), Ok(()));
}

#[test]
fn sinks_of_more_heads_than_a_launch_takes_are_refused() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    rig.prepare(&step(&[row(0, 1, [3])], &[]));
    rig.write(0, 1, 1);
    let sinks = [0.0; 258];
    // SAFETY: refused before it is used.
    let q = unsafe { CudaTensor::from_raw::<f32>(1024, [1, 258, DIM]) };
    // SAFETY: as above.
    let out = unsafe { CudaTensorMut::from_raw::<f32>(1024, [1, 258, DIM]) };
    let params = AttendParams::new(24).with_sinks(&sinks);
    let what = "query heads with sinks or slopes";
    let refused = rig.cuda.attend((&rig.stream).into(), 0, q, out, &params);
    assert_eq!(refused, Err(StorageError::Limit { what, given: 258, max: 256 }));
}

#[test]
fn positions_that_kernels_do_not_count_to_are_refused() {
    if !found() {
        return;
    }
    let rig = Rig::new(DType::F32);
    // One block of 2²⁰ tokens, which a row may have any number of times.
    let layout = KvLayout::per_layer(&KvShape::new(1, 1, 1, DType::F32), 1, 1 << 20).unwrap();
    let mut storage = CudaStorage::new(&rig.context, layout, CudaLimits::new(1, 4, 1 << 12)).unwrap();
    let blocks = vec![crate::BlockId::new(0); 1 << 12];
    let max = (1 << 31) - 1 - 1024;
    for (start, expected) in [
        (max - 2, Ok(())),
        (max - 1, Err(StorageError::Limit { what: "tokens in a row", given: u64::from(max) + 1, max: u64::from(max) })),
    ] {
        let rows = [crate::step::TableRow { start, len: 2, blocks: &blocks }];
        let step = crate::Step::from_tables(1 << 20, &rows, &[]).unwrap();
        assert_eq!(storage.prepare((&rig.stream).into(), &step, 1), expected);
    }
}

#[test]
fn the_default_stream_of_a_thread_is_refused() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let stream = rig.context.per_thread_stream();
    let refused = rig.cuda.prepare((&stream).into(), &step(&[row(0, 1, [3])], &[]), 1);
    assert_eq!(refused, Err(StorageError::PerThreadStream));
}

#[test]
fn raw_streams_are_streams() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let step = step(&[row(0, 1, [3])], &[]);
    // SAFETY: a stream of the context, which outlives the storage.
    let exec = unsafe { CudaExec::from_raw(rig.stream.cu_stream().cast()) };
    rig.cuda.prepare(exec, &step, 1).unwrap();
    rig.run(&[row(0, 4, [3])], &[], 1);
}

#[test]
fn limits_say_what_they_cost() {
    // 10 rows of 20 blocks, 30 tokens, 5 copies, masks of 2 words. A step that is sent: 4 words, 10 × 4 of rows, 30 × 2 of
    // tokens, 5 × 2 of copies, 10 × 4 of edits, 200 entries. What kernels read: the same without edits and entries, and
    // tables of 200. Masks: 30 × 2 × 2.
    let limits = CudaLimits::new(10, 30, 20).with_copies(5).with_mask_words(2);
    let read = 4 + 40 + 60 + 10;
    assert_eq!(limits.device_bytes(), 4 * ((read + 40 + 200) + read + 200 + 120));
    // No overflow, whatever the numbers.
    let all = CudaLimits::new(u32::MAX, u32::MAX, u32::MAX).with_copies(u32::MAX).with_mask_words(u32::MAX);
    assert_eq!(all.device_bytes(), u64::MAX);
}
