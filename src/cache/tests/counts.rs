//! Counts since the start, by source, and ages by the caller's clock.

use super::*;

#[test]
fn hits_are_told_apart_by_who_found_them() {
    // 12 tokens in blocks of 4. a computes all; b finds 11 when it is created, 3 of them in a part of a block. c and d are
    // created for another prompt of 12 that nobody has yet, and planned together: d skips the two blocks that c computes
    // in the same step and computes the last.
    let mut cache = cache(16, 4);
    sequence_of(&mut cache, &tokens(0..12));
    let b = cache.create(&Scope::default(), &tokens(0..12), Query::default()).unwrap();
    run(&mut cache, b.seq, &[11]);
    let stats = cache.stats();
    assert_eq!((stats.prompt_tokens, stats.found_tokens, stats.part_tokens, stats.skipped_tokens), (24, 11, 3, 0));
    let prompt = tokens(20..32);
    let [c, d] = [(); 2].map(|()| cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq);
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(c, &prompt), Row::ids(d, &prompt)], &mut step).unwrap();
    assert_eq!((step.rows()[0].skip, step.rows()[1].skip), (0, 8));
    cache.commit_all(id).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.prompt_tokens, stats.found_tokens, stats.part_tokens, stats.skipped_tokens), (48, 11, 3, 8));
    assert_eq!((stats.hit_tokens, stats.copies), (19, 1));
}

#[test]
fn what_is_only_asked_for_is_not_counted() {
    let mut cache = cache(16, 4);
    let seq = sequence_of(&mut cache, &tokens(0..8));
    let before = cache.stats();
    found(&cache, &tokens(0..9));
    cache.fits_prompt(&Scope::default(), &tokens(0..9), Query::default(), 4).unwrap();
    cache.fits(&[Row::ids(seq, &[1])]).unwrap();
    assert_eq!(cache.create(&Scope::default(), &[], Query::default()), Err(CreateError::EmptyPrompt));
    assert_eq!(cache.stats(), before);
    let pinned = cache.pin(&Scope::default(), &tokens(0..8), Query::default()).unwrap();
    cache.unpin(pinned.pin).unwrap();
    assert_eq!(cache.stats(), before, "a pin is no request");
}

#[test]
fn ages_are_sums_over_evictions_by_the_callers_clock() {
    // Two blocks. Stored at 10, let go at 15, found at 18, let go again at 20, evicted at 22 and 29, last block first:
    // resident 12 and 19, idle 2 and 9.
    let mut cache = KvCache::new(CacheConfig::new(2, 4).with_scratch(false).with_ages(true)).unwrap();
    let ages = |cache: &KvCache| {
        let stats = cache.stats();
        (stats.aged_evictions, stats.resident_time, stats.idle_time)
    };
    cache.set_time(10);
    let seq = sequence_of(&mut cache, &tokens(0..8));
    cache.set_time(15);
    cache.free(seq, Release::Cache).unwrap();
    cache.set_time(18);
    let pinned = cache.pin(&Scope::default(), &tokens(0..8), Query::default()).unwrap();
    assert_eq!(pinned.tokens, 8);
    cache.set_time(20);
    cache.unpin(pinned.pin).unwrap();
    assert_eq!(ages(&cache), (0, 0, 0));
    cache.set_time(22);
    let seq = filler(&mut cache, 1);
    assert_eq!(ages(&cache), (1, 12, 2));
    cache.set_time(29);
    filler(&mut cache, 1);
    assert_eq!((ages(&cache), cache.stats().evictions), ((2, 31, 11), 2));
    // A block that others cannot find has no age, and none that was invalidated is evicted.
    cache.free(seq, Release::Cache).unwrap();
    filler(&mut cache, 1);
    assert_eq!(ages(&cache), (2, 31, 11));
}

#[test]
fn without_books_there_are_no_ages() {
    let mut cache = cache(1, 4);
    cache.set_time(5);
    let seq = sequence_of(&mut cache, &tokens(0..4));
    cache.free(seq, Release::Cache).unwrap();
    cache.set_time(9);
    filler(&mut cache, 1);
    let stats = cache.stats();
    assert_eq!((stats.evictions, stats.aged_evictions, stats.resident_time, stats.idle_time), (1, 0, 0, 0));
}

#[test]
fn a_clock_that_goes_backwards_stands_still() {
    // Stored at 100; the clock says 40, then 7; let go and evicted at what still is 100, then 101.
    let mut cache = KvCache::new(CacheConfig::new(1, 4).with_scratch(false).with_ages(true)).unwrap();
    cache.set_time(100);
    let seq = sequence_of(&mut cache, &tokens(0..4));
    cache.set_time(40);
    cache.free(seq, Release::Cache).unwrap();
    cache.set_time(7);
    let seq = filler(&mut cache, 1);
    assert_eq!((cache.stats().resident_time, cache.stats().idle_time), (0, 0));
    cache.free(seq, Release::Cache).unwrap();
    let seq = sequence_of(&mut cache, &tokens(0..4));
    cache.set_time(u64::MAX);
    cache.free(seq, Release::Cache).unwrap();
    filler(&mut cache, 1);
    // From 100 to the end of the clock.
    assert_eq!((cache.stats().resident_time, cache.stats().idle_time), (u64::MAX - 100, 0));
}

#[test]
fn a_pool_of_more_blocks_than_can_be_named_is_refused() {
    let too_many = KvCache::new(CacheConfig::new((1 << 29) + 1, 1)).unwrap_err();
    assert_eq!(too_many, crate::error::ConfigError::TooManyBlocks { num_blocks: (1 << 29) + 1 });
}

#[test]
fn ages_of_a_clock_that_is_set_late_saturate() {
    // Nanoseconds since 1970 are an eleventh of 2^64; here each of two lives is all of it.
    let mut cache = KvCache::new(CacheConfig::new(2, 4).with_scratch(false).with_ages(true)).unwrap();
    let seq = sequence_of(&mut cache, &tokens(0..8));
    cache.free(seq, Release::Cache).unwrap();
    cache.set_time(u64::MAX);
    sequence_of(&mut cache, &tokens(20..28));
    let stats = cache.stats();
    assert_eq!((stats.aged_evictions, stats.resident_time, stats.idle_time), (2, u64::MAX, u64::MAX));
}
