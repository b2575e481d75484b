//! What the suite of all storages does not know: tensors with strides, element types, threads, and refusals.

use alloc::vec::Vec;

use half::{bf16, f16};

use super::*;
use crate::id::BlockId;
use crate::layout::{DType, KvShape, LayerLayout, Plane};
use crate::step::{BlockCopy, TableRow};
use crate::storage::QueryMask;

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

/// Spreads a dense tensor over a larger slice with these strides; gaps are NaN.
fn spread(dense: &[f32], [tokens, heads, dim]: [usize; 3], token_stride: usize, head_stride: usize) -> Vec<f32> {
    let mut data = alloc::vec![f32::NAN; tokens * token_stride + heads * head_stride];
    for (index, head) in dense.chunks_exact(dim).enumerate() {
        data[index / heads * token_stride + index % heads * head_stride..][..dim].copy_from_slice(head);
    }
    data
}

#[test]
fn strides_of_tensors_change_nothing() {
    let q = numbers(288, 3);
    let dense = attended(&written(DType::F32), CpuTensor::new(&q, Q));
    // Token-major with gaps, and head-major.
    for (token_stride, head_stride) in [(70, 13), (12, 6 * 12)] {
        let mut storage = storage(DType::F32);
        storage.prepare((), &prompt(&[]), 1).unwrap();
        let k = spread(&numbers(144, 1), KV, token_stride, head_stride);
        let v = spread(&numbers(144, 2), KV, token_stride, head_stride);
        let tensor = |data| CpuTensor::new(data, KV).with_strides(token_stride, head_stride);
        storage.write_kv((), 1, tensor(&k), tensor(&v)).unwrap();
        let q = spread(&q, Q, token_stride, head_stride);
        let q = CpuTensor::new(&q, Q).with_strides(token_stride, head_stride);
        assert_eq!(attended(&storage, q), dense);

        let mut out = alloc::vec![7.0; 6 * token_stride + 4 * head_stride];
        let to = CpuTensorMut::new(&mut out, Q).with_strides(token_stride, head_stride);
        storage.attend((), 1, q, to, &quarter()).unwrap();
        let mut gaps = alloc::vec![true; out.len()];
        for (index, want) in dense.chunks_exact(12).enumerate() {
            let at = index / 4 * token_stride + index % 4 * head_stride;
            assert!(out[at..][..12].iter().zip(want).all(|(got, want)| got.to_bits() == *want));
            gaps[at..][..12].fill(false);
        }
        assert!(out.iter().zip(gaps).all(|(x, gap)| !gap || *x == 7.0), "gaps of the output are left alone");
    }
}

#[test]
fn tensors_of_any_element_type_are_taken() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8] {
        let (k, v, q) = (numbers(144, 1), numbers(144, 2), numbers(288, 3));
        let wide = written(dtype);
        let expected = attended(&wide, CpuTensor::new(&q, Q));
        let half = |x: &[f32]| x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
        let brain = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
        let mut narrow = storage(dtype);
        narrow.prepare((), &prompt(&[]), 1).unwrap();
        narrow.write_kv((), 1, CpuTensor::new(&half(&k), KV), CpuTensor::new(&brain(&v), KV)).unwrap();
        assert_eq!(bits(&narrow), bits(&wide), "the numbers are exact in all formats of tensors");
        assert_eq!(attended(&narrow, CpuTensor::new(&half(&q), Q)), expected);
        assert_eq!(attended(&narrow, CpuTensor::new(&brain(&q), Q)), expected);
    }
}

