//! What is invalidated is found by nobody any more, and neither is what builds on it; who holds it goes on.

use super::*;
use crate::id::{BlockId, ix};

fn block(cache: &KvCache, seq: SeqId, index: usize) -> BlockId {
    BlockId::new(blocks_of(cache, seq)[index])
}

#[test]
fn what_is_above_stays_and_what_is_below_goes() {
    // A tree: [0..4] with [4..8] and [14..18] below it, and [8..12] below [4..8].
    let mut cache = cache(16, 4);
    let long = sequence_of(&mut cache, &tokens(0..12));
    let other = [tokens(0..4), tokens(14..18)].concat();
    let branch = sequence_of(&mut cache, &other);
    let second = block(&cache, long, 1);
    cache.free(branch, Release::Cache).unwrap();
    assert_eq!(cache.invalidate(Invalidate::Block(second)), 2);
    cache.check_integrity().unwrap();
    assert_eq!((found(&cache, &tokens(0..13)), found(&cache, &[&other[..], &[0]].concat())), (4, 8));
    // It is gone, so that there is nothing to invalidate again.
    assert_eq!(cache.invalidate(Invalidate::Block(second)), 0);
    assert_eq!(cache.invalidate(Invalidate::Block(BlockId::new(u32::MAX))), 0);
}

#[test]
fn all_copies_of_a_content_go_at_once() {
    let mut cache = cache(16, 4);
    let twins = [(); 3].map(|()| twin_of(&mut cache, &tokens(0..4)));
    let second = block(&cache, twins[1], 0);
    assert_eq!((cache.invalidate(Invalidate::Block(second)), found(&cache, &tokens(0..5))), (3, 0));
    // None of the three is published behind it.
    for (seq, token) in twins.into_iter().zip(10..) {
        run(&mut cache, seq, &tokens(token..token + 4));
        cache.free(seq, Release::Cache).unwrap();
    }
    assert_eq!(cache.stats().cached, 0);
}

#[test]
fn an_identity_is_invalidated_where_a_hasher_names_it() {
    let mut cache = cache(16, 4);
    let seq = sequence_of(&mut cache, &tokens(0..12));
    let second = block(&cache, seq, 1);
    assert_eq!(cache.invalidate(Invalidate::Identity(&[0; 32])), 0, "no hasher");
    cache.set_hasher(Fold);
    assert_eq!(cache.invalidate(Invalidate::Identity(&[0; 32])), 0, "no such content");
    let identity = cache.identity(second).unwrap();
    assert_eq!(cache.invalidate(Invalidate::Identity(&identity)), 2);
    assert_eq!((found(&cache, &tokens(0..13)), cache.identity(second)), (4, None));
}

#[test]
fn a_scope_is_invalidated_alone_and_is_used_again() {
    let mut cache = cache(16, 4);
    let salted = Scope::default().with_salt(b"s");
    let in_scope = |cache: &mut KvCache| {
        let created = cache.create(&salted, &tokens(0..9), Query::default()).unwrap();
        run(cache, created.seq, &tokens(created.cached_tokens..9));
        created
    };
    let [ours, theirs] = [in_scope(&mut cache).seq, sequence_of(&mut cache, &tokens(0..9))];
    assert_eq!(cache.invalidate(Invalidate::Scope(&Scope::default().with_salt(b"t"))), 0, "nobody's scope");
    assert_eq!(cache.invalidate(Invalidate::Scope(&salted)), 2);
    cache.check_integrity().unwrap();
    assert_eq!(found(&cache, &tokens(0..9)), 8);
    // What was there goes on unpublished; what comes is computed and published anew.
    run(&mut cache, ours, &tokens(9..12));
    let next = in_scope(&mut cache);
    assert_eq!(next.cached_tokens, 0);
    let after = in_scope(&mut cache);
    assert_eq!(after.cached_tokens, 8);
    run(&mut cache, theirs, &tokens(9..12));
    assert_eq!(found(&cache, &tokens(0..13)), 12);
}

