//! Attention of a tile of queries over one KV head, written once for every instruction set and element type.
//!
//! A tile is a run of query tokens of one step row, times the query heads of one KV head: its *rows*, token-major, so
//! that all heads of a token stand together and each line of K and V is used for all of them. The context is walked in
//! chunks of [`CHUNK`] positions, whatever the block size, with an online softmax (Milakov & Gimelshein 2018): per row
//! a running maximum, a running sum, and a running weighted sum of V.
//!
//! **The law of this file:** the operations that make one output row, and their order, depend on its position and on
//! nothing else. Neither tiling, nor the block size, nor the other rows of the batch can change a bit:
//!
//! * a score is one vector accumulator over `dim` in steps of eight, then one fixed tree ([`Isa::sums`]);
//! * the weights of a chunk are summed in eight lanes and a fixed tree; positions beyond the row's own weigh exactly 0;
//! * a chunk's weighted V is summed from zero in the order of positions, per element, over the row's own positions
//!   only, then joined to the running sum by one multiply-add.
//!
//! Tiles of rows see the same positions, except at the causal diagonal, where rows are taken one by one.

use alloc::vec::Vec;
use core::array;

use super::element::{Stored, lanes};
use super::exp::exp2;
use super::geometry::Geometry;
use super::isa::{Isa, LANES, Lane, Work};
use super::tensor::{CpuTensor, OutTile};
use crate::id::BlockId;

/// Positions of a chunk. Part of the definition of the result, like the order of operations.
pub(super) const CHUNK: usize = 64;

/// Rows that share one walk over the context: 64 rows of 128 elements keep 64 KiB of state, within a second-level
/// cache together with a chunk of K and V.
pub(super) const ROWS: usize = 64;

/// From this many rows on, a chunk of 16-bit K and V is widened once instead of once per four rows.
const WIDEN_ROWS: usize = 9;

/// One tile of queries over one KV head.
pub(super) struct Tile<'a, E> {
    /// The allocation of the layer.
    pub(super) elems: &'a [E],
    pub(super) geometry: &'a Geometry,
    pub(super) kv_head: usize,
    pub(super) block_size: usize,
    /// The blocks of the step row, at least up to the last query's position; all inside the pool.
    pub(super) table: &'a [BlockId],
    /// Position in the sequence of the first query.
    pub(super) start: usize,
    /// The first query among the query tokens of the step.
    pub(super) first_token: usize,
    /// Query tokens of the tile.
    pub(super) tokens: usize,
    /// Query heads per KV head.
    pub(super) group: usize,
    pub(super) q: CpuTensor<'a>,
    /// What scores are multiplied by, times log₂ e: the softmax is taken to base 2.
    pub(super) scale: f32,
}

/// Memory of one thread, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Queries: `[ROWS, ⌈k_dim / 8⌉]` lanes, zero beyond `k_dim`.
    q: Vec<Lane>,
    /// Weighted sums of V: `[ROWS, ⌈v_dim / 8⌉]` lanes.
    acc: Vec<Lane>,
    /// A widened chunk of K, `[CHUNK, k_dim]`.
    k: Vec<f32>,
    /// A widened chunk of V, `[CHUNK, v_dim]`.
    v: Vec<f32>,
}

impl Scratch {
    /// Makes room for heads of these sizes; grows and never shrinks.
    fn fit(&mut self, k_dim: usize, v_dim: usize) {
        fn grow<T: Copy>(buffer: &mut Vec<T>, len: usize, zero: T) {
            if buffer.len() < len {
                buffer.resize(len, zero);
            }
        }
        grow(&mut self.q, ROWS * k_dim.div_ceil(LANES), Lane::ZERO);
        grow(&mut self.acc, ROWS * v_dim.div_ceil(LANES), Lane::ZERO);
        grow(&mut self.k, CHUNK * k_dim, 0.0);
        grow(&mut self.v, CHUNK * v_dim, 0.0);
    }
}

/// A tile and the memory to work in.
pub(super) struct Attend<'a, E> {
    pub(super) tile: Tile<'a, E>,
    /// The tile's rows of the output.
    pub(super) out: OutTile<'a>,
    pub(super) scratch: &'a mut Scratch,
}

