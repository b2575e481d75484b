//! Hits that end inside a block: what is shared of it, who copies it, and how long it is kept for that.

use super::*;
use crate::id::BlockId;
use crate::prefix::Extra;

/// A sequence that was computed and freed: its full blocks are cached.
fn cached(cache: &mut KvCache, prompt: &[u32]) {
    let seq = sequence_of(cache, prompt);
    cache.free(seq, Release::Cache).unwrap();
}

fn create(cache: &mut KvCache, prompt: &[u32]) -> (SeqId, u32) {
    let created = cache.create(&Scope::default(), prompt, Query::default()).unwrap();
    (created.seq, created.cached_tokens)
}

#[test]
fn of_several_children_the_one_that_agrees_longest_is_shared() {
    let mut cache = cache(16, 4);
    for prompt in [[1, 2, 3, 4], [1, 2, 9, 9], [1, 2, 3, 9], [8, 8, 8, 8]] {
        cached(&mut cache, &prompt);
    }
    for (prompt, expected) in [
        (&[1, 2, 3, 7, 0][..], 3),
        (&[1, 2, 9, 7, 0], 3),
        (&[1, 2, 7], 2),
        (&[1, 7], 1),
        (&[8, 8, 8, 7, 0], 3),
        (&[7, 2, 3, 4, 0], 0),
        // At least one token is computed, also where all of it would be found.
        (&[1, 2, 3], 2),
        (&[1], 0),
    ] {
        assert_eq!(found(&cache, prompt), expected, "{prompt:?}");
    }
}

#[test]
fn an_extra_that_differs_lets_a_worse_child_win() {
    // Positions 4 to 7, an image at 5 and 6. The first child has the prompt's tokens and another image: one token. The
    // second has its image, and another token at position 7: three.
    let mut cache = cache(16, 4);
    let [other, same] = [[1; 32], [2; 32]].map(|digest| [Extra::new(5..7, digest)]);
    for (last, extras) in [(8, &other), (9, &same)] {
        let query = Query::default().with_extras(extras);
        let prompt = [1, 2, 3, 4, 5, 6, 7, last];
        let created = cache.create(&Scope::default(), &prompt, query).unwrap();
        run(&mut cache, created.seq, &prompt[created.cached_tokens as usize..]);
    }
    fn peek(cache: &KvCache, query: Query<'_>) -> u32 {
        cache.peek(&Scope::default(), &[1, 2, 3, 4, 5, 6, 7, 8, 0], query).unwrap().cached_tokens
    }
    let query = Query::default().with_extras(&same);
    assert_eq!(peek(&cache, query), 7);
    // An image is not to be cut: the hit ends where no image begins before it and ends behind it.
    for (no_cut, expected) in [(5..7, 5), (4..7, 4), (6..8, 6), (2..7, 2)] {
        let query = query.with_no_cut(core::slice::from_ref(&no_cut)).with_max_hit(6);
        assert_eq!(peek(&cache, query), expected, "{no_cut:?}");
    }
}

#[test]
fn a_block_that_is_being_computed_is_shared_by_no_part() {
    let mut cache = cache(16, 4);
    let a = create(&mut cache, &[1, 2, 3, 4]).0;
    let id = cache.plan(&[Row::ids(a, &[1, 2, 3, 4])], &mut Step::new()).unwrap();
    assert_eq!(found(&cache, &[1, 2, 3, 9]), 0);
    cache.commit_all(id).unwrap();
    assert_eq!(found(&cache, &[1, 2, 3, 9]), 3);
}

