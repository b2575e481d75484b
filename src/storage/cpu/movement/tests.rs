//! Every path of movement against one that moves element by element, by the planes of the layout alone: the bytes of all
//! allocations, gaps included, must come out the same. In tests the paths for large calls begin at small ones.

use alloc::vec::Vec;

use half::{bf16, f16};

use crate::id::{BlockId, ix};
use crate::layout::{DType, KvLayout, KvShape, LayerLayout, Plane, Scales};
use crate::step::{BlockCopy, Step, TableRow};
use crate::storage::KvStorage;
use crate::storage::StorageError;
use crate::storage::cpu::{CpuStorage, CpuTensor};

const NUM_BLOCKS: u32 = 24;
const LAYERS: u32 = 3;
const HEADS: u32 = 3;
/// Those of tensors.
const TENSORS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8];

/// How layers lie, and whether a later one may share memory with an earlier one.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    PerLayer,
    CrossLayer,
    /// `[block, token, head, K then V]` with gaps, at an odd offset.
    Gaps,
    /// All of K, then all of V.
    Planes,
    /// V is the first part of K.
    Latent,
    /// All layers are in the same place.
    Twins,
}

const FORMS: [Form; 6] = [Form::PerLayer, Form::CrossLayer, Form::Gaps, Form::Planes, Form::Latent, Form::Twins];

#[derive(Clone, Copy, Debug)]
struct Case {
    form: Form,
    dtype: DType,
    block_size: u32,
    k_dim: u32,
    v_dim: u32,
}

impl Case {
    fn layout(&self) -> KvLayout {
        let Self { form, dtype, block_size, k_dim, v_dim } = *self;
        let shape = KvShape::new(LAYERS, HEADS, k_dim, dtype).with_v_dim(v_dim);
        let [blocks, heads, tokens, k, v] = [NUM_BLOCKS, HEADS, block_size, k_dim, v_dim].map(u64::from);
        // Base and strides of blocks, heads and tokens.
        let plane = |[base_elems, block_stride_elems, head_stride_elems, token_stride_elems]: [u64; 4]| Plane {
            base_elems,
            block_stride_elems,
            head_stride_elems,
            token_stride_elems,
        };
        let custom = |planes: &dyn Fn(u64) -> [[u64; 4]; 2], elems: u64| {
            // Scales lie behind everything else, a plane each, whatever shares its memory; and at any address.
            let scale = u64::from(dtype.scale_elems());
            let scale_elems = blocks * heads * tokens * scale;
            let scales =
                |index: u64| plane([elems + 1 + index * scale_elems, heads * tokens * scale, tokens * scale, scale]);
            let layer = |index: u32| {
                let [k, v] = planes(index.into()).map(plane);
                let [first, second] = [0, 1].map(|which| scales(2 * u64::from(index) + which));
                let scales = (scale > 0).then_some(Scales { k: first, v: second });
                LayerLayout { k, v, scales, kv_heads: HEADS, k_dim, v_dim, allocation: 1 }
            };
            let layers = (0..LAYERS).map(layer).collect();
            let elems = elems + 1 + 2 * u64::from(LAYERS) * scale_elems;
            KvLayout::custom(NUM_BLOCKS, block_size, dtype, layers, alloc::vec![7, elems]).unwrap()
        };
        let block = heads * tokens * (k + v);
        let gap_head = k + v + 3;
        let gap_token = heads * gap_head + 1;
        let gap_block = tokens * gap_token + 2;
        match form {
            Form::PerLayer => KvLayout::per_layer(&shape, NUM_BLOCKS, block_size).unwrap(),
            Form::CrossLayer => KvLayout::cross_layer(&shape, NUM_BLOCKS, block_size).unwrap(),
            Form::Gaps => custom(
                &|layer| {
                    let base = 5 + layer * blocks * gap_block;
                    [[base, gap_block, gap_head, gap_token], [base + k + 1, gap_block, gap_head, gap_token]]
                },
                5 + 3 * blocks * gap_block,
            ),
            Form::Planes => custom(
                &|layer| {
                    let base = layer * blocks * block;
                    [
                        [base, heads * tokens * k, tokens * k, k],
                        [base + blocks * heads * tokens * k, heads * tokens * v, tokens * v, v],
                    ]
                },
                3 * blocks * block,
            ),
            Form::Latent => custom(
                &|layer| [[layer * blocks * heads * tokens * k, heads * tokens * k, tokens * k, k]; 2],
                3 * blocks * heads * tokens * k,
            ),
            Form::Twins => {
                custom(&|_| [[0, block, tokens * (k + v), k], [tokens * k, block, tokens * (k + v), v]], blocks * block)
            }
        }
    }