impl<E: Stored> Work for Attend<'_, E> {
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let Geometry { k_dim, v_dim, .. } = *self.tile.geometry;
        self.scratch.fit(k_dim, v_dim);
        let rows = self.tile.tokens * self.tile.group;
        let mut first = 0;
        while first < rows {
            let len = ROWS.min(rows - first);
            self.tile.rows(isa, self.scratch, &mut self.out, first, len);
            first += len;
        }
    }
}

impl<E: Stored> Tile<'_, E> {
    /// Position in the sequence of a row's query.
    #[inline(always)]
    fn position(&self, row: usize) -> usize {
        self.start + row / self.group
    }

    /// Rows `first .. first + rows` of the tile, from query to output.
    #[inline(always)]
    fn rows<I: Isa>(&self, isa: I, scratch: &mut Scratch, out: &mut OutTile<'_>, first: usize, rows: usize) {
        let Geometry { k_dim, v_dim, .. } = *self.geometry;
        let Scratch { q, acc, k: wide_k, v: wide_v } = scratch;
        for row in 0..rows {
            let (token, head) = self.query(first + row);
            self.q.lanes(token, head, &mut q[row * k_dim.div_ceil(LANES)..]);
        }
        let mut state = State::new(q, acc, rows, k_dim, v_dim, self.scale);
        // The last row sees most: no position beyond its own is touched.
        let end = self.position(first + rows - 1) + 1;
        let mut from = 0;
        while from < end {
            let n = CHUNK.min(end - from);
            let mut keys: [&[E]; CHUNK] = [&[]; CHUNK];
            let mut values: [&[E]; CHUNK] = [&[]; CHUNK];
            self.gather(from, &mut keys[..n], &mut values[..n]);
            let visible = |row| (self.position(first + row) + 1).saturating_sub(from).min(n);
            if E::WIDE || rows < WIDEN_ROWS {
                state.chunk(isa, rows, &keys[..n], &values[..n], visible);
            } else {
                // Rows of a widened chunk are contiguous; widening is exact, so that the bits are those of above.
                let mut wide_keys: [&[f32]; CHUNK] = [&[]; CHUNK];
                let mut wide_values: [&[f32]; CHUNK] = [&[]; CHUNK];
                widen(&keys[..n], wide_k, k_dim, &mut wide_keys);
                widen(&values[..n], wide_v, v_dim, &mut wide_values);
                state.chunk(isa, rows, &wide_keys[..n], &wide_values[..n], visible);
            }
            from += n;
        }
        for row in 0..rows {
            let (token, head) = self.query(first + row);
            state.finish(row, out.head(token, head));
        }
    }

    /// Token and query head, in the tensors of the whole step, of a row of this tile.
    #[inline(always)]
    fn query(&self, row: usize) -> (usize, usize) {
        (self.first_token + row / self.group, self.kv_head * self.group + row % self.group)
    }

    /// K and V of the positions `from ..`, as many as there is room for.
    #[inline(always)]
    fn gather<'s>(&'s self, from: usize, keys: &mut [&'s [E]], values: &mut [&'s [E]]) {
        let Geometry { k, v, k_dim, v_dim, .. } = self.geometry;
        let (mut block, mut offset) = (from / self.block_size, from % self.block_size);
        for (key, value) in keys.iter_mut().zip(values) {
            let id = self.table[block].index();
            *key = &self.elems[k.elem(id, self.kv_head, offset)..][..*k_dim];
            *value = &self.elems[v.elem(id, self.kv_head, offset)..][..*v_dim];
            offset += 1;
            if offset == self.block_size {
                (block, offset) = (block + 1, 0);
            }
        }
    }
}

/// Widens rows into `scratch`, one after the other, and points `to` at them.
#[inline(always)]
fn widen<'s, E: Stored>(from: &[&[E]], scratch: &'s mut [f32], dim: usize, to: &mut [&'s [f32]; CHUNK]) {
    for ((from, wide), to) in from.iter().zip(scratch.chunks_exact_mut(dim)).zip(to) {
        E::widen(from, wide);
        *to = wide;
    }
}

/// The running state of at most [`ROWS`] rows.
struct State<'a> {
    q: &'a mut [Lane],
    acc: &'a mut [Lane],
    max: [f32; ROWS],
    sum: [f32; ROWS],
    q_lanes: usize,
    acc_lanes: usize,
    scale: f32,
}