/// Few rows over a head read K as it is stored, many read it transposed, and a pass takes 128 of all heads: numbers of
/// rows on either side of all these, that fall into fours or not.
#[test]
fn queries_that_go_together_are_computed_as_if_alone() {
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8];
    for (dtype, level) in dtypes.into_iter().flat_map(|d| Level::all().map(move |l| (d, l))) {
        for (dim, group, len) in [(17, 1, 25), (40, 5, 5), (16, 3, 9), (33, 7, 19), (8, 23, 2), (64, 24, 2)] {
            let kv_heads = 5;
            let shape = KvShape::new(1, 5, dim, dtype);
            let mut storage = CpuStorage::new(KvLayout::per_layer(&shape, 8, 16).unwrap()).unwrap();
            storage.level = level;
            let blocks = ids([3, 0, 7, 1, 6, 2, 5, 4]);
            let (dim, tokens) = (ix(dim), 100 + ix(len));
            let step = |start, len| Step::from_tables(16, &[TableRow { start, len, blocks: &blocks }], &[]).unwrap();
            storage.prepare((), &step(0, 100 + len), 1).unwrap();
            let kv = [tokens, kv_heads, dim];
            let (k, v) = (numbers(tokens * kv_heads * dim, 1), numbers(tokens * kv_heads * dim, 2));
            storage.write_kv((), 0, CpuTensor::new(&k, kv), CpuTensor::new(&v, kv)).unwrap();
            let per_token = kv_heads * group * dim;
            let q = numbers(ix(len) * per_token, 3);
            let attend = |storage: &CpuStorage, q: &[f32]| {
                let (mut out, shape) = (alloc::vec![f32::NAN; q.len()], [q.len() / per_token, kv_heads * group, dim]);
                let out_tensor = CpuTensorMut::new(&mut out, shape);
                storage.attend((), 0, CpuTensor::new(q, shape), out_tensor, &quarter()).unwrap();
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            storage.prepare((), &step(100, len), 1).unwrap();
            let together = attend(&storage, &q);
            let mut alone = Vec::new();
            for (token, q) in (0..len).zip(q.chunks(per_token)) {
                storage.prepare((), &step(100 + token, 1), 1).unwrap();
                alone.extend(attend(&storage, q));
            }
            assert!(together == alone, "{dtype:?} {level:?}: {dim}, {group}, {len}");
        }
    }
}

/// 4 rows of very different lengths, enough work for several threads.
#[cfg(feature = "rayon")]
#[test]
fn the_number_of_threads_changes_nothing() {
    let shape = KvShape::new(1, 3, 40, DType::BF16);
    let mut storage = CpuStorage::new(KvLayout::per_layer(&shape, 256, 16).unwrap()).unwrap();
    let blocks: Vec<_> = (0..256).rev().map(BlockId::new).collect();
    // Contexts of 2,601 and 3,001 are shared by threads: 11 and 12 spans of 256 for one query.
    // They, 1,300 and 700 share what they have in common: 10, 5 and 2 spans, on three levels.
    let rows = [(0, 300), (150, 1), (0, 1), (700, 1), (100, 70), (2600, 1), (1300, 3), (2999, 2)];
    let rows = rows.map(|(start, len)| TableRow { start, len, blocks: &blocks });
    let mut fill = |tokens: usize, step: &Step| {
        storage.prepare((), step, 8).unwrap();
        let (k, v) = (numbers(tokens * 120, 1), numbers(tokens * 120, 2));
        let shape = [tokens, 3, 40];
        storage.write_kv((), 0, CpuTensor::new(&k, shape), CpuTensor::new(&v, shape)).unwrap();
    };
    let all = TableRow { start: 0, len: 3001, blocks: &blocks };
    fill(3001, &Step::from_tables(16, &[all], &[]).unwrap());
    fill(379, &Step::from_tables(16, &rows, &[]).unwrap());
    let q = numbers(379 * 600, 3);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let (mut out, mut lse) = (alloc::vec![f32::NAN; 379 * 600], alloc::vec![f32::NAN; 379 * 15]);
            let shape = [379, 15, 40];
            let to = CpuTensorMut::new(&mut out, shape).with_lse(&mut lse);
            storage.attend((), 0, CpuTensor::new(&q, shape), to, &quarter()).unwrap();
            out.into_iter().chain(lse).map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let one = run(1);
    for threads in [2, 3, 8, 40] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn a_step_like_the_one_before_allocates_nothing() {
    let mut storage = storage(DType::BF16);
    let (k, v, q) = (numbers(144, 1), numbers(144, 2), numbers(288, 3));
    let mut out = alloc::vec![0.0; 288];
    let step = prompt(&[BlockCopy { src: BlockId::new(0), dst: BlockId::new(5) }]);
    let mut pass = || {
        storage.prepare((), &step, 1).unwrap();
        storage.copy_blocks(()).unwrap();
        storage.write_kv((), 1, CpuTensor::new(&k, KV), CpuTensor::new(&v, KV)).unwrap();
        let to = CpuTensorMut::new(&mut out, Q);
        storage.attend((), 1, CpuTensor::new(&q, Q), to, &quarter()).unwrap();
    };
    pass();
    assert_eq!(allocation_counter::measure(pass).count_total, 0);
}

/// Five rows of one token and 2 KV heads of 8 elements, which share their first `prefix` tokens, up to 1,000, and have some
/// more of their own; `group` query heads per KV head.
fn attend_shared(storage: &mut CpuStorage, step: &Step, group: usize, params: &AttendParams<'_>, out: &mut [f32]) {
    storage.prepare((), step, 5).unwrap();
    let (q, shape) = ([0.5_f32; 5 * 2 * 65 * 8], [5, 2 * group, 8]);
    let to = CpuTensorMut::new(out, shape);
    storage.attend((), 0, CpuTensor::new(&q, shape), to, params).unwrap();
}

/// Blocks of 8: 125 that all have, or those of their own, and 5 more each.
fn step_shared(prefix: u32) -> (CpuStorage, Step) {
    let layout = KvLayout::per_layer(&KvShape::new(1, 2, 8, DType::F32), 5 * 130, 8).unwrap();
    let own = |row: u32, block: u32| BlockId::new(if block < prefix / 8 { block } else { row * 130 + block });
    let tables: Vec<Vec<_>> = (0..5).map(|row| (0..130).map(|block| own(row, block)).collect()).collect();
    let rows: Vec<_> = tables.iter().zip(1003..).map(|(blocks, start)| TableRow { start, len: 1, blocks }).collect();
    (CpuStorage::new(layout).unwrap(), Step::from_tables(8, &rows, &[]).unwrap())
}

#[test]
fn a_prefix_that_rows_share_is_read_once() {
    let read = |prefix: u32, group: usize, params: AttendParams<'_>| {
        let (mut storage, step) = step_shared(prefix);
        let mut out = [0.0; 5 * 2 * 65 * 8];
        attend::SPANS_READ.set(0);
        attend_shared(&mut storage, &step, group, &params, &mut out);
        attend::SPANS_READ.get()
    };
    let plain = AttendParams::new(8);
    // 2 KV heads; 4 spans of 256 begin before position 1,004 to 1,008.
    assert_eq!(read(0, 1, plain), 2 * 5 * 4);
    assert_eq!(read(255, 1, plain), 2 * 5 * 4);
    // 1 and 3 of them once, the others by each row.
    assert_eq!(read(256, 1, plain), 2 * (1 + 5 * 3));
    assert_eq!(read(1000, 1, plain), 2 * (3 + 5));
    // 32 query heads: of 128 rows 4 queries go together, so that 5 do by 2 and 3.
    assert_eq!(read(1000, 32, plain), 2 * (2 * 3 + 5));
    // Of 65 no two do.
    assert_eq!(read(1000, 65, plain), 2 * 5 * 4);
    // A window that all of it lies within; one that cuts the first of 1,008 off; one from position 504 or later on.
    assert_eq!(read(1000, 1, plain.with_window(1008)), 2 * (3 + 5));
    assert_eq!(read(1000, 1, plain.with_window(1007)), 2 * 5 * 4);
    assert_eq!(read(1000, 1, plain.with_window(500)), 2 * 5 * 3);
}