#[test]
fn who_holds_what_was_invalidated_goes_on_and_publishes_nothing_of_it() {
    // 6 tokens: a full block, and a tail whose two tokens rest on it.
    for what in [0, 1] {
        let mut cache = cache(16, 4);
        let seq = sequence_of(&mut cache, &tokens(0..6));
        let table = blocks_of(&cache, seq);
        let first = block(&cache, seq, 0);
        let what = [Invalidate::All, Invalidate::Block(first)][what];
        assert_eq!(cache.invalidate(what), 1);
        let fork = cache.fork(seq).unwrap();
        run(&mut cache, seq, &tokens(6..12));
        run(&mut cache, fork, &tokens(26..32));
        assert_eq!(blocks_of(&cache, seq)[0], table[0]);
        cache.truncate(seq, 10).unwrap();
        cache.truncate(fork, 3).unwrap();
        run(&mut cache, fork, &tokens(3..9));
        for prompt in [tokens(0..13), [tokens(0..6), tokens(26..32)].concat()] {
            assert_eq!(found(&cache, &prompt), 0, "{prompt:?} under {what:?}");
        }
        for seq in [seq, fork] {
            cache.free(seq, Release::Cache).unwrap();
        }
        assert_eq!((cache.stats().cached, cache.stats().held), (0, 0));
    }
}

#[test]
fn what_is_computed_from_the_start_is_published_again() {
    // A sequence that is cut to nothing, or to what stands before the invalidated block, holds nothing of it.
    let mut cache = cache(16, 4);
    let seq = sequence_of(&mut cache, &tokens(0..12));
    let second = block(&cache, seq, 1);
    cache.invalidate(Invalidate::Block(second));
    cache.truncate(seq, 4).unwrap();
    run(&mut cache, seq, &tokens(4..8));
    assert_eq!(found(&cache, &tokens(0..9)), 8);
    cache.invalidate(Invalidate::All);
    cache.truncate(seq, 0).unwrap();
    run(&mut cache, seq, &tokens(0..8));
    assert_eq!(found(&cache, &tokens(0..9)), 8);
}

#[test]
fn an_open_step_commits_what_was_invalidated_and_publishes_nothing() {
    // Whole blocks by id, a tail, and tokens by count that are told at commit: all computed before.
    for what in [0, 1] {
        let mut cache = cache(16, 4);
        let told = Told::by(&mut cache);
        let scope = Scope::default();
        let what = [Invalidate::All, Invalidate::Scope(&scope)][what];
        let by_id = cache.create(&scope, &tokens(0..10), Query::default()).unwrap().seq;
        let by_count = cache.create_blank(&scope).unwrap();
        let mut step = Step::new();
        let prompt = tokens(0..10);
        let id = cache.plan(&[Row::ids(by_id, &prompt), Row::count(by_count, 4)], &mut step).unwrap();
        cache.invalidate(what);
        told.take();
        cache.commit(id, &[Outcome::All, Outcome::Ids(&[30, 31, 32, 33])]).unwrap();
        cache.check_integrity().unwrap();
        assert_eq!([by_id, by_count].map(|seq| cache.sequence(seq).unwrap().len()), [10, 4]);
        run(&mut cache, by_id, &tokens(10..12));
        assert_eq!((found(&cache, &tokens(0..13)), found(&cache, &tokens(30..35))), (0, 0));
        assert_eq!(told.short().len(), 0);
    }
}

#[test]
fn a_row_that_skipped_what_was_invalidated_publishes_nothing_behind_it() {
    // b skips the block that a has, and computes the next; then a's block is found to be damaged.
    let mut cache = cache(16, 4);
    let b = cache.create(&Scope::default(), &tokens(0..8), Query::default()).unwrap().seq;
    let a = sequence_of(&mut cache, &tokens(0..4));
    let first = block(&cache, a, 0);
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(b, &tokens(0..8))], &mut step).unwrap();
    assert_eq!(step.rows()[0].skip, 4);
    // a's block, and the one that b computes behind it.
    assert_eq!(cache.invalidate(Invalidate::Block(first)), 2);
    cache.commit_all(id).unwrap();
    run(&mut cache, b, &tokens(8..12));
    assert_eq!(found(&cache, &tokens(0..13)), 0);
}

