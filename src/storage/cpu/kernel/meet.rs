//! What one chunk of the context does to some rows: scores, softmax, weighted sum.
//!
//! The order of operations is the law of [`kernel`](super). Memory is asked for ahead of its use, between the arithmetic:
//! V of a chunk while its K is read, and K of what comes after while V is summed.

use core::array;
use core::ops::Range;

use super::CHUNK;
use super::coming::Coming;
use super::rules::{Positions, Rules};
use super::state::{Softmax, State};
use crate::storage::cpu::element::Stored;
use crate::storage::cpu::exp::{exp2, exp2_one};
use crate::storage::cpu::isa::{Isa, Work};
use crate::storage::cpu::rows::View;

/// The scales of K and V, one per position.
#[derive(Clone, Copy)]
pub(super) struct ScaleView<'s> {
    pub(super) keys: &'s [f32],
    pub(super) values: &'s [f32],
}

/// Rows of K and V, one per position.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'s, 'a, E> {
    pub(super) keys: View<'s, 'a, E>,
    pub(super) values: View<'s, 'a, E>,
    /// Their scales, where they have any.
    pub(super) scale: Option<ScaleView<'s>>,
    /// V to be asked for while keys are read; empty where it is at hand.
    pub(super) coming: View<'s, 'a, E>,
    /// K of what is read after this chunk, to be asked for in time; empty where it is at hand.
    pub(super) ahead: View<'s, 'a, E>,
}

impl<E> Chunk<'_, '_, E> {
    /// Some positions of it, for some of so many rows. V is asked for by the first of them; what comes after by each in
    /// its turn.
    #[inline(always)]
    pub(super) fn slice(&self, positions: Range<usize>, rows: Range<usize>, of: usize) -> Self {
        let share = |row: usize| self.ahead.len() * row / of;
        let coming = if rows.start == 0 { self.coming } else { self.coming.slice(0..0) };
        let ahead = self.ahead.slice(share(rows.start)..share(rows.end));
        let scale = self.scale.map(|ScaleView { keys, values }| ScaleView {
            keys: &keys[positions.clone()],
            values: &values[positions.clone()],
        });
        Self { keys: self.keys.slice(positions.clone()), values: self.values.slice(positions), scale, coming, ahead }
    }
}

/// A chunk, or what is left of it, meets 8 (where there are 16 accumulators), 4, 2 or 1 rows that see all of it.
///
/// Work of its own, entered from within other work: so it is compiled once per instruction set and element type, and
/// not once for every place that needs it.
pub(super) struct Meet<'m, 't, 's, 'a, E> {
    pub(super) state: &'m mut State<'t>,
    /// The first of the rows.
    pub(super) row: usize,
    /// How many there are.
    pub(super) rows: usize,
    pub(super) chunk: Chunk<'s, 'a, E>,
    pub(super) rules: &'m Rules<'m>,
    /// Slope and position of every row.
    pub(super) biases: [Option<(f32, usize)>; 8],
    /// Positions of the keys.
    pub(super) at: Positions<'m>,
}

impl<E: Stored> Work for Meet<'_, '_, '_, '_, E> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // Rows, keys at a time, their product, vectors of V at a time: as many accumulators as there are registers for.
        match (I::ACCUMULATORS, self.rows) {
            (16, 8) => self.group::<I, 8, 2, 16, 2>(isa),
            (16, 4) => self.group::<I, 4, 4, 16, 4>(isa),
            (16, 2) => self.group::<I, 2, 8, 16, 4>(isa),
            (16, _) => self.group::<I, 1, 16, 16, 4>(isa),
            (_, 4) => self.group::<I, 4, 2, 8, 2>(isa),
            (_, 2) => self.group::<I, 2, 4, 8, 4>(isa),
            _ => self.group::<I, 1, 8, 8, 4>(isa),
        }
    }
}