    fn size(&self) -> usize {
        usize::try_from(self.dtype.bytes()).unwrap()
    }
}

/// All forms, with heads that fill lines, odd ones, and ones of one element.
fn cases(dtypes: &[DType]) -> impl Iterator<Item = Case> {
    let shapes = [(16, 64, 64), (4, 24, 5), (1, 40, 40), (7, 33, 1)];
    let dtypes = dtypes.to_vec();
    FORMS.into_iter().flat_map(move |form| {
        let dtypes = dtypes.clone();
        shapes.into_iter().flat_map(move |(block_size, k_dim, v_dim)| {
            let case = move |dtype| Case { form, dtype, block_size, k_dim, v_dim };
            dtypes.clone().into_iter().map(case)
        })
    })
}

/// Bytes of any kind: infinities, subnormals and NaNs of both sorts among them.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// A storage full of noise, and what it holds.
fn noisy(case: &Case, seed: u64) -> (CpuStorage, Vec<Vec<u8>>) {
    let mut storage = CpuStorage::new(case.layout()).unwrap();
    for (bytes, index) in storage.pools.all_bytes_mut().into_iter().zip(0..) {
        bytes.copy_from_slice(&noise(bytes.len(), seed + index));
    }
    let memory = memory(&storage);
    (storage, memory)
}

fn memory(storage: &CpuStorage) -> Vec<Vec<u8>> {
    (0..).map_while(|index| storage.allocation(index).map(<[u8]>::to_vec)).collect()
}

/// The bytes of element 0 of a token's head, in its allocation.
fn byte(plane: &Plane, block: BlockId, head: u32, offset: u32, size: usize) -> usize {
    usize::try_from(plane.elem(block, head, offset)).unwrap() * size
}

/// Runs on one thread and on three.
fn on_threads(mut run: impl FnMut() + Send) {
    #[cfg(feature = "rayon")]
    for threads in [1, 3] {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&mut run);
    }
    #[cfg(not(feature = "rayon"))]
    run();
}

/// A tensor of noise with strides, beginning at an odd place.
enum Source {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Source {
    fn new(dtype: DType, len: usize, seed: u64) -> Self {
        let bytes = noise(4 * len, seed);
        let short = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let wide = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
        let places = (0..len).map(|i| 4 * i);
        match dtype {
            DType::F32 => Self::F32(places.map(|at| f32::from_bits(wide(at))).collect()),
            DType::F16 => Self::F16(places.map(|at| f16::from_bits(short(at))).collect()),
            DType::BF16 => Self::BF16(places.map(|at| bf16::from_bits(short(at))).collect()),
            DType::F8E4M3 | DType::I8 => panic!("{dtype:?} is no type of tensors"),
        }
    }

    fn tensor(&self, shape: [usize; 3], token_stride: usize, head_stride: usize) -> CpuTensor<'_> {
        let tensor = match self {
            Self::F32(data) => CpuTensor::new(&data[1..], shape),
            Self::F16(data) => CpuTensor::new(&data[1..], shape),
            Self::BF16(data) => CpuTensor::new(&data[1..], shape),
        };
        tensor.with_strides(token_stride, head_stride)
    }

