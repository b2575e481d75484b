//! The laws of the cache, one test each; the simulation covers their combinations.

mod aborts;
mod counts;
mod events;
mod forks;
mod hazards;
mod identity;
mod invalidation;
mod lengths;
mod names;
mod parts;
mod pins;
mod plain;
mod policy;
mod room;
mod rules;
mod twins;

use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::Mutex;

use super::*;
use crate::error::{CreateError, PlanError, StepError};
use crate::event::Event;
use crate::prefix::hash::{BlockHasher, Digest, Hashed};
use crate::prefix::{Extra, Query, Scope};
use crate::step::Step;

fn cache(num_blocks: u32, block_size: u32) -> KvCache {
    KvCache::new(CacheConfig::new(num_blocks, block_size).with_scratch(false)).unwrap()
}

fn run(cache: &mut KvCache, seq: SeqId, tokens: &[u32]) -> Step {
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(seq, tokens)], &mut step).unwrap();
    cache.commit_all(id).unwrap();
    cache.check_integrity().unwrap();
    step
}

fn sequence_of(cache: &mut KvCache, tokens: &[u32]) -> SeqId {
    let created = cache.create(&Scope::default(), tokens, Query::default()).unwrap();
    run(cache, created.seq, &tokens[created.cached_tokens as usize..]);
    created.seq
}

fn tokens(range: core::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

/// Tokens that a prompt would find.
fn found<E: Evict>(cache: &KvCache<E>, prompt: &[u32]) -> u32 {
    cache.peek(&Scope::default(), prompt, Query::default()).unwrap().cached_tokens
}

/// The blocks of a sequence.
fn blocks_of<E: Evict>(cache: &KvCache<E>, seq: SeqId) -> Vec<u32> {
    cache.sequence(seq).unwrap().table().ids().map(BlockId::get).collect()
}

/// A sequence that computes all of its prompt itself, whatever can be found, and can be found.
fn twin_of(cache: &mut KvCache, prompt: &[u32]) -> SeqId {
    let seq = cache.create(&Scope::default(), prompt, Query::default().with_max_hit(0)).unwrap().seq;
    assert_eq!(run(cache, seq, prompt).rows()[0].skip, 0);
    seq
}

/// A sequence that shares nothing, in so many blocks.
fn filler(cache: &mut KvCache, blocks: u32) -> SeqId {
    let tokens = tokens(0..blocks * cache.block_size());
    let seq = cache.create(&Scope::default(), &tokens, Query::default().with_private(true)).unwrap().seq;
    run(cache, seq, &tokens);
    seq
}

/// Identities that need no feature: four hashes with four seeds.
struct Fold;

impl BlockHasher for Fold {
    fn identity(&self, block: &Hashed<'_>) -> Digest {
        let scope = block.parent.is_none().then_some(block.scope);
        let mut digest = [0; 32];
        for (lane, seed) in digest.chunks_exact_mut(8).zip(0..) {
            let hasher = foldhash::fast::FixedState::with_seed(seed);
            let hash = core::hash::BuildHasher::hash_one(&hasher, (block.parent, scope, block.tokens, block.extras));
            lane.copy_from_slice(&hash.to_le_bytes());
        }
        digest
    }
}

/// The same but for where extras end.
struct EndlessFold;

impl BlockHasher for EndlessFold {
    fn identity(&self, block: &Hashed<'_>) -> Digest {
        let endless = |extra: &Extra| Extra::new(extra.range.start..u32::MAX, extra.digest);
        let extras: Vec<_> = block.extras.iter().map(endless).collect();
        Fold.identity(&block.with_extras(&extras))
    }

    fn leaves_out_ends(&self) -> bool {
        true
    }
}

/// What a sink was told and nobody has read yet.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Event>>>);

impl Told {
    /// Listens to a cache from now on.
    fn by<E: Evict>(cache: &mut KvCache<E>) -> Self {
        Self::in_names_of(Fold, cache)
    }

    fn in_names_of<E: Evict>(hasher: impl BlockHasher + 'static, cache: &mut KvCache<E>) -> Self {
        let told = Self::default();
        let log = told.0.clone();
        cache.set_events(hasher, move |event: &Event| {
            log.lock().unwrap().push(event.clone());
            Ok(())
        });
        told
    }

    fn take(&self) -> Vec<Event> {
        core::mem::take(&mut *self.0.lock().unwrap())
    }

    /// Events as `+ position of the first token`, `-`, and `0` for a clear.
    fn short(&self) -> Vec<alloc::string::String> {
        let short = |event| match event {
            Event::Stored(stored) => alloc::format!("+{}", stored.start),
            Event::Removed { .. } => "-".into(),
            Event::Cleared => "0".into(),
        };
        self.take().into_iter().map(short).collect()
    }
}

#[test]
fn a_sequence_of_n_tokens_holds_exactly_the_blocks_it_fills() {
    // The seed's figure: 300 tokens take 19 blocks of 16 (304 slots), and waste 4 slots; a reservation of 2,048
    // tokens would waste 1,748.
    let mut cache = cache(32, 16);
    let seq = sequence_of(&mut cache, &tokens(0..300));
    let table = cache.sequence(seq).unwrap().table();
    assert_eq!(table.len(), 19);
    assert_eq!(table.len() * 16 - 300, 4);
    assert_eq!(2_048 - cache.sequence(seq).unwrap().len(), 1_748);
    assert_eq!(cache.stats().held, 19);
}

#[test]
fn sixty_four_equal_prompts_in_one_plan_are_computed_once() {
    // 40 tokens in blocks of 16: rows 1 to 63 skip two full blocks and compute the last 8 tokens.
    let mut cache = cache(80, 16);
    let prompt = tokens(0..40);
    let seqs: Vec<_> =
        (0..64).map(|_| cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq).collect();
    let rows: Vec<_> = seqs.iter().map(|&seq| Row::ids(seq, &prompt)).collect();
    let mut step = Step::new();
    let id = cache.plan(&rows, &mut step).unwrap();
    assert_eq!((step.rows()[0].skip, step.rows()[0].len), (0, 40));
    assert!(step.rows()[1..].iter().all(|row| (row.skip, row.start, row.len) == (32, 32, 8)));
    assert_eq!(cache.stats().held, 2 + 64);
    cache.commit_all(id).unwrap();
    cache.check_integrity().unwrap();
}

#[test]
fn the_last_sharer_writes_in_place_and_the_others_copy() {
    // Four sequences share one partly filled block: three copies, and the references go 4, 3, 2, 1.
    let mut cache = cache(16, 4);
    let root = sequence_of(&mut cache, &[1, 2, 3, 4, 5, 6]);
    let mut all = [root; 4];
    cache.fork_into(root, &mut all[1..]).unwrap();
    let tail = cache.sequence(root).unwrap().table().get(1).unwrap().id();
    assert_eq!(cache.refs(tail), 4);
    let mut step = Step::new();
    for (left, &seq) in [4, 3, 2, 1].iter().zip(&all) {
        assert_eq!(cache.refs(tail), *left);
        let id = cache.plan(&[Row::ids(seq, &[9])], &mut step).unwrap();
        assert_eq!(step.tables().copies().len(), usize::from(*left > 1));
        cache.commit_all(id).unwrap();
        cache.check_integrity().unwrap();
    }
    assert_eq!(cache.stats().copies, 3);
}

#[test]
fn a_fork_at_a_block_border_copies_nothing() {
    let mut cache = cache(16, 4);
    let root = sequence_of(&mut cache, &[1, 2, 3, 4]);
    let child = cache.fork(root).unwrap();
    let mut step = Step::new();
    cache.plan(&[Row::ids(root, &[5]), Row::ids(child, &[6])], &mut step).unwrap();
    assert!(step.tables().copies().is_empty());
}

#[test]
fn content_is_found_only_after_it_is_computed() {
    // Hazard H1: blocks that were allocated, never computed, and freed must not be hit.
    let mut cache = cache(16, 4);
    let prompt = tokens(0..9);
    let seq = cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq;
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(seq, &prompt)], &mut step).unwrap();
    assert_eq!(cache.peek(&Scope::default(), &prompt, Query::default()).unwrap().cached_tokens, 0);
    cache.free(seq, Release::Cache).unwrap();
    assert_eq!(cache.peek(&Scope::default(), &prompt, Query::default()).unwrap().cached_tokens, 0);
    cache.commit_all(id).unwrap();
    assert_eq!(cache.peek(&Scope::default(), &prompt, Query::default()).unwrap().cached_tokens, 0);
    cache.check_integrity().unwrap();
}