#[test]
fn the_source_of_a_copy_is_neither_evicted_nor_written_until_the_step_is_over() {
    // Three blocks: 0 and 1 are cached, a takes both, the second in part, and copies it to block 2.
    for abort in [false, true] {
        let mut cache = cache(3, 4);
        cached(&mut cache, &tokens(0..8));
        let (a, hit) = create(&mut cache, &[0, 1, 2, 3, 4, 5, 9]);
        assert_eq!((hit, blocks_of(&cache, a)), (6, [0, 1].to_vec()));
        let other = cache.create_blank(&Scope::default()).unwrap();
        // Before the plan: held. One block is free, and two are not to be had.
        assert!(cache.plan(&[Row::count(other, 5)], &mut Step::new()).is_err());
        let mut step = Step::new();
        let id = cache.plan(&[Row::ids(a, &[9])], &mut step).unwrap();
        assert_eq!(step.tables().copies()[0].src, BlockId::new(1));
        assert_eq!((blocks_of(&cache, a), cache.stats().available), ([0, 2].to_vec(), 0));
        // While the step is open: neither for others, nor to be written by who finds the same.
        assert!(cache.plan(&[Row::count(other, 1)], &mut Step::new()).is_err());
        let (b, hit) = create(&mut cache, &[0, 1, 2, 3, 4, 8]);
        assert_eq!((hit, cache.refs(BlockId::new(1))), (5, 2));
        assert!(cache.plan(&[Row::ids(b, &[8])], &mut Step::new()).is_err());
        cache.free(b, Release::Cache).unwrap();
        cache.check_integrity().unwrap();
        if abort {
            cache.abort(id).unwrap();
            assert_eq!((blocks_of(&cache, a), cache.sequence(a).unwrap().len()), ([0, 1].to_vec(), 6));
        } else {
            cache.commit_all(id).unwrap();
            assert_eq!((cache.refs(BlockId::new(1)), found(&cache, &tokens(0..9))), (0, 8));
        }
        // Over: either the source or the copy is free.
        cache.plan(&[Row::count(other, 1)], &mut Step::new()).unwrap();
        cache.check_integrity().unwrap();
    }
}

#[test]
fn two_resends_in_one_plan_compute_a_token_each() {
    // Block 1 is held by the first, and by each resend until its copy has run: in blocks 2 and 3.
    let mut cache = cache(8, 4);
    let first = sequence_of(&mut cache, &tokens(0..8));
    let resends = [(); 2].map(|()| create(&mut cache, &tokens(0..8)));
    assert_eq!(resends.map(|resend| resend.1), [7, 7]);
    let mut step = Step::new();
    let rows = resends.map(|(seq, _)| Row::ids(seq, &[7]));
    let id = cache.plan(&rows, &mut step).unwrap();
    assert_eq!(step.tables().slots().len(), 2);
    let copies: Vec<_> = step.tables().copies().iter().map(|copy| (copy.src.get(), copy.dst.get())).collect();
    assert_eq!((copies, cache.refs(BlockId::new(1))), ([(1, 2), (1, 3)].to_vec(), 3));
    cache.commit_all(id).unwrap();
    cache.check_integrity().unwrap();
    assert_eq!((cache.refs(BlockId::new(1)), cache.stats().held), (1, 4));
    // Three copies of one content: one is kept.
    for seq in [first, resends[0].0, resends[1].0] {
        cache.free(seq, Release::Cache).unwrap();
    }
    assert_eq!((cache.stats().cached, found(&cache, &tokens(0..8))), (2, 7));
}

#[test]
fn a_fork_of_a_part_copies_for_itself() {
    // Parent and child share blocks 0 and 1; block 1 can be found, so that neither may write it, the last one included.
    let mut cache = cache(8, 4);
    cached(&mut cache, &tokens(0..8));
    let (parent, hit) = create(&mut cache, &[0, 1, 2, 3, 4, 5, 60]);
    let child = cache.fork(parent).unwrap();
    assert_eq!((hit, cache.sequence(child).unwrap().len(), cache.refs(BlockId::new(1))), (6, 6, 2));
    let mut step = Step::new();
    let rows = [Row::ids(parent, &[60, 61]), Row::ids(child, &[70, 71])];
    let id = cache.plan(&rows, &mut step).unwrap();
    assert_eq!(step.tables().copies().len(), 2);
    cache.commit_all(id).unwrap();
    cache.check_integrity().unwrap();
    for end in [[6, 7], [60, 61], [70, 71]] {
        assert_eq!(found(&cache, &[0, 1, 2, 3, 4, 5, end[0], end[1], 0]), 8);
    }
}