#[test]
fn rows_that_share_allocate_nothing_once_buffers_have_grown() {
    let (mut storage, step) = step_shared(1000);
    let mut out = [0.0; 5 * 2 * 8];
    let mut pass = || attend_shared(&mut storage, &step, 1, &AttendParams::new(8), &mut out);
    pass();
    assert_eq!(allocation_counter::measure(pass).count_total, 0);
}

/// A fixed computation, whose bits are printed so that builds with and without features can be compared.
#[test]
fn bits_are_the_same_whenever_they_are_asked_for() {
    let q = numbers(288, 3);
    let first = attended(&written(DType::BF16), CpuTensor::new(&q, Q));
    let digest =
        first.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, x| (hash ^ u64::from(*x)).wrapping_mul(0x100_0000_01b3));
    std::println!("digest of the bits: {digest:016x}");
    assert_eq!(attended(&written(DType::BF16), CpuTensor::new(&q, Q)), first);
}

#[test]
fn a_step_that_is_refused_changes_nothing() {
    let mut storage = written(DType::F32);
    let q = numbers(288, 3);
    let (memory, expected) = (bits(&storage), attended(&storage, CpuTensor::new(&q, Q)));
    let row = |blocks| [TableRow { start: 0, len: 6, blocks }];
    let copy = |src, dst| BlockCopy { src: BlockId::new(src), dst: BlockId::new(dst) };
    let outside = CpuError::NoSuchBlock { block: BlockId::new(6), num_blocks: 6 };
    let cases = [
        (Step::new(), CpuError::BlockSize { step: 0, layout: 4 }),
        (Step::from_tables(8, &row(&ids([0])), &[]).unwrap(), CpuError::BlockSize { step: 8, layout: 4 }),
        (Step::from_tables(4, &row(&ids([0, 6])), &[]).unwrap(), outside),
        // Also a block of lookahead.
        (Step::from_tables(4, &row(&ids([0, 1, 6])), &[]).unwrap(), outside),
        (prompt(&[copy(6, 0)]), outside),
        (prompt(&[copy(0, 6)]), outside),
        (prompt(&[copy(0, 1), copy(2, 1)]), CpuError::CopyOrder { block: BlockId::new(1) }),
        (prompt(&[copy(0, 1), copy(1, 2)]), CpuError::CopyOrder { block: BlockId::new(1) }),
        (prompt(&[copy(3, 3)]), CpuError::CopyOrder { block: BlockId::new(3) }),
    ];
    for (step, error) in cases {
        assert_eq!(storage.prepare((), &step, 9), Err(error));
        assert_eq!(attended(&storage, CpuTensor::new(&q, Q)), expected, "the step before is still prepared");
    }
    assert_eq!(storage.prepare((), &prompt(&[]), 0), Err(CpuError::PaddedRows { rows: 1, padded_rows: 0 }));
    let mut storage = storage.with_group(GroupId::new(1));
    assert_eq!(storage.prepare((), &prompt(&[]), 1), Err(CpuError::NoSuchGroup { group: GroupId::new(1) }));
    assert_eq!(attended(&storage, CpuTensor::new(&q, Q)), expected);
    assert_eq!(bits(&storage), memory);
}

