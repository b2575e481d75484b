//! What has a name can be found, and what is announced too: never without what it builds on.

use alloc::sync::Arc;
use std::sync::Mutex;

use super::*;
use crate::cache::simulation::NewestFirst;
use crate::prefix::change::Event;
use crate::prefix::hash::{BlockHasher, Digest, Hashed};

/// Names a block by its first token: enough here.
struct First;

impl BlockHasher for First {
    fn identity(&self, block: &Hashed<'_>) -> Digest {
        [u8::try_from(block.tokens[0]).unwrap(); 32]
    }
}

/// Blocks of one token. `a` computes [1, 2, 3]; `b` computes 1 again, which is all of its row, and finds 2, whose block
/// is a's. Then a is freed, so that of 1 there is only what the second of the three open steps computes.
fn found_behind_what_is_computed_again(cache: &mut KvCache) -> (SeqId, [StepId; 3]) {
    let (mut step, prompt) = (Step::new(), [1, 2, 3]);
    let [a, b] = [(); 2].map(|()| cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq);
    let first = cache.plan(&[Row::ids(a, &prompt)], &mut step).unwrap();
    let second = cache.plan(&[Row::ids(b, &prompt[..1])], &mut step).unwrap();
    let third = cache.plan(&[Row::ids(b, &prompt[1..])], &mut step).unwrap();
    assert_eq!(step.rows()[0].skip, 1);
    cache.free(a, Release::Cache).unwrap();
    (b, [first, second, third])
}

#[test]
fn content_is_announced_once_what_it_builds_on_can_be_found() {
    let mut cache = cache(8, 1);
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    cache.set_events(First, move |event: &Event| {
        let Event::Stored(stored) = event else { panic!("{event:?}") };
        heard.lock().unwrap().push(stored.tokens[0]);
        Ok(())
    });
    let (_, steps) = found_behind_what_is_computed_again(&mut cache);
    for (id, so_far) in steps.into_iter().zip([&[][..], &[1, 2], &[1, 2, 3]]) {
        cache.commit_all(id).unwrap();
        assert_eq!(*told.lock().unwrap(), so_far);
    }
}

#[test]
fn content_that_cannot_be_found_any_more_is_given_up() {
    // The first step has computed 2, which nobody finds without 1; and 1 goes, uncomputed, with its only holder; or with
    // the abort of its step.
    for freed in [true, false] {
        let mut cache = cache(8, 1);
        let (b, [first, second, _]) = found_behind_what_is_computed_again(&mut cache);
        cache.commit_all(first).unwrap();
        if freed {
            cache.free(b, Release::Cache).unwrap();
        } else {
            cache.abort(second).unwrap();
        }
        cache.check_integrity().unwrap();
        assert_eq!(cache.stats().cached, 0);
    }
}

#[test]
fn withheld_content_goes_with_the_block_that_it_builds_on() {
    // a and b both compute 1 and 2, in blocks of their own; b computes 3 behind them in the last step and is freed,
    // so that its blocks are withheld. All others are retired, and a's two blocks are the only ones that the pool has left. The policy
    // names 1, and 2 goes instead, which builds on it, and 3 with that.
    let config = CacheConfig::new(5, 1).with_scratch(false).with_withhold(true);
    let mut cache = KvCache::with_policy(config, NewestFirst::default()).unwrap();
    let (mut step, scope) = (Step::new(), Scope::default());
    let [a, b] = [(); 2].map(|()| cache.create(&scope, &[1, 2, 3], Query::default()).unwrap().seq);
    let first = cache.plan(&[Row::ids(a, &[1])], &mut step).unwrap();
    let second = cache.plan(&[Row::ids(b, &[1])], &mut step).unwrap();
    cache.commit_all(first).unwrap();
    cache.commit_all(second).unwrap();
    let [third, fourth] = [a, b].map(|seq| cache.plan(&[Row::ids(seq, &[2])], &mut step).unwrap());
    cache.commit_all(third).unwrap();
    cache.commit_all(fourth).unwrap();
    let last = cache.plan(&[Row::ids(b, &[3])], &mut step).unwrap();
    cache.commit_all(last).unwrap();
    cache.free(b, Release::Cache).unwrap();
    cache.free(a, Release::Cache).unwrap();
    cache.retire(fourth).unwrap();
    assert_eq!((cache.stats().available, cache.stats().cached), (2, 3));
    let other = cache.create(&scope, &[7], Query::default()).unwrap().seq;
    let id = cache.plan(&[Row::ids(other, &[7])], &mut step).unwrap();
    cache.commit_all(id).unwrap();
    cache.check_integrity().unwrap();
    assert_eq!(cache.stats().cached, 1);
}