#[test]
fn a_part_gives_way_to_a_whole_block_that_came_since() {
    // b starts with 6 of [0..8]; then c computes all 8 tokens of what b is going to be. b's plan shares c's block, and
    // copies nothing.
    let mut cache = cache(8, 4);
    cached(&mut cache, &tokens(0..8));
    let prompt = [0, 1, 2, 3, 4, 5, 60, 70, 80];
    let (b, hit) = create(&mut cache, &prompt);
    assert_eq!(hit, 6);
    let c = sequence_of(&mut cache, &prompt[..8]);
    let whole = blocks_of(&cache, c)[1];
    for abort in [true, false] {
        let mut step = Step::new();
        let id = cache.plan(&[Row::ids(b, &prompt[6..])], &mut step).unwrap();
        let row = step.rows()[0];
        assert_eq!((row.skip, row.start, row.len, step.tables().copies().len()), (2, 8, 1, 0));
        assert_eq!((blocks_of(&cache, b)[1], cache.refs(BlockId::new(1))), (whole, 1));
        if abort {
            cache.abort(id).unwrap();
            assert_eq!(blocks_of(&cache, b), [0, 1]);
        } else {
            cache.commit_all(id).unwrap();
            assert_eq!((cache.refs(BlockId::new(1)), cache.sequence(b).unwrap().len()), (0, 9));
        }
        cache.check_integrity().unwrap();
    }
}

#[test]
fn with_no_block_left_to_copy_to_the_part_is_overwritten() {
    // Both blocks of the pool are the hit's: a plan that would fit without the hit must not fail for it.
    let mut cache = cache(2, 4);
    cached(&mut cache, &tokens(0..8));
    let (seq, hit) = create(&mut cache, &[0, 1, 2, 3, 4, 5, 60]);
    assert_eq!((hit, cache.stats().available), (6, 0));
    assert_eq!(cache.fits(&[Row::ids(seq, &[60])]), Ok(Fit::Now));
    let step = run(&mut cache, seq, &[60]);
    assert_eq!((step.tables().copies().len(), blocks_of(&cache, seq)), (0, [0, 1].to_vec()));
    // Its content went to an allocation; what is there now is no full block yet.
    assert_eq!((cache.stats().evictions, found(&cache, &tokens(0..8))), (1, 4));
    run(&mut cache, seq, &[61]);
    assert_eq!(found(&cache, &[0, 1, 2, 3, 4, 5, 60, 61]), 7);
}

#[test]
fn two_who_share_a_part_wait_where_there_is_no_block_to_copy_it_to() {
    let mut cache = cache(2, 4);
    cached(&mut cache, &tokens(0..8));
    let prompts = [[0, 1, 2, 3, 4, 5, 60], [0, 1, 2, 3, 4, 5, 70]];
    let fits = |cache: &KvCache, prompt: &[u32]| cache.fits_prompt(&Scope::default(), prompt, Query::default(), 0);
    assert_eq!(fits(&cache, &prompts[0]), Ok(Fit::Now));
    let (one, _) = create(&mut cache, &prompts[0]);
    assert!(matches!(fits(&cache, &prompts[1]), Ok(Fit::Later(_))), "the second is told beforehand");
    let (other, hit) = create(&mut cache, &prompts[1]);
    assert_eq!(hit, 6);
    for (seq, token) in [(one, 60), (other, 70)] {
        assert!(matches!(cache.fits(&[Row::ids(seq, &[token])]), Ok(Fit::Later(_))));
    }
    cache.free(other, Release::Cache).unwrap();
    assert_eq!(cache.fits(&[Row::ids(one, &[60])]), Ok(Fit::Now));
}

