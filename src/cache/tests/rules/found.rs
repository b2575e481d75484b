//! What is found, from when on, until when.

use super::*;

#[test]
fn a_lookup_leaves_one_token_and_not_one_block() {
    // R5. There, hits end at block borders and before the last token: T = kB finds (k - 1)B, T = kB + 1 finds kB. Here
    // T = kB finds kB - 1: of the last block all but the last token is shared, and copied before that one is written.
    let mut cache = pool(12);
    let seq = sequence_of(&mut cache, &tokens(0..12));
    let before = cache.snapshot();
    for (len, expected) in [(4, 3), (5, 4), (8, 7), (9, 8), (12, 11), (13, 12)] {
        assert_eq!(found(&cache, &tokens(0..len)), expected, "{len} tokens");
    }
    // A lookup changes nothing.
    assert_eq!(cache.snapshot(), before);
    cache.free(seq, Release::Cache).unwrap();
    let again = cache.create(&Scope::default(), &tokens(0..12), Query::default()).unwrap();
    let step = run(&mut cache, again.seq, &[11]);
    assert_eq!((step.tables().slots().len(), step.tables().copies().len()), (1, 1));
}

#[test]
fn duplicates_are_kept_apart_and_the_first_is_found() {
    // R6. a has 8 tokens in [1, 2]; b, the same prompt, finds [1] and gets a block 3 of its own, since tables are never
    // edited. A third prompt, of 9 tokens, finds [1, 2]: the first. So here too, though b computes one token, not four.
    let mut cache = pool(12);
    let a = sequence_of(&mut cache, &tokens(0..8));
    let b = cache.create(&Scope::default(), &tokens(0..8), Query::default()).unwrap();
    assert_eq!(b.cached_tokens, 7);
    run(&mut cache, b.seq, &[7]);
    let c = cache.create(&Scope::default(), &tokens(0..9), Query::default()).unwrap();
    assert_eq!(c.cached_tokens, 8);
    let tables = [a, b.seq, c.seq].map(|seq| blocks_of(&cache, seq));
    assert_eq!(tables, [[1, 2], [1, 3], [1, 2]]);
}

#[test]
fn full_blocks_are_found_from_the_commit_on() {
    // R10. There, full blocks are published when they are allocated, which is before they are computed: whoever finds them
    // outside of that step gets what was there before (hazard H1). Here the commit publishes. 6 tokens and 5 of
    // lookahead are 3 blocks, of which one is full.
    let mut cache = pool(12);
    let seq = cache.create(&Scope::default(), &tokens(0..6), Query::default()).unwrap().seq;
    let prompt = tokens(0..6);
    let id = cache.plan(&[Row::ids(seq, &prompt).with_lookahead(5)], &mut Step::new()).unwrap();
    assert_eq!((blocks_of(&cache, seq), found(&cache, &tokens(0..12))), ([1, 2, 3].to_vec(), 0));
    cache.commit_all(id).unwrap();
    assert_eq!((blocks_of(&cache, seq), found(&cache, &tokens(0..12))), ([1, 2, 3].to_vec(), 4));
}

#[test]
fn rejected_drafts_give_their_blocks_back_and_what_is_accepted_is_found() {
    // R11. There, a rejection lowers the length and keeps the blocks for what comes next; what is hashed later is what was
    // accepted: [104, 105, 7, 8]. Here the blocks go back at once, unless the row asked for lookahead.
    for (lookahead, held) in [(0, 2), (4, 3)] {
        let mut cache = pool(12);
        let seq = sequence_of(&mut cache, &tokens(100..106));
        let row = Row::ids(seq, &[7, 8, 9, 10, 11]).with_drafts(4).with_lookahead(lookahead);
        let id = cache.plan(&[row], &mut Step::new()).unwrap();
        cache.commit(id, &[Outcome::Accept(2)]).unwrap();
        // 8 tokens are 2 blocks, 8 and 4 of lookahead are 3.
        assert_eq!((cache.sequence(seq).unwrap().len(), cache.stats().held), (8, held));
        assert_eq!(found(&cache, &[100, 101, 102, 103, 104, 105, 7, 8, 9]), 8);
        assert_eq!(found(&cache, &[100, 101, 102, 103, 104, 105, 7, 8, 9, 10, 11, 0, 0]), 8);
    }
}

