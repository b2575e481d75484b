//! The bits of a row, and what they do not depend on: other rows, threads, earlier calls.

use super::*;

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
