//! A request on its way: which of its tokens have keys and values, and which sequences hold them.
//!
//! A job is what is admitted and preempted as a whole: a request with all its samples or hypotheses, its *branches*.
//! All tokens of a branch are known; its sequence in the cache has keys and values of the first `computed` of them.
//! ```text
//! root     what all branches have in common is computed once, by the first branch's sequence
//! fork     one sequence for each branch
//! branches each computes what it still lacks; logits behind its last token give its next one
//! ```
//! At first the root is the prompt, and the branches are equal to it: their first tokens come from the same logits. A
//! job that was preempted goes the same way again with the tokens that it has by then. Nothing is drawn twice, so the
//! outcome is the same.

mod beams;

use std::collections::VecDeque;
use std::ops::Range;

use paged_kv::cache::Release;
use paged_kv::{KvCache, SeqId};

use super::EngineError;
use super::beam::Finished;
use super::request::{Event, Generated, Request, Response};
use super::turn::Turn;
use crate::options::Decoding;
use crate::report::FinishReason;
use crate::sampling::{Sampler, argmax};

/// A sample or a hypothesis that is not finished.
#[derive(Debug, Clone)]
struct Branch {
    /// The prompt and what was generated so far.
    tokens: Vec<u32>,
    /// How many of them have keys and values.
    computed: usize,
    /// The sample's index among the outputs.
    output: usize,
    /// `None` for greedy decoding and for hypotheses.
    sampler: Option<Sampler>,
    /// Sum of the logarithms of the generated tokens' probabilities; hypotheses only.
    score: f64,
}

impl Branch {
    fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    fn draw(&mut self, logits: &[f32]) {
        let token = match &mut self.sampler {
            Some(sampler) => sampler.draw(logits),
            None => argmax(logits),
        };
        self.tokens.push(token);
    }
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// It holds no blocks.
    Waiting,
    /// The sequence of the first branch computes the first `len` tokens, which all branches have in common.
    Root { seq: SeqId, len: usize },
    /// `seqs[i]` is the sequence of branch i.
    Forked { seqs: Vec<SeqId> },
}

/// A part of a step: tokens of one branch's sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) seq: SeqId,
    pub(super) branch: usize,
    /// Which of the branch's tokens.
    pub(super) range: Range<usize>,
    /// Whether the next token is chosen after the last of these.
    pub(super) logits: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Job {
    /// Index of the request.
    pub(super) request: usize,
    prompt_len: usize,
    max_tokens: usize,
    /// Width of a beam search.
    beam: Option<usize>,
    branches: Vec<Branch>,
    phase: Phase,
    finished: Finished,
    /// Whether it has run before.
    pub(super) started: bool,
    /// Hits of the first admission, while it lasts.
    pub(super) first_hits: Option<u64>,
}

impl Job {
    /// The jobs of a request: one, or, where nothing may be shared, one for each sample.
    pub(super) fn of(request: &Request, index: usize, shared: bool) -> VecDeque<Self> {
        let job = |samples: Range<u32>| {
            let branch = |sample: u32| Branch {
                tokens: request.prompt.clone(),
                computed: 0,
                output: usize::try_from(sample).unwrap_or(usize::MAX),
                sampler: match request.decoding {
                    Decoding::Sample { temperature, top_p, seed } => {
                        Some(Sampler::new(seed, sample, temperature, top_p))
                    }
                    Decoding::Greedy | Decoding::Beam { .. } => None,
                },
                score: 0.0,
            };
            Self {
                request: index,
                prompt_len: request.prompt.len(),
                max_tokens: usize::try_from(request.max_tokens).unwrap_or(usize::MAX),
                beam: match request.decoding {
                    Decoding::Beam { width } => Some(usize::try_from(width).unwrap_or(usize::MAX)),
                    _ => None,
                },
                branches: samples.map(branch).collect(),
                phase: Phase::Waiting,
                finished: Finished::default(),
                started: false,
                first_hits: Some(0),
            }
        };
        match request.decoding {
            Decoding::Beam { .. } => VecDeque::from([job(0..1)]),
            _ if shared => VecDeque::from([job(0..request.n)]),
            _ => (0..request.n).map(|sample| job(sample..sample + 1)).collect(),
        }
    }

    /// Sequences that it may come to run.
    pub(super) fn width(&self) -> usize {
        self.beam.unwrap_or(self.branches.len())
    }

