//! What an invalidation reaches, and what it must leave alone.

use super::*;

fn found(cache: &KvCache, prompt: &[u32]) -> u32 {
    cache.peek(&Scope::default(), prompt, Query::default()).unwrap().cached_tokens
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
        assert_eq!(found(&cache, &prompt), 4, "{what:?}");
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
    assert_eq!(found(&cache, &prompt), 4);
}