impl<'a> State<'a> {
    #[inline(always)]
    fn new(q: &'a mut [Lane], acc: &'a mut [Lane], rows: usize, k_dim: usize, v_dim: usize, scale: f32) -> Self {
        let [q_lanes, acc_lanes] = [k_dim, v_dim].map(|dim| dim.div_ceil(LANES));
        acc[..rows * acc_lanes].fill(Lane::ZERO);
        // The least finite number and not −∞: were a whole chunk −∞, −∞ − (−∞) would be NaN where the next chunk may
        // still hold the maximum.
        Self { q, acc, max: [f32::MIN; ROWS], sum: [0.0; ROWS], q_lanes, acc_lanes, scale }
    }

    /// One chunk for all rows; row `r` sees its first `visible(r)` positions, which grows with `r`.
    #[inline(always)]
    fn chunk<I: Isa, E: Stored>(
        &mut self,
        isa: I,
        rows: usize,
        keys: &[&[E]],
        values: &[&[E]],
        visible: impl Fn(usize) -> usize,
    ) {
        let mut row = 0;
        while row < rows {
            let n = visible(row);
            let alike = |count| row + count <= rows && visible(row + count - 1) == n;
            let (keys, values) = (&keys[..n], &values[..n]);
            if n == 0 {
                row += 1;
            } else if alike(4) {
                self.group::<I, E, 4, 2, 2>(isa, row, keys, values);
                row += 4;
            } else if alike(2) {
                self.group::<I, E, 2, 4, 4>(isa, row, keys, values);
                row += 2;
            } else {
                self.group::<I, E, 1, 4, 8>(isa, row, keys, values);
                row += 1;
            }
        }
    }

    /// Rows `row .. row + R`, which see the same positions: scores of `K` keys at a time, V in `D` vectors at a time.
    /// R × K and R × D accumulators of eight lanes stay in registers.
    #[inline(always)]
    fn group<I: Isa, E: Stored, const R: usize, const K: usize, const D: usize>(
        &mut self,
        isa: I,
        row: usize,
        keys: &[&[E]],
        values: &[&[E]],
    ) {
        let n = keys.len();
        let q: [&[Lane]; R] = array::from_fn(|r| &self.q[(row + r) * self.q_lanes..][..self.q_lanes]);
        let mut weights = [[f32::NEG_INFINITY; CHUNK]; R];
        let mut j = 0;
        while j + K <= n {
            scores::<I, E, R, K>(isa, q, array::from_fn(|k| keys[j + k]), self.scale, &mut weights, j);
            j += K;
        }
        while j < n {
            scores::<I, E, R, 1>(isa, q, [keys[j]], self.scale, &mut weights, j);
            j += 1;
        }
        let mut alpha = [0.0; R];
        for r in 0..R {
            alpha[r] = soften(isa, &mut weights[r], &mut self.max[row + r], &mut self.sum[row + r]);
        }
        let acc = &mut self.acc[row * self.acc_lanes..][..R * self.acc_lanes];
        let full = values.first().map_or(0, |value| value.len() / LANES);
        let mut lane = 0;
        while lane + D <= full {
            weigh::<I, E, R, D>(isa, &weights, values, lane, alpha, acc, self.acc_lanes);
            lane += D;
        }
        while lane < self.acc_lanes {
            weigh::<I, E, R, 1>(isa, &weights, values, lane, alpha, acc, self.acc_lanes);
            lane += 1;
        }
    }

    /// Divides the weighted sum by the sum of the weights.
    #[inline(always)]
    fn finish(&self, row: usize, out: &mut [f32]) {
        let acc = &self.acc[row * self.acc_lanes..][..self.acc_lanes];
        for (out, acc) in out.chunks_mut(LANES).zip(acc) {
            for (out, acc) in out.iter_mut().zip(acc.0) {
                *out = acc / self.sum[row];
            }
        }
    }
}