#[test]
fn a_part_that_is_cut_shorter_is_still_copied() {
    let mut cache = cache(4, 4);
    cached(&mut cache, &tokens(0..8));
    let (seq, _) = create(&mut cache, &[0, 1, 2, 3, 4, 5, 60]);
    cache.truncate(seq, 5).unwrap();
    let step = run(&mut cache, seq, &[70, 71, 72]);
    assert_eq!(step.tables().copies().len(), 1);
    assert_eq!((found(&cache, &tokens(0..9)), found(&cache, &[0, 1, 2, 3, 4, 70, 71, 72, 0])), (8, 8));
}

#[test]
fn to_discard_a_request_leaves_a_block_that_it_shared_in_part() {
    // It shares two tokens of the second block with whoever computed that, and is cancelled before its first plan.
    let mut cache = cache(8, 4);
    cached(&mut cache, &tokens(0..8));
    let (seq, hit) = create(&mut cache, &[0, 1, 2, 3, 4, 5, 60]);
    assert_eq!(hit, 6);
    cache.free(seq, Release::Discard).unwrap();
    assert_eq!((cache.stats().held, found(&cache, &tokens(0..9))), (0, 8));
    cache.check_integrity().unwrap();
}

#[test]
fn a_request_that_is_given_up_takes_nothing_along_that_it_only_found() {
    // a computes two blocks and goes; b finds them, computes a third, and is discarded: the first two stay.
    let mut cache = cache(8, 4);
    let a = sequence_of(&mut cache, &tokens(0..8));
    cache.free(a, Release::Cache).unwrap();
    let b = sequence_of(&mut cache, &tokens(0..13));
    assert_eq!(cache.stats().cached, 0);
    cache.free(b, Release::Discard).unwrap();
    let found = |prompt| cache.peek(&Scope::default(), prompt, Query::default()).unwrap().cached_tokens;
    assert_eq!((found(&tokens(0..13)), cache.stats().cached), (8, 2));
    cache.check_integrity().unwrap();
}

#[test]
fn whole_blocks_are_found_among_more_images_than_a_search_for_a_part_looks_at() {
    // Each image is as wide as a block, so that no block agrees with another prompt's in one token, and the nearest do no
    // better than the others.
    let mut cache = cache(600, 4);
    let image = |at: u32| {
        let mut digest = [0; 32];
        digest[..4].copy_from_slice(&at.to_be_bytes());
        [Extra::new(0..4, digest)]
    };
    for at in 0..500 {
        let image = image(at);
        let created = cache.create(&Scope::default(), &[7; 4], Query::default().with_extras(&image)).unwrap();
        assert_eq!(created.cached_tokens, 0);
        run(&mut cache, created.seq, &[7; 4]);
        cache.free(created.seq, Release::Cache).unwrap();
    }
    for at in 0..500 {
        let prefix = cache.peek(&Scope::default(), &[7; 5], Query::default().with_extras(&image(at))).unwrap();
        assert_eq!(prefix.cached_tokens, 4, "whole blocks are found whatever their number");
    }
}

#[test]
fn a_hit_may_end_within_a_block_where_it_may_not_at_its_border() {
    // Nine tokens in blocks of 4, a range 2..6 that must not be cut, and another prompt that agrees for seven: a hit may
    // not end at 4, behind the only block that is there whole, but it may at 7, in the one behind.
    let mut cache = cache(8, 4);
    let a = sequence_of(&mut cache, &tokens(0..9));
    cache.free(a, Release::Cache).unwrap();
    let (prompt, no_cut) = ([0, 1, 2, 3, 4, 5, 6, 90, 91], 2..6);
    let query = Query::default().with_no_cut(core::slice::from_ref(&no_cut));
    let created = cache.create(&Scope::default(), &prompt, query).unwrap();
    assert_eq!(created.cached_tokens, 7);
    run(&mut cache, created.seq, &prompt[7..]);
    // Where only five agree, the hit ends in front of the range, within the first block.
    let created = cache.create(&Scope::default(), &[0, 1, 2, 3, 4, 95, 96], query).unwrap();
    assert_eq!(created.cached_tokens, 2);
    run(&mut cache, created.seq, &[2, 3, 4, 95, 96]);
}
