//! What other managers were caught at, one law each: content that nobody computed, references that are lost or given
//! back twice, hits that go stale. Each names the system and the number of the fault it stands for.

use super::*;
use crate::id::ix;

fn scope() -> Scope {
    Scope::default()
}

fn cached(cache: &KvCache, prompt: &[u32]) -> u32 {
    cache.peek(&scope(), prompt, Query::default()).unwrap().cached_tokens
}

/// A sequence that shares nothing with any other.
fn private(cache: &mut KvCache, tokens: &[u32]) -> SeqId {
    let seq = cache.create(&scope(), tokens, Query::default().with_private(true)).unwrap().seq;
    run(cache, seq, tokens);
    seq
}

#[test]
fn content_of_an_aborted_step_is_never_found() {
    // vLLM H1 and sglang 38319: published at allocation, and served though the step failed.
    let mut cache = cache(16, 4);
    let prompt = tokens(0..9);
    let a = cache.create(&scope(), &prompt, Query::default()).unwrap().seq;
    let b = cache.create(&scope(), &prompt, Query::default()).unwrap().seq;
    let mut step = Step::new();
    let first = cache.plan(&[Row::ids(a, &prompt)], &mut step).unwrap();
    cache.plan(&[Row::ids(b, &prompt)], &mut step).unwrap();
    assert_eq!(step.rows()[0].skip, 8);
    cache.abort(first).unwrap();
    assert_eq!(cached(&cache, &prompt), 0);
    // Both are as before: b computes it all itself.
    cache.plan(&[Row::ids(b, &prompt)], &mut step).unwrap();
    assert_eq!((step.rows()[0].skip, step.rows()[0].len), (0, 9));
    cache.check_integrity().unwrap();
}

#[test]
fn freeing_twice_is_an_error_and_nothing_else() {
    // vLLM H2, vllm-ascend 15990: a count below zero, noticed much later.
    let mut cache = cache(8, 4);
    let a = sequence_of(&mut cache, &tokens(0..6));
    let b = cache.fork(a).unwrap();
    cache.free(a, Release::Cache).unwrap();
    let before = cache.snapshot();
    for release in [Release::Cache, Release::Discard] {
        assert_eq!(cache.free(a, release), Err(SequenceError::Unknown { seq: a }));
    }
    assert_eq!(cache.snapshot(), before);
    // Also once the index is used again.
    let c = cache.fork(b).unwrap();
    assert_eq!(c.index(), a.index());
    assert_eq!(cache.free(a, Release::Cache), Err(SequenceError::Unknown { seq: a }));
    assert_eq!(cache.sequence(c).unwrap().len(), 6);
}

#[test]
fn a_stale_handle_is_refused_by_every_call() {
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &[1, 2]);
    cache.free(seq, Release::Cache).unwrap();
    let before = cache.snapshot();
    let unknown = SequenceError::Unknown { seq };
    let mut step = Step::new();
    assert_eq!(cache.plan(&[Row::ids(seq, &[1])], &mut step), Err(PlanError::UnknownSequence { row: 0, seq }));
    assert_eq!(cache.fork(seq), Err(unknown));
    assert_eq!(cache.truncate(seq, 0), Err(unknown));
    assert_eq!(cache.reserve(seq, 1), Err(unknown));
    assert_eq!(cache.sequence(seq).err(), Some(unknown));
    assert!(cache.view(&[ViewRow { seq, start: 0, len: 1 }], &mut step).is_err());
    assert!(cache.select(&mut alloc::vec![seq], &[0]).is_err());
    assert_eq!((cache.snapshot(), step), (before, Step::new()));
}

#[test]
fn content_is_found_until_its_last_copy_is_gone() {
    // vLLM H3: removal was announced while a duplicate still served hits. a and b hold the same block twice.
    let mut cache = cache(2, 4);
    let a = cache.create(&scope(), &[1, 2, 3, 4], Query::default()).unwrap().seq;
    run(&mut cache, a, &[1, 2, 3, 4]);
    let b = cache.create(&scope(), &[1, 2, 3, 4], Query::default().with_max_hit(0)).unwrap().seq;
    run(&mut cache, b, &[1, 2, 3, 4]);
    assert_eq!(cache.stats().held, 2);
    cache.free(a, Release::Discard).unwrap();
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5]), 4);
    let evictor = private(&mut cache, &[9]);
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5]), 4);
    cache.free(evictor, Release::Cache).unwrap();
    cache.free(b, Release::Discard).unwrap();
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5]), 0);
}

