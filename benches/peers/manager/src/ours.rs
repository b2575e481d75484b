//! `paged-kv`: [`KvCache`], a [`Step`], and the sequences that live.

use std::hint::black_box;
use std::mem;

use clap::ValueEnum;
use paged_kv::cache::{Release, Row};
use paged_kv::evict::{Adaptive, Evict, Lru};
use paged_kv::step::Padding;
use paged_kv::{CacheConfig, KvCache, Query, Scope, SeqId, Step, StepId};

use crate::manager::{BLOCK_SIZE, Counts, Entrant, Manager, Paged};

/// Eviction policies, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Policy {
    /// Least recently used.
    Lru,
    /// What learns online.
    Adaptive,
}

impl Policy {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("no policy is hidden").get_name().to_owned()
    }
}

/// The one place that knows how a cache with a policy is made. No scratch block: every block is for sequences, as with
/// the peers.
fn make(policy: Policy, num_blocks: u32) -> Box<dyn Manager> {
    let config = CacheConfig::new(num_blocks, BLOCK_SIZE).with_scratch(false);
    match policy {
        Policy::Lru => Box::new(Ours::new(with(config, Lru::new()))),
        Policy::Adaptive => Box::new(Ours::new(with(config, Adaptive::new()))),
    }
}

fn with<E: Evict>(config: CacheConfig, policy: E) -> KvCache<E> {
    KvCache::with_policy(config, policy).expect("options are checked")
}

pub(crate) fn entrant(policy: Policy) -> Entrant {
    Entrant { name: format!("paged-kv {}", policy.name()), make: Box::new(move |num_blocks| make(policy, num_blocks)) }
}

struct Ours<E> {
    cache: KvCache<E>,
    step: Step,
    /// Without whole tables, as the peers plan.
    changes: Step,
    scope: Scope,
    living: Vec<SeqId>,
    /// Sequences of blocks taken by count, and their open steps.
    blank: Vec<(SeqId, StepId)>,
    planned: Option<StepId>,
    indptr: Vec<i32>,
    indices: Vec<i32>,
    last_block_len: Vec<i32>,
}

impl<E: Evict> Ours<E> {
    fn new(cache: KvCache<E>) -> Self {
        Self {
            cache,
            step: Step::new(),
            changes: Step::of_changes(),
            scope: Scope::default(),
            living: Vec::new(),
            blank: Vec::new(),
            planned: None,
            indptr: Vec::new(),
            indices: Vec::new(),
            last_block_len: Vec::new(),
        }
    }

    fn end_all(&mut self, release: Release) {
        for seq in self.living.drain(..) {
            self.cache.free(seq, release).expect("alive");
        }
    }

    /// One token for each living sequence.
    fn rows<'a>(&self, tokens: &'a [u32]) -> Vec<Row<'a>> {
        assert_eq!(tokens.len(), self.living.len());
        self.living.iter().zip(tokens.chunks(1)).map(|(&seq, token)| Row::ids(seq, token)).collect()
    }
}

impl<E: Evict> Manager for Ours<E> {
    fn counts(&self) -> Counts {
        let stats = self.cache.stats();
        Counts {
            blank: u64::from(stats.available - stats.cached),
            cached: u64::from(stats.cached),
            evictions: stats.evictions,
        }
    }

    fn held_blocks(&self) -> u64 {
        self.living.iter().map(|&seq| u64::from(self.cache.sequence(seq).expect("alive").table().len())).sum()
    }

    fn admit(&mut self, prompts: &mut [Vec<u32>]) {
        for prompt in prompts {
            let created = self.cache.create(&self.scope, prompt, Query::default()).expect("room");
            let rest = prompt.get(created.cached_tokens as usize..).expect("part of the prompt");
            let id = self.cache.plan(&[Row::ids(created.seq, rest)], &mut self.step).expect("room");
            self.cache.commit_all(id).expect("open");
            self.living.push(created.seq);
        }
    }

    fn append(&mut self, tokens: &[u32]) {
        // An engine keeps its batch from step to step.
        let mut rows = Vec::with_capacity(self.living.len());
        for step in tokens.chunks(self.living.len()) {
            rows.clear();
            rows.extend(self.living.iter().zip(step.chunks(1)).map(|(&seq, token)| Row::ids(seq, token)));
            let id = self.cache.plan(&rows, &mut self.changes).expect("room");
            self.cache.commit_all(id).expect("open");
            black_box(self.changes.tables().slots());
        }
    }

    fn free_all(&mut self) {
        self.end_all(Release::Cache);
    }

    fn peek(&mut self, prompts: &mut [Vec<u32>], found: &mut Vec<u32>) {
        for prompt in prompts {
            let prefix = self.cache.peek(&self.scope, prompt, Query::default()).expect("a valid prompt");
            found.push(prefix.cached_tokens / BLOCK_SIZE);
        }
    }

    fn adopt(&mut self, prompts: &mut [Vec<u32>]) {
        for prompt in prompts {
            let created = self.cache.create(&self.scope, prompt, Query::default()).expect("room");
            self.living.push(created.seq);
        }
    }

    fn allocate(&mut self, blocks: u32) {
        let seq = self.cache.create_blank(&self.scope).expect("room");
        let id = self.cache.plan(&[Row::count(seq, blocks * BLOCK_SIZE)], &mut self.step).expect("room");
        self.blank.push((seq, id));
    }

    fn release_blank(&mut self) {
        for (seq, id) in self.blank.drain(..) {
            self.cache.commit_all(id).expect("committed in order");
            self.cache.free(seq, Release::Discard).expect("alive");
        }
    }

    fn reset(&mut self) {
        self.free_all();
        self.release_blank();
        // Whoever takes every block evicts all content.
        let step = mem::take(&mut self.step);
        self.allocate(self.cache.capacity());
        self.release_blank();
        self.step = step;
    }

    fn paged(&mut self) -> Option<&mut dyn Paged> {
        Some(self)
    }
}

impl<E: Evict> Paged for Ours<E> {
    fn discard_all(&mut self) {
        self.end_all(Release::Discard);
    }

    fn fork_and_free(&mut self, times: u32) {
        let parent = *self.living.first().expect("a sequence to fork");
        for _ in 0..times {
            let child = self.cache.fork(parent).expect("alive");
            self.cache.free(black_box(child), Release::Cache).expect("alive");
        }
    }

    fn plan_with_csr(&mut self, tokens: &[u32]) -> usize {
        let batch = self.rows(tokens);
        self.planned = Some(self.cache.plan(&batch, &mut self.step).expect("room"));
        let rows = tokens.len();
        // Buffers that live as long as the engine: they grow once.
        self.indptr.resize(rows + 1, 0);
        self.last_block_len.resize(rows, 0);
        self.indices.resize(self.cache.capacity() as usize, 0);
        let Self { step, indptr, indices, last_block_len, .. } = self;
        let written = step.write_csr(0..rows, Padding::Scratch, indptr, indices, last_block_len).expect("room");
        black_box(indices.as_slice());
        written
    }

    fn plan_with_edits(&mut self, tokens: &[u32]) -> usize {
        let batch = self.rows(tokens);
        self.planned = Some(self.cache.plan(&batch, &mut self.changes).expect("room"));
        black_box(self.changes.table_edits(0..tokens.len())).count()
    }

    fn commit(&mut self) {
        self.cache.commit_all(self.planned.take().expect("planned")).expect("open");
    }
}
