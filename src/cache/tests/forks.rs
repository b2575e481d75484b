//! Sequences that share blocks: fork, copy-on-write, select.

use super::*;
use crate::error::SelectError;
use crate::id::BlockId;

fn table(cache: &KvCache, seq: SeqId) -> Vec<BlockId> {
    cache.sequence(seq).unwrap().table().ids().collect()
}

fn all_is_free(cache: &KvCache) -> bool {
    cache.check_integrity().unwrap();
    let stats = cache.stats();
    (stats.held, stats.available) == (0, stats.capacity)
}

#[test]
fn fork_of_an_empty_sequence_works() {
    // vLLM's first manager asserted a table; llama.cpp 14363.
    let mut cache = cache(4, 4);
    let empty = cache.create_blank(&Scope::default()).unwrap();
    let child = cache.fork(empty).unwrap();
    assert!(table(&cache, child).is_empty());
    run(&mut cache, child, &[1, 2]);
    assert_eq!(cache.sequence(empty).unwrap().len(), 0);
    assert_eq!(cache.stats().copies, 0);
}

#[test]
fn a_fork_takes_one_reference_to_each_block_and_gives_it_back_once() {
    // vLLM 1556 and 3347: the same block was counted several times by a fork, and freed twice.
    let mut cache = cache(16, 4);
    let a = sequence_of(&mut cache, &tokens(0..10));
    let b = cache.fork(a).unwrap();
    assert!(table(&cache, a).iter().all(|&block| cache.refs(block) == 2));
    // Both go on past the shared tail: one copies it, the other writes in place.
    run(&mut cache, a, &[1, 2, 3, 4, 5]);
    run(&mut cache, b, &[1, 2, 3, 4, 6]);
    assert_eq!(cache.stats().copies, 1);
    cache.free(a, Release::Cache).unwrap();
    assert!(table(&cache, b).iter().all(|&block| cache.refs(block) == 1));
    cache.free(b, Release::Cache).unwrap();
    assert!(all_is_free(&cache));
}

#[test]
fn fork_then_append_leaves_the_parent_unchanged() {
    // vLLM 344 and 644.
    let mut cache = cache(16, 4);
    let a = sequence_of(&mut cache, &tokens(0..6));
    let before = table(&cache, a);
    let b = cache.fork(a).unwrap();
    let step = run(&mut cache, b, &[9]);
    assert_eq!(table(&cache, a), before);
    let copies = step.tables().copies();
    assert_eq!((copies.len(), copies[0].src, copies[0].dst), (1, before[1], table(&cache, b)[1]));
    // Position 6 is offset 2 of the copy.
    assert_eq!(step.tables().slots(), [copies[0].dst.slot(2, 4)]);
}

#[test]
fn a_fork_of_a_fork_shares_with_both() {
    // vLLM 417: a fork on sequences that had separated gave wrong blocks.
    let mut cache = cache(16, 4);
    let a = sequence_of(&mut cache, &tokens(0..6));
    let b = cache.fork(a).unwrap();
    run(&mut cache, b, &[8, 9, 10]);
    let c = cache.fork(b).unwrap();
    assert_eq!(table(&cache, c), table(&cache, b));
    assert_eq!(table(&cache, a)[0], table(&cache, c)[0]);
    assert_eq!(cache.shares(c).unwrap().collect::<Vec<_>>(), [3, 2, 2]);
}

#[test]
fn forks_that_diverge_in_one_step_copy_as_often_as_they_must() {
    // Three holders of one tail, all in one step: two copies of the same source, and the last writes in place.
    let mut cache = cache(16, 4);
    let root = sequence_of(&mut cache, &tokens(0..6));
    let mut all = [root; 3];
    cache.fork_into(root, &mut all[1..]).unwrap();
    let tail = table(&cache, root)[1];
    let mut step = Step::new();
    let rows = all.map(|seq| Row::ids(seq, &[7]));
    cache.plan(&rows, &mut step).unwrap();
    let copies = step.tables().copies();
    assert_eq!(copies.len(), 2);
    assert!(copies.iter().all(|copy| copy.src == tail));
    assert_ne!(copies[0].dst, copies[1].dst);
    // The last one writes into the source: copies run before writes.
    assert_eq!(step.tables().table(2)[1], tail);
    cache.abort_all();
    assert!(all.iter().all(|&seq| table(&cache, seq)[1] == tail));
    assert_eq!(cache.refs(tail), 3);
    cache.check_integrity().unwrap();
}

#[test]
fn a_copy_is_reserved_before_its_source_is_released() {
    // vLLM's first manager released the source and then found no room for the copy: with no block left the plan fails
    // and both still hold the source.
    let mut cache = cache(2, 4);
    let a = sequence_of(&mut cache, &tokens(0..6));
    let b = cache.fork(a).unwrap();
    let tail = table(&cache, a)[1];
    let before = cache.snapshot();
    let plan = cache.plan(&[Row::ids(b, &[9])], &mut Step::new());
    let Err(PlanError::Shortfall { shortfall }) = plan else { panic!("{plan:?}") };
    assert_eq!((shortfall.needed, shortfall.free), (1, 0));
    assert_eq!((cache.snapshot(), cache.refs(tail)), (before, 2));
}

