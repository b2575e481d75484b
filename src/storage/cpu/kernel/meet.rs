//! What one chunk of the context does to some rows once its scores are there: softmax, and weighted sum of V.
//!
//! The order of operations is the law of [`kernel`](super). All rows go through one phase before any goes through the
//! next, so that a chunk of K stays in the first-level cache while scores are taken, and a chunk of V while it is
//! summed. Memory is asked for ahead of its use, between the arithmetic: V of a chunk while its K is read, and K of what
//! comes after while V is summed.

use core::ops::Range;

use super::coming::Coming;
use super::rules::{Positions, Rules};
use super::state::{Softmax, State};
use super::{CHUNK, ROWS};
use crate::storage::cpu::element::Stored;
use crate::storage::cpu::exp::exp2;
use crate::storage::cpu::isa::{Isa, Work};
use crate::storage::cpu::rows::View;

/// V of some positions, and what is asked for meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'s, 'a, E> {
    pub(super) values: View<'s, 'a, E>,
    /// What their weights are multiplied by, where elements have scales.
    pub(super) scales: Option<&'s [f32]>,
    /// K of what is read after this chunk, to be asked for in time; empty where it is at hand.
    pub(super) ahead: View<'s, 'a, E>,
}

impl<E> Chunk<'_, '_, E> {
    /// Some of the positions.
    #[inline(always)]
    pub(super) fn slice(&self, positions: Range<usize>) -> Self {
        let scales = self.scales.map(|scales| &scales[positions.clone()]);
        Self { values: self.values.slice(positions), scales, ..*self }
    }
}

/// Rows that are softened together: no more than lanes of any vector.
const SOFTENED: usize = 8;

/// Some rows that see the same positions of a chunk meet them.
///
/// Work of its own, entered from within other work: so it is compiled once per instruction set and element type, and
/// not once for every place that needs it.
pub(super) struct Meet<'m, 't, 's, 'a, E> {
    pub(super) state: &'m mut State<'t>,
    /// The first of the rows, among those of all heads.
    pub(super) row: usize,
    /// The first of the rows, among those that have scores.
    pub(super) scored: usize,
    /// How many there are.
    pub(super) rows: usize,
    /// The positions that they see, and have scores for.
    pub(super) chunk: Chunk<'s, 'a, E>,
    pub(super) rules: &'m Rules<'m>,
    /// Positions of the keys.
    pub(super) at: Positions<'m>,
}

impl<E: Stored> Work for Meet<'_, '_, '_, '_, E> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { state, row, scored, rows, chunk: Chunk { values, scales, ahead }, rules, at } = self;
        let mut alphas = [0.0; ROWS];
        let mut coming = Coming::new(ahead);
        // To soften a row takes about an eighth of the time.
        let soften_pace = coming.pace(8 * rows);
        let weights = &mut state.scores[scored..scored + rows];
        let of_rows =
            state.span[row..row + rows].chunks_mut(SOFTENED).zip(state.biases[row..row + rows].chunks(SOFTENED));
        let of_chunk = weights.chunks_mut(SOFTENED).zip(alphas.chunks_mut(SOFTENED));
        for ((weights, alphas), (softmaxes, biases)) in of_chunk.zip(of_rows) {
            for (weights, bias) in weights.iter_mut().zip(biases) {
                let bias = rules.slopes.is_some().then_some(*bias);
                rules.bend(isa, weights, bias, values.len(), at);
                coming.spread(isa, soften_pace, 0);
            }
            soften(isa, weights, softmaxes, alphas);
        }
        if let Some(scales) = scales {
            multiply(weights, scales);
        }
        let stride = state.stride;
        let pace = coming.pace(rows * (state.v_dim / I::LANES));
        let acc = &mut state.span_acc[row * stride..][..rows * stride];
        let mut sums = Sums { isa, weights, alphas: &alphas, values, coming, pace, acc, stride };
        let mut row = 0;
        while row < rows {
            // Rows, and vectors of V at a time: as many accumulators as there are registers for.
            row += match (I::ACCUMULATORS, rows - row) {
                (16, 8..) if !E::WIDE => sums.group::<8, 2>(row),
                (16, 6..) => sums.group::<6, 4>(row),
                (16, 4..) => sums.group::<4, 4>(row),
                (_, 4..) => sums.group::<4, 2>(row),
                (_, 2..) => sums.group::<2, 4>(row),
                _ => sums.group::<1, 4>(row),
            };
        }
    }
}

/// Multiplies the columns of rows by their scales.
#[inline(always)]
pub(super) fn multiply(rows: &mut [[f32; CHUNK]], scales: &[f32]) {
    for row in rows {
        row.iter_mut().zip(scales).for_each(|(x, scale)| *x *= scale);
    }
}