/// Scaled scores of R queries with K keys, into columns `at .. at + K` of `to`.
#[inline(always)]
fn scores<I: Isa, E: Stored, const R: usize, const K: usize>(
    isa: I,
    q: [&[Lane]; R],
    keys: [&[E]; K],
    scale: f32,
    to: &mut [[f32; CHUNK]; R],
    at: usize,
) {
    let rows = keys.map(lanes);
    let steps = rows[0].0.len();
    let full: [&[[E; LANES]]; K] = rows.map(|(full, _)| &full[..steps]);
    let q_full: [&[Lane]; R] = q.map(|q| &q[..steps]);
    let mut acc = [[isa.splat(0.0); K]; R];
    for step in 0..steps {
        let key: [I::V; K] = array::from_fn(|k| E::load(isa, &full[k][step]));
        for r in 0..R {
            let query = isa.load(&q_full[r][step].0);
            for k in 0..K {
                acc[r][k] = isa.fma(query, key[k], acc[r][k]);
            }
        }
    }
    if q[0].len() > steps {
        let key: [I::V; K] = array::from_fn(|k| E::load(isa, &padded(rows[k].1)));
        for r in 0..R {
            let query = isa.load(&q[r][steps].0);
            for k in 0..K {
                acc[r][k] = isa.fma(query, key[k], acc[r][k]);
            }
        }
    }
    let mut first = 0;
    while first < R * K {
        let sums = isa.sums(array::from_fn(|i| {
            let index = first + i;
            if index < R * K { acc[index / K][index % K] } else { isa.splat(0.0) }
        }));
        for (i, sum) in sums.into_iter().enumerate() {
            let index = first + i;
            if index < R * K {
                to[index / K][at + index % K] = sum * scale;
            }
        }
        first += 4;
    }
}

/// Turns a chunk of scores into weights relative to the new maximum, adds them to `sum`, and returns the factor that
/// takes older sums to the new maximum. Scores of −∞, where the row sees nothing, weigh 0.
#[inline(always)]
fn soften<I: Isa>(isa: I, scores: &mut [f32; CHUNK], max: &mut f32, sum: &mut f32) -> f32 {
    let mut tops = [*max; LANES];
    for scores in scores.chunks_exact(LANES) {
        for (top, &score) in tops.iter_mut().zip(scores) {
            // NaN is never greater: it stays out of the maximum and makes the weights NaN below, as it should.
            *top = if score > *top { score } else { *top };
        }
    }
    let top = tops.into_iter().fold(*max, |top, score| if score > top { score } else { top });
    let mut sums = [0.0_f32; LANES];
    for scores in scores.chunks_exact_mut(LANES) {
        for (sum, score) in sums.iter_mut().zip(scores) {
            *score = exp2(isa, *score - top);
            *sum += *score;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let alpha = exp2(isa, *max - top);
    *sum = isa.fma1(*sum, alpha, ((a + b) + (c + d)) + ((e + f) + (g + h)));
    *max = top;
    alpha
}

/// Adds the weighted vectors `lane .. lane + D` of V to the running sums of R rows.
#[inline(always)]
fn weigh<I: Isa, E: Stored, const R: usize, const D: usize>(
    isa: I,
    weights: &[[f32; CHUNK]; R],
    values: &[&[E]],
    lane: usize,
    alpha: [f32; R],
    acc: &mut [Lane],
    acc_lanes: usize,
) {
    let mut part = [[isa.splat(0.0); D]; R];
    for (j, value) in values.iter().enumerate().take(CHUNK) {
        let (full, rest) = lanes(value);
        let value: [I::V; D] = match full.get(lane..lane + D) {
            Some(full) => array::from_fn(|d| E::load(isa, &full[d])),
            // The last, partial vector; it comes alone.
            None => [E::load(isa, &padded(rest)); D],
        };
        for r in 0..R {
            let weight = isa.splat(weights[r][j]);
            for d in 0..D {
                part[r][d] = isa.fma(weight, value[d], part[r][d]);
            }
        }
    }
    for r in 0..R {
        let alpha = isa.splat(alpha[r]);
        for d in 0..D {
            let acc = &mut acc[r * acc_lanes + lane + d].0;
            let sum = isa.fma(isa.load(acc), alpha, part[r][d]);
            isa.store(sum, acc);
        }
    }
}

/// What is left of a row after its full vectors, with zeros to fill one.
#[inline(always)]
fn padded<E: Stored>(rest: &[E]) -> [E; LANES] {
    let mut full = [E::ZERO; LANES];
    for (full, &elem) in full.iter_mut().zip(rest) {
        *full = elem;
    }
    full
}