    /// The bytes that a storage keeps of a head, and those of its scale: its own where it has the same type, else by way
    /// of `f32`. `None` where integers would hold a NaN.
    #[expect(clippy::cast_possible_truncation, reason = "whole numbers of at most 127")]
    fn stored(&self, at: usize, dim: usize, dtype: DType) -> Option<(Vec<u8>, Vec<u8>)> {
        let places = 1 + at..1 + at + dim;
        let own = |bytes: Vec<u8>| Some((bytes, Vec::new()));
        let wide: Vec<f32> = match (self, dtype) {
            (Self::F32(data), DType::F32) => return own(data[places].iter().flat_map(|x| x.to_ne_bytes()).collect()),
            (Self::F16(data), DType::F16) => return own(data[places].iter().flat_map(|x| x.to_ne_bytes()).collect()),
            (Self::BF16(data), DType::BF16) => return own(data[places].iter().flat_map(|x| x.to_ne_bytes()).collect()),
            (Self::F32(data), _) => data[places].to_vec(),
            (Self::F16(data), _) => data[places].iter().map(|x| x.to_f32()).collect(),
            (Self::BF16(data), _) => data[places].iter().map(|x| x.to_f32()).collect(),
        };
        let most = |x: &f32, most: f32| if x.is_nan() { *x } else { x.clamp(-most, most) };
        match dtype {
            DType::F32 => own(wide.iter().flat_map(|x| x.to_ne_bytes()).collect()),
            DType::F16 => own(wide.iter().flat_map(|x| f16::from_f32(most(x, 65_504.0)).to_ne_bytes()).collect()),
            DType::BF16 => {
                let largest = bf16::MAX.to_f32();
                own(wide.iter().flat_map(|x| bf16::from_f32(most(x, largest)).to_ne_bytes()).collect())
            }
            DType::F8E4M3 => own(wide.iter().map(|x| e4m3(*x)).collect()),
            DType::I8 => {
                let finite: Option<Vec<f32>> = wide.iter().map(|x| (!x.is_nan()).then(|| most(x, f32::MAX))).collect();
                let finite = finite?;
                let largest = finite.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                // No more than what 127 times is a number.
                let scale = (largest / 127.0).min((f32::MAX / 127.0).next_down());
                let elem =
                    |x: &f32| if scale == 0.0 { 0.0 } else { (x / scale).round_ties_even().clamp(-127.0, 127.0) };
                Some((finite.iter().map(|x| (elem(x) as i8).cast_unsigned()).collect(), scale.to_ne_bytes().to_vec()))
            }
        }
    }
}

/// The code of the nearest number, of two the even one: by search among all, smallest first.
fn e4m3(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_nan() {
        return sign | 0x7f;
    }
    let size = |code: u8| match code >> 3 {
        0 => f32::from(code) / 512.0,
        exponent => (1.0 + f32::from(code & 7) / 8.0) * (f32::from(exponent) - 7.0).exp2(),
    };
    let off = |code: u8| (f64::from(size(code)) - f64::from(x.abs())).abs();
    // 0x7e is the largest.
    let nearest = (1..=0x7e).fold(0, |best, code| {
        let closer = off(code) < off(best) || (off(code) == off(best) && code % 2 == 0);
        if closer { code } else { best }
    });
    sign | nearest
}

