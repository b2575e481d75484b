//! Lengths: the borders of blocks, cutting, drafts, lookahead, counts out of all bounds.

use super::*;
use crate::error::ConfigError;
use crate::id::{GroupId, ix};

fn cached(cache: &KvCache, prompt: &[u32]) -> u32 {
    cache.peek(&Scope::default(), prompt, Query::default()).unwrap().cached_tokens
}

#[test]
fn a_prompt_of_exactly_one_block_still_computes_a_token() {
    // nano-vllm 114: a full hit gave an input of no tokens.
    let mut cache = cache(8, 4);
    sequence_of(&mut cache, &[1, 2, 3, 4]);
    assert_eq!(cached(&cache, &[1, 2, 3, 4]), 3);
    let mut step = Step::new();
    let again = cache.create(&Scope::default(), &[1, 2, 3, 4], Query::default()).unwrap();
    assert_eq!(again.cached_tokens, 3);
    cache.plan(&[Row::ids(again.seq, &[4])], &mut step).unwrap();
    assert_eq!((step.rows()[0].start, step.rows()[0].len), (3, 1));
}

#[test]
fn a_prompt_finds_all_of_itself_but_the_last_token() {
    // vllm-ascend 7965; where others find (k - 1)B tokens of T = kB, here it is T - 1.
    let mut cache = cache(8, 4);
    sequence_of(&mut cache, &tokens(0..12));
    for (len, expected) in [(1, 0), (4, 3), (5, 4), (8, 7), (9, 8), (12, 11), (13, 12)] {
        assert_eq!(cached(&cache, &tokens(0..len)), expected, "a prompt of {len}");
    }
}

#[test]
fn a_block_of_one_token_is_a_block() {
    let mut cache = cache(4, 1);
    sequence_of(&mut cache, &[1, 2, 3]);
    assert_eq!(cache.stats().held, 3);
    assert_eq!(cached(&cache, &[1, 2, 3]), 2);
    assert_eq!(cached(&cache, &[1, 2, 3, 4]), 3);
}

#[test]
fn cutting_keeps_exactly_the_blocks_that_are_left() {
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &tokens(0..10));
    for (len, blocks) in [(9, 3), (8, 2), (5, 2), (4, 1), (1, 1), (0, 0)] {
        cache.truncate(seq, len).unwrap();
        cache.check_integrity().unwrap();
        assert_eq!((cache.sequence(seq).unwrap().len(), cache.stats().held), (len, blocks));
    }
    run(&mut cache, seq, &[1]);
    let beyond = cache.truncate(seq, 2);
    assert_eq!(beyond, Err(SequenceError::BeyondEnd { len: 2, committed: 1 }));
}

#[test]
fn a_sequence_cut_inside_a_block_goes_on_with_its_own_tokens() {
    // [1..6] cut to 5 and continued with 7, 8, 9 is [1, 2, 3, 4, 5, 7, 8, 9], and is found as that.
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &[1, 2, 3, 4, 5, 6]);
    cache.truncate(seq, 5).unwrap();
    run(&mut cache, seq, &[7, 8, 9]);
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5, 7, 8, 9, 0]), 8);
    // The same where the cut lies in a block that was full.
    cache.truncate(seq, 3).unwrap();
    run(&mut cache, seq, &[6]);
    assert_eq!(cached(&cache, &[1, 2, 3, 6, 0]), 4);
}

#[test]
fn cutting_a_busy_sequence_is_refused() {
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &tokens(0..6));
    cache.plan(&[Row::ids(seq, &[1])], &mut Step::new()).unwrap();
    let before = cache.snapshot();
    assert_eq!(cache.truncate(seq, 2), Err(SequenceError::Busy { seq }));
    assert_eq!(cache.snapshot(), before);
}

#[test]
fn rejected_drafts_are_never_found_and_give_their_blocks_back() {
    // vLLM 12333 and 12415. One certain token and five drafts behind [1, 2, 3]: positions 3 to 8, of which drafts 4
    // and 5 are accepted. Blocks 0 (1, 2, 3, 4) and 1 (5, 6) stay, the third goes back.
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &[1, 2, 3]);
    let mut step = Step::new();
    let drafts = [4, 5, 6, 7, 8, 9];
    let id = cache.plan(&[Row::ids(seq, &drafts).with_drafts(5)], &mut step).unwrap();
    assert_eq!(cache.stats().held, 3);
    let first = cache.create(&Scope::default(), &[1, 2, 3, 4, 5, 6, 7, 8, 0], Query::default()).unwrap();
    let later = cache.plan(&[Row::ids(first.seq, &[1, 2, 3, 4, 5, 6, 7, 8, 0])], &mut step).unwrap();
    // The first block is certain, the second holds drafts.
    assert_eq!(step.rows()[0].skip, 4);
    cache.commit(id, &[Outcome::Accept(3)]).unwrap();
    cache.abort(later).unwrap();
    cache.free(first.seq, Release::Cache).unwrap();
    assert_eq!((cache.sequence(seq).unwrap().len(), cache.stats().held), (6, 2));
    run(&mut cache, seq, &[17, 18]);
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5, 6, 7, 8, 0]), 6);
    assert_eq!(cached(&cache, &[1, 2, 3, 4, 5, 6, 17, 18, 0]), 8);
}