impl<E: Stored> Meet<'_, '_, '_, '_, E> {
    /// R rows: scores of `K` keys at a time, V in `D` vectors at a time. R × K = N and R × D accumulators stay in
    /// registers.
    #[inline(always)]
    fn group<I: Isa, const R: usize, const K: usize, const N: usize, const D: usize>(self, isa: I) {
        let Self { state, row, chunk, rules, biases, at, .. } = self;
        let Chunk { keys, values, scale, ahead, .. } = chunk;
        let n = keys.len();
        let q: [&[f32]; R] = array::from_fn(|r| state.queries.view().get(row + r));
        let mut weights = [[0.0; CHUNK]; R];
        let mut coming = Coming::new(chunk.coming);
        let mut j = 0;
        while j + K <= n {
            scores::<I, E, R, K, N>(isa, q, keys, &mut coming, j, &mut weights);
            j += K;
        }
        while j < n {
            scores::<I, E, R, 1, R>(isa, q, keys, &mut coming, j, &mut weights);
            j += 1;
        }
        if let Some(scale) = scale {
            multiply(&mut weights, scale.keys);
        }
        for (weights, bias) in weights.iter_mut().zip(biases) {
            rules.bend(isa, weights, bias, n, at);
        }
        let alpha = soften(isa, &mut weights, &mut state.span[row..row + R], &mut coming);
        if let Some(scale) = scale {
            multiply(&mut weights, scale.values);
        }
        let (stride, full) = (state.stride, state.v_dim / I::LANES);
        let acc = &mut state.span_acc[row * stride..][..R * stride];
        let coming = Coming::new(ahead);
        let pace = coming.pace(full.div_ceil(D) * n);
        let mut sums = Sums { isa, weights: &weights, values, coming, pace, alpha, acc, stride };
        let mut vector = 0;
        while vector + D <= full {
            sums.full::<D>(vector);
            vector += D;
        }
        if vector + 2 <= full {
            sums.full::<2>(vector);
            vector += 2;
        }
        if vector < full {
            sums.full::<1>(vector);
            vector += 1;
        }
        if state.v_dim % I::LANES != 0 {
            sums.rest(vector);
        }
    }
}

/// Some vectors as `f32`. Not by a closure: one that the compiler does not inline would lose the instruction set.
#[inline(always)]
fn loads<I: Isa, E: Stored, const N: usize>(isa: I, from: [&I::Lanes<E>; N]) -> [I::V; N] {
    let mut wide = [isa.splat(0.0); N];
    for i in 0..N {
        wide[i] = E::load(isa, from[i]);
    }
    wide
}

/// Multiplies columns by their scales.
#[inline(always)]
fn multiply<const R: usize>(rows: &mut [[f32; CHUNK]; R], scales: &[f32]) {
    for row in rows {
        for (x, scale) in row.iter_mut().zip(scales) {
            *x *= scale;
        }
    }
}

/// Products of R queries with K keys, R × K = N, into columns `at .. at + K` of `to`. The values of the same positions
/// are asked for on the way.
#[inline(always)]
fn scores<I: Isa, E: Stored, const R: usize, const K: usize, const N: usize>(
    isa: I,
    q: [&[f32]; R],
    keys: View<'_, '_, E>,
    coming: &mut Coming<'_, '_, E>,
    at: usize,
    to: &mut [[f32; CHUNK]; R],
) {
    const { assert!(R * K == N) };
    let steps = keys.dim() / I::LANES;
    let rows: [&[E]; K] = array::from_fn(|k| keys.get(at + k));
    let full: [&[I::Lanes<E>]; K] = rows.map(|row| &isa.vectors(row)[..steps]);
    let q_all = q.map(|q| isa.vectors(q));
    let q_full: [&[I::Lanes<f32>]; R] = q_all.map(|q| &q[..steps]);
    let pace = (K * coming.lines).div_ceil(steps.max(1));
    let mut acc = [isa.splat(0.0); N];
    for step in 0..steps {
        // What the first step leaves out is asked for while the scores are softened.
        if step > 0 {
            coming.ask(isa, pace);
        }
        let key = loads::<I, E, K>(isa, full.map(|full| &full[step]));
        for r in 0..R {
            let query = isa.load(&q_full[r][step]);
            for k in 0..K {
                acc[r * K + k] = isa.fma(query, key[k], acc[r * K + k]);
            }
        }
    }
    if !keys.dim().is_multiple_of(I::LANES) {
        let rest = rows.map(|row| isa.padded(&row[steps * I::LANES..]));
        let key = loads::<I, E, K>(isa, rest.each_ref());
        for r in 0..R {
            let query = isa.load(&q_all[r][steps]);
            for k in 0..K {
                acc[r * K + k] = isa.fma(query, key[k], acc[r * K + k]);
            }
        }
    }
    let sums = isa.sums(acc);
    for r in 0..R {
        to[r][at..at + K].copy_from_slice(&sums[r * K..][..K]);
    }
}

