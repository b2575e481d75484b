//! Room: what fits now, later, never; claims that keep two from starving each other.

use super::*;
use crate::id::GroupId;

fn blank(cache: &mut KvCache) -> SeqId {
    cache.create_blank(&Scope::default()).unwrap()
}

/// Runs a prompt in chunks, one chunk of each sequence a step, until nobody gets on. Returns the lengths.
fn prefill_in_turns(cache: &mut KvCache, seqs: [SeqId; 2], chunk: u32, len: u32) -> [u32; 2] {
    let mut step = Step::new();
    loop {
        let mut moved = false;
        for seq in seqs {
            if cache.sequence(seq).unwrap().len() == len {
                continue;
            }
            if let Ok(id) = cache.plan(&[Row::count(seq, chunk)], &mut step) {
                cache.commit_all(id).unwrap();
                moved = true;
                if cache.sequence(seq).unwrap().len() == len {
                    let blocks = cache.stats().held;
                    cache.truncate(seq, 0).unwrap();
                    assert!(cache.stats().held < blocks);
                    return [seqs[0], seqs[1]]
                        .map(|other| if other == seq { len } else { cache.sequence(other).unwrap().len() });
                }
            }
        }
        if !moved {
            return seqs.map(|seq| cache.sequence(seq).unwrap().len());
        }
    }
}

#[test]
fn two_half_prefilled_prompts_starve_each_other_without_claims() {
    // 6 blocks of 4; two prompts of 16 tokens take 4 blocks each. In turns, both stop at 3 blocks.
    let mut cache = cache(6, 4);
    let seqs = [(); 2].map(|()| blank(&mut cache));
    assert_eq!(prefill_in_turns(&mut cache, seqs, 4, 16), [12, 12]);
}

#[test]
fn two_half_prefilled_prompts_with_reservations_both_finish() {
    // The same, with a claim: the second is told at once that there is no room for its claim, keeps to what is left,
    // and the first finishes. Then the second can claim and finish too.
    let mut cache = cache(6, 4);
    let [a, b] = [(); 2].map(|()| blank(&mut cache));
    cache.reserve(a, 16).unwrap();
    let Err(SequenceError::Shortfall { shortfall }) = cache.reserve(b, 16) else { panic!() };
    assert_eq!((shortfall.needed, shortfall.free), (4, 2));
    assert_eq!(prefill_in_turns(&mut cache, [b, a], 4, 16), [8, 16]);
    cache.free(a, Release::Cache).unwrap();
    cache.reserve(b, 16).unwrap();
    assert_eq!(cache.sequence(b).unwrap().reserved_blocks(), 2);
    assert_eq!(prefill_in_turns(&mut cache, [b, b], 4, 16), [16, 16]);
    cache.check_integrity().unwrap();
}

#[test]
fn a_claim_is_paid_out_and_comes_back_with_its_blocks() {
    let mut cache = cache(6, 4);
    let seq = blank(&mut cache);
    cache.reserve(seq, 16).unwrap();
    let left = |cache: &KvCache| (cache.sequence(seq).unwrap().reserved_blocks(), cache.stats().available);
    assert_eq!(left(&cache), (4, 6));
    let mut step = Step::new();
    let id = cache.plan(&[Row::count(seq, 9)], &mut step).unwrap();
    assert_eq!(left(&cache), (1, 3));
    cache.abort(id).unwrap();
    assert_eq!(left(&cache), (4, 6));
    let id = cache.plan(&[Row::count(seq, 9)], &mut step).unwrap();
    // Of the 9 tokens 4 turn out to be real.
    cache.commit(id, &[Outcome::Accept(4)]).unwrap();
    assert_eq!(left(&cache), (3, 5));
    // Beyond its claim a sequence takes what is free, and 24 tokens are all 6 blocks.
    cache.plan(&[Row::count(seq, 20)], &mut step).unwrap();
    assert_eq!(left(&cache), (0, 0));
    cache.free(seq, Release::Cache).unwrap();
    assert_eq!((cache.stats().reserved, cache.stats().available), (0, 6));
}

#[test]
fn a_hit_takes_no_block_that_is_reserved_for_others() {
    // Both cached blocks are idle and both are claimed: the prompt finds nothing, and the claim is kept.
    let mut cache = cache(3, 4);
    let old = sequence_of(&mut cache, &tokens(0..8));
    cache.free(old, Release::Cache).unwrap();
    let claimer = blank(&mut cache);
    cache.reserve(claimer, 8).unwrap();
    let created = cache.create(&Scope::default(), &tokens(0..9), Query::default()).unwrap();
    // 3 available, 2 claimed: one idle block may be taken.
    assert_eq!(created.cached_tokens, 4);
    run(&mut cache, claimer, &tokens(50..58));
}

#[test]
fn a_hit_cut_short_by_a_claim_still_ends_where_it_may() {
    // As above, but the hit must not end at 4.
    let mut cache = cache(3, 4);
    let old = sequence_of(&mut cache, &tokens(0..8));
    cache.free(old, Release::Cache).unwrap();
    let claimer = blank(&mut cache);
    cache.reserve(claimer, 8).unwrap();
    let image = 3..6;
    let query = Query::default().with_no_cut(core::slice::from_ref(&image));
    let created = cache.create(&Scope::default(), &tokens(0..9), query).unwrap();
    assert_eq!((created.cached_tokens, cache.stats().held), (0, 0));
    cache.check_integrity().unwrap();
}