/// Turns a chunk of scores of at most [`SOFTENED`] rows into weights relative to their new maxima, adds them to the
/// softmaxes, and tells the factors that take older sums to the new maxima. Scores of −∞, where a row sees nothing, weigh 0.
#[inline(always)]
fn soften<I: Isa>(isa: I, scores: &mut [[f32; CHUNK]], softmaxes: &mut [Softmax], alphas: &mut [f32]) {
    let mut sums = [isa.splat(0.0); SOFTENED];
    let mut tops = [0.0; SOFTENED];
    // One vector of them.
    let mut factors = [0.0; 2 * SOFTENED];
    for (r, scores) in scores.iter_mut().enumerate().take(SOFTENED) {
        // NaN stays out of the maximum and makes the weights NaN below, as it should.
        let vectors = isa.vectors_mut(scores);
        let top = vectors.iter().fold(isa.splat(softmaxes[r].max), |top, scores| isa.max(isa.load(scores), top));
        tops[r] = isa.top(top);
        factors[r] = softmaxes[r].max - tops[r];
        let top = isa.splat(tops[r]);
        for scores in vectors {
            let weights = exp2(isa, isa.sub(isa.load(scores), top));
            isa.store(weights, scores);
            sums[r] = isa.add(sums[r], weights);
        }
    }
    let sums = isa.sums(sums);
    let vector = &mut isa.vectors_mut(&mut factors)[0];
    isa.store(exp2(isa, isa.load(vector)), vector);
    for (r, (softmax, alpha)) in softmaxes.iter_mut().zip(alphas).enumerate().take(SOFTENED) {
        *alpha = factors[r];
        *softmax = Softmax { max: tops[r], sum: isa.fma1(softmax.sum, *alpha, sums[r]) };
    }
}

/// The weighted sum of a chunk of V, on its way into the state.
struct Sums<'w, 's, 'a, I, E> {
    isa: I,
    weights: &'w [[f32; CHUNK]],
    /// What takes the state to the new maximum.
    alphas: &'w [f32],
    values: View<'s, 'a, E>,
    coming: Coming<'s, 'a, E>,
    /// Lines to ask for per row and vector of V.
    pace: usize,
    /// `[rows, stride]`.
    acc: &'w mut [f32],
    stride: usize,
}

impl<I: Isa, E: Stored> Sums<'_, '_, '_, I, E> {
    /// R rows from `row` on, D vectors at a time. Returns R.
    #[inline(always)]
    fn group<const R: usize, const D: usize>(&mut self, row: usize) -> usize {
        let dim = self.values.dim();
        let full = dim / I::LANES;
        let mut vector = 0;
        while vector + D <= full {
            self.full::<R, D>(row, vector);
            vector += D;
        }
        if vector + 2 <= full {
            self.full::<R, 2>(row, vector);
            vector += 2;
        }
        if vector < full {
            self.full::<R, 1>(row, vector);
            vector += 1;
        }
        if !dim.is_multiple_of(I::LANES) {
            self.rest::<R>(row, vector);
        }
        R
    }

    /// The vectors `vector .. vector + D`, all of them full.
    #[inline(always)]
    fn full<const R: usize, const D: usize>(&mut self, row: usize, vector: usize) {
        let isa = self.isa;
        let weights = self.weights[row..].first_chunk::<R>().unwrap_or(&[[0.0; CHUNK]; R]);
        let mut part = [[isa.splat(0.0); D]; R];
        let len = self.values.len().min(CHUNK);
        let each = self.coming.spread(isa, self.pace * R * D, len);
        for j in 0..len {
            self.coming.ask(isa, each);
            let mut here = [0.0; R];
            for (here, weights) in here.iter_mut().zip(weights) {
                *here = weights[j];
            }
            weigh::<I, E, R, D>(isa, self.values.get(j), vector, here, &mut part);
        }
        self.join(row, vector, part);
    }

    /// The last vector, where it is not full.
    #[inline(always)]
    fn rest<const R: usize>(&mut self, row: usize, vector: usize) {
        let isa = self.isa;
        let mut part = [[isa.splat(0.0)]; R];
        for j in 0..self.values.len() {
            let value = E::load(isa, &isa.padded(&self.values.get(j)[vector * I::LANES..]));
            for (part, weights) in part.iter_mut().zip(&self.weights[row..]) {
                part[0] = isa.fma(isa.splat(weights[j]), value, part[0]);
            }
        }
        self.join(row, vector, part);
    }

    /// Joins the sums of the chunk to those of the span.
    #[inline(always)]
    fn join<const R: usize, const D: usize>(&mut self, row: usize, vector: usize, part: [[I::V; D]; R]) {
        let isa = self.isa;
        for (r, part) in part.into_iter().enumerate() {
            let alpha = isa.splat(self.alphas[row + r]);
            let acc = &mut isa.vectors_mut(&mut self.acc[(row + r) * self.stride..][..self.stride])[vector..][..D];
            for (acc, part) in acc.iter_mut().zip(part) {
                let sum = isa.fma(isa.load(acc), alpha, part);
                isa.store(sum, acc);
            }
        }
    }
}

/// Adds D vectors of the value of one position, weighted for R rows.
#[inline(always)]
fn weigh<I: Isa, E: Stored, const R: usize, const D: usize>(
    isa: I,
    value: &[E],
    vector: usize,
    weights: [f32; R],
    part: &mut [[I::V; D]; R],
) {
    let full = &isa.vectors(value)[vector..][..D];
    let mut value = [isa.splat(0.0); D];
    for (value, full) in value.iter_mut().zip(full) {
        *value = E::load(isa, full);
    }
    for (part, weight) in part.iter_mut().zip(weights) {
        let weight = isa.splat(weight);
        for (part, value) in part.iter_mut().zip(value) {
            *part = isa.fma(weight, value, *part);
        }
    }
}