#[test]
fn cached_content_stays_while_a_twin_of_it_is_being_computed() {
    // b computes again what a has; a goes, and b's step may still be aborted.
    let mut cache = cache(4, 4);
    let a = sequence_of(&mut cache, &[1, 2, 3, 4]);
    let again = Query::default().with_max_hit(0);
    let b = cache.create(&scope(), &[1, 2, 3, 4], again).unwrap().seq;
    let id = cache.plan(&[Row::ids(b, &[1, 2, 3, 4])], &mut Step::new()).unwrap();
    cache.free(a, Release::Cache).unwrap();
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5]), 4);
    cache.abort(id).unwrap();
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5]), 4);
    cache.check_integrity().unwrap();
}

#[test]
fn a_hit_handle_cannot_go_stale() {
    // vLLM H5 and 18957: a lookup was remembered, its blocks were overwritten, and the table took them all the same.
    let mut cache = cache(3, 4);
    let a = sequence_of(&mut cache, &tokens(0..9));
    cache.free(a, Release::Cache).unwrap();
    assert_eq!(cached(&cache, &tokens(0..9)), 8);
    let filler = private(&mut cache, &tokens(50..58));
    // It took the block that was free and one of the two that were found: the tail, for the head goes last.
    let created = cache.create(&scope(), &tokens(0..9), Query::default()).unwrap();
    assert_eq!(created.cached_tokens, 4);
    // What a sequence was given stays its own under any pressure.
    cache.free(filler, Release::Cache).unwrap();
    private(&mut cache, &tokens(60..68));
    assert!(cache.plan(&[Row::ids(created.seq, &[4])], &mut Step::new()).is_err());
    assert_eq!(cache.sequence(created.seq).unwrap().len(), 4);
    assert_eq!(cache.shares(created.seq).unwrap().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_plan_that_failed_looks_again_when_it_is_retried() {
    // vLLM 18957. The prompt's blocks are cached, the first plan fails for want of room, they are evicted, and the
    // second plan must not skip them.
    let mut cache = cache(3, 4);
    let seq = cache.create(&scope(), &tokens(0..9), Query::default()).unwrap().seq;
    let other = sequence_of(&mut cache, &tokens(0..9));
    cache.free(other, Release::Cache).unwrap();
    let filler = private(&mut cache, &[99]);
    let mut step = Step::new();
    // Two cached blocks are left and one more is needed.
    assert!(matches!(cache.plan(&[Row::ids(seq, &tokens(0..9))], &mut step), Err(PlanError::Shortfall { .. })));
    run(&mut cache, filler, &tokens(90..98));
    cache.free(filler, Release::Cache).unwrap();
    cache.plan(&[Row::ids(seq, &tokens(0..9))], &mut step).unwrap();
    assert_eq!((step.rows()[0].skip, step.rows()[0].len), (0, 9));
}

#[test]
fn admitting_a_hit_costs_its_blocks_and_not_the_pools() {
    // nano-vllm H7: adopting a hit removed each block from the middle of a queue in O(queue): 103 ms for one prompt of
    // 4,096 tokens with 40,000 idle blocks. A hundred of them would take ten seconds; here they may take two.
    let mut cache = cache(40_000, 16);
    let prompt = tokens(0..4_096);
    let a = sequence_of(&mut cache, &prompt);
    cache.free(a, Release::Cache).unwrap();
    let filler = private(&mut cache, &tokens(0..16 * 39_000));
    cache.free(filler, Release::Cache).unwrap();
    let start = std::time::Instant::now();
    for _ in 0..100 {
        let created = cache.create(&scope(), &prompt, Query::default()).unwrap();
        assert_eq!(created.cached_tokens, 4_095);
        cache.free(created.seq, Release::Cache).unwrap();
    }
    assert!(start.elapsed().as_secs() < 2, "{:?}", start.elapsed());
}

#[test]
fn used_returns_to_zero_after_caching() {
    // xLLM 829: caching a finished request kept its blocks on the count of used ones.
    let mut cache = cache(8, 4);
    for round in 0..5 {
        let seq = sequence_of(&mut cache, &tokens(round..round + 20));
        assert_eq!(cache.stats().held, 5);
        cache.free(seq, Release::Cache).unwrap();
        let stats = cache.stats();
        assert_eq!((stats.held, stats.available), (0, 8));
        assert!(stats.cached <= stats.available);
    }
}

#[test]
fn a_shared_block_is_counted_once() {
    // sglang 35270: pages of two nodes were counted twice as evictable.
    let mut cache = cache(8, 4);
    let all: Vec<_> = (0..3).map(|_| sequence_of(&mut cache, &tokens(0..6))).collect();
    // One full block shared by three, and a tail each.
    let stats = cache.stats();
    assert_eq!((stats.held, stats.available, stats.cached), (4, 4, 0));
    all.into_iter().for_each(|seq| cache.free(seq, Release::Cache).unwrap());
    let stats = cache.stats();
    assert_eq!((stats.held, stats.available, stats.cached), (0, 8, 1));
}

#[test]
fn a_hit_that_is_never_planned_is_given_back() {
    // sglang 12693: a request cancelled between match and allocation leaked what the match had pinned.
    let mut cache = cache(4, 4);
    let a = sequence_of(&mut cache, &tokens(0..9));
    cache.free(a, Release::Cache).unwrap();
    let created = cache.create(&scope(), &tokens(0..9), Query::default()).unwrap();
    assert_eq!((cache.stats().held, cache.stats().available), (2, 2));
    cache.free(created.seq, Release::Cache).unwrap();
    assert_eq!((cache.stats().held, cache.stats().available, cache.stats().cached), (0, 4, 2));
    assert_eq!(cached(&cache, &tokens(0..9)), 8);
}

#[test]
fn eviction_takes_no_block_that_is_in_use() {
    // Atlas 373: evicting the cached copy took the block of a live sequence with the same content along.
    let mut cache = cache(3, 4);
    let a = sequence_of(&mut cache, &[1, 2, 3, 4]);
    let b = cache.create(&scope(), &[1, 2, 3, 4], Query::default().with_max_hit(0)).unwrap().seq;
    run(&mut cache, b, &[1, 2, 3, 4]);
    cache.free(a, Release::Cache).unwrap();
    let table: Vec<_> = cache.sequence(b).unwrap().table().ids().collect();
    private(&mut cache, &tokens(50..58));
    assert!(cache.sequence(b).unwrap().table().ids().eq(table.iter().copied()));
    assert_eq!((cache.refs(table[0]), cache.stats().available), (1, 0));
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5]), 4);
    cache.check_integrity().unwrap();
}

