//! What makes content the same: the scope, every token before, and the extras; never a hash alone.
//!
//! The faults behind these: openvino.genai 3722 (hash without comparison), `LMCache` 3301 and 4086 (16 bits of an image's
//! hash), llama.cpp 26207 (adapter ignored), sglang 24579 (salt ignored), kekzl/imp 1301 (last token ignored).

use super::*;
use crate::id::ix;
use crate::planted;
use crate::prefix::Extra;

/// Tokens of `second` that are found once `first` is computed, with blocks of 4, under any hash.
fn found(first: (&Scope, &[u32], Query<'_>), second: (&Scope, &[u32], Query<'_>)) -> u32 {
    fn run([first, second]: [(&Scope, &[u32], Query<'_>); 2]) -> u32 {
        let config = CacheConfig::new(32, 4).with_scratch(false);
        let mut cache = KvCache::new(config).unwrap();
        let mut step = Step::new();
        let mut cached = 0;
        for (scope, tokens, query) in [first, second] {
            let created = cache.create(scope, tokens, query).unwrap();
            cached = created.cached_tokens;
            let id = cache.plan(&[Row::ids(created.seq, &tokens[ix(cached)..])], &mut step).unwrap();
            assert_eq!(step.rows()[0].skip, 0, "a plan finds no more than the creation before it");
            cache.commit_all(id).unwrap();
            cache.check_integrity().unwrap();
        }
        cached
    }
    let found = run([first, second]);
    let colliding = planted::with_colliding_scopes(|| run([first, second]));
    assert_eq!(found, colliding, "a hash decides what is found");
    found
}

fn plain(tokens: &[u32]) -> u32 {
    let scope = Scope::default();
    found((&scope, &[1, 2, 3, 4, 5, 6, 7, 8, 9], Query::default()), (&scope, tokens, Query::default()))
}

fn across(first: &Scope, second: &Scope) -> u32 {
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    found((first, &tokens, Query::default()), (second, &tokens, Query::default()))
}

fn extras(first: &[Extra], second: &[Extra]) -> u32 {
    let (scope, tokens) = (Scope::default(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let query = |extras| Query::default().with_extras(extras);
    found((&scope, &tokens, query(first)), (&scope, &tokens, query(second)))
}

fn extra(range: core::ops::Range<u32>, digest: [u8; 32]) -> Extra {
    Extra { range, digest }
}

#[test]
fn equal_prompts_are_found() {
    assert_eq!(plain(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), 8);
}

#[test]
fn a_block_behind_another_prefix_is_not_found() {
    // [y..|t] must not get the K and V of [x..|t], though t is the same, and neither where only y's own tail differs.
    assert_eq!(plain(&[0, 2, 3, 4, 5, 6, 7, 8, 9]), 0);
    assert_eq!(plain(&[5, 6, 7, 8, 5, 6, 7, 8, 9]), 0);
}

#[test]
fn the_second_block_alone_is_not_found_as_a_first() {
    assert_eq!(plain(&[5, 6, 7, 8, 9]), 0);
}

#[test]
fn the_last_token_of_a_block_counts() {
    // What is in front of it is reused.
    assert_eq!(plain(&[1, 2, 3, 0, 5, 6, 7, 8, 9]), 3);
    assert_eq!(plain(&[1, 2, 3, 4, 5, 6, 7, 0, 9]), 7);
}

#[test]
fn the_first_token_of_a_block_counts() {
    assert_eq!(plain(&[1, 2, 3, 4, 0, 6, 7, 8, 9]), 4);
}

#[test]
fn the_order_of_tokens_counts() {
    assert_eq!(plain(&[2, 1, 3, 4, 5, 6, 7, 8, 9]), 0);
}

#[test]
fn another_model_shares_nothing() {
    assert_eq!(across(&Scope::default(), &Scope::default().with_model(b"m")), 0);
}

#[test]
fn another_adapter_shares_nothing() {
    let scope = |name| Scope::default().with_adapter(name, 1);
    assert_eq!(across(&scope(b"a"), &scope(b"b")), 0);
    assert_eq!(across(&scope(b"a"), &Scope::default()), 0);
    assert_eq!(across(&scope(b"a"), &scope(b"a")), 8);
}

#[test]
fn another_version_of_an_adapter_shares_nothing() {
    assert_eq!(across(&Scope::default().with_adapter(b"a", 1), &Scope::default().with_adapter(b"a", 2)), 0);
}

#[test]
fn another_salt_shares_nothing() {
    let scope = |salt| Scope::default().with_salt(salt);
    assert_eq!(across(&scope(b"s"), &scope(b"t")), 0);
    assert_eq!(across(&scope(b"s"), &Scope::default()), 0);
    assert_eq!(across(&scope(b"s"), &scope(b"s")), 8);
}

#[test]
fn the_parts_of_a_scope_do_not_run_into_each_other() {
    let scope = |model, salt| Scope::default().with_model(model).with_salt(salt);
    assert_eq!(across(&scope(b"ab", b"c"), &scope(b"a", b"bc")), 0);
    assert_eq!(across(&scope(b"ab", b""), &scope(b"", b"ab")), 0);
}

#[test]
fn another_digest_is_other_content_from_its_range_on() {
    assert_eq!(extras(&[extra(5..7, [1; 32])], &[extra(5..7, [2; 32])]), 5);
    assert_eq!(extras(&[extra(1..3, [1; 32])], &[extra(1..3, [2; 32])]), 1);
    assert_eq!(extras(&[extra(1..3, [1; 32])], &[extra(1..3, [1; 32])]), 8);
}

#[test]
fn all_bits_of_a_digest_count() {
    for byte in [0, 1, 2, 15, 31] {
        let mut other = [1; 32];
        other[byte] ^= 0x80;
        assert_eq!(extras(&[extra(1..3, [1; 32])], &[extra(1..3, other)]), 1);
    }
}

#[test]
fn a_prompt_without_an_extra_is_other_content_than_one_with() {
    assert_eq!(extras(&[], &[extra(1..3, [1; 32])]), 1);
    assert_eq!(extras(&[extra(1..3, [1; 32])], &[]), 1);
    assert_eq!(extras(&[extra(4..8, [1; 32])], &[]), 4);
}

#[test]
fn an_extra_elsewhere_or_of_another_length_is_other_content() {
    assert_eq!(extras(&[extra(1..3, [1; 32])], &[extra(0..2, [1; 32])]), 0);
    assert_eq!(extras(&[extra(1..3, [1; 32])], &[extra(1..4, [1; 32])]), 1);
}

#[test]
fn an_extra_that_spans_blocks_counts_in_each() {
    // 3..6 overlaps the first block with its first token only.
    assert_eq!(extras(&[extra(3..6, [1; 32])], &[extra(3..6, [2; 32])]), 3);
    // 8..10 overlaps neither of the two full blocks.
    assert_eq!(extras(&[extra(8..10, [1; 32])], &[extra(8..10, [2; 32])]), 8);
}

#[test]
fn a_private_prompt_neither_finds_nor_is_found() {
    let (scope, tokens) = (Scope::default(), [1, 2, 3, 4, 5]);
    let private = Query::default().with_private(true);
    assert_eq!(found((&scope, &tokens, private), (&scope, &tokens, Query::default())), 0);
    assert_eq!(found((&scope, &tokens, Query::default()), (&scope, &tokens, private)), 0);
    assert_eq!(found((&scope, &tokens, private), (&scope, &tokens, private)), 0);
}

#[test]
fn a_hit_is_no_longer_than_wanted_and_ends_in_no_uncuttable_range() {
    fn with(query: Query<'_>) -> u32 {
        let (scope, tokens) = (Scope::default(), tokens(1..14));
        found((&scope, &tokens, Query::default()), (&scope, &tokens, query))
    }
    // Blocks end at 4, 8 and 12, and parts of them anywhere.
    for (most, expected) in [(0, 0), (3, 3), (4, 4), (7, 7), (8, 8), (12, 12), (99, 12)] {
        assert_eq!(with(Query::default().with_max_hit(most)), expected, "at most {most}");
    }
    for (range, expected) in [(3..5, 12), (11..13, 11), (5..13, 5), (8..13, 8), (1..13, 1), (9..12, 12)] {
        assert_eq!(with(Query::default().with_no_cut(core::slice::from_ref(&range))), expected, "no cut in {range:?}");
    }
}

#[test]
fn tokens_that_were_never_told_are_never_found() {
    // Four tokens by count, whose placeholders must not be taken for the prompt [0, 0, 0, 0].
    let mut cache = cache(8, 4);
    let seq = cache.create_blank(&Scope::default()).unwrap();
    let mut step = Step::new();
    let id = cache.plan(&[Row::count(seq, 4)], &mut step).unwrap();
    cache.commit_all(id).unwrap();
    run(&mut cache, seq, &[5, 6, 7, 8]);
    let peek = |prompt: &[u32]| cache.peek(&Scope::default(), prompt, Query::default()).unwrap().cached_tokens;
    assert_eq!(peek(&[0, 0, 0, 0, 0]), 0);
    assert_eq!(peek(&[0, 0, 0, 0, 5, 6, 7, 8, 0]), 0);
}

#[test]
fn tokens_that_are_told_at_commit_are_found() {
    let mut cache = cache(8, 4);
    let seq = cache.create(&Scope::default(), &[1, 2], Query::default()).unwrap().seq;
    run(&mut cache, seq, &[1, 2]);
    let mut step = Step::new();
    let first = cache.plan(&[Row::count(seq, 1)], &mut step).unwrap();
    let second = cache.plan(&[Row::count(seq, 1)], &mut step).unwrap();
    cache.commit(first, &[Outcome::Ids(&[3])]).unwrap();
    cache.commit(second, &[Outcome::Ids(&[4])]).unwrap();
    cache.check_integrity().unwrap();
    let peek = |prompt: &[u32]| cache.peek(&Scope::default(), prompt, Query::default()).unwrap().cached_tokens;
    assert_eq!((peek(&[1, 2, 3, 4, 0]), peek(&[1, 2, 0, 0, 0])), (4, 2));
}

#[test]
fn keys_of_any_length_are_told_apart() {
    // None, one byte, a null byte, and a million of them that differ in the last.
    let long = alloc::vec![7; 1 << 20];
    let mut other = long.clone();
    other[(1 << 20) - 1] ^= 1;
    let keys = [&[][..], &[0], &[0, 0], &[7], &long, &other, &long[1..]];
    for (first, a) in keys.iter().enumerate() {
        for (second, b) in keys.iter().enumerate() {
            let expected = if first == second { 8 } else { 0 };
            let plain = Scope::default();
            assert_eq!(across(&plain.clone().with_salt(a), &plain.clone().with_salt(b)), expected);
            assert_eq!(across(&plain.clone().with_model(a), &plain.clone().with_model(b)), expected);
            let named = |name| plain.clone().with_adapter(name, u64::MAX);
            assert_eq!(across(&named(a), &named(b)), expected);
        }
    }
}

#[test]
fn every_token_id_is_a_token() {
    // The ends of the type are no marks for anything, and neither are placeholders of tokens by count.
    const MOST: u32 = u32::MAX;
    let scope = Scope::default();
    let prompt = [MOST, 0, MOST, MOST, 0, 0, 0, 0, MOST];
    let plain = Query::default();
    assert_eq!(found((&scope, &prompt, plain), (&scope, &prompt, plain)), 8);
    for (at, expected) in [(0, 0), (1, 1), (3, 3), (7, 7), (8, 8)] {
        let mut other = prompt;
        other[at] = !other[at];
        assert_eq!(found((&scope, &prompt, plain), (&scope, &other, plain)), expected, "position {at}");
    }
    // Extras at the last positions there are.
    let far = [Extra::new(MOST - 1..MOST, [MOST.to_be_bytes()[0]; 32])];
    assert_eq!(found((&scope, &prompt, plain.with_extras(&far)), (&scope, &prompt, plain)), 8);
}