#[test]
fn fork_sees_the_committed_length_of_a_sequence_with_open_steps() {
    let mut cache = cache(16, 4);
    let a = sequence_of(&mut cache, &tokens(0..6));
    let b = cache.fork(a).unwrap();
    let tail = table(&cache, a)[1];
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(a, &[7, 8, 9])], &mut step).unwrap();
    // a has a copy of its tail now, whose content is not committed: a fork shares the old one.
    let c = cache.fork(a).unwrap();
    assert_eq!(cache.sequence(c).unwrap().planned_len(), 6);
    assert_eq!((table(&cache, c).len(), table(&cache, c)[1]), (2, tail));
    cache.commit_all(id).unwrap();
    assert_eq!((cache.refs(tail), table(&cache, b)[1]), (2, tail));
    cache.check_integrity().unwrap();
}

#[test]
fn the_last_holder_of_a_found_block_does_not_overwrite_what_can_be_found() {
    // A full block is cut to 3 of its 4 tokens and written again: from the cut on nobody finds the old content.
    let mut cache = cache(8, 4);
    let a = sequence_of(&mut cache, &[1, 2, 3, 4]);
    cache.truncate(a, 3).unwrap();
    let peek = |cache: &KvCache, prompt: &[u32]| {
        cache.peek(&Scope::default(), prompt, Query::default()).unwrap().cached_tokens
    };
    assert_eq!(peek(&cache, &[1, 2, 3, 4, 0]), 0);
    let step = run(&mut cache, a, &[9]);
    assert!(step.tables().copies().is_empty());
    assert_eq!((peek(&cache, &[1, 2, 3, 4, 0]), peek(&cache, &[1, 2, 3, 9, 0])), (3, 4));
}

#[test]
fn a_cut_tail_that_others_hold_is_copied() {
    let mut cache = cache(8, 4);
    let a = sequence_of(&mut cache, &[1, 2, 3, 4]);
    let b = cache.fork(a).unwrap();
    cache.truncate(b, 3).unwrap();
    let step = run(&mut cache, b, &[9]);
    assert_eq!(step.tables().copies().len(), 1);
    assert_eq!(step.tables().copies()[0].src, table(&cache, a)[0]);
}

#[test]
fn beams_that_are_selected_and_freed_leave_nothing_behind() {
    // xLLM 1984 (stale source blocks), and Discard: nothing stays cached that only losers held.
    let mut cache = cache(32, 4);
    let root = sequence_of(&mut cache, &tokens(0..6));
    let mut beams = alloc::vec![root];
    let mut step = Step::new();
    cache.select(&mut beams, &[0, 0, 0]).unwrap();
    for round in 0..4 {
        let rows: Vec<_> = beams.iter().map(|&beam| Row::count(beam, 1)).collect();
        let id = cache.plan(&rows, &mut step).unwrap();
        let ids = [10 + round, 20 + round, 30 + round];
        let outcomes: Vec<_> = ids.iter().map(|id| Outcome::Ids(core::slice::from_ref(id))).collect();
        cache.commit(id, &outcomes).unwrap();
        cache.select(&mut beams, &[1, 1, 0]).unwrap();
        cache.check_integrity().unwrap();
    }
    cache.select(&mut beams, &[]).unwrap();
    assert!(beams.is_empty() && all_is_free(&cache));
    assert_eq!(cache.stats().cached, 0);
}

#[test]
fn a_select_that_is_wrong_changes_nothing() {
    let mut cache = cache(16, 4);
    let a = sequence_of(&mut cache, &tokens(0..6));
    let b = cache.fork(a).unwrap();
    let before = cache.snapshot();
    let mut beams = alloc::vec![a, b];
    let wrong = cache.select(&mut beams, &[0, 2]);
    assert_eq!(wrong, Err(SelectError::NoSuchParent { parent: 2, beams: 2 }));
    let mut twice = alloc::vec![a, a];
    assert_eq!(cache.select(&mut twice, &[0]), Err(SelectError::RepeatedBeam { seq: a }));
    assert_eq!((cache.snapshot(), beams, twice), (before, alloc::vec![a, b], alloc::vec![a, a]));
}

#[test]
fn losers_that_are_discarded_take_no_cached_prefix_with_them() {
    // Both beams hold the prompt's full block; the loser's own block goes, the prompt's stays.
    let mut cache = cache(16, 4);
    let a = sequence_of(&mut cache, &[1, 2, 3, 4, 5]);
    let b = cache.fork(a).unwrap();
    run(&mut cache, b, &[6, 7, 8]);
    cache.free(b, Release::Discard).unwrap();
    cache.free(a, Release::Cache).unwrap();
    let peek = |prompt: &[u32]| cache.peek(&Scope::default(), prompt, Query::default()).unwrap().cached_tokens;
    assert_eq!((peek(&[1, 2, 3, 4, 0]), peek(&[1, 2, 3, 4, 5, 6, 7, 8, 0])), (4, 4));
}