#[test]
fn tensors_that_do_not_fit_are_refused_and_change_nothing() {
    let mut storage = written(DType::F16);
    let memory = bits(&storage);
    let data = numbers(400, 1);
    let tensor = |shape| CpuTensor::new(&data, shape);
    let fits = tensor(KV);
    for (k, v, error) in [
        (tensor([5, 2, 12]), fits, CpuError::Shape { tensor: "k", given: [5, 2, 12], expected: KV }),
        (tensor([6, 1, 12]), fits, CpuError::Shape { tensor: "k", given: [6, 1, 12], expected: KV }),
        (fits, tensor([6, 2, 8]), CpuError::Shape { tensor: "v", given: [6, 2, 8], expected: KV }),
        (fits, CpuTensor::new(&data[..143], KV), CpuError::TooShort { tensor: "v", needed: 144, given: 143 }),
        (fits.with_strides(78, 12), fits, CpuError::TooShort { tensor: "k", needed: 5 * 78 + 24, given: 400 }),
        (fits.with_strides(usize::MAX, 12), fits, CpuError::TooShort { tensor: "k", needed: usize::MAX, given: 400 }),
    ] {
        assert_eq!(storage.write_kv((), 1, k, v), Err(error));
    }
    assert_eq!(storage.write_kv((), 2, fits, fits), Err(CpuError::NoSuchLayer { layer: 2, layers: 2 }));
    assert_eq!(bits(&storage), memory);

    let mut out = alloc::vec![7.0; 400];
    let mut attend = |layer, q, shape, token_stride, head_stride| {
        let to = CpuTensorMut::new(&mut out, shape).with_strides(token_stride, head_stride);
        storage.attend((), layer, q, to, &quarter()).unwrap_err()
    };
    let q = tensor(Q);
    assert_eq!(attend(2, q, Q, 48, 12), CpuError::NoSuchLayer { layer: 2, layers: 2 });
    let three = tensor([6, 3, 12]);
    assert_eq!(attend(1, three, [6, 3, 12], 36, 12), CpuError::QueryHeads { q_heads: 3, kv_heads: 2 });
    assert_eq!(attend(1, tensor([6, 0, 12]), Q, 48, 12), CpuError::QueryHeads { q_heads: 0, kv_heads: 2 });
    let five = CpuError::Shape { tensor: "q", given: [5, 4, 12], expected: Q };
    assert_eq!(attend(1, tensor([5, 4, 12]), Q, 48, 12), five);
    let two = CpuError::Shape { tensor: "out", given: KV, expected: Q };
    assert_eq!(attend(1, q, KV, 24, 12), two);
    for (token_stride, head_stride) in [(47, 12), (48, 11), (12, 60), (0, 12), (12, 12)] {
        assert_eq!(attend(1, q, Q, token_stride, head_stride), CpuError::Overlap { token_stride, head_stride });
    }
    let short = CpuError::TooShort { tensor: "out", needed: 5 * 100 + 48, given: 400 };
    assert_eq!(attend(1, q, Q, 100, 12), short);
    assert!(out.iter().all(|x| *x == 7.0));
}