#[test]
fn plan_that_fails_changes_nothing() {
    let mut cache = cache(4, 4);
    let first = sequence_of(&mut cache, &tokens(0..9));
    let second = cache.fork(first).unwrap();
    let before = cache.snapshot();
    let mut step = Step::new();
    let untouched = step.clone();
    let rows = [Row::ids(first, &[1, 2, 3]), Row::ids(second, &[1, 2, 3, 4])];
    let error = cache.plan(&rows, &mut step).unwrap_err();
    // One copy for the first; the second writes in place and needs one block for its 13th token; one block is left.
    assert!(matches!(error, PlanError::Shortfall { shortfall } if (shortfall.needed, shortfall.free) == (2, 1)));
    assert_eq!((cache.snapshot(), step), (before, untouched));
}

#[test]
fn errors_name_what_is_wrong() {
    let mut cache = cache(4, 4);
    let scope = Scope::default();
    let no_prompt = cache.create(&scope, &[], Query::default());
    assert_eq!(no_prompt, Err(CreateError::EmptyPrompt));
    let too_large = cache.create(&scope, &tokens(0..17), Query::default());
    assert!(matches!(too_large, Err(CreateError::NeverFits { blocks: 5, capacity: 4, .. })));
    let seq = sequence_of(&mut cache, &tokens(0..3));
    let mut step = Step::new();
    let twice = cache.plan(&[Row::ids(seq, &[1]), Row::ids(seq, &[2])], &mut step);
    assert_eq!(twice, Err(PlanError::RepeatedSequence { row: 1, seq }));
    let first = cache.plan(&[Row::ids(seq, &[1])], &mut step).unwrap();
    let second = cache.plan(&[Row::ids(seq, &[1])], &mut step).unwrap();
    assert_eq!(cache.commit_all(second), Err(StepError::OutOfOrder { step: second, oldest: first }));
    cache.abort(first).unwrap();
    assert_eq!(cache.commit_all(second), Err(StepError::NotOpen { step: second }));
    cache.free(seq, Release::Cache).unwrap();
    assert_eq!(cache.free(seq, Release::Cache), Err(SequenceError::Unknown { seq }));
}

