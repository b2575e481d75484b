//! The next token from logits. All sums are in f64, all ties go to the lowest id, so that runs can be compared.

use core::cmp::Ordering;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// The index of the greatest logit; of several equal ones the lowest. 0 where there is none that is a number.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (&logit, id) in logits.iter().zip(0..) {
        if logit > best.0 {
            best = (logit, id);
        }
    }
    best.1
}

/// Draws tokens for one sample of one request.
///
/// The generator is PCG XSL RR 128/64 seeded by `SeedableRng::seed_from_u64`, both of documented, portable output. One
/// 64-bit number is drawn for each token, whatever the logits: the state depends on nothing but the seed and the number
/// of tokens drawn, and survives that the request's blocks are taken away and recomputed.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    rng: Pcg64,
    temperature: f64,
    top_p: f64,
    /// The weight of each token. This and the next are kept for their memory.
    weights: Vec<f64>,
    /// (weight, id) of those that may be drawn.
    candidates: Vec<(f64, u32)>,
}

impl Sampler {
    /// A sampler for sample `index` of a request: it draws from `seed + index`, wrapping.
    ///
    /// `temperature` is greater than 0 and `top_p` in (0, 1].
    pub fn new(seed: u64, index: u32, temperature: f64, top_p: f64) -> Self {
        debug_assert!(temperature > 0.0 && top_p > 0.0 && top_p <= 1.0);
        Self {
            rng: Pcg64::seed_from_u64(seed.wrapping_add(index.into())),
            temperature,
            top_p,
            weights: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Draws a token.
    ///
    /// The candidates are the fewest likeliest tokens that together hold `top_p` of the probability.
    pub fn draw(&mut self, logits: &[f32]) -> u32 {
        // 53 bits, as many as an f64 has: uniform in [0, 1).
        let unit = unit(self.rng.next_u64());
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |&logit: &f32| ((f64::from(logit) - f64::from(max)) / self.temperature).exp();
        self.weights.clear();
        self.weights.extend(logits.iter().map(weight));
        let total: f64 = self.weights.iter().sum();
        if !(total > 0.0 && total.is_finite()) {
            // Logits without a number in them: nothing to draw from, but a defined answer.
            return argmax(logits);
        }
        let everything = self.weights.iter().copied().zip(0..);
        self.candidates.clear();
        if self.top_p < 1.0 {
            // What is less likely than an even share of the part left out cannot be needed: all such tokens together
            // hold less than that part. It leaves few to sort.
            let floor = (1.0 - self.top_p) * total / vocabulary(logits);
            self.candidates.extend(everything.filter(|&(weight, _)| weight >= floor));
            self.candidates.sort_unstable_by(likeliest_first);
            let mut held = 0.0;
            let enough = self.candidates.iter().position(|&(weight, _)| {
                held += weight;
                held >= self.top_p * total
            });
            self.candidates.truncate(enough.map_or(usize::MAX, |last| last + 1));
        } else {
            self.candidates.extend(everything);
        }
        let held: f64 = self.candidates.iter().map(|&(weight, _)| weight).sum();
        let mut left = unit * held;
        for &(weight, id) in &self.candidates {
            left -= weight;
            if left < 0.0 {
                return id;
            }
        }
        // Rounding can leave a last sliver; it belongs to the last token that could be drawn at all.
        let last = self.candidates.iter().rfind(|&&(weight, _)| weight > 0.0);
        last.map_or(0, |&(_, id)| id)
    }
}

/// Logarithms of the probabilities, in f64.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    logits.iter().map(|&logit| f64::from(logit) - log_sum).collect()
}

/// The `count` best of `scores` as (score, id), best first, of equal ones the lowest id.
pub fn top(scores: &[f64], count: usize) -> Vec<(f64, u32)> {
    let mut all: Vec<(f64, u32)> = scores.iter().copied().zip(0..).collect();
    if count < all.len() {
        all.select_nth_unstable_by(count, likeliest_first);
        all.truncate(count);
    }
    all.sort_unstable_by(likeliest_first);
    all
}

fn likeliest_first(a: &(f64, u32), b: &(f64, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

#[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * 2f64.powi(-53)
}

#[expect(clippy::cast_precision_loss, reason = "a vocabulary is far below 2^53")]
fn vocabulary(logits: &[f32]) -> f64 {
    logits.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_of_equal_logits_is_the_lowest_id() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(argmax(&[f32::NAN, -1.0, f32::NAN]), 1);
        assert_eq!(argmax(&[f32::NAN]), 0);
    }

    #[test]
    fn generator_gives_the_values_it_is_documented_for() {
        // Computed from the definitions of PCG XSL RR 128/64 and of `seed_from_u64`, outside this program.
        let mut rng = Pcg64::seed_from_u64(42);
        let drawn = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        let expected = [4_178_418_447_715_145_737, 4_410_739_922_618_931_473, 14_034_899_209_665_866_285];
        assert_eq!(drawn, expected);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        // ln 1, ln 2, ln 5 at temperature 1 are 1/8, 2/8, 5/8.
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let mut counts = [0_u32; 3];
        let mut sampler = Sampler::new(7, 0, 1.0, 1.0);
        for _ in 0..80_000 {
            counts[usize::try_from(sampler.draw(&logits)).unwrap()] += 1;
        }
        // Four standard deviations of a count of 80,000 draws are at most 4 · √(80,000 / 4) = 566.
        for (count, expected) in counts.into_iter().zip([10_000_u32, 20_000, 50_000]) {
            assert!(count.abs_diff(expected) < 566, "{counts:?}");
        }
    }

    #[test]
    fn top_p_keeps_the_fewest_tokens_that_hold_it() {
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let drawn = |top_p: f64| {
            let mut sampler = Sampler::new(1, 0, 1.0, top_p);
            let mut seen = [false; 3];
            (0..2000).for_each(|_| seen[usize::try_from(sampler.draw(&logits)).unwrap()] = true);
            seen
        };
        assert_eq!(drawn(0.6), [false, false, true]);
        assert_eq!(drawn(0.63), [false, true, true]);
        assert_eq!(drawn(0.9), [true, true, true]);
    }

    #[test]
    fn sample_i_draws_what_a_single_run_with_its_seed_draws() {
        let logits: Vec<f32> = (0..100_u8).map(|i| f32::from(i) / 50.0).collect();
        let mut third = Sampler::new(10, 3, 0.8, 0.95);
        let mut alone = Sampler::new(13, 0, 0.8, 0.95);
        let mut other = Sampler::new(10, 2, 0.8, 0.95);
        let draw = |s: &mut Sampler| -> Vec<u32> { (0..50).map(|_| s.draw(&logits)).collect() };
        let (third, alone, other) = (draw(&mut third), draw(&mut alone), draw(&mut other));
        assert_eq!(third, alone);
        assert_ne!(third, other);
    }

    #[test]
    fn log_softmax_sums_to_one_and_top_is_sorted() {
        let logs = log_softmax(&[1000.0, 1001.0, 999.0, 1001.0]);
        let sum: f64 = logs.iter().map(|l| l.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        let ids: Vec<u32> = top(&logs, 3).into_iter().map(|(_, id)| id).collect();
        assert_eq!(ids, [1, 3, 0]);
        assert_eq!(top(&logs, 9).len(), 4);
    }
}