/// Writes rows of these tables and compares with the walk over elements.
fn check_write(case: &Case, tensor: DType, rows: &[TableRow<'_>]) {
    let step = Step::from_tables(case.block_size, rows, &[]).unwrap();
    let tokens = ix(step.num_tokens());
    let [heads, k_dim, v_dim] = [HEADS, case.k_dim, case.v_dim].map(ix);
    let size = case.size();
    for (dense, seed) in [(true, 1), (false, 2)] {
        let strides = |dim| if dense { (heads * dim, dim) } else { (dim + 3, tokens * (dim + 3) + 1) };
        let source = |dim: usize, seed| Source::new(tensor, 2 + (tokens + 1) * heads * (dim + 4), seed);
        let (k, v) = (source(k_dim, seed), source(v_dim, seed + 2));
        on_threads(|| {
            let (mut storage, mut expected) = noisy(case, 9);
            storage.prepare((), &step, u32::MAX).unwrap();
            let tensors = [(&k, k_dim), (&v, v_dim)].map(|(source, dim)| {
                let (token, head) = strides(dim);
                source.tensor([tokens, heads, dim], token, head)
            });
            storage.write_kv((), 2, tensors[0], tensors[1]).unwrap();
            let layer = storage.layout().layers()[2];
            for (slot, token) in step.tables().slots().iter().zip(0..) {
                let (block, offset) = (slot.block(case.block_size), slot.offset(case.block_size));
                for head in 0..HEADS {
                    let scales = layer.scales.map_or([None; 2], |scales| [Some(scales.k), Some(scales.v)]);
                    for (plane, scales, source, dim) in
                        [(&layer.k, scales[0], &k, k_dim), (&layer.v, scales[1], &v, v_dim)]
                    {
                        let (token_stride, head_stride) = strides(dim);
                        let from = token * token_stride + ix(head) * head_stride;
                        let to = byte(plane, block, head, offset, size);
                        let expected = &mut expected[ix(layer.allocation)];
                        let scale_at = scales.map(|plane| byte(&plane, block, head, offset, size));
                        // Elements of 0 where the scale is NaN.
                        let nan = || (alloc::vec![0; dim], f32::NAN.to_ne_bytes().to_vec());
                        let (bytes, scale) = source.stored(from, dim, case.dtype).unwrap_or_else(nan);
                        expected[to..][..bytes.len()].copy_from_slice(&bytes);
                        if let Some(at) = scale_at {
                            expected[at..][..4].copy_from_slice(&scale);
                        }
                    }
                }
            }
            // Any NaN will do.
            for slot in step.tables().slots() {
                let (block, offset) = (slot.block(case.block_size), slot.offset(case.block_size));
                let planes = layer.scales.map_or_else(Vec::new, |scales| alloc::vec![scales.k, scales.v]);
                for (plane, head) in planes.iter().flat_map(|plane| (0..HEADS).map(move |head| (plane, head))) {
                    let at = byte(plane, block, head, offset, size);
                    let got = &storage.allocation(layer.allocation).unwrap()[at..][..4];
                    let expected = &mut expected[ix(layer.allocation)][at..][..4];
                    if [&*expected, got].iter().all(|x| f32::from_ne_bytes((*x).try_into().unwrap()).is_nan()) {
                        expected.copy_from_slice(got);
                    }
                }
            }
            assert!(same(&memory(&storage), &expected, case), "{case:?} from {tensor:?}, {tokens} tokens");
        });
    }
}

/// Equal bytes. What a signalling NaN becomes on its way through `f32` is up to the processor, and is a NaN.
fn same(left: &[Vec<u8>], right: &[Vec<u8>], case: &Case) -> bool {
    let nan = |bytes: &[u8]| match case.dtype {
        DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::BF16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F8E4M3 => bytes[0] & 0x7f == 0x7f,
        DType::I8 => false,
    };
    left.iter().zip(right).all(|(left, right)| {
        let mut pairs = left.chunks_exact(case.size()).zip(right.chunks_exact(case.size()));
        left.len() == right.len() && pairs.all(|(left, right)| left == right || (nan(left) && nan(right)))
    })
}

fn scattered() -> Vec<BlockId> {
    (0..NUM_BLOCKS).map(|i| BlockId::new(i * 7 % NUM_BLOCKS)).collect()
}

#[test]
fn writes_are_those_of_a_walk_over_elements() {
    let blocks = scattered();
    for case in cases(&DTYPES) {
        let full = case.block_size * (NUM_BLOCKS - 3);
        for tensor in TENSORS {
            check_write(
                &case,
                tensor,
                &[TableRow { start: case.block_size + case.block_size / 2, len: 1, blocks: &blocks }],
            );
            check_write(
                &case,
                tensor,
                &[
                    TableRow { start: 2, len: full - 2, blocks: &blocks[..ix(NUM_BLOCKS - 2)] },
                    TableRow { start: 0, len: 1, blocks: &blocks[ix(NUM_BLOCKS - 2)..] },
                ],
            );
        }
    }
}

/// Tables of the caller's may overlap: the last token stays, as if they were written one by one.
#[test]
fn of_tokens_for_one_slot_the_last_stays() {
    let blocks = scattered();
    for case in cases(&[DType::F16, DType::I8]) {
        let len = case.block_size * 10;
        let row = |from: usize, start, len| TableRow { start, len, blocks: &blocks[from..][..12] };
        check_write(&case, DType::F16, &[row(0, 0, len), row(4, 1, len - 1), row(4, 0, 1)]);
    }
}

#[test]
fn copies_are_those_of_a_walk_over_elements() {
    for case in cases(&[DType::F32, DType::BF16, DType::I8]) {
        for count in [1, 5, NUM_BLOCKS / 2] {
            let blocks = scattered();
            let (sources, destinations) = blocks.split_at(ix(NUM_BLOCKS / 2));
            // A source may be copied to several destinations.
            let pair = |(index, dst): (usize, &BlockId)| BlockCopy { src: sources[index / 2], dst: *dst };
            let copies: Vec<_> = destinations.iter().enumerate().map(pair).take(ix(count)).collect();
            let step = Step::from_tables(case.block_size, &[], &copies).unwrap();
            on_threads(|| {
                let (mut storage, mut expected) = noisy(&case, 5);
                storage.prepare((), &step, 0).unwrap();
                storage.copy_blocks(()).unwrap();
                for copy in &copies {
                    walk(&case, |_, plane, head, offset, [bytes, _], allocation| {
                        let [from, to] = [copy.src, copy.dst].map(|id| byte(plane, id, head, offset, case.size()));
                        expected[allocation].copy_within(from..from + bytes, to);
                    });
                }
                assert!(memory(&storage) == expected, "{case:?}, {count} copies");
            });
        }
    }
}

/// Every head of every token of a block in the order of a record: byte of the record, plane, head, offset, bytes and those
/// of one number, allocation.
fn walk(case: &Case, mut each: impl FnMut(usize, &Plane, u32, u32, [usize; 2], usize)) -> usize {
    let mut at = 0;
    for layer in case.layout().layers() {
        for (index, (plane, dim)) in layer.planes(case.dtype).enumerate() {
            for head in 0..HEADS {
                for offset in 0..case.block_size {
                    let bytes = ix(dim) * case.size();
                    let unit = if index < 2 { case.size() } else { 4 };
                    each(at, &plane, head, offset, [bytes, unit], ix(layer.allocation));
                    at += bytes;
                }
            }
        }
    }
    at
}

/// Numbers of a record, turned into the order of the machine.
fn native(record: &[u8], size: usize) -> Vec<u8> {
    let turn = cfg!(target_endian = "big");
    let element = |bytes: &[u8]| if turn { bytes.iter().rev().copied().collect() } else { bytes.to_vec() };
    record.chunks_exact(size).flat_map(element).collect()
}

#[test]
fn records_are_those_of_a_walk_over_elements() {
    let blocks = scattered();
    for case in cases(&[DType::F32, DType::F16, DType::I8]) {
        for count in [0, 1, 6, ix(NUM_BLOCKS)] {
            let blocks = &blocks[..count];
            on_threads(|| {
                let (mut storage, mut expected) = noisy(&case, 3);
                let record = walk(&case, |_, _, _, _, _, _| ());
                assert_eq!(storage.block_bytes(), record);
                // Aligned or not.
                for skip in [0, 1, 8] {
                    let mut records = alloc::vec![77; skip + count * record + 1];
                    storage.read_blocks(blocks, &mut records[skip..][..count * record]).unwrap();
                    assert!(records[..skip].iter().chain(&records[skip + count * record..]).all(|byte| *byte == 77));
                    for (block, got) in blocks.iter().zip(records[skip..].chunks_exact(record)) {
                        walk(&case, |at, plane, head, offset, [bytes, unit], allocation| {
                            let from = byte(plane, *block, head, offset, case.size());
                            let got = native(&got[at..][..bytes], unit);
                            assert!(got == expected[allocation][from..][..bytes], "{case:?}");
                        });
                    }
                }
                let records = noise(count * record + 1, 8);
                storage.write_blocks(blocks, &records[1..]).unwrap();
                for (block, from) in blocks.iter().zip(records[1..].chunks_exact(record)) {
                    walk(&case, |at, plane, head, offset, [bytes, unit], allocation| {
                        let to = byte(plane, *block, head, offset, case.size());
                        expected[allocation][to..][..bytes].copy_from_slice(&native(&from[at..][..bytes], unit));
                    });
                }
                assert!(memory(&storage) == expected, "{case:?}, {count} blocks");
            });
        }
    }
}

/// From any layout to any other that shares no memory, and back.
#[test]
fn records_pass_between_layouts() {
    let apart = [Form::PerLayer, Form::CrossLayer, Form::Gaps, Form::Planes];
    let blocks = scattered();
    let there: Vec<_> = blocks.iter().rev().copied().collect();
    for (from, dtype) in apart.into_iter().flat_map(|from| [(from, DType::BF16), (from, DType::I8)]) {
        let case = |form| Case { form, dtype, block_size: 4, k_dim: 24, v_dim: 5 };
        let (source, _) = noisy(&case(from), 1);
        let mut records = alloc::vec![0; blocks.len() * source.block_bytes()];
        source.read_blocks(&blocks, &mut records).unwrap();
        for to in apart {
            let (mut other, _) = noisy(&case(to), 2);
            other.write_blocks(&there, &records).unwrap();
            let mut back = alloc::vec![0; records.len()];
            other.read_blocks(&there, &mut back).unwrap();
            assert!(back == records, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn records_that_do_not_fit_are_refused_and_change_nothing() {
    let case = Case { form: Form::PerLayer, dtype: DType::F16, block_size: 4, k_dim: 8, v_dim: 8 };
    let (mut storage, before) = noisy(&case, 4);
    let record = storage.block_bytes();
    let ids = |ids: &[u32]| ids.iter().copied().map(BlockId::new).collect::<Vec<_>>();
    let outside = StorageError::NoSuchBlock { block: BlockId::new(NUM_BLOCKS), num_blocks: NUM_BLOCKS };
    for (blocks, len, error) in [
        (ids(&[0, NUM_BLOCKS]), 2 * record, outside),
        (ids(&[0, 1]), 2 * record - 1, StorageError::RecordBytes { given: 2 * record - 1, expected: 2 * record }),
        (ids(&[]), 1, StorageError::RecordBytes { given: 1, expected: 0 }),
        (ids(&[0]), 0, StorageError::RecordBytes { given: 0, expected: record }),
    ] {
        let mut records = alloc::vec![5; len];
        assert_eq!(storage.read_blocks(&blocks, &mut records), Err(error));
        assert!(records.iter().all(|byte| *byte == 5));
        assert_eq!(storage.write_blocks(&blocks, &records), Err(error));
    }
    let twice = ids(&[3, 1, 3]);
    let error = StorageError::RepeatedBlock { block: BlockId::new(3) };
    assert_eq!(storage.write_blocks(&twice, &alloc::vec![5; 3 * record]), Err(error));
    assert!(memory(&storage) == before);
    let mut records = alloc::vec![0; 3 * record];
    storage.read_blocks(&twice, &mut records).unwrap();
    assert!(records[..record] == records[2 * record..]);
}
