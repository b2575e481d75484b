//! A continuous-batching engine on the paged cache.
//!
//! Every step runs all sequences in flight together: those that decode with one token each, those that are new with as
//! much of their prompt as the step has room for.
//! ```text
//! admit    first come, first served, while the prompt and one block find room; nothing is set aside for the answer
//! plan     copies, slots, tables; where blocks run out the latest job gives up its own and goes back to the queue
//! run      the forward pass, with K and V written to blocks and attention reading them there
//! advance  the next token of every sequence; samples fork, hypotheses are selected, what has ended is freed
//! ```
//! What a request gets depends on nothing but itself: neither on the size of the cache or its blocks, nor on who runs
//! beside it, nor on how often it was preempted.

mod beam;
mod error;
mod job;
mod kv;
mod meter;
mod request;
mod settings;
mod turn;

use std::collections::VecDeque;
use std::time::Instant;

use paged_kv::cache::{Fit, Release};
use paged_kv::error::PlanError;
use paged_kv::{KvCache, Query, Scope, SeqId};

use crate::model::Model;
use crate::options::Policy;
use crate::report::KvReport;
use job::{Job, Part};
use kv::KvRow;
use meter::Meter;
use turn::Turn;

pub use error::EngineError;
pub use kv::Kv;
pub use request::{Event, Generated, Request, Response};
pub use settings::Settings;

/// What came of all requests, and what it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// In the order of the requests.
    pub responses: Vec<Response>,
    /// What the cache did.
    pub kv: KvReport,
    /// From the first step to the last, in seconds.
    pub seconds: f64,
}

/// An engine: a model, and blocks for its keys and values.
#[derive(Debug)]
pub struct Engine<'a> {
    model: &'a Model,
    settings: Settings,
    /// Tokens at which generation stops.
    ends: Vec<u32>,
    scope: Scope,
    kv: Kv,
    meter: Meter,
    /// In the order of arrival.
    waiting: VecDeque<Job>,
    /// In the order of admission.
    running: Vec<Job>,
    /// The parts of the step at hand, and whose they are: job `i` of `running` has `parts[bounds[i]..bounds[i + 1]]`.
    parts: Vec<Part>,
    bounds: Vec<usize>,
}

impl<'a> Engine<'a> {
    /// An engine for a model and a cache that was made for it. Generation stops at the tokens `ends`.
    pub fn new(model: &'a Model, kv: Kv, ends: Vec<u32>) -> Self {
        let settings = kv.settings().clone();
        Self {
            meter: Meter::new(&settings, kv.bytes()),
            scope: Scope::default().with_model(settings.model.as_bytes()),
            model,
            settings,
            ends,
            kv,
            waiting: VecDeque::new(),
            running: Vec::new(),
            parts: Vec::new(),
            bounds: Vec::new(),
        }
    }

    /// The cache: for what it counts, and to check it.
    pub fn cache(&self) -> &KvCache {
        &self.kv.cache
    }

    /// Runs requests to their end and tells `observer` what happens on the way. Counts go on from run to run.
    ///
    /// # Errors
    /// [`EngineError`]: before anything runs where a request can never be served, or when something fails on the way.
    /// Then no request is left behind, and the engine can be used again.
    pub fn run(
        &mut self,
        requests: &[Request],
        observer: &mut dyn FnMut(Event) -> std::io::Result<()>,
    ) -> Result<Outcome, EngineError> {
        self.settings.check(self.model.config(), requests)?;
        let result = self.run_all(requests, observer);
        if result.is_err() {
            self.waiting.clear();
            self.running.clear();
            // All sequences of the cache are the engine's.
            let left: Vec<SeqId> = self.kv.cache.sequences().map(|(seq, _)| seq).collect();
            for seq in left {
                self.kv.cache.free(seq, Release::Cache).map_err(EngineError::bookkeeping)?;
            }
        }
        result
    }

    fn run_all(
        &mut self,
        requests: &[Request],
        observer: &mut dyn FnMut(Event) -> std::io::Result<()>,
    ) -> Result<Outcome, EngineError> {
        let mut responses = vec![Response::default(); requests.len()];
        let shared = self.settings.policy == Policy::Paged;
        for (index, request) in requests.iter().enumerate() {
            self.waiting.extend(Job::of(request, index, shared));
        }
        let start = Instant::now();
        while !(self.waiting.is_empty() && self.running.is_empty()) {
            self.admit(observer)?;
            self.plan(&mut responses)?;
            self.step(&mut responses, observer)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Outcome { responses, kv: self.meter.report(&self.kv.stats()), seconds })
    }

    /// Whether sequences are kept apart from each other.
    fn private(&self) -> bool {
        self.settings.policy == Policy::Contiguous || !self.settings.share_prefixes
    }

