//! Blocks with the same content, each in a table of its own: one of them is found, and when it goes another is.

use super::*;
use crate::id::BlockId;

#[test]
fn when_the_block_that_is_found_is_freed_its_twin_is_found() {
    for release in [Release::Cache, Release::Discard] {
        let mut cache = cache(8, 4);
        let prompt = tokens(0..5);
        let a = sequence_of(&mut cache, &prompt[..4]);
        let b = twin_of(&mut cache, &prompt[..4]);
        let hit = |cache: &mut KvCache| {
            let seq = cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq;
            let blocks = blocks_of(cache, seq);
            cache.free(seq, Release::Cache).unwrap();
            blocks
        };
        assert_eq!(hit(&mut cache), [0]);
        cache.free(a, release).unwrap();
        cache.check_integrity().unwrap();
        // Block 0 is blank at once: one copy of a content is worth keeping.
        assert_eq!((hit(&mut cache), cache.stats().cached), ([1].to_vec(), 0));
        cache.free(b, Release::Cache).unwrap();
        assert_eq!((hit(&mut cache), cache.stats().cached), ([1].to_vec(), 1));
    }
}

#[test]
fn a_twin_that_goes_idle_takes_the_place_of_one_that_is() {
    // a's block is idle when b computes the same; b goes later, so that b's block is the one that was used last.
    let mut cache = cache(3, 4);
    let a = sequence_of(&mut cache, &[1, 2, 3, 4]);
    cache.free(a, Release::Cache).unwrap();
    let b = twin_of(&mut cache, &[1, 2, 3, 4]);
    let c = sequence_of(&mut cache, &[5, 6, 7, 8]);
    assert_eq!([b, c].map(|seq| blocks_of(&cache, seq)[0]), [1, 2]);
    cache.free(c, Release::Cache).unwrap();
    cache.free(b, Release::Cache).unwrap();
    cache.check_integrity().unwrap();
    assert_eq!(cache.stats().cached, 2);
    // Block 0 is blank, then c's, then b's.
    for (found_c, found_b) in [(4, 4), (0, 4), (0, 0)] {
        filler(&mut cache, 1);
        assert_eq!((found(&cache, &[5, 6, 7, 8, 0]), found(&cache, &[1, 2, 3, 4, 0])), (found_c, found_b));
    }
}

#[test]
fn a_twin_takes_over_under_children_that_are_held() {
    // a and b have [0..8] each in their own blocks; a's first block is found, and b's second block hangs below it.
    for release in [Release::Cache, Release::Discard] {
        let mut cache = cache(8, 4);
        let a = sequence_of(&mut cache, &tokens(0..4));
        let b = twin_of(&mut cache, &tokens(0..8));
        assert_eq!([blocks_of(&cache, a), blocks_of(&cache, b)], [[0].to_vec(), [1, 2].to_vec()]);
        cache.free(a, release).unwrap();
        cache.check_integrity().unwrap();
        let c = cache.create(&Scope::default(), &tokens(0..9), Query::default()).unwrap();
        assert_eq!((c.cached_tokens, blocks_of(&cache, c.seq)), (8, [1, 2].to_vec()));
    }
}

#[test]
fn many_twins_go_in_any_order_and_are_found_to_the_last() {
    // All 24 orders of four twins.
    for order in 0..24_usize {
        let mut cache = cache(8, 4);
        let mut twins: Vec<_> = (0..4).map(|_| twin_of(&mut cache, &tokens(0..4))).collect();
        let mut at = order;
        for left in (1..=4).rev() {
            assert_eq!((found(&cache, &tokens(0..5)), cache.stats().held), (4, u32::try_from(left).unwrap()));
            let seq = twins.remove(at % left);
            at /= left;
            cache.free(seq, Release::Discard).unwrap();
            cache.check_integrity().unwrap();
        }
        assert_eq!((found(&cache, &tokens(0..5)), cache.stats().cached), (0, 0));
    }
}

#[test]
fn a_withheld_child_does_not_keep_its_evicted_parent_found() {
    // Under withholding a child may wait for a step when its parent is already to be had: a's block 0 is the one that is
    // found and free, b's copy of it is forgotten, and b's second block waits for b's step. Evicted, the parent is not
    // found, and so neither is the child, until somebody computes the parent again.
    let config = CacheConfig::new(3, 4).with_scratch(false).with_withhold(true);
    let mut cache = KvCache::new(config).unwrap();
    let a = sequence_of(&mut cache, &tokens(0..4));
    let b = twin_of(&mut cache, &tokens(0..8));
    cache.free(b, Release::Cache).unwrap();
    cache.free(a, Release::Cache).unwrap();
    cache.check_integrity().unwrap();
    cache.retire(StepId::new(1)).unwrap();
    cache.check_integrity().unwrap();
    let (before, available) = (found(&cache, &tokens(0..9)), cache.stats().available);
    assert_eq!((before, available), (8, 1));
    filler(&mut cache, 1);
    cache.check_integrity().unwrap();
    assert_eq!((found(&cache, &tokens(0..9)), cache.refs(BlockId::new(0))), (0, 1));
    cache.retire(StepId::new(3)).unwrap();
    cache.check_integrity().unwrap();
}