/// Turns a chunk of scores of R rows into weights relative to their new maxima, adds them to the softmaxes, and returns
/// the factors that take older sums to the new maxima. Scores of −∞, where a row sees nothing, weigh 0.
#[inline(always)]
fn soften<I: Isa, E, const R: usize>(
    isa: I,
    scores: &mut [[f32; CHUNK]; R],
    softmax: &mut [Softmax],
    coming: &mut Coming<'_, '_, E>,
) -> [f32; R] {
    let pace = coming.remaining().div_ceil(R * CHUNK / I::LANES);
    let mut tops = [0.0; R];
    let mut sums = [isa.splat(0.0); R];
    for r in 0..R {
        // NaN stays out of the maximum and makes the weights NaN below, as it should.
        let vectors = isa.vectors_mut(&mut scores[r]);
        let top = vectors.iter().fold(isa.splat(softmax[r].max), |top, scores| isa.max(isa.load(scores), top));
        tops[r] = isa.top(top);
        let top = isa.splat(tops[r]);
        for scores in vectors {
            coming.ask(isa, pace);
            let weights = exp2(isa, isa.sub(isa.load(scores), top));
            isa.store(weights, scores);
            sums[r] = isa.add(sums[r], weights);
        }
    }
    let sums = isa.sums(sums);
    array::from_fn(|r| {
        let alpha = exp2_one(isa, softmax[r].max - tops[r]);
        softmax[r] = Softmax { max: tops[r], sum: isa.fma1(softmax[r].sum, alpha, sums[r]) };
        alpha
    })
}

/// The weighted sum of a chunk of V for R rows, on its way into their state.
struct Sums<'w, 's, 'a, I, E, const R: usize> {
    isa: I,
    weights: &'w [[f32; CHUNK]; R],
    values: View<'s, 'a, E>,
    coming: Coming<'s, 'a, E>,
    /// Lines to ask for per position.
    pace: usize,
    /// What takes the state to the new maximum.
    alpha: [f32; R],
    /// `[R, stride]`.
    acc: &'w mut [f32],
    stride: usize,
}

impl<I: Isa, E: Stored, const R: usize> Sums<'_, '_, '_, I, E, R> {
    /// The vectors `vector .. vector + D`, all of them full.
    #[inline(always)]
    fn full<const D: usize>(&mut self, vector: usize) {
        let isa = self.isa;
        let mut part = [[isa.splat(0.0); D]; R];
        for j in 0..self.values.len() {
            self.coming.ask(isa, self.pace);
            let full = &isa.vectors(self.values.get(j))[vector..][..D];
            let value = loads::<I, E, D>(isa, array::from_fn(|d| &full[d]));
            for (part, weights) in part.iter_mut().zip(self.weights) {
                let weight = isa.splat(weights[j]);
                for (part, value) in part.iter_mut().zip(value) {
                    *part = isa.fma(weight, value, *part);
                }
            }
        }
        self.join(vector, part);
    }

    /// The last vector, where it is not full.
    #[inline(always)]
    fn rest(&mut self, vector: usize) {
        let isa = self.isa;
        let mut part = [[isa.splat(0.0)]; R];
        for j in 0..self.values.len() {
            let value = E::load(isa, &isa.padded(&self.values.get(j)[vector * I::LANES..]));
            for (part, weights) in part.iter_mut().zip(self.weights) {
                part[0] = isa.fma(isa.splat(weights[j]), value, part[0]);
            }
        }
        self.join(vector, part);
    }

    /// Joins the sums of the chunk to those of the span.
    #[inline(always)]
    fn join<const D: usize>(&mut self, vector: usize, part: [[I::V; D]; R]) {
        let isa = self.isa;
        for r in 0..R {
            let alpha = isa.splat(self.alpha[r]);
            let acc = &mut isa.vectors_mut(&mut self.acc[r * self.stride..][..self.stride])[vector..][..D];
            for (acc, part) in acc.iter_mut().zip(part[r]) {
                let sum = isa.fma(isa.load(acc), alpha, part);
                isa.store(sum, acc);
            }
        }
    }
}
