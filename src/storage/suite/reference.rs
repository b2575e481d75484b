//! Naive attention in `f64`, which reads the inputs and not the storage.

use alloc::vec::Vec;
use core::ops::Range;

use super::shapes::{Content, Model, Part};
use crate::id::{ix, len32};

/// What the query heads of one token should give, and how far off they may be.
pub(super) struct Expected {
    /// `[q_heads, v_dim]`.
    pub(super) values: Vec<f64>,
    /// The largest error allowed, per query head.
    pub(super) tolerance: Vec<f64>,
    /// The log-sum-exp and its largest error, per query head.
    pub(super) lse: Vec<(f64, f64)>,
}

/// How much queries, and weights where they are multiplied by values, are rounded: by a share of each, and by so much of
/// the largest where that is more.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Rounding {
    pub(super) share: f64,
    pub(super) least: f64,
}

/// By how much the worst case is out of reach.
const SLACK: f64 = 16.0;

/// Attention of some queries of one sequence over one layer.
///
/// The tolerance is derived, per query head. Let u = 2⁻²⁴, the unit roundoff of `f32`.
/// * A score is a sum of `k_dim` products in eight lanes: at most `k_dim` / 8 + 3 roundings on the way of each, and 3
///   for the scale, the maximum and the exponent. Its error is at most (`k_dim` / 8 + 8) u S, two of it for scales, where S is
///   the largest |scale| × Σ|q·k| over the keys, and it enters the weights as a relative error. A weighted mean moves by
///   at most twice the largest relative error of its weights, times the largest |v|. Scales of keys and of values add a
///   rounding each to the products that they are in, and the reference's rounding of element × scale to `f32` another.
/// * The exponential adds 4 u per weight; a chunk of 64 and the joining of ⌈n / 64⌉ chunks add at most
///   64 + 2 ⌈n / 64⌉ + 4 roundings to each of the two sums.
///
/// * The soft cap c adds 4 ulps, 8 u of c, to a score; `ALiBi` one rounding of its largest bias.
///
/// A log-sum-exp moves by the absolute error of the scores and by the relative one of the sum, and is rounded five times.
///
/// Where queries and weights are rounded by a share of r each, S r is added to the error of scores, and r to that of
/// outputs: a weighted mean of values that are each off by r. A weight that is off by more of itself, because it is
/// small, is off by less than `least` of the largest one, and the n weights by n times that of their sum. As these are
/// one rounding of each number and no long sums, all that is granted.
///
/// That is where every rounding goes the same way. They do not, and 1 / [`SLACK`] of it is asked for: still three times
/// what was ever seen, and between 10⁻⁶ and 10⁻⁵ of the largest |v| for the shapes here.
pub(super) fn attention(
    model: &Model,
    content: &Content,
    layer: u32,
    seq: u32,
    positions: Range<u32>,
    rounding: Rounding,
) -> Vec<Expected> {
    let [k_dim, v_dim, group] = [model.k_dim, model.v_dim, model.group].map(ix);
    let read = |part, dim| -> Vec<Vec<f64>> {
        let token = |position| content.token(model, part, layer, seq, position);
        let kept = |head: &[f32]| model.kept(head).into_iter().map(f64::from);
        (0..positions.end).map(|position| token(position).chunks(dim).flat_map(kept).collect()).collect()
    };
    let (keys, values) = (read(Part::K, k_dim), read(Part::V, v_dim));
    let variant = model.variant;
    let row_start = positions.start;
    positions
        .map(|position| {
            let q: Vec<f64> = content.token(model, Part::Q, layer, seq, position).into_iter().map(f64::from).collect();
            let mut expected = Expected { values: Vec::new(), tolerance: Vec::new(), lse: Vec::new() };
            let oldest = variant.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let sees = |&at: &u32| match (variant.mask, at.checked_sub(row_start)) {
                _ if at < oldest => false,
                (Some(mask), Some(key)) => mask.sees(position - row_start, key),
                _ => at <= position,
            };
            let end = if variant.mask.is_some() { keys.len() } else { ix(position) + 1 };
            let seen: Vec<u32> = (0..len32(end)).filter(sees).collect();
            for (head, q) in q.chunks_exact(k_dim).enumerate() {
                let kv = head / group;
                let (mut size, mut rounded) = (0.0_f64, 0.0_f64);
                let mut scores: Vec<f64> = Vec::new();
                for &at in &seen {
                    let key = &keys[ix(at)][kv * k_dim..][..k_dim];
                    let (mut dot, mut sum) = (0.0, 0.0);
                    for (q, k) in q.iter().zip(key) {
                        dot += q * k;
                        sum += (q * k).abs();
                    }
                    let mut score = dot * f64::from(model.scale);
                    rounded = rounded.max(sum * f64::from(model.scale.abs()) * rounding.share);
                    let mut error = (k_dim as f64 / 8.0 + 8.0) * sum * f64::from(model.scale.abs());
                    if let Some(cap) = variant.soft_cap {
                        score = f64::from(cap) * (score / f64::from(cap)).tanh();
                        error += 8.0 * f64::from(cap);
                    }
                    if let Some(slope) = variant.slope(head, model.q_heads(layer)) {
                        let bias = f64::from(slope) * (f64::from(at) - f64::from(position));
                        score += bias;
                        error += 4.0 * bias.abs();
                    }
                    scores.push(score);
                    size = size.max(error);
                }
                let sink = variant.sink(head).map(f64::from);
                let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
                let total: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - top).exp());
                let mut out = alloc::vec![0.0; v_dim];
                let mut largest = 0.0_f64;
                for (weight, &at) in weights.iter().zip(&seen) {
                    for (out, v) in out.iter_mut().zip(&values[ix(at)][kv * v_dim..][..v_dim]) {
                        *out += weight * v / total;
                        largest = largest.max(v.abs());
                    }
                }
                expected.values.extend(out);
                let sums = 6.0 + 64.0 + 2.0 * (seen.len() as f64 / 64.0).ceil() + 4.0;
                let unit = 2.0_f64.powi(-24);
                // Weights are at least e^-rounded and at most e^rounded times what they should be, and their sum is.
                let coarse = match total {
                    0.0 => 0.0,
                    total => (2.0 * rounded).exp_m1() + rounding.share + rounding.least * seen.len() as f64 / total,
                };
                expected.tolerance.push(((2.0 * size + 2.0 * sums) / SLACK * unit + coarse) * largest);
                let lse = if total > 0.0 { top + total.ln() } else { f64::NEG_INFINITY };
                let arithmetic = (size + sums + 5.0 * (top.abs() + lse.abs() + 1.0)) * unit;
                expected.lse.push((lse, arithmetic + rounded));
            }
            expected
        })
        .collect()
}
