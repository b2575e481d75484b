//! Beam search: which hypotheses live on, which have ended, and when no better one can come.
//!
//! A hypothesis scores the sum of the logarithms of its tokens' probabilities, in f64; there is no length penalty, so
//! that a score never rises as the hypothesis grows. In each step the continuations of all running hypotheses are
//! looked at best first, until `width` of them have been found that do not end; those run on. A continuation that ends,
//! met on the way, joins the finished ones, of which the best `width` are kept. Equal scores go to the hypothesis of
//! the better rank, then to the lower token id; among finished ones to the one that ended first.
//!
//! The search is over when `width` hypotheses have finished and no running one scores better than the worst of them, or
//! when the running ones are as long as they may be: then they count as finished too.

use core::cmp::Ordering;

use super::request::Generated;
use crate::report::FinishReason;
use crate::sampling::{log_softmax, top};

/// A continuation of a running hypothesis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    /// The rank of the hypothesis that it continues.
    pub(super) parent: usize,
    pub(super) token: u32,
    pub(super) score: f64,
}

/// Continuations of the running hypotheses (score so far, logits), best first: the best `most` of each.
///
/// With `most` the width and the number of end tokens together there are all that [`Choice`]s can be made from.
pub(super) fn continuations(hypotheses: &[(f64, &[f32])], most: usize) -> Vec<Choice> {
    let mut choices = Vec::with_capacity(hypotheses.len() * most);
    for (parent, &(so_far, logits)) in hypotheses.iter().enumerate() {
        let best = top(&log_softmax(logits), most);
        choices.extend(best.into_iter().map(|(score, token)| Choice { parent, token, score: so_far + score }));
    }
    choices.sort_by(better);
    choices
}

fn better(a: &Choice, b: &Choice) -> Ordering {
    b.score.total_cmp(&a.score).then(a.parent.cmp(&b.parent)).then(a.token.cmp(&b.token))
}

/// The hypotheses that have ended, best first.
#[derive(Debug, Clone, Default)]
pub(super) struct Finished {
    kept: Vec<(f64, Generated)>,
}

impl Finished {
    /// Adds a hypothesis and keeps the best `width`.
    pub(super) fn add(&mut self, score: f64, tokens: Vec<u32>, finish_reason: FinishReason, width: usize) {
        let at = self.kept.partition_point(|(kept, _)| kept.total_cmp(&score).is_ge());
        self.kept.insert(at, (score, Generated { tokens, finish_reason }));
        self.kept.truncate(width);
    }

    /// Whether nothing that runs with this score at best can still be kept.
    pub(super) fn beats(&self, best_running: f64, width: usize) -> bool {
        self.kept.len() >= width && self.kept.last().is_some_and(|(worst, _)| best_running <= *worst)
    }

    /// The hypotheses, best first.
    pub(super) fn into_outputs(self) -> Vec<Generated> {
        self.kept.into_iter().map(|(_, generated)| generated).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_go_to_the_better_rank_and_then_to_the_lower_token() {
        // Both hypotheses have the same score and two likely tokens each.
        let logits: &[f32] = &[1.0, 5.0, 1.0, 5.0];
        let choices = continuations(&[(-1.0, logits), (-1.0, logits)], 2);
        let order: Vec<(usize, u32)> = choices.iter().map(|choice| (choice.parent, choice.token)).collect();
        assert_eq!(order, [(0, 1), (0, 3), (1, 1), (1, 3)]);
        // A better score outweighs the rank.
        let choices = continuations(&[(-1.5, logits), (-1.0, logits)], 1);
        let order: Vec<(usize, u32)> = choices.iter().map(|choice| (choice.parent, choice.token)).collect();
        assert_eq!(order, [(1, 1), (0, 1)]);
    }

    #[test]
    fn the_best_finished_are_kept_and_of_equal_ones_the_first() {
        let mut finished = Finished::default();
        let mut add = |score, token| {
            finished.add(score, vec![token], FinishReason::Stop, 3);
            finished.beats(-9.0, 3)
        };
        // Nothing is decided before as many as the width have finished.
        assert_eq!([add(-3.0, 1), add(-2.0, 2), add(-2.0, 3), add(-1.0, 4)], [false, false, true, true]);
        // The worst that is kept scores -2: only better ones could still be kept.
        assert!(finished.beats(-2.0, 3) && !finished.beats(-1.9, 3));
        let tokens: Vec<u32> = finished.into_outputs().into_iter().map(|output| output.tokens[0]).collect();
        assert_eq!(tokens, [4, 2, 3]);
    }
}
