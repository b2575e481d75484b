//! The running state of a pass: softmaxes and weighted sums, over a span and over what is before it.

use super::scratch::{LINE, Sums};
use super::{CHUNK, ROWS};
use crate::storage::cpu::exp::exp2_one;
use crate::storage::cpu::isa::Isa;

/// A softmax that was taken over some keys: the sum of the weights 2^(score − max), and, elsewhere, that of the weighted
/// values.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    pub(super) max: f32,
    pub(super) sum: f32,
}

impl Softmax {
    /// Over no keys. The least finite number and not −∞: were a whole chunk −∞, −∞ − (−∞) would be NaN where the next
    /// chunk may still hold the maximum.
    const EMPTY: Self = Self { max: f32::MIN, sum: 0.0 };

    /// Over the keys of both; and the factors that take the weights of each to the common maximum.
    #[inline(always)]
    fn join<I: Isa>(self, isa: I, other: Self) -> (Self, [f32; 2]) {
        // NaN is never greater: it stays out of the maximum and stands in the sums.
        let max = if other.max > self.max { other.max } else { self.max };
        let factors = [self.max, other.max].map(|each| exp2_one(isa, each - max));
        (Self { max, sum: isa.fma1(self.sum, factors[0], other.sum * factors[1]) }, factors)
    }
}

/// The running state of at most [`ROWS`] rows: over the span that is being walked, and over all before it.
pub(super) struct State<'a> {
    /// Slope and position of every row, where there are slopes.
    pub(super) biases: [(f32, usize); ROWS],
    /// Scores of the rows over one head with a chunk, then their weights.
    pub(super) scores: &'a mut [[f32; CHUNK]],
    pub(super) span: [Softmax; ROWS],
    total: [Softmax; ROWS],
    /// Weighted sums of V of the span, `[rows, stride]`, zero beyond `v_dim`.
    pub(super) span_acc: &'a mut [f32],
    /// The same over all before it.
    total_acc: &'a mut [f32],
    rows: usize,
    pub(super) stride: usize,
    pub(super) v_dim: usize,
}

impl<'a> State<'a> {
    #[inline(always)]
    pub(super) fn new(memory: &'a mut Sums<'_>, rows: usize, v_dim: usize) -> Self {
        let stride = v_dim.next_multiple_of(LINE);
        let Sums { scores, span, total } = memory;
        total[..rows * stride].fill(0.0);
        let softmax = [Softmax::EMPTY; ROWS];
        let biases = [(0.0, 0); ROWS];
        Self { biases, scores, span: softmax, total: softmax, span_acc: span, total_acc: total, rows, stride, v_dim }
    }

    /// Begins a span.
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.span = [Softmax::EMPTY; ROWS];
        // −0 is the number that changes none when it is added, +0 included: a span that a row sees nothing of, because
        // others of its tile see more, leaves the row's bits alone.
        self.span_acc[..self.rows * self.stride].fill(-0.0);
    }

    /// Joins the span to what is before it.
    #[inline(always)]
    pub(super) fn join<I: Isa>(&mut self, isa: I) {
        for row in 0..self.rows {
            let (total, factors) = self.total[row].join(isa, self.span[row]);
            self.total[row] = total;
            let [before, here] = factors.map(|factor| isa.splat(factor));
            let from = isa.vectors(&self.span_acc[row * self.stride..][..self.stride]);
            let to = isa.vectors_mut(&mut self.total_acc[row * self.stride..][..self.stride]);
            for (to, from) in to.iter_mut().zip(from) {
                let sum = isa.fma(isa.load(to), before, isa.mul(isa.load(from), here));
                isa.store(sum, to);
            }
        }
    }

    /// Writes the span's state of a row, `v_dim` + 2 numbers.
    #[inline(always)]
    pub(super) fn leave(&self, row: usize, to: &mut [f32]) {
        keep(&self.span_acc[row * self.stride..][..self.v_dim], self.span[row], to);
    }

    /// Takes over a span's state of a row that was [left](Self::leave).
    #[inline(always)]
    pub(super) fn take(&mut self, row: usize, from: &[f32]) {
        let (acc, behind) = self.span_acc[row * self.stride..][..self.stride].split_at_mut(self.v_dim);
        behind.fill(0.0);
        self.span[row] = take_up(from, acc);
    }

    /// Writes what the joined spans come to for a row, as many numbers.
    #[inline(always)]
    pub(super) fn pause(&self, row: usize, to: &mut [f32]) {
        keep(&self.total_acc[row * self.stride..][..self.v_dim], self.total[row], to);
    }

    /// Goes on with a row where it was [paused](Self::pause).
    #[inline(always)]
    pub(super) fn resume(&mut self, row: usize, from: &[f32]) {
        self.total[row] = take_up(from, &mut self.total_acc[row * self.stride..][..self.v_dim]);
    }

    /// Divides the weighted sum by the sum of the weights, into `out`; zeros where nothing was seen. Returns the
    /// natural logarithm of the sum of e^score, −∞ where nothing was seen.
    #[inline(always)]
    pub(super) fn finish<I: Isa>(&self, isa: I, row: usize, sink: Option<f32>, out: &mut [f32]) -> f32 {
        let seen = self.total[row];
        // A sink is a key of which only the weight counts: that of its own maximum is 1.
        let sink = sink.map(|sink| Softmax { max: sink * core::f32::consts::LOG2_E, sum: 1.0 });
        let (all, [factor, _]) = sink.map_or((seen, [1.0; 2]), |sink| seen.join(isa, sink));
        let acc = &self.total_acc[row * self.stride..][..self.v_dim];
        for (out, acc) in out.iter_mut().zip(acc) {
            *out = if seen.sum == 0.0 { 0.0 } else { acc * factor / all.sum };
        }
        if all.sum == 0.0 { f32::NEG_INFINITY } else { (all.max + all.sum.log2()) * core::f32::consts::LN_2 }
    }
}

/// Writes a state: the weighted sums, the maximum, the sum of the weights.
#[inline(always)]
fn keep(acc: &[f32], softmax: Softmax, to: &mut [f32]) {
    to[..acc.len()].copy_from_slice(acc);
    to[acc.len()] = softmax.max;
    to[acc.len() + 1] = softmax.sum;
}

/// Reads a state that was [kept](keep).
#[inline(always)]
fn take_up(from: &[f32], acc: &mut [f32]) -> Softmax {
    acc.copy_from_slice(&from[..acc.len()]);
    Softmax { max: from[acc.len()], sum: from[acc.len() + 1] }
}