#[test]
fn what_is_no_draft_cannot_be_rolled_back() {
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &[1, 2, 3]);
    let id = cache.plan(&[Row::ids(seq, &[4, 5, 6]).with_drafts(1)], &mut Step::new()).unwrap();
    let before = cache.snapshot();
    for accepted in [0, 1, 4] {
        let refused = cache.commit(id, &[Outcome::Accept(accepted)]);
        assert_eq!(refused, Err(StepError::Accepted { row: 0, accepted: ix(accepted), least: 2, most: 3 }));
    }
    assert_eq!(cache.commit(id, &[Outcome::Ids(&[4, 5, 6])]), Err(StepError::IdsGivenTwice { row: 0 }));
    assert_eq!(cache.commit(id, &[]), Err(StepError::OutcomeCount { rows: 1, outcomes: 0 }));
    assert_eq!(cache.snapshot(), before);
    cache.commit(id, &[Outcome::Accept(2)]).unwrap();
}

#[test]
fn lookahead_keeps_blocks_for_as_long_as_it_is_asked_for() {
    // 3 tokens and 6 of lookahead are 9 positions: 3 blocks of 4. Without lookahead the next plan gives back what it
    // does not fill: 4 tokens are one block.
    let mut cache = cache(8, 4);
    let seq = cache.create_blank(&Scope::default()).unwrap();
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(seq, &[1, 2, 3]).with_lookahead(6)], &mut step).unwrap();
    assert_eq!(step.tables().table(0).len(), 3);
    cache.commit_all(id).unwrap();
    assert_eq!(cache.stats().held, 3);
    run(&mut cache, seq, &[4]);
    assert_eq!(cache.stats().held, 1);
}

#[test]
fn counts_out_of_all_bounds_are_refused_with_their_numbers() {
    // H4 and H6: sizes near the ends of their types, and none at all.
    let mut cache = cache(4, 4);
    let seq = sequence_of(&mut cache, &[1, 2, 3]);
    let mut step = Step::new();
    let mut plan = |row| cache.plan(&[row], &mut step).unwrap_err();
    let group = GroupId::new(0);
    assert_eq!(plan(Row::count(seq, 0)), PlanError::EmptyRow { row: 0 });
    assert_eq!(plan(Row::count(seq, u32::MAX)), PlanError::TooLong { row: 0 });
    assert_eq!(plan(Row::count(seq, u32::MAX - 3).with_lookahead(1)), PlanError::TooLong { row: 0 });
    assert_eq!(plan(Row::count(seq, 2).with_drafts(2)), PlanError::TooManyDrafts { row: 0, drafts: 2, tokens: 2 });
    // 3 + 14 = 17 tokens are 5 blocks of 4; 3 + (2^32 - 4) = 2^32 - 1 are 2^30.
    assert_eq!(plan(Row::count(seq, 14)), PlanError::NeverFits { row: 0, blocks: 5, capacity: 4, group });
    let blocks = 1 << 30;
    assert_eq!(plan(Row::count(seq, u32::MAX - 3)), PlanError::NeverFits { row: 0, blocks, capacity: 4, group });
    assert_eq!(cache.reserve(seq, u32::MAX), Err(SequenceError::NeverFits { blocks, capacity: 4, group }));
}

#[test]
fn slots_of_the_largest_pool_do_not_overflow() {
    // vLLM 1486, 50427 and 52109. Slots are u32: blocks x block size may be 2^32 - 1 and not 2^32.
    let too_many = CacheConfig::new(1 << 16, 1 << 16);
    let error = KvCache::new(too_many).unwrap_err();
    assert_eq!(error, ConfigError::TooManySlots { num_blocks: 1 << 16, block_size: 1 << 16 });
    // 4,095 blocks of 2^20 tokens: the last slot of the last block is 4,095 x 2^20 - 1, far beyond 2^31.
    assert_eq!(BlockId::new(4_094).slot((1 << 20) - 1, 1 << 20).get(), 4_293_918_719);
    let too_large = KvCache::new(CacheConfig::new(1, (1 << 20) + 1)).unwrap_err();
    assert_eq!(too_large, ConfigError::BlockTooLarge { block_size: (1 << 20) + 1 });
}

#[test]
fn configurations_that_contradict_themselves_are_refused() {
    assert_eq!(KvCache::new(CacheConfig::new(4, 0)).unwrap_err(), ConfigError::ZeroBlockSize);
    assert_eq!(KvCache::new(CacheConfig::new(0, 4)).unwrap_err(), ConfigError::NoUsableBlock { num_blocks: 0 });
    assert_eq!(KvCache::new(CacheConfig::new(1, 4)).unwrap_err(), ConfigError::NoUsableBlock { num_blocks: 1 });
    assert!(KvCache::new(CacheConfig::new(1, 4).with_scratch(false)).is_ok());
}

#[test]
fn a_sequence_cut_back_to_what_is_known_is_shared_again() {
    // Known tokens, then some that are never told; cut to the known and continued by id: inside an open block, and at
    // the border of a full one.
    for (known, unknown) in [(2, 1), (4, 4)] {
        let mut cache = cache(8, 4);
        let seq = sequence_of(&mut cache, &tokens(0..known));
        let id = cache.plan(&[Row::count(seq, unknown)], &mut Step::new()).unwrap();
        cache.commit_all(id).unwrap();
        cache.truncate(seq, known).unwrap();
        run(&mut cache, seq, &tokens(known..8));
        assert_eq!(cached(&cache, &tokens(0..9)), 8);
    }
}