#[test]
fn after_a_match_that_diverges_everything_can_be_evicted() {
    // sglang 508 (the port to Rust): a match of 4 of 8 tokens pinned all 8 for ever.
    let mut cache = cache(4, 4);
    let a = sequence_of(&mut cache, &tokens(0..8));
    cache.free(a, Release::Cache).unwrap();
    let prompt = [0, 1, 2, 3, 9, 9, 9, 9, 9];
    let created = cache.create(&scope(), &prompt, Query::default()).unwrap();
    assert_eq!(created.cached_tokens, 4);
    run(&mut cache, created.seq, &prompt[4..]);
    cache.free(created.seq, Release::Cache).unwrap();
    let filler = private(&mut cache, &tokens(50..66));
    assert_eq!((cache.stats().held, cache.stats().evictions), (4, 3));
    assert_eq!((cached(&cache, &prompt), cached(&cache, &tokens(0..9))), (0, 0));
    cache.free(filler, Release::Cache).unwrap();
}

#[test]
fn what_was_evicted_is_not_found_again() {
    // vllm fork 480: phantom hits behind a full turnover of the pool.
    let mut cache = cache(4, 4);
    let a = sequence_of(&mut cache, &tokens(0..13));
    cache.free(a, Release::Cache).unwrap();
    for round in 1..6 {
        let filler = private(&mut cache, &tokens(100 * round..100 * round + 16));
        assert_eq!(cached(&cache, &tokens(0..13)), 0);
        cache.free(filler, Release::Cache).unwrap();
    }
}

#[test]
fn the_tail_of_a_chain_is_evicted_before_its_head() {
    // Of three cached blocks the last goes first, so that what is left can still be found.
    let mut cache = cache(4, 4);
    let a = sequence_of(&mut cache, &tokens(0..12));
    cache.free(a, Release::Cache).unwrap();
    // The first takes the block that is free, each later one a cached block.
    for expected in [12, 8, 4, 0] {
        private(&mut cache, &[99]);
        assert_eq!(cached(&cache, &tokens(0..13)), expected);
    }
    assert_eq!(cache.stats().evictions, 3);
}

#[test]
fn a_preempted_sequence_comes_back_with_its_full_blocks() {
    // LMCache 1969: lengths were wrong after a preemption. 13 tokens freed and admitted again find 12.
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &tokens(0..13));
    cache.free(seq, Release::Cache).unwrap();
    let again = cache.create(&scope(), &tokens(0..13), Query::default()).unwrap();
    assert_eq!((again.cached_tokens, cache.sequence(again.seq).unwrap().len()), (12, 12));
    let step = run(&mut cache, again.seq, &tokens(12..13));
    assert_eq!((step.rows()[0].start, step.rows()[0].len), (12, 1));
    assert_eq!(cache.sequence(again.seq).unwrap().len(), 13);
}