#[test]
fn copies_run_once_and_before_anything_else() {
    let mut storage = storage(DType::F32);
    assert_eq!(storage.copy_blocks(()), Err(CpuError::NotPrepared));
    let (k, v) = (numbers(144, 1), numbers(144, 2));
    let write = |storage: &mut CpuStorage| storage.write_kv((), 1, CpuTensor::new(&k, KV), CpuTensor::new(&v, KV));
    assert_eq!(write(&mut storage), Err(CpuError::NotPrepared));

    // Block 5, which the prompt is then written to, gets the bytes of block 0.
    storage.prepare((), &prompt(&[BlockCopy { src: BlockId::new(0), dst: BlockId::new(5) }]), 1).unwrap();
    assert_eq!(write(&mut storage), Err(CpuError::CopiesPending { copies: 1 }));
    let mut out = [0.0; 288];
    let attend = storage.attend((), 1, CpuTensor::new(&numbers(288, 3), Q), CpuTensorMut::new(&mut out, Q), &quarter());
    assert_eq!(attend, Err(CpuError::CopiesPending { copies: 1 }));
    storage.copy_blocks(()).unwrap();
    write(&mut storage).unwrap();
    let memory = bits(&storage);
    storage.copy_blocks(()).unwrap();
    assert_eq!(bits(&storage), memory, "a second call copies nothing over the writes");
}

#[test]
fn sizes_that_no_machine_has_are_refused() {
    let layout = KvLayout::per_layer(&KvShape::new(1, 1 << 10, 1 << 10, DType::F32), 1 << 20, 1 << 10).unwrap();
    let bytes = layout.bytes(); // 2^53
    assert_eq!(CpuStorage::new(layout).unwrap_err(), CpuError::OutOfMemory { allocation: 0, bytes });
    let layout = KvLayout::per_layer(&KvShape::new(1, 1, 65_537, DType::F16), 1, 1).unwrap();
    assert_eq!(CpuStorage::new(layout).unwrap_err(), CpuError::HeadTooLong { layer: 0, dim: 65_537, max: 65_536 });
}

/// Strides that nothing is ever multiplied by may be any number.
#[test]
fn strides_of_single_steps_may_be_anything() {
    let plane = |base_elems| Plane {
        base_elems,
        block_stride_elems: u64::MAX,
        head_stride_elems: u64::MAX,
        token_stride_elems: u64::MAX,
    };
    let layer = LayerLayout { k: plane(3), v: plane(20), scales: None, kv_heads: 1, k_dim: 8, v_dim: 8, allocation: 0 };
    let layout = KvLayout::custom(1, 1, DType::F32, alloc::vec![layer], alloc::vec![28]).unwrap();
    let mut storage = CpuStorage::new(layout).unwrap();
    storage.write_slot(0, Slot::new(0), &[1.0; 8], &[2.0; 8]).unwrap();
    assert_eq!(storage.read_slot(0, Slot::new(0)).unwrap(), (alloc::vec![1.0; 8], alloc::vec![2.0; 8]));
    assert!(storage.read_slot(0, Slot::new(1)).is_err());
    assert!(storage.write_slot(0, Slot::new(0), &[1.0; 7], &[2.0; 8]).is_err());
}

/// A storage crosses threads like the plain memory that it is.
#[test]
fn a_storage_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<CpuStorage>();
}

/// No strides overflow where there is nothing that they could separate.
#[test]
fn tensors_of_no_tokens_may_have_any_strides() {
    let mut storage = storage(DType::F32);
    storage.prepare((), &Step::from_tables(4, &[], &[]).unwrap(), 0).unwrap();
    for heads in [4, usize::MAX - 1] {
        for stride in [0, 1, usize::MAX] {
            let shape = [0, heads, 12];
            let q = CpuTensor::new::<f32>(&[], shape).with_strides(stride, stride);
            let to = CpuTensorMut::new(&mut [], shape).with_strides(stride, stride);
            assert_eq!(storage.attend((), 1, q, to, &quarter()), Ok(()));
        }
    }
}

