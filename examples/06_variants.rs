//! What models ask of attention beyond the plain one, each checked against sums in f64: a sliding window, sinks, a context
//! in two parts that are merged by their log-sum-exps, integers with scales.
//!
//! `cargo run --example 06_variants`
//!
//! Soft caps, `ALiBi` and masks for trees of drafts are further fields of [`AttendParams`]; a layout of one's own with scales
//! is in the documentation of `paged_kv::layout::Scales`.

use std::error::Error;
use std::ops::Range;

use paged_kv::BlockId;
use paged_kv::layout::{DType, KvLayout, KvShape};
use paged_kv::step::{Step, TableRow};
use paged_kv::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage, merge_states};

const BLOCK_SIZE: u32 = 16;
const CONTEXT: u32 = 64;
const TOKENS: usize = CONTEXT as usize;
/// Of one layer: 2 KV heads of 32 elements.
const SHAPE: KvShape = KvShape::new(1, 2, 32, DType::F32);
const Q_HEADS: usize = 4;
const KV_HEADS: usize = SHAPE.kv_heads as usize;
const DIM: usize = SHAPE.k_dim as usize;
/// Where the context lies: blocks in no order, as a cache hands them out.
const BLOCKS: [BlockId; 4] = [BlockId::new(5), BlockId::new(0), BlockId::new(3), BlockId::new(6)];
/// Outputs are at most 1, and log-sum-exps below 16: f32 has 24 bits, and some tens of roundings add up.
const TOLERANCE: f64 = 1e-5;

/// Output `[Q_HEADS, DIM]` and log-sum-exps `[Q_HEADS]` of one query token.
type State<T> = (Vec<T>, Vec<T>);

/// Numbers between −1 and 1.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        // A linear congruence (Numerical Recipes); its upper bits are random enough.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// A storage that holds the context, as an engine's prefill leaves it.
fn filled(dtype: DType, k: &[f32], v: &[f32]) -> Result<CpuStorage, Box<dyn Error>> {
    let mut shape = SHAPE;
    shape.dtype = dtype;
    let mut storage = CpuStorage::new(KvLayout::per_layer(&shape, 8, BLOCK_SIZE)?)?;
    let prompt = TableRow { start: 0, len: CONTEXT, blocks: &BLOCKS };
    storage.prepare((), &Step::from_tables(BLOCK_SIZE, &[prompt], &[])?, 1)?;
    let shape = [TOKENS, KV_HEADS, DIM];
    storage.write_kv((), 0, CpuTensor::new(k, shape), CpuTensor::new(v, shape))?;
    Ok(storage)
}

/// Attention of the query over each of some pieces of the context, in one step: a row per piece, whose last token is the
/// one that asks. A step is metadata, so that nothing moves for this.
fn attend(
    storage: &mut CpuStorage,
    pieces: &[&[BlockId]],
    q: &[f32],
    params: &AttendParams<'_>,
) -> Result<Vec<State<f32>>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for blocks in pieces {
        rows.push(TableRow { start: u32::try_from(blocks.len())? * BLOCK_SIZE - 1, len: 1, blocks });
    }
    storage.prepare((), &Step::from_tables(BLOCK_SIZE, &rows, &[])?, u32::try_from(rows.len())?)?;
    let (q, shape) = (q.repeat(rows.len()), [rows.len(), Q_HEADS, DIM]);
    let (mut out, mut lse) = (vec![0.0; q.len()], vec![0.0; rows.len() * Q_HEADS]);
    let to = CpuTensorMut::new(&mut out, shape).with_lse(&mut lse);
    storage.attend((), 0, CpuTensor::new(&q, shape), to, params)?;
    Ok(out.chunks(Q_HEADS * DIM).zip(lse.chunks(Q_HEADS)).map(|(out, lse)| (out.to_vec(), lse.to_vec())).collect())
}