#[test]
fn a_full_pool_still_answers_lookups() {
    // vLLM 19459: an index out of range at full use.
    let mut cache = cache(2, 4);
    sequence_of(&mut cache, &tokens(0..8));
    assert_eq!((cache.stats().available, cached(&cache, &tokens(0..8))), (0, 7));
    let created = cache.create(&scope(), &tokens(0..8), Query::default()).unwrap();
    assert_eq!(created.cached_tokens, 7);
    let plan = cache.plan(&[Row::ids(created.seq, &tokens(7..8))], &mut Step::new());
    assert!(matches!(plan, Err(PlanError::Shortfall { .. })));
}

#[test]
fn a_row_behind_another_is_computed_although_its_sequence_is_freed() {
    // Row b skips what row a computes. a is freed before the commit: what b holds was computed all the same.
    let mut cache = cache(8, 4);
    let prompt = tokens(0..9);
    let [a, b] = [(); 2].map(|()| cache.create(&scope(), &prompt, Query::default()).unwrap().seq);
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(a, &prompt), Row::ids(b, &prompt)], &mut step).unwrap();
    assert_eq!((step.rows()[0].len, step.rows()[1].skip), (9, 8));
    cache.free(a, Release::Discard).unwrap();
    assert_eq!(step.rows()[0].len, 9);
    cache.commit_all(id).unwrap();
    assert_eq!(cached(&cache, &prompt), 8);
    assert_eq!(cache.sequence(b).unwrap().len(), 9);
    cache.check_integrity().unwrap();
}

#[test]
fn a_step_that_is_dropped_loses_nothing() {
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &tokens(0..3));
    let id = cache.plan(&[Row::ids(seq, &[3])], &mut Step::new()).unwrap();
    assert_eq!(cache.open_steps().collect::<Vec<_>>(), [id]);
    cache.commit_all(id).unwrap();
    assert_eq!(cached(&cache, &tokens(0..5)), 4);
    let id = cache.plan(&[Row::ids(seq, &tokens(4..14))], &mut Step::new()).unwrap();
    assert_eq!(cache.stats().held, 4);
    cache.abort(id).unwrap();
    assert_eq!((cache.stats().held, cache.sequence(seq).unwrap().len()), (1, 4));
    cache.check_integrity().unwrap();
}

#[test]
fn withheld_blocks_wait_for_the_step_that_named_them_last() {
    // vLLM 46951: a block was reused while other work still read it.
    let config = CacheConfig::new(2, 4).with_scratch(false).with_withhold(true);
    let mut cache = KvCache::new(config).unwrap();
    let a = sequence_of(&mut cache, &tokens(0..8));
    let last = cache.plan(&[Row::ids(a, &[8])], &mut Step::new());
    assert!(matches!(last, Err(PlanError::NeverFits { .. })));
    cache.free(a, Release::Cache).unwrap();
    assert_eq!((cache.stats().pending, cache.stats().available), (2, 0));
    let b = cache.create_blank(&scope()).unwrap();
    let mut step = Step::new();
    let Err(PlanError::Shortfall { shortfall }) = cache.plan(&[Row::ids(b, &[1])], &mut step) else { panic!() };
    assert_eq!((shortfall.needed, shortfall.free, shortfall.pending), (1, 0, 2));
    cache.retire(StepId::new(1)).unwrap();
    cache.plan(&[Row::ids(b, &[1])], &mut step).unwrap();
    assert_eq!(cache.retire(StepId::new(2)), Err(StepError::StillOpen { step: StepId::new(2) }));
    assert_eq!(cache.retire(StepId::new(3)), Err(StepError::NotOpen { step: StepId::new(3) }));
}

#[test]
fn sixteen_tokens_of_history_are_not_lost_by_a_walk_through_all_lengths() {
    // Every length from 1 to 40, in blocks of 16, found again as the rule says: full blocks, and of a block that was
    // full all but the last token.
    for len in 1..40 {
        let mut cache = cache(8, 16);
        let seq = sequence_of(&mut cache, &tokens(0..len));
        cache.free(seq, Release::Cache).unwrap();
        assert_eq!(cached(&cache, &tokens(0..len)), (len / 16 * 16).min(len - 1));
        assert_eq!(ix(cache.stats().cached), ix(len / 16));
    }
}
