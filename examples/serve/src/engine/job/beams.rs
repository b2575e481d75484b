//! A job that is a beam search: its branches are the running hypotheses.

use super::{Branch, Job, Phase};
use crate::engine::EngineError;
use crate::engine::beam::{Choice, continuations};
use crate::engine::request::Event;
use crate::engine::turn::Turn;
use crate::report::FinishReason;

impl Job {
    /// One step of the beam search; `logits` has a row for each branch.
    pub(super) fn extend_beams(&mut self, logits: &[&[f32]], turn: &mut Turn<'_>) -> Result<(), EngineError> {
        let (Some(width), Phase::Forked { seqs }) = (self.beam, &mut self.phase) else { return Ok(()) };
        let scored = self.branches.iter().zip(logits).map(|(branch, &logits)| (branch.score, logits));
        let scored: Vec<(f64, &[f32])> = scored.collect();
        let mut running: Vec<Choice> = Vec::with_capacity(width);
        let generated = |branches: &[Branch], choice: &Choice| {
            let mut tokens = branches[choice.parent].tokens[self.prompt_len..].to_vec();
            tokens.push(choice.token);
            tokens
        };
        for choice in continuations(&scored, width + turn.ends.len()) {
            if running.len() == width {
                break;
            }
            if turn.ends.contains(&choice.token) {
                let tokens = generated(&self.branches, &choice);
                self.finished.add(choice.score, tokens, FinishReason::Stop, width);
            } else {
                running.push(choice);
            }
        }
        let len = self.branches.first().map_or(0, |branch| branch.tokens.len() + 1 - self.prompt_len);
        if len >= self.max_tokens {
            for choice in running.drain(..) {
                let tokens = generated(&self.branches, &choice);
                self.finished.add(choice.score, tokens, FinishReason::Length, width);
            }
        }
        if running.first().is_none_or(|best| self.finished.beats(best.score, width)) {
            running.clear();
        }
        // The losers' blocks are of no use to anybody.
        let parents: Vec<usize> = running.iter().map(|choice| choice.parent).collect();
        turn.cache.select(seqs, &parents).map_err(EngineError::bookkeeping)?;
        let continued = running.iter().map(|choice| {
            let mut branch = self.branches[choice.parent].clone();
            branch.tokens.push(choice.token);
            branch.score = choice.score;
            branch
        });
        self.branches = continued.collect();
        if self.branches.is_empty() {
            for (output, generated) in core::mem::take(&mut self.finished).into_outputs().into_iter().enumerate() {
                for &token in &generated.tokens {
                    turn.tell(Event::Token { request: self.request, output, token })?;
                }
                turn.finish(self.request, output, generated)?;
            }
        }
        Ok(())
    }
}