/// The same over dense K and V, by the textbook: the softmax of q · k / √DIM over `keys`, with a sink in its sum.
fn reference(keys: Range<usize>, q: &[f32], k: &[f32], v: &[f32], sinks: Option<&[f32]>) -> State<f64> {
    let mut state = (Vec::new(), Vec::new());
    for (head, q) in q.chunks(DIM).enumerate() {
        let at = |key: usize| (key * KV_HEADS + head / (Q_HEADS / KV_HEADS)) * DIM;
        let dot = |key: usize| q.iter().zip(&k[at(key)..]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        let weights: Vec<_> = keys.clone().map(|key| (dot(key) / (DIM as f64).sqrt()).exp()).collect();
        let sum = weights.iter().sum::<f64>() + sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let mean = |d| keys.clone().zip(&weights).map(|(key, w)| w * f64::from(v[at(key) + d])).sum::<f64>() / sum;
        state.0.extend((0..DIM).map(mean));
        state.1.push(sum.ln());
    }
    state
}

/// What is left of numbers that were stored as integers: a scale for each head of a token.
fn as_integers(numbers: &[f32]) -> Vec<f32> {
    let head = |head: &[f32]| {
        let scale = scale(head);
        head.iter().map(|x| (x / scale).round_ties_even() * scale).collect::<Vec<_>>()
    };
    numbers.chunks(DIM).flat_map(head).collect()
}

/// The largest magnitude becomes 127.
fn scale(head: &[f32]) -> f32 {
    head.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0
}

/// A line of the table, or an error where a number is further off than rounding explains.
fn check(name: &str, (out, lse): &State<f32>, expected: &State<f64>, plain: &State<f32>) -> Result<(), Box<dyn Error>> {
    let off = |x: &[f32], y: &[f64]| x.iter().zip(y).fold(0.0, |most: f64, (x, y)| most.max((f64::from(*x) - y).abs()));
    let (of_out, of_lse) = (off(out, &expected.0), off(lse, &expected.1));
    let changed = out.iter().zip(&plain.0).fold(0.0_f32, |most, (x, y)| most.max((x - y).abs()));
    println!("{name:<20} {:>9.5} {:>9.5} {changed:>12.5} {of_out:>10.0e} {of_lse:>10.0e}", out[0], lse[0]);
    // The largest difference passes over those that are NaN.
    if of_out <= TOLERANCE && of_lse <= TOLERANCE && !out.iter().chain(lse).any(|x| x.is_nan()) {
        return Ok(());
    }
    Err(format!("{name}: off by {of_out:e} and {of_lse:e}").into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let [k, v] = [1, 2].map(|seed| numbers(TOKENS * KV_HEADS * DIM, seed));
    let q = numbers(Q_HEADS * DIM, 3);
    let params = AttendParams::new(SHAPE.k_dim);
    let mut storage = filled(DType::F32, &k, &v)?;
    println!("{:<20} {:>9} {:>9} {:>12} {:>10} {:>10}", "", "out[0]", "lse[0]", "beside plain", "off, out", "off, lse");

    // The parts could lie in two storages, or on two machines. K comes with its positions in it, so that it is no matter
    // that the second part begins at 0 here; windows and slopes, which count positions, are for whole contexts.
    let (first, rest) = BLOCKS.split_at(1);
    let states = attend(&mut storage, &[&BLOCKS, first, rest], &q, &params)?;
    let (plain, mut merged, other) = (&states[0], states[1].clone(), &states[2]);
    let expected = reference(0..TOKENS, &q, &k, &v, None);
    check("plain", plain, &expected, plain)?;
    merge_states(&mut merged.0, &mut merged.1, &other.0, &other.1)?;
    check("16 + 48, merged", &merged, &expected, plain)?;

    let window = attend(&mut storage, &[&BLOCKS], &q, &params.with_window(24))?;
    check("window of 24", &window[0], &reference(TOKENS - 24..TOKENS, &q, &k, &v, None), plain)?;

    // A score per query head that takes its share of the weights and has no value.
    let sinks = [3.0, 0.0, -1.0, 2.0];
    let sunk = attend(&mut storage, &[&BLOCKS], &q, &params.with_sinks(&sinks))?;
    check("sinks", &sunk[0], &reference(0..TOKENS, &q, &k, &v, Some(&sinks)), plain)?;

    // The storage rounds to integers and writes the scales, whose planes the layout has beside those of K and V.
    let mut integers = filled(DType::I8, &k, &v)?;
    let narrow = attend(&mut integers, &[&BLOCKS], &q, &params)?;
    check("int8 with scales", &narrow[0], &reference(0..TOKENS, &q, &as_integers(&k), &as_integers(&v), None), plain)?;
    let planes = integers.layout().layers()[0].scales.ok_or("int8 has scales")?;
    // Head 1 of token 37 = 2 × 16 + 5; an element is a byte.
    let at = usize::try_from(planes.k.elem(BLOCKS[2], 1, 5))?;
    let bytes = integers.allocation(0).and_then(|bytes| bytes.get(at..at + 4)).ok_or("planes lie in allocations")?;
    let found = f32::from_ne_bytes(bytes.try_into()?);
    println!("{} bytes in int8, {} in f32; token 37 has a scale of {found:.5}", integers.bytes(), storage.bytes());
    let wanted = scale(&k[(37 * KV_HEADS + 1) * DIM..][..DIM]);
    if found == wanted { Ok(()) } else { Err(format!("a scale of {found}, not {wanted}").into()) }
}