/// Outputs that are taken are in bounds and disjoint, by marking every element: all small shapes and strides.
#[test]
fn outputs_that_are_taken_have_disjoint_heads() {
    const LEN: usize = 30;
    let mut taken = 0;
    for at in 0..4 * 4 * 3 * 12 * 12 {
        let shape @ [tokens, heads, dim] = [at % 4, at / 4 % 4, 1 + at / 16 % 3];
        let (token_stride, head_stride) = (at / 48 % 12, at / 576);
        let mut data = [0.0; LEN];
        let out = CpuTensorMut::new(&mut data, shape).with_strides(token_stride, head_stride);
        if out.share("out", shape).is_err() {
            continue;
        }
        taken += 1;
        let mut marks = [false; LEN];
        for index in 0..tokens * heads * dim {
            let (token, head, d) = (index / dim / heads, index / dim % heads, index % dim);
            let mark = &mut marks[token * token_stride + head * head_stride + d];
            assert!(!*mark, "{shape:?} with strides {token_stride} and {head_stride}");
            *mark = true;
        }
    }
    assert!(taken > 1000, "{taken}");
}

/// The copies of a step that was replaced are no longer due.
#[test]
fn a_new_step_forgets_the_copies_of_the_one_before() {
    let mut storage = written(DType::F32);
    let memory = bits(&storage);
    storage.prepare((), &prompt(&[BlockCopy { src: BlockId::new(5), dst: BlockId::new(0) }]), 1).unwrap();
    storage.prepare((), &prompt(&[]), 1).unwrap();
    attended(&storage, CpuTensor::new(&numbers(288, 3), Q));
    storage.copy_blocks(()).unwrap();
    assert_eq!(bits(&storage), memory);
}

/// Scores of −∞ over whole chunks weigh nothing, however many, and what comes after them is seen as if it were alone; where
/// there is nothing else, it is as if nothing were seen.
#[test]
fn scores_of_minus_infinity_weigh_nothing() {
    let shape = KvShape::new(1, 1, 8, DType::F32);
    let mut storage = CpuStorage::new(KvLayout::per_layer(&shape, 10, 16).unwrap()).unwrap();
    let blocks: Vec<_> = (0..10).map(BlockId::new).collect();
    let step = Step::from_tables(16, &[TableRow { start: 0, len: 160, blocks: &blocks }], &[]).unwrap();
    storage.prepare((), &step, 1).unwrap();
    // Positions 0 to 129 are −∞, two chunks of 64 and two more; those of 130 on are equal, V counts them.
    let k: Vec<f32> = (0..160).flat_map(|at| [if at < 130 { f32::NEG_INFINITY } else { 0.5 }; 8]).collect();
    let v: Vec<f32> = (0_u8..160).flat_map(|at| [f32::from(at); 8]).collect();
    let dense = [160, 1, 8];
    storage.write_kv((), 0, CpuTensor::new(&k, dense), CpuTensor::new(&v, dense)).unwrap();
    let mut out = alloc::vec![0.0; 160 * 8];
    let q = [1.0; 160 * 8];
    storage.attend((), 0, CpuTensor::new(&q, dense), CpuTensorMut::new(&mut out, dense), &quarter()).unwrap();
    for (at, out) in (0_u8..).zip(out.chunks_exact(8)) {
        // The mean of 130 ..= at.
        let mean = f32::midpoint(130.0, f32::from(at));
        assert!(out.iter().all(|x| if at < 130 { *x == 0.0 } else { (x - mean).abs() < 1e-4 }), "{at}: {out:?}");
    }
}

/// What a thread computed before leaves nothing behind, be it NaN, also where a head does not fill its vectors.
#[test]
fn a_call_leaves_nothing_to_the_next() {
    let run = |dim: u32, q: f32| {
        let shape = KvShape::new(1, 1, dim, DType::F32);
        let mut storage = CpuStorage::new(KvLayout::per_layer(&shape, 1, 4).unwrap()).unwrap();
        let row = TableRow { start: 0, len: 4, blocks: &ids([0]) };
        storage.prepare((), &Step::from_tables(4, &[row], &[]).unwrap(), 1).unwrap();
        let dense = [4, 1, ix(dim)];
        let kv = numbers(4 * ix(dim), 4);
        storage.write_kv((), 0, CpuTensor::new(&kv, dense), CpuTensor::new(&kv, dense)).unwrap();
        let (q, mut out) = (alloc::vec![q; kv.len()], alloc::vec![0.0; kv.len()]);
        storage.attend((), 0, CpuTensor::new(&q, dense), CpuTensorMut::new(&mut out, dense), &quarter()).unwrap();
        out
    };
    for dim in [5, 8, 13] {
        let clean = run(dim, 0.5);
        assert!(run(16, f32::NAN).iter().all(|x| x.is_nan()));
        assert_eq!(run(dim, 0.5), clean);
    }
}