    /// Whether nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        self.branches.is_empty()
    }

    /// What all branches have in common: the first so many tokens of the first.
    pub(super) fn common(&self) -> &[u32] {
        let Some((first, rest)) = self.branches.split_first() else { return &[] };
        let len = rest.iter().fold(first.tokens.len(), |len, branch| {
            let both = first.tokens[..len].iter().zip(&branch.tokens);
            both.take_while(|(a, b)| a == b).count()
        });
        &first.tokens[..len]
    }

    /// Tokens, behind the common ones, that must find room for the job to be worth admitting: for one that was
    /// preempted, what its branches have, and a block for each; for a new one, a block. Never more than can come.
    pub(super) fn headroom(&self, block_size: u32) -> u32 {
        let block_size = usize::try_from(block_size).unwrap_or(usize::MAX);
        let common = self.common().len();
        let longest = self.prompt_len + self.max_tokens - 1;
        let of = |branch: &Branch| (branch.tokens.len() + block_size).min(longest).saturating_sub(common);
        let tokens = match self.branches.as_slice() {
            branches if branches.iter().any(|branch| branch.tokens.len() > common) => branches.iter().map(of).sum(),
            branches => branches.first().map_or(0, of),
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Length of a sequence at its longest, in tokens with keys and values.
    pub(super) fn longest(&self) -> u32 {
        u32::try_from(self.prompt_len + self.max_tokens - 1).unwrap_or(u32::MAX)
    }

    /// Takes the sequence that was created for the common tokens, of which the first `cached` are there.
    pub(super) fn admit(&mut self, seq: SeqId, cached: u32) {
        let len = self.common().len();
        self.phase = Phase::Root { seq, len };
        if let Some(first) = self.branches.first_mut() {
            first.computed = usize::try_from(cached).unwrap_or(usize::MAX);
        }
        self.count_hits(cached);
        self.started = true;
    }

    /// Tokens of the prompt that were found; they count until the prompt is computed or the job preempted.
    pub(super) fn count_hits(&mut self, tokens: u32) {
        if let Some(hits) = &mut self.first_hits {
            *hits += u64::from(tokens);
        }
    }

    /// Gives up all blocks. What they hold stays in the cache for as long as nobody needs the room.
    pub(super) fn preempt(&mut self, cache: &mut KvCache, response: &mut Response) -> Result<(), EngineError> {
        self.settle_hits(response);
        let seqs = match core::mem::replace(&mut self.phase, Phase::Waiting) {
            Phase::Waiting => Vec::new(),
            Phase::Root { seq, .. } => vec![seq],
            Phase::Forked { seqs } => seqs,
        };
        self.branches.iter_mut().for_each(|branch| branch.computed = 0);
        for seq in seqs {
            cache.free(seq, Release::Cache).map_err(EngineError::bookkeeping)?;
        }
        Ok(())
    }

    fn settle_hits(&mut self, response: &mut Response) {
        if let Some(hits) = self.first_hits.take() {
            response.cached_tokens = hits;
        }
    }

    /// Appends the parts of the next step. `prompts` is the number of tokens beyond one for each sequence that the step
    /// still takes; parts that are cut short end at a block border where they can, so that what they fill is found.
    pub(super) fn parts(&self, block_size: usize, prompts: &mut usize, parts: &mut Vec<Part>) {
        let mut push = |seq, branch: usize, end: usize, wants: bool| {
            let start = self.branches[branch].computed;
            let pending = end - start;
            let mut taken = pending.min(*prompts + 1);
            if taken < pending {
                let aligned = (start + taken) / block_size * block_size;
                taken = if aligned > start { aligned - start } else { taken };
            }
            *prompts -= (taken - 1).min(*prompts);
            parts.push(Part { seq, branch, range: start..start + taken, logits: wants && taken == pending });
        };
        match &self.phase {
            Phase::Waiting => {}
            Phase::Root { seq, len } => {
                let wants = self.branches.iter().any(|branch| branch.tokens.len() == *len);
                push(*seq, 0, *len, wants);
            }
            Phase::Forked { seqs } => {
                // Hypotheses are compared with each other: whoever is ahead waits until all lack but the last token.
                let behind = self.beam.is_some() && self.branches.iter().any(|branch| branch.pending() > 1);
                for (index, (&seq, branch)) in seqs.iter().zip(&self.branches).enumerate() {
                    let len = branch.tokens.len();
                    if !behind {
                        push(seq, index, len, true);
                    } else if branch.pending() > 1 {
                        push(seq, index, len - 1, false);
                    }
                }
            }
        }
    }

    /// The tokens of a part.
    pub(super) fn tokens(&self, part: &Part) -> &[u32] {
        &self.branches[part.branch].tokens[part.range.clone()]
    }

    /// Takes note that the parts were computed, and goes on with the logits of those that wanted them, in their order.
    pub(super) fn advance(
        &mut self,
        parts: &[Part],
        logits: &[&[f32]],
        turn: &mut Turn<'_>,
    ) -> Result<(), EngineError> {
        for part in parts {
            self.branches[part.branch].computed = part.range.end;
        }
        if let Phase::Root { seq, len } = self.phase {
            if self.branches[0].computed < len {
                return Ok(());
            }
            self.settle_hits(turn.response);
            return self.leave_root(seq, len, logits.first().copied(), turn);
        }
        let wanting: Vec<usize> = parts.iter().filter(|part| part.logits).map(|part| part.branch).collect();
        if self.beam.is_some() {
            return if logits.is_empty() { Ok(()) } else { self.extend_beams(logits, turn) };
        }
        for (&branch, logits) in wanting.iter().zip(logits) {
            self.branches[branch].draw(logits);
        }
        self.announce(&wanting, turn)?;
        self.drop_finished(turn)
    }

    /// The common tokens are computed: every branch that has no others chooses its next one, and those that then live
    /// get a sequence each.
    fn leave_root(
        &mut self,
        root: SeqId,
        len: usize,
        logits: Option<&[f32]>,
        turn: &mut Turn<'_>,
    ) -> Result<(), EngineError> {
        // Room for the first tokens is no longer set aside: from here on every block is taken when it is needed.
        if turn.release_claims {
            turn.cache.reserve(root, 0).map_err(EngineError::bookkeeping)?;
        }
        self.branches.iter_mut().for_each(|branch| branch.computed = len);
        if self.beam.is_some() && self.branches.len() == 1 {
            self.phase = Phase::Forked { seqs: vec![root] };
            let logits = logits.ok_or(EngineError::Stuck)?;
            return self.extend_beams(&[logits], turn);
        }
        let wanting = self.branches.iter().enumerate().filter(|(_, branch)| branch.tokens.len() == len);
        let wanting: Vec<usize> = wanting.map(|(index, _)| index).collect();
        for &branch in &wanting {
            self.branches[branch].draw(logits.ok_or(EngineError::Stuck)?);
        }
        self.announce(&wanting, turn)?;
        // Samples that end with their first token need no sequence; the root's goes to the first that does.
        let living = self.branches.iter().filter(|branch| self.ended(branch, turn.ends).is_none()).count();
        let mut seqs = vec![root; living.max(1)];
        turn.cache.fork_into(root, &mut seqs[1..]).map_err(EngineError::bookkeeping)?;
        let mut next = seqs.into_iter();
        let seqs = self.branches.iter().map(|branch| match self.ended(branch, turn.ends) {
            None => next.next(),
            Some(_) => None,
        });
        let mut seqs: Vec<Option<SeqId>> = seqs.collect();
        if living == 0 {
            seqs[0] = Some(root);
        }
        self.drop_finished_of(seqs, turn)
    }

    fn ended(&self, branch: &Branch, ends: &[u32]) -> Option<FinishReason> {
        let generated = branch.tokens.get(self.prompt_len..)?;
        match generated.last() {
            Some(last) if ends.contains(last) => Some(FinishReason::Stop),
            _ if generated.len() >= self.max_tokens => Some(FinishReason::Length),
            _ => None,
        }
    }

    /// Tells of the token that each of these branches has just drawn.
    fn announce(&self, branches: &[usize], turn: &mut Turn<'_>) -> Result<(), EngineError> {
        for &index in branches {
            let branch = &self.branches[index];
            let Some(&token) = branch.tokens.last() else { continue };
            turn.tell(Event::Token { request: self.request, output: branch.output, token })?;
        }
        Ok(())
    }

    fn drop_finished(&mut self, turn: &mut Turn<'_>) -> Result<(), EngineError> {
        let Phase::Forked { seqs } = &self.phase else { return Ok(()) };
        let seqs = seqs.iter().copied().map(Some).collect();
        self.drop_finished_of(seqs, turn)
    }

    /// Ends the samples that have ended; `seqs` has the sequence of each branch, where it has one.
    fn drop_finished_of(&mut self, seqs: Vec<Option<SeqId>>, turn: &mut Turn<'_>) -> Result<(), EngineError> {
        let mut living = Vec::with_capacity(seqs.len());
        for (branch, seq) in core::mem::take(&mut self.branches).into_iter().zip(seqs) {
            match (self.ended(&branch, turn.ends), seq) {
                (None, Some(seq)) => {
                    self.branches.push(branch);
                    living.push(seq);
                }
                (None, None) => return Err(EngineError::Stuck),
                (Some(finish_reason), seq) => {
                    if let Some(seq) = seq {
                        turn.cache.free(seq, Release::Cache).map_err(EngineError::bookkeeping)?;
                    }
                    let tokens = branch.tokens[self.prompt_len..].to_vec();
                    turn.finish(self.request, branch.output, Generated { tokens, finish_reason })?;
                }
            }
        }
        self.phase = Phase::Forked { seqs: living };
        Ok(())
    }
}