    /// Takes jobs from the head of the queue while they find room.
    fn admit(&mut self, observer: &mut dyn FnMut(Event) -> std::io::Result<()>) -> Result<(), EngineError> {
        let max_batch = usize::try_from(self.settings.max_batch).unwrap_or(usize::MAX);
        let query = Query::default().with_private(self.private());
        let contiguous = self.settings.policy == Policy::Contiguous;
        let mut seats: usize = self.running.iter().map(Job::width).sum();
        while let Some(job) = self.waiting.front_mut() {
            seats += job.width();
            if seats > max_batch {
                break;
            }
            let cache = &mut self.kv.cache;
            let common = job.common();
            let len = u32::try_from(common.len()).unwrap_or(u32::MAX);
            let headroom = match contiguous {
                true => job.longest().saturating_sub(len),
                false => job.headroom(self.settings.block_size),
            };
            if cache.fits_prompt(&self.scope, common, query, headroom).map_err(EngineError::bookkeeping)? != Fit::Now {
                break;
            }
            let created = cache.create(&self.scope, common, query).map_err(EngineError::bookkeeping)?;
            // Set aside until the common tokens are computed, or, under the contiguous policy, to the end: a job that is
            // admitted later must not take it.
            cache.reserve(created.seq, len.saturating_add(headroom)).map_err(EngineError::bookkeeping)?;
            if !job.started {
                observer(Event::Started { request: job.request }).map_err(EngineError::Output)?;
            }
            job.admit(created.seq, created.cached_tokens);
            self.running.extend(self.waiting.pop_front());
        }
        Ok(())
    }

    /// Plans a step over all running jobs, at the cost of the latest ones where blocks run out.
    fn plan(&mut self, responses: &mut [Response]) -> Result<(), EngineError> {
        loop {
            self.schedule();
            if self.parts.is_empty() {
                // The check of the requests rules it out: whoever is first in the queue fits into an empty cache.
                return Err(EngineError::Stuck);
            }
            let rows = rows(&self.running, &self.parts, &self.bounds);
            match self.kv.plan(&rows) {
                Ok(()) => break,
                // Alone a job has all blocks, and by the check of the requests they suffice.
                Err(PlanError::Shortfall { .. }) if self.running.len() > 1 => {}
                Err(error) => return Err(EngineError::bookkeeping(error)),
            }
            if let Some(mut latest) = self.running.pop() {
                latest.preempt(&mut self.kv.cache, &mut responses[latest.request])?;
                self.waiting.push_front(latest);
                self.meter.preempted();
            }
        }
        for (index, job) in self.running.iter_mut().enumerate() {
            for part in self.bounds[index]..self.bounds[index + 1] {
                job.count_hits(self.kv.skipped(part));
            }
        }
        self.meter.planned(&self.kv.cache, self.running.iter().map(|job| (job.width(), job.longest())));
        Ok(())
    }

    /// Decides which tokens the next step computes.
    fn schedule(&mut self) {
        let block_size = usize::try_from(self.settings.block_size).unwrap_or(usize::MAX);
        let step_tokens = usize::try_from(self.settings.step_tokens).unwrap_or(usize::MAX);
        let seats: usize = self.running.iter().map(Job::width).sum();
        // However many decode, prompts move on.
        let mut prompts = step_tokens.saturating_sub(seats);
        self.parts.clear();
        self.bounds.clear();
        self.bounds.push(0);
        for job in &self.running {
            job.parts(block_size, &mut prompts, &mut self.parts);
            self.bounds.push(self.parts.len());
        }
    }

    /// Runs the planned step and hands its logits to the jobs.
    fn step(
        &mut self,
        responses: &mut [Response],
        observer: &mut dyn FnMut(Event) -> std::io::Result<()>,
    ) -> Result<(), EngineError> {
        let rows = rows(&self.running, &self.parts, &self.bounds);
        let logits = self.kv.run(self.model, &rows)?;
        let mut next_row = 0;
        for (index, job) in self.running.iter_mut().enumerate() {
            let parts = &self.parts[self.bounds[index]..self.bounds[index + 1]];
            let wanted = parts.iter().filter(|part| part.logits).count();
            let own: Vec<&[f32]> = (next_row..next_row + wanted).map(|row| logits.row(row)).collect();
            next_row += wanted;
            let mut turn = Turn {
                cache: &mut self.kv.cache,
                ends: &self.ends,
                release_claims: self.settings.policy == Policy::Paged,
                response: &mut responses[job.request],
                observer: &mut *observer,
            };
            job.advance(parts, &own, &mut turn)?;
        }
        self.running.retain(|job| !job.is_done());
        Ok(())
    }
}

/// The rows of a step.
fn rows<'r>(running: &'r [Job], parts: &'r [Part], bounds: &'r [usize]) -> Vec<KvRow<'r>> {
    let mut rows = Vec::with_capacity(parts.len());
    for (job, bounds) in running.iter().zip(bounds.windows(2)) {
        let parts = &parts[bounds[0]..bounds[1]];
        rows.extend(parts.iter().map(|part| KvRow { seq: part.seq, tokens: job.tokens(part), logits: part.logits }));
    }
    rows
}