/// Every element of every layer, looked up in the bytes by the layout's own planes.
#[test]
fn the_bytes_of_an_allocation_are_its_elements_in_order() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8] {
        let storage = written(dtype);
        let size = usize::try_from(dtype.bytes()).unwrap();
        let wide = |bytes: &[u8]| match dtype {
            DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()),
            DType::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
            DType::BF16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
            DType::I8 => f32::from(bytes[0].cast_signed()),
            DType::F8E4M3 => panic!("no such case"),
        };
        // K or V of a head of a token, and its scale.
        let scale_bytes = ix(dtype.scale_elems()) * size;
        for layer in 0..2 {
            let bytes = storage.allocation(layer).unwrap();
            assert_eq!(bytes.len(), 6 * 2 * 2 * 4 * (12 * size + scale_bytes)); // blocks, heads, K and V, tokens, elements
            assert_eq!(bytes.as_ptr().align_offset(64), 0);
            assert_eq!(layer == 0, bytes.iter().all(|byte| *byte == 0), "`written` wrote layer 1 alone");
            let planes = storage.layout().layers()[ix(layer)];
            for slot in 0..24 {
                let (k, v) = storage.read_slot(layer, Slot::new(slot)).unwrap();
                let scales = planes.scales.map_or([None; 2], |scales| [Some(scales.k), Some(scales.v)]);
                for (plane, scale, wanted) in [(planes.k, scales[0], k), (planes.v, scales[1], v)] {
                    for (head, wanted) in (0..).zip(wanted.chunks_exact(12)) {
                        let at = |plane: Plane| {
                            usize::try_from(plane.elem(BlockId::new(slot / 4), head, slot % 4)).unwrap() * size
                        };
                        let scale =
                            scale.map_or(1.0, |plane| f32::from_ne_bytes(bytes[at(plane)..][..4].try_into().unwrap()));
                        let got = bytes[at(plane)..].chunks_exact(size).map(|elem| wide(elem) * scale);
                        assert!(got.zip(wanted).all(|(got, wanted)| got == *wanted), "{dtype:?}, slot {slot}");
                    }
                }
            }
        }
        assert_eq!(storage.allocation(2), None);
        assert_eq!(storage.allocation(u32::MAX), None);
    }
}

#[test]
fn an_allocation_of_nothing_has_no_bytes() {
    let plane = |base_elems| Plane { base_elems, block_stride_elems: 2, head_stride_elems: 2, token_stride_elems: 2 };
    let layer = LayerLayout { k: plane(0), v: plane(1), scales: None, kv_heads: 1, k_dim: 1, v_dim: 1, allocation: 1 };
    let layout = KvLayout::custom(1, 1, DType::F16, alloc::vec![layer], alloc::vec![0, 2]).unwrap();
    let storage = CpuStorage::new(layout).unwrap();
    assert_eq!(storage.allocation(0), Some(&[][..]));
    assert_eq!(storage.allocation(1), Some(&[0; 4][..]));
}

/// What the system says is its affair; that it is about this memory, and no more than there is, is ours.
#[test]
fn stats_are_about_this_memory() {
    // 2 layers of 96 blocks × 2 heads × 2 × 16 tokens × 512 elements × 2 bytes = 6 MiB each.
    let layout = KvLayout::per_layer(&KvShape::new(2, 2, 512, DType::F16), 96, 16).unwrap();
    let mut storage = CpuStorage::new(layout).unwrap();
    storage.fill(1.0);
    let stats = storage.stats();
    std::println!("{stats:?}");
    assert_eq!(stats.bytes, 12 << 20);
    assert!([0, 6 << 20, 12 << 20].contains(&stats.huge_advised_bytes));
    assert!(stats.huge_bytes.is_none_or(|bytes| bytes <= stats.bytes));
    let small = super::tests::storage(DType::F32).stats();
    assert_eq!((small.bytes, small.huge_advised_bytes), (2 * 1152 * 4, 0)); // 6 × 2 × 2 × 4 × 12 elements
}