#[test]
fn nothing_that_is_cached_is_out_of_reach() {
    // R17'. There, to evict the second of three blocks leaves the third cached and unreachable until its turn comes. Here
    // a block never goes before what builds on it, and to invalidate one takes all below: two names of three.
    let mut cache = pool(12);
    let seq = sequence_of(&mut cache, &tokens(0..12));
    assert_eq!(blocks_of(&cache, seq), [1, 2, 3]);
    assert_eq!(cache.invalidate(Invalidate::Block(BlockId::new(2))), 2);
    assert_eq!(found(&cache, &tokens(0..13)), 4);
    // References are as before, and what is cached can be found.
    assert_eq!(cache.shares(seq).unwrap().collect::<Vec<_>>(), [1, 1, 1]);
    cache.free(seq, Release::Cache).unwrap();
    assert_eq!((cache.stats().cached, cache.stats().available), (1, 11));
}

#[test]
fn everything_can_be_invalidated_while_it_is_in_use() {
    // R18. There, a reset is refused while any block is held. Here it takes the names, and whoever holds blocks goes on.
    let mut cache = pool(12);
    let told = Told::by(&mut cache);
    let seq = sequence_of(&mut cache, &tokens(0..9));
    let idle = sequence_of(&mut cache, &tokens(20..24));
    cache.free(idle, Release::Cache).unwrap();
    assert_eq!(told.short(), ["+0", "+4", "+0"]);
    assert_eq!(cache.invalidate(Invalidate::All), 3);
    assert_eq!((found(&cache, &tokens(0..9)), found(&cache, &tokens(20..25))), (0, 0));
    assert_eq!(told.short(), ["0"], "one event, as there");
    run(&mut cache, seq, &tokens(9..12));
    assert_eq!((cache.sequence(seq).unwrap().len(), told.short().len()), (12, 0));
}

#[test]
fn equal_tokens_under_another_salt_or_adapter_are_not_found() {
    // R19. And neither under another version of the adapter, which there has the name and path only.
    let mut cache = pool(12);
    let ours = Scope::default().with_salt(b"s").with_adapter(b"a", 1);
    let seq = cache.create(&ours, &tokens(0..9), Query::default()).unwrap().seq;
    run(&mut cache, seq, &tokens(0..9));
    let others = [
        (ours.clone(), 8),
        (ours.clone().with_salt(b"t"), 0),
        (ours.clone().with_adapter(b"b", 1), 0),
        (ours.with_adapter(b"a", 2), 0),
        (Scope::default(), 0),
    ];
    for (scope, expected) in others {
        let found = cache.peek(&scope, &tokens(0..9), Query::default()).unwrap();
        assert_eq!(found.cached_tokens, expected, "{scope:?}");
    }
}

#[test]
fn a_partial_hit_is_a_copy_whose_source_is_held_until_it_is_over() {
    // R28. The table entry is replaced by a fresh block, the pair (source, destination) is in the step, and both are held
    // until the step is behind them. There this happens under hybrid models only, here wherever a hit ends in a block.
    let mut cache = pool(12);
    let old = sequence_of(&mut cache, &tokens(0..8));
    cache.free(old, Release::Cache).unwrap();
    let created = cache.create(&Scope::default(), &[0, 1, 2, 3, 4, 5, 60, 70], Query::default()).unwrap();
    assert_eq!((created.cached_tokens, blocks_of(&cache, created.seq)), (6, [1, 2].to_vec()));
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(created.seq, &[60, 70])], &mut step).unwrap();
    let copies = step.tables().copies();
    assert_eq!((copies.len(), copies[0].src, copies[0].dst), (1, BlockId::new(2), BlockId::new(3)));
    assert_eq!((blocks_of(&cache, created.seq), cache.refs(copies[0].src)), ([1, 3].to_vec(), 1));
    assert_eq!(cache.refs(copies[0].dst), 1);
    cache.commit_all(id).unwrap();
    assert_eq!(cache.refs(copies[0].src), 0);
    assert_eq!((found(&cache, &tokens(0..9)), found(&cache, &[0, 1, 2, 3, 4, 5, 60, 70, 0])), (8, 8));
}
