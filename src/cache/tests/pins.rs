//! Pins: cached prefixes that stay.

use super::*;
use crate::id::BlockId;

fn pin(cache: &mut KvCache, prompt: &[u32]) -> Pinned {
    let pinned = cache.pin(&Scope::default(), prompt, Query::default()).unwrap();
    cache.check_integrity().unwrap();
    pinned
}

#[test]
fn what_is_pinned_is_never_evicted_and_can_be_once_it_is_not() {
    let mut cache = cache(3, 4);
    let seq = sequence_of(&mut cache, &tokens(0..8));
    let pinned = pin(&mut cache, &tokens(0..8));
    // Whole blocks, the last one of the prompt too: nothing is left to compute, since nothing is computed.
    assert_eq!(pinned.tokens, 8);
    cache.free(seq, Release::Discard).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.pins, stats.sequences, stats.held, stats.available, stats.cached), (1, 0, 2, 1, 0));
    let greedy = cache.create_blank(&Scope::default()).unwrap();
    for tokens in [5, 12] {
        let Err(PlanError::Shortfall { shortfall }) = cache.plan(&[Row::count(greedy, tokens)], &mut Step::new())
        else {
            panic!("{tokens} tokens were given pinned blocks")
        };
        assert_eq!((shortfall.needed, shortfall.free), (tokens.div_ceil(4), 1));
    }
    assert_eq!(found(&cache, &tokens(0..9)), 8);
    cache.unpin(pinned.pin).unwrap();
    assert_eq!((cache.stats().pins, cache.stats().held, cache.stats().cached), (0, 0, 2));
    cache.plan(&[Row::count(greedy, 12)], &mut Step::new()).unwrap();
    assert_eq!(found(&cache, &tokens(0..9)), 0);
    cache.check_integrity().unwrap();
}

#[test]
fn a_pin_is_let_go_once() {
    let mut cache = cache(4, 4);
    sequence_of(&mut cache, &tokens(0..4));
    let [a, b] = [(); 2].map(|()| pin(&mut cache, &tokens(0..4)).pin);
    assert_ne!(a, b);
    assert_eq!(cache.refs(BlockId::new(0)), 3);
    cache.unpin(a).unwrap();
    let before = cache.snapshot();
    assert!(matches!(cache.unpin(a), Err(SequenceError::UnknownPin)));
    assert_eq!((cache.snapshot(), cache.refs(BlockId::new(0))), (before, 2));
    // Also once its place is taken by another.
    let c = pin(&mut cache, &tokens(0..4)).pin;
    assert!(a != c && cache.unpin(a).is_err());
    cache.unpin(c).unwrap();
    cache.unpin(b).unwrap();
    assert_eq!(cache.stats().pins, 0);
}

#[test]
fn a_pin_of_nothing_holds_nothing_also_later() {
    let mut cache = cache(4, 4);
    let pinned = pin(&mut cache, &tokens(0..8));
    assert_eq!((pinned.tokens, cache.stats().pins, cache.stats().held), (0, 1, 0));
    let seq = sequence_of(&mut cache, &tokens(0..8));
    cache.free(seq, Release::Cache).unwrap();
    assert_eq!((cache.stats().held, cache.stats().cached), (0, 2));
    cache.unpin(pinned.pin).unwrap();
    assert_eq!(cache.pin(&Scope::default(), &[], Query::default()), Err(CreateError::EmptyPrompt));
    let private = Query::default().with_private(true);
    assert_eq!(cache.pin(&Scope::default(), &tokens(0..8), private).unwrap().tokens, 0);
    let salted = Scope::default().with_salt(b"s");
    assert_eq!(cache.pin(&salted, &tokens(0..8), Query::default()).unwrap().tokens, 0);
    cache.check_integrity().unwrap();
}

#[test]
fn a_pin_holds_whole_blocks_that_are_computed() {
    let mut cache = cache(8, 4);
    let seq = cache.create(&Scope::default(), &tokens(0..12), Query::default()).unwrap().seq;
    run(&mut cache, seq, &tokens(0..4));
    let id = cache.plan(&[Row::ids(seq, &tokens(4..12))], &mut Step::new()).unwrap();
    // The second and third block are being computed, and of a block's first tokens none is held.
    assert_eq!(pin(&mut cache, &tokens(0..12)).tokens, 4);
    cache.commit_all(id).unwrap();
    for (len, expected) in [(3, 0), (7, 4), (8, 8), (11, 8), (12, 12)] {
        assert_eq!(pin(&mut cache, &tokens(0..len)).tokens, expected, "{len} tokens");
    }
    let most = Query::default().with_max_hit(8);
    assert_eq!(cache.pin(&Scope::default(), &tokens(0..12), most).unwrap().tokens, 8);
}

#[test]
fn a_pin_takes_no_block_that_is_reserved() {
    // 3 blocks, of which 2 are cached and 2 claimed: one may be pinned.
    let mut cache = cache(3, 4);
    let old = sequence_of(&mut cache, &tokens(0..8));
    cache.free(old, Release::Cache).unwrap();
    let claimer = cache.create_blank(&Scope::default()).unwrap();
    cache.reserve(claimer, 8).unwrap();
    assert_eq!(pin(&mut cache, &tokens(0..8)).tokens, 4);
    run(&mut cache, claimer, &tokens(50..58));
}

#[test]
fn a_pin_of_what_was_invalidated_holds_its_blocks_and_is_not_found() {
    let mut cache = cache(4, 4);
    let seq = sequence_of(&mut cache, &tokens(0..8));
    let pinned = pin(&mut cache, &tokens(0..8));
    cache.free(seq, Release::Cache).unwrap();
    assert_eq!(cache.invalidate(Invalidate::All), 2);
    assert_eq!((found(&cache, &tokens(0..9)), cache.stats().held), (0, 2));
    assert_eq!(pin(&mut cache, &tokens(0..8)).tokens, 0);
    cache.unpin(pinned.pin).unwrap();
    // Without a name there is nothing to keep.
    assert_eq!((cache.stats().held, cache.stats().cached, cache.stats().available), (0, 0, 4));
    cache.check_integrity().unwrap();
}