#[test]
fn the_table_of_the_papers_figure_is_built_block_by_block() {
    // Kwon et al., figure 6: blocks of 4; a prompt of 7 tokens lies in the physical blocks 7 and 1, the first new
    // token fills block 1, and the next one opens block 3. The pool is brought into that state by holding all eight
    // blocks, one sequence each, and giving back 3, then 1, then 7: what has no name is reused last in, first out.
    let mut cache = cache(8, 4);
    let alone = Query::default().with_private(true);
    let holders: Vec<_> = (0..8)
        .map(|token| {
            let seq = cache.create(&Scope::default(), &[token], alone).unwrap().seq;
            run(&mut cache, seq, &[token]);
            seq
        })
        .collect();
    for block in [3, 1, 7] {
        cache.free(holders[block], Release::Cache).unwrap();
    }
    let seq = sequence_of(&mut cache, &tokens(0..7));
    let step = run(&mut cache, seq, &[7]);
    assert_eq!(step.tables().slots(), [crate::Slot::new(4 + 3)], "the last slot of block 1");
    let step = run(&mut cache, seq, &[8]);
    assert_eq!(step.tables().slots(), [crate::Slot::new(3 * 4)], "the first slot of block 3");
    assert!(cache.sequence(seq).unwrap().table().ids().map(BlockId::get).eq([7, 1, 3]));
}

#[test]
fn a_withheld_block_that_is_found_again_is_copied_before_it_is_written() {
    // Step 1 names the block of [1, 2, 3, 4] for a sequence that is freed; another finds it, is cut to [1, 2], and goes
    // on with 9, while step 1 may still read on another stream. Once step 1 is retired, a third writes in place.
    let config = CacheConfig::new(8, 4).with_withhold(true);
    let mut cache = KvCache::new(config).unwrap();
    let first = sequence_of(&mut cache, &tokens(0..5));
    cache.free(first, Release::Cache).unwrap();
    let mut copies = Vec::new();
    for round in 0..2 {
        let created = cache.create(&Scope::default(), &tokens(0..5), Query::default()).unwrap();
        assert_eq!(created.cached_tokens, 4);
        cache.truncate(created.seq, 2).unwrap();
        let step = run(&mut cache, created.seq, &[9]);
        copies.push(step.tables().copies().len());
        cache.free(created.seq, Release::Discard).unwrap();
        if round == 0 {
            cache.retire(step.id().unwrap()).unwrap();
        }
    }
    assert_eq!(copies, [1, 0]);
}

#[test]
fn stats_count_shared_blocks() {
    let mut cache = cache(8, 4);
    let root = sequence_of(&mut cache, &tokens(0..6));
    assert_eq!(cache.stats().shared, 0);
    let forks = [cache.fork(root).unwrap(), cache.fork(root).unwrap()];
    assert_eq!((cache.stats().shared, cache.stats().held), (2, 2));
    cache.free(forks[0], Release::Cache).unwrap();
    run(&mut cache, forks[1], &[9]);
    // The full block is shared still; each has a tail of its own.
    assert_eq!((cache.stats().shared, cache.stats().held), (1, 3));
}

#[test]
fn content_that_is_computed_is_found_while_an_open_step_computes_it_again() {
    // Step 1 appends four tokens to b by count; step 2 computes the same four for a, and is open when step 1 commits
    // and tells what they were.
    let mut cache = cache(8, 4);
    let prompt = [1, 2, 3, 4, 5];
    let b = cache.create_blank(&Scope::default()).unwrap();
    let a = cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq;
    let mut step = Step::new();
    let first = cache.plan(&[Row::count(b, 4)], &mut step).unwrap();
    let second = cache.plan(&[Row::ids(a, &prompt)], &mut step).unwrap();
    cache.commit(first, &[Outcome::Ids(&prompt[..4])]).unwrap();
    let found = |cache: &KvCache| cache.peek(&Scope::default(), &prompt, Query::default()).unwrap().cached_tokens;
    assert_eq!(found(&cache), 4);
    // It outlives its sequence, and the step that would have computed it again.
    cache.free(b, Release::Cache).unwrap();
    cache.abort(second).unwrap();
    assert_eq!(found(&cache), 4);
    cache.check_integrity().unwrap();
}