#[test]
fn who_shares_a_part_of_an_invalidated_block_publishes_nothing_behind_it() {
    // Before its plan; while its copy is open; and after an abort. The first block is as good as before.
    for when in 0..3 {
        let mut cache = cache(16, 4);
        let old = sequence_of(&mut cache, &tokens(0..8));
        let second = block(&cache, old, 1);
        let prompt = [0, 1, 2, 3, 4, 5, 60, 61];
        let seq = cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq;
        let plan = |cache: &mut KvCache| cache.plan(&[Row::ids(seq, &prompt[6..])], &mut Step::new()).unwrap();
        let mut open = (when > 0).then(|| plan(&mut cache));
        if let Some(id) = open.filter(|_| when == 2) {
            cache.abort(id).unwrap();
            open = None;
        }
        cache.invalidate(Invalidate::Block(second));
        let id = open.unwrap_or_else(|| plan(&mut cache));
        cache.commit_all(id).unwrap();
        cache.check_integrity().unwrap();
        assert_eq!((found(&cache, &prompt), found(&cache, &tokens(0..8))), (4, 4));
    }
}

#[test]
fn an_open_tail_that_was_damaged_is_never_published() {
    // Its block has no name yet, and would get one when it fills.
    let mut cache = cache(16, 4);
    let seq = sequence_of(&mut cache, &tokens(0..6));
    let fork = cache.fork(seq).unwrap();
    let tail = block(&cache, seq, 1);
    assert_eq!(cache.invalidate(Invalidate::Block(tail)), 0);
    run(&mut cache, seq, &tokens(6..12));
    run(&mut cache, fork, &[76, 77]);
    assert_eq!((found(&cache, &tokens(0..13)), found(&cache, &[0, 1, 2, 3, 4, 5, 76, 77, 0])), (4, 4));
}

#[test]
fn an_open_tail_that_was_damaged_while_a_step_fills_it_is_never_published() {
    // Three share the tail: in one step two copy it and the last fills it in place, all three to full blocks.
    let mut cache = cache(16, 4);
    let root = sequence_of(&mut cache, &tokens(0..6));
    let mut all = [root; 3];
    cache.fork_into(root, &mut all[1..]).unwrap();
    let tail = block(&cache, root, 1);
    let ends = [[60, 61], [70, 71], [60, 61]];
    let rows = [0, 1, 2].map(|at: usize| Row::ids(all[at], &ends[at]));
    let id = cache.plan(&rows, &mut Step::new()).unwrap();
    assert_eq!(cache.invalidate(Invalidate::Block(tail)), 3);
    cache.check_integrity().unwrap();
    cache.commit_all(id).unwrap();
    cache.check_integrity().unwrap();
    for end in ends {
        assert_eq!(found(&cache, &[0, 1, 2, 3, 4, 5, end[0], end[1], 0]), 4);
    }
}

