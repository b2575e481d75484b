//! The running state of a tile, and what one chunk of the context does to it: scores, softmax, weighted sum.
//!
//! The order of operations is the law of [`kernel`](super). Memory is asked for ahead of its use, line by line between
//! the arithmetic: V of a position while its K is read, K of the next chunk while V is summed. In bursts it would gain
//! little, as a processor has few requests in flight.

use core::array;

use super::{CHUNK, ROWS};
use crate::storage::cpu::element::{Stored, lanes};
use crate::storage::cpu::exp::exp2;
use crate::storage::cpu::isa::{Isa, LANES, Lane};

/// What one prefetch asks for.
const LINE_BYTES: usize = 64;

/// Rows of K and V, one per position.
pub(super) struct Chunk<'a, E> {
    pub(super) keys: &'a [&'a [E]],
    pub(super) values: &'a [&'a [E]],
    /// K of the chunk after this one, to be asked for in time; empty where it is at hand.
    pub(super) ahead: &'a [&'a [E]],
}

/// The running state of at most [`ROWS`] rows.
pub(super) struct State<'a> {
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
    pub(super) fn new(
        q: &'a mut [Lane],
        acc: &'a mut [Lane],
        rows: usize,
        k_dim: usize,
        v_dim: usize,
        scale: f32,
    ) -> Self {
        let [q_lanes, acc_lanes] = [k_dim, v_dim].map(|dim| dim.div_ceil(LANES));
        acc[..rows * acc_lanes].fill(Lane::ZERO);
        // The least finite number and not −∞: were a whole chunk −∞, −∞ − (−∞) would be NaN where the next chunk may
        // still hold the maximum.
        Self { q, acc, max: [f32::MIN; ROWS], sum: [0.0; ROWS], q_lanes, acc_lanes, scale }
    }

    /// One chunk for all rows; row `r` sees its first `visible(r)` positions, which grows with `r`.
    #[inline(always)]
    pub(super) fn chunk<I: Isa, E: Stored>(
        &mut self,
        isa: I,
        rows: usize,
        chunk: &Chunk<'_, E>,
        visible: impl Fn(usize) -> usize,
    ) {
        let mut row = 0;
        while row < rows {
            let n = visible(row);
            let alike = |count| row + count <= rows && visible(row + count - 1) == n;
            // Once per chunk is enough to ask for what comes next.
            let ahead = if row == 0 { chunk.ahead } else { &[] };
            let chunk = Chunk { keys: &chunk.keys[..n], values: &chunk.values[..n], ahead };
            if n == 0 {
                row += 1;
            } else if alike(4) {
                self.group::<I, E, 4, 2, 2>(isa, row, &chunk);
                row += 4;
            } else if alike(2) {
                self.group::<I, E, 2, 4, 4>(isa, row, &chunk);
                row += 2;
            } else {
                self.group::<I, E, 1, 4, 8>(isa, row, &chunk);
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
        chunk: &Chunk<'_, E>,
    ) {
        let Chunk { keys, values, ahead } = *chunk;
        let n = keys.len();
        let q: [&[Lane]; R] = array::from_fn(|r| &self.q[(row + r) * self.q_lanes..][..self.q_lanes]);
        let mut weights = [[f32::NEG_INFINITY; CHUNK]; R];
        let mut j = 0;
        while j + K <= n {
            let (keys, values) = (array::from_fn(|k| keys[j + k]), array::from_fn(|k| values[j + k]));
            scores::<I, E, R, K>(isa, q, keys, values, self.scale, &mut weights, j);
            j += K;
        }
        while j < n {
            scores::<I, E, R, 1>(isa, q, [keys[j]], [values[j]], self.scale, &mut weights, j);
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
            let part = weigh::<I, E, R, D>(isa, &weights, values, lane, ahead);
            join(isa, part, lane, alpha, acc, self.acc_lanes);
            lane += D;
        }
        while lane < self.acc_lanes {
            let part = weigh_narrow::<I, E, R>(isa, &weights, values, lane);
            join(isa, part, lane, alpha, acc, self.acc_lanes);
            lane += 1;
        }
    }

    /// Divides the weighted sum by the sum of the weights.
    #[inline(always)]
    pub(super) fn finish(&self, row: usize, out: &mut [f32]) {
        let acc = &self.acc[row * self.acc_lanes..][..self.acc_lanes];
        for (out, acc) in out.chunks_mut(LANES).zip(acc) {
            for (out, acc) in out.iter_mut().zip(acc.0) {
                *out = acc / self.sum[row];
            }
        }
    }
}

/// Scaled scores of R queries with K keys, into columns `at .. at + K` of `to`. The values of the same positions are
/// asked for on the way.
#[inline(always)]
fn scores<I: Isa, E: Stored, const R: usize, const K: usize>(
    isa: I,
    q: [&[Lane]; R],
    keys: [&[E]; K],
    values: [&[E]; K],
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
        if step * LANES * size_of::<E>() % LINE_BYTES == 0 {
            for value in values {
                if let Some(elem) = value.get(step * LANES) {
                    isa.prefetch(elem);
                }
            }
        }
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

/// The weighted sum of the vectors `lane .. lane + D` of V, all of them full, for R rows.
#[inline(always)]
fn weigh<I: Isa, E: Stored, const R: usize, const D: usize>(
    isa: I,
    weights: &[[f32; CHUNK]; R],
    values: &[&[E]],
    lane: usize,
    ahead: &[&[E]],
) -> [[I::V; D]; R] {
    let mut part = [[isa.splat(0.0); D]; R];
    // Bytes of a row that a pass over the chunk reads, and passes that share a cache line.
    let width = D * LANES * size_of::<E>();
    let passes = (LINE_BYTES / width).max(1);
    for (j, value) in values.iter().enumerate().take(CHUNK) {
        // As many lines of the rows ahead as this pass reads of V, evenly: memory takes them one by one, and a burst
        // stops the processor.
        if let Some(row) = ahead.get(j).filter(|_| j % passes == lane / D % passes) {
            let line = lane * LANES * size_of::<E>() / LINE_BYTES;
            for line in line..line + (width / LINE_BYTES).max(1) {
                if let Some(elem) = row.get(line * (LINE_BYTES / size_of::<E>())) {
                    isa.prefetch(elem);
                }
            }
        }
        let full = &lanes(value).0[lane..][..D];
        let value: [I::V; D] = array::from_fn(|d| E::load(isa, &full[d]));
        for r in 0..R {
            let weight = isa.splat(weights[r][j]);
            for d in 0..D {
                part[r][d] = isa.fma(weight, value[d], part[r][d]);
            }
        }
    }
    part
}

/// The weighted sum of one vector of V, which may be the last and partial one.
#[inline(always)]
fn weigh_narrow<I: Isa, E: Stored, const R: usize>(
    isa: I,
    weights: &[[f32; CHUNK]; R],
    values: &[&[E]],
    lane: usize,
) -> [[I::V; 1]; R] {
    let mut part = [[isa.splat(0.0)]; R];
    for (j, value) in values.iter().enumerate().take(CHUNK) {
        let value = E::load(isa, &padded(&value[lane * LANES..]));
        for r in 0..R {
            part[r][0] = isa.fma(isa.splat(weights[r][j]), value, part[r][0]);
        }
    }
    part
}

/// Joins the sums of a chunk to the running sums of the vectors `lane .. lane + D`.
#[inline(always)]
fn join<I: Isa, const R: usize, const D: usize>(
    isa: I,
    part: [[I::V; D]; R],
    lane: usize,
    alpha: [f32; R],
    acc: &mut [Lane],
    acc_lanes: usize,
) {
    for r in 0..R {
        let alpha = isa.splat(alpha[r]);
        for d in 0..D {
            let acc = &mut acc[r * acc_lanes + lane + d].0;
            let sum = isa.fma(isa.load(acc), alpha, part[r][d]);
            isa.store(sum, acc);
        }
    }
}

/// The first eight elements of what is left of a row, with zeros where it ends.
#[inline(always)]
fn padded<E: Stored>(rest: &[E]) -> [E; LANES] {
    let mut full = [E::ZERO; LANES];
    for (full, &elem) in full.iter_mut().zip(rest) {
        *full = elem;
    }
    full
}