/// A value below −0 that underflows when spans are joined leaves −0; the spans that other rows of the tile see beyond do
/// not make it +0.
#[test]
fn spans_that_others_see_do_not_change_the_sign_of_a_zero() {
    let shape = KvShape::new(1, 1, 1, DType::F32);
    let mut storage = CpuStorage::new(KvLayout::per_layer(&shape, 40, 16).unwrap()).unwrap();
    let blocks: Vec<_> = (0..40).map(BlockId::new).collect();
    // One span of score 0 and V = −2⁻⁴⁰, then one of scores of 125 to base 2 and V = 0: 256 × −2⁻⁴⁰ × 2⁻¹²⁵ is below any
    // number but zero.
    let k: Vec<f32> = (0..600).map(|at| if at < 256 { 0.0 } else { 125.0 * core::f32::consts::LN_2 }).collect();
    let v: Vec<f32> = (0..600).map(|at| if at < 256 { -(-40.0_f32).exp2() } else { 0.0 }).collect();
    let all = TableRow { start: 0, len: 600, blocks: &blocks };
    storage.prepare((), &Step::from_tables(16, &[all], &[]).unwrap(), 1).unwrap();
    storage.write_kv((), 0, CpuTensor::new(&k, [600, 1, 1]), CpuTensor::new(&v, [600, 1, 1])).unwrap();
    let mut last = |start: u32, len: u32| {
        let row = TableRow { start, len, blocks: &blocks };
        storage.prepare((), &Step::from_tables(16, &[row], &[]).unwrap(), 1).unwrap();
        let (q, mut out) = (alloc::vec![1.0; ix(len)], alloc::vec![f32::NAN; ix(len)]);
        let shape = [ix(len), 1, 1];
        let to = CpuTensorMut::new(&mut out, shape);
        storage.attend((), 0, CpuTensor::new(&q, shape), to, &AttendParams::new(1)).unwrap();
        out[ix(511 - start)].to_bits()
    };
    assert_eq!(last(511, 1), last(490, 30));
}

/// Parameters that do not fit are refused, each by its own error, and nothing is written.
#[test]
fn parameters_that_do_not_fit_are_refused() {
    let storage = written(DType::F32);
    let q = numbers(288, 3);
    let (short, long) = ([1.0; 3], [1_u64; 12]);
    let plain = quarter();
    let mask = |words, words_per_token| plain.with_mask(QueryMask { words, words_per_token });
    let wrong_mask = |words, words_per_token| CpuError::Mask { words, words_per_token, tokens: 6, row_tokens: 6 };
    let cases = [
        (plain.with_window(0), CpuError::NoWindow),
        (plain.with_soft_cap(0.0), CpuError::SoftCap),
        (plain.with_soft_cap(-1.0), CpuError::SoftCap),
        (plain.with_soft_cap(f32::NAN), CpuError::SoftCap),
        (plain.with_soft_cap(f32::INFINITY), CpuError::SoftCap),
        (plain.with_soft_cap(f32::MAX), CpuError::SoftCap), // × log₂ e = 1.44 it is infinite
        (plain.with_soft_cap(1e-40), CpuError::SoftCap),    // a quarter of 10⁴⁰ is, too
        (plain.with_sinks(&short), CpuError::PerHead { param: "sinks", given: 3, q_heads: 4 }),
        (plain.with_alibi_slopes(&[]), CpuError::PerHead { param: "alibi_slopes", given: 0, q_heads: 4 }),
        (mask(&long[..5], 1), wrong_mask(5, 1)),
        (mask(&long, 1), wrong_mask(12, 1)),
        (mask(&[], 0), wrong_mask(0, 0)),
        (mask(&long, u32::MAX), wrong_mask(12, u32::MAX)),
    ];
    for (params, error) in cases {
        let mut out = alloc::vec![7.0; 288];
        let to = CpuTensorMut::new(&mut out, Q);
        assert_eq!(storage.attend((), 1, CpuTensor::new(&q, Q), to, &params), Err(error));
        assert!(out.iter().all(|x| *x == 7.0));
    }
    let (mut out, mut lse) = (alloc::vec![7.0; 288], alloc::vec![7.0; 23]);
    let to = CpuTensorMut::new(&mut out, Q).with_lse(&mut lse);
    let refused = storage.attend((), 1, CpuTensor::new(&q, Q), to, &plain);
    assert_eq!(refused, Err(CpuError::TooShort { tensor: "lse", needed: 24, given: 23 }));
    assert!(out.iter().chain(&lse).all(|x| *x == 7.0));
}