#[test]
fn a_copy_that_goes_with_another_copy_is_counted_once() {
    // One copies its part of the bad block to content that is there already, idle; another a part of that; and a third
    // gives its part of the bad block up for what the second computes.
    let mut cache = cache(16, 4);
    let bad = sequence_of(&mut cache, &tokens(0..4));
    let part = |cache: &mut KvCache, prompt: &[u32]| cache.create(&Scope::default(), prompt, Query::default()).unwrap();
    let [first, third, other] = [[0, 1, 60, 61, 5], [0, 1, 60, 70, 5], [0, 1, 60, 61, 6]].map(|prompt| {
        let created = part(&mut cache, &prompt);
        assert_eq!(created.cached_tokens, 2);
        created.seq
    });
    run(&mut cache, other, &[60, 61]);
    cache.free(other, Release::Cache).unwrap();
    let plan = |cache: &mut KvCache, seq, ids: &[u32]| {
        let mut step = Step::new();
        let id = cache.plan(&[Row::ids(seq, ids)], &mut step).unwrap();
        (id, step.rows()[0].skip)
    };
    let one = plan(&mut cache, first, &[60, 61, 5]);
    let second = part(&mut cache, &[0, 1, 60, 70, 6]);
    assert_eq!(second.cached_tokens, 3);
    let two = plan(&mut cache, second.seq, &[70, 6]);
    let three = plan(&mut cache, third, &[60, 70, 5]);
    assert_eq!([one.1, two.1, three.1], [0, 0, 2]);
    // The bad block, the idle one and its second copy, and what the second computes.
    let bad = block(&cache, bad, 0);
    assert_eq!(cache.invalidate(Invalidate::Block(bad)), 4);
    cache.check_integrity().unwrap();
    for step in [one, two, three] {
        cache.commit_all(step.0).unwrap();
    }
    cache.check_integrity().unwrap();
    assert_eq!([tokens(0..5), Vec::from([0, 1, 60, 61, 5])].map(|prompt| found(&cache, &prompt)), [0, 0]);
}

#[test]
fn invalidated_blocks_are_the_next_to_be_taken_and_were_not_evicted() {
    let mut cache = cache(4, 4);
    let [good, bad] = [0, 50].map(|start| sequence_of(&mut cache, &tokens(start..start + 8)));
    let first = block(&cache, bad, 0);
    for seq in [good, bad] {
        cache.free(seq, Release::Cache).unwrap();
    }
    assert_eq!((cache.stats().cached, cache.invalidate(Invalidate::Block(first))), (4, 2));
    assert_eq!((cache.stats().cached, cache.stats().available, cache.stats().evictions), (2, 4, 0));
    filler(&mut cache, 2);
    assert_eq!((cache.stats().evictions, found(&cache, &tokens(0..9))), (0, 8));
}

#[test]
fn to_invalidate_an_empty_cache_changes_nothing() {
    let mut cache = cache(4, 4);
    let before = cache.snapshot();
    let scope = Scope::default();
    let block = Invalidate::Block(BlockId::new(0));
    for what in [Invalidate::All, Invalidate::Scope(&scope), Invalidate::Identity(&[1; 32]), block] {
        assert_eq!(cache.invalidate(what), 0);
    }
    assert_eq!(cache.snapshot(), before);
    assert_eq!(ix(cache.stats().available), 4);
}

#[test]
fn a_sequence_that_has_computed_nothing_yet_loses_nothing_by_an_invalidation() {
    // All its tokens are computed afterwards: the first block of 4 is found once they are, of the 5 tokens.
    for what in [Invalidate::All, Invalidate::Scope(&Scope::default())] {
        let mut cache = cache(8, 4);
        let prompt = [1, 2, 3, 4, 5];
        let seq = cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq;
        cache.invalidate(what);
        run(&mut cache, seq, &prompt);
        assert_eq!(cache.peek(&Scope::default(), &prompt, Query::default()).unwrap().cached_tokens, 4, "{what:?}");
    }
}

#[test]
fn a_sequence_whose_step_is_aborted_after_an_invalidation_is_found_again() {
    let mut cache = cache(8, 4);
    let prompt = [1, 2, 3, 4, 5];
    let seq = cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq;
    let id = cache.plan(&[Row::ids(seq, &prompt)], &mut Step::new()).unwrap();
    cache.invalidate(Invalidate::All);
    cache.abort(id).unwrap();
    run(&mut cache, seq, &prompt);
    assert_eq!(cache.peek(&Scope::default(), &prompt, Query::default()).unwrap().cached_tokens, 4);
}