#[test]
fn a_request_larger_than_the_pool_never_fits() {
    // inference-sim 297: it waited for ever. 5 blocks in a pool of 4 are refused at once, whatever is free.
    let mut cache = cache(4, 4);
    let scope = Scope::default();
    let group = GroupId::new(0);
    let create = cache.create(&scope, &tokens(0..17), Query::default());
    assert_eq!(create, Err(CreateError::NeverFits { blocks: 5, capacity: 4, group }));
    assert_eq!(cache.fits_prompt(&scope, &tokens(0..17), Query::default(), 0), Ok(Fit::Never));
    assert_eq!(cache.fits_prompt(&scope, &tokens(0..16), Query::default(), 1), Ok(Fit::Never));
    assert_eq!(cache.fits_prompt(&scope, &tokens(0..16), Query::default(), u32::MAX), Ok(Fit::Never));
    assert_eq!(cache.fits_prompt(&scope, &tokens(0..16), Query::default(), 0), Ok(Fit::Now));
    let seq = blank(&mut cache);
    assert_eq!(cache.fits(&[Row::count(seq, 17)]), Ok(Fit::Never));
    assert_eq!(cache.reserve(seq, 17), Err(SequenceError::NeverFits { blocks: 5, capacity: 4, group }));
}

#[test]
fn the_scratch_block_is_not_capacity() {
    // 4 blocks, of which one is scratch: 12 tokens fit and 13 never do, and block 0 stands in no table.
    let mut cache = KvCache::new(CacheConfig::new(4, 4)).unwrap();
    let seq = blank(&mut cache);
    assert_eq!(cache.fits(&[Row::count(seq, 13)]), Ok(Fit::Never));
    let mut step = Step::new();
    cache.plan(&[Row::count(seq, 12)], &mut step).unwrap();
    assert!(step.tables().table(0).iter().all(|&block| Some(block) != cache.scratch()));
    assert_eq!(step.tables().scratch(), cache.scratch());
    assert_eq!((cache.stats().capacity, cache.stats().available), (3, 0));
}

#[test]
fn what_fits_and_what_is_planned_are_the_same() {
    // vLLM 39734: admission counted otherwise than allocation, and a request was never admitted. A prompt of 16 whose
    // first 8 tokens are held by another needs 2 blocks, and 2 are free.
    let mut cache = cache(4, 4);
    let scope = Scope::default();
    sequence_of(&mut cache, &tokens(0..8));
    assert_eq!(cache.fits_prompt(&scope, &tokens(0..16), Query::default(), 0), Ok(Fit::Now));
    let private = Query::default().with_private(true);
    let Ok(Fit::Later(shortfall)) = cache.fits_prompt(&scope, &tokens(0..16), private, 0) else { panic!() };
    assert_eq!((shortfall.needed, shortfall.free), (4, 2));
    let created = cache.create(&scope, &tokens(0..16), Query::default()).unwrap();
    run(&mut cache, created.seq, &tokens(8..16));
}

#[test]
fn blocks_that_an_open_step_computes_count_as_found() {
    // The same while the first prompt is still being computed: what is found is skipped in the plan.
    let mut cache = cache(4, 4);
    let scope = Scope::default();
    let first = cache.create(&scope, &tokens(0..8), Query::default()).unwrap().seq;
    let mut step = Step::new();
    cache.plan(&[Row::ids(first, &tokens(0..8))], &mut step).unwrap();
    assert_eq!(cache.fits_prompt(&scope, &tokens(0..16), Query::default(), 0), Ok(Fit::Now));
    let second = cache.create(&scope, &tokens(0..16), Query::default()).unwrap();
    assert_eq!(second.cached_tokens, 0);
    cache.plan(&[Row::ids(second.seq, &tokens(0..16))], &mut step).unwrap();
    assert_eq!(step.rows()[0].skip, 8);
}

#[test]
fn a_length_that_is_reached_is_not_claimed_again_by_a_cut() {
    let mut cache = cache(4, 4);
    let seq = sequence_of(&mut cache, &tokens(0..12));
    cache.reserve(seq, 12).unwrap();
    cache.truncate(seq, 2).unwrap();
    assert_eq!((cache.sequence(seq).unwrap().reserved_blocks(), cache.stats().reserved), (0, 0));
}

#[test]
fn blocks_that_a_hit_takes_from_nobody_are_not_idle() {
    // The found block is withheld: it is not available before the hit, and a hit costs nothing.
    let config = CacheConfig::new(4, 4).with_scratch(false).with_withhold(true);
    let mut cache = KvCache::new(config).unwrap();
    let seq = sequence_of(&mut cache, &tokens(0..5));
    cache.free(seq, Release::Cache).unwrap();
    let available = cache.stats().available;
    let found = cache.peek(&Scope::default(), &tokens(0..5), Query::default()).unwrap();
    assert_eq!((found.cached_tokens, found.idle_blocks), (4, 0));
    cache.create(&Scope::default(), &tokens(0..5), Query::default()).unwrap();
    assert_eq!(cache.stats().available, available);
}
