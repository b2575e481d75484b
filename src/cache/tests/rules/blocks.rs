//! Blocks: who gets them, in what order, and when not.

use super::*;

#[test]
fn a_fresh_pool_has_all_its_blocks_but_the_first() {
    // R1. N blocks, of which block 0 is never handed out; usage = 1 - free / (N - 1) = 0.
    let cache = pool(12);
    let stats = cache.stats();
    assert_eq!((stats.capacity, stats.available, stats.held), (11, 11, 0));
    assert_eq!(cache.scratch(), Some(BlockId::new(0)));
    assert_eq!(order(&cache), tokens(1..12));
}

#[test]
fn blocks_of_a_fresh_pool_come_in_order() {
    // R2. 1, 2, 3, from the front of the queue.
    let mut cache = pool(12);
    let seq = sequence_of(&mut cache, &tokens(0..9));
    assert_eq!(blocks_of(&cache, seq), [1, 2, 3]);
}

#[test]
fn idle_blocks_that_a_hit_takes_count_as_taken() {
    // R7. Five blocks are available, of which four hold the beginning of a prompt that needs two more: none are given.
    // In a pool of five that prompt could never run, and would be refused at once; so there is a sixth, which is held.
    let mut cache = pool(7);
    filler(&mut cache, 1);
    let old = sequence_of(&mut cache, &tokens(0..16));
    cache.free(old, Release::Cache).unwrap();
    assert_eq!((cache.stats().available, cache.stats().cached), (5, 4));
    let prompt = tokens(0..24);
    let Ok(Fit::Later(shortfall)) = cache.fits_prompt(&Scope::default(), &prompt, Query::default(), 0) else {
        panic!()
    };
    assert_eq!((shortfall.needed, shortfall.free), (6, 5));
    // A hit alone is no obligation: it takes its four, and it is the plan of the rest that finds no room.
    let created = cache.create(&Scope::default(), &prompt, Query::default()).unwrap();
    assert_eq!((created.cached_tokens, cache.stats().available), (16, 1));
    let plan = cache.plan(&[Row::ids(created.seq, &prompt[16..])], &mut Step::new());
    let Err(PlanError::Shortfall { shortfall }) = plan else { panic!("{plan:?}") };
    assert_eq!((shortfall.needed, shortfall.free), (2, 1));
}

#[test]
fn a_failure_changes_nothing_without_exception() {
    // R8. There, blocks that a window has left behind may be gone although the allocation failed. Here all of the cache
    // is as before, down to the order of its lists, and the caller's buffer too.
    let mut cache = pool(5);
    let old = sequence_of(&mut cache, &tokens(0..8));
    cache.free(old, Release::Cache).unwrap();
    let created = cache.create(&Scope::default(), &tokens(0..16), Query::default()).unwrap();
    let other = cache.create(&Scope::default(), &tokens(50..54), Query::default()).unwrap();
    let mut step = run(&mut cache, other.seq, &tokens(50..53));
    let (before, step_before) = (cache.snapshot(), step.clone());
    // 4 blocks: 2 found, 1 for the other, 1 free; the rest of the prompt needs 2.
    let rest = tokens(8..16);
    let rows = [Row::ids(other.seq, &[53]), Row::ids(created.seq, &rest)];
    assert!(matches!(cache.plan(&rows, &mut step), Err(PlanError::Shortfall { .. })));
    assert_eq!((cache.snapshot(), step), (before, step_before));
}

#[test]
fn rows_and_prompts_without_tokens_are_refused_by_name() {
    // R9. No tokens are a ValueError there, and a negative number is accepted in silence (hazard H6); here a count
    // cannot be negative, and nothing has an error of its own.
    let mut cache = pool(12);
    let empty = cache.create(&Scope::default(), &[], Query::default());
    assert_eq!(empty, Err(CreateError::EmptyPrompt));
    assert_eq!(cache.peek(&Scope::default(), &[], Query::default()), Err(CreateError::EmptyPrompt));
    let seq = sequence_of(&mut cache, &[1]);
    for row in [Row::ids(seq, &[]), Row::count(seq, 0)] {
        assert_eq!(cache.plan(&[row], &mut Step::new()), Err(PlanError::EmptyRow { row: 0 }));
    }
}

#[test]
fn a_freed_chain_is_evicted_from_its_end_behind_all_that_is_blank() {
    // R13. 14 tokens in blocks 1 to 4, of which 4 is partly filled: it goes to the front, 3, 2, 1 to the back. In the
    // middle, what was free before.
    let mut cache = pool(12);
    let seq = sequence_of(&mut cache, &tokens(0..14));
    assert_eq!(blocks_of(&cache, seq), [1, 2, 3, 4]);
    cache.free(seq, Release::Cache).unwrap();
    assert_eq!(order(&cache), [4, 5, 6, 7, 8, 9, 10, 11, 3, 2, 1]);
}

#[test]
fn what_was_used_last_is_evicted_last_and_a_lookup_is_no_use() {
    // R14. Three chains of one block, freed in the order 1, 2, 3, in a pool of three: evicted in that order.
    let mut cache = pool(4);
    let chains = [10, 20, 30].map(|start| sequence_of(&mut cache, &tokens(start..start + 4)));
    chains.iter().for_each(|&seq| cache.free(seq, Release::Cache).unwrap());
    assert_eq!(order(&cache), [1, 2, 3]);
    // To look for the first changes nothing; to take and free it does.
    assert_eq!(found(&cache, &tokens(10..15)), 4);
    assert_eq!(order(&cache), [1, 2, 3]);
    let again = cache.create(&Scope::default(), &tokens(10..15), Query::default()).unwrap();
    cache.free(again.seq, Release::Cache).unwrap();
    assert_eq!(order(&cache), [2, 3, 1]);
}

#[test]
fn a_shared_block_gets_its_place_when_its_last_holder_goes() {
    // R15. a and b share block 1; c has block 3 (b's tail is 2). c goes between a and b, and so block 1 is behind 3.
    let mut cache = pool(4);
    let a = sequence_of(&mut cache, &tokens(0..4));
    let b = sequence_of(&mut cache, &tokens(0..5));
    let c = sequence_of(&mut cache, &tokens(20..24));
    assert_eq!([a, b, c].map(|seq| blocks_of(&cache, seq)), [[1].to_vec(), [1, 2].to_vec(), [3].to_vec()]);
    for seq in [a, c, b] {
        cache.free(seq, Release::Cache).unwrap();
    }
    assert_eq!(order(&cache), [2, 3, 1]);
}

#[test]
fn a_preempted_request_finds_its_full_blocks() {
    // R16. 13 tokens are freed and come back with 12.
    let mut cache = pool(12);
    let seq = sequence_of(&mut cache, &tokens(0..13));
    cache.free(seq, Release::Cache).unwrap();
    let again = cache.create(&Scope::default(), &tokens(0..13), Query::default()).unwrap();
    assert_eq!((again.cached_tokens, blocks_of(&cache, again.seq)), (12, [1, 2, 3].to_vec()));
}

#[test]
fn room_is_kept_by_claims_instead_of_a_watermark() {
    // R20. A watermark of 0.3 in a pool of 11 keeps int(3.3) = 3 blocks from waiting requests: one that needs 8 of 10 is
    // not admitted, though a running one would get them. Here whoever wants room says for whom: a running sequence claims
    // 3 blocks, and then 8 are not to be had; it gets them itself. Admission may ask for more than the prompt.
    let mut cache = pool(11);
    let running = cache.create_blank(&Scope::default()).unwrap();
    let waiting = cache.create(&Scope::default(), &tokens(0..32), Query::default()).unwrap().seq;
    assert_eq!(cache.fits(&[Row::ids(waiting, &tokens(0..32))]), Ok(Fit::Now));
    cache.reserve(running, 12).unwrap();
    let shortfall = Shortfall { needed: 8, free: 7, pending: 0, group: GroupId::new(0) };
    assert_eq!(cache.fits(&[Row::ids(waiting, &tokens(0..32))]), Ok(Fit::Later(shortfall)));
    assert_eq!(cache.fits(&[Row::count(running, 40)]), Ok(Fit::Now));
    cache.free(running, Release::Cache).unwrap();
    filler(&mut cache, 1);
    let admit = |extra| cache.fits_prompt(&Scope::default(), &tokens(0..32), Query::default(), extra).unwrap();
    // 9 blocks are free: the prompt's 8 and one more are there, two more are not.
    assert_eq!((admit(4), matches!(admit(8), Fit::Later(_))), (Fit::Now, true));
}
