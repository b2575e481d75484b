//! Plain appends: which rows are, and that a caller can tell no difference.

use super::*;
use crate::error::Shortfall;

/// Plans one token for each sequence; returns the step's id.
fn plan_one(cache: &mut KvCache, seqs: &[SeqId], token: u32, step: &mut Step) -> StepId {
    let token = [token];
    let rows: Vec<_> = seqs.iter().map(|&seq| Row::ids(seq, &token)).collect();
    cache.plan(&rows, step).unwrap()
}

/// Whether the next token of a sequence is a plain append, by its plan.
fn is_plain(cache: &mut KvCache, seq: SeqId) -> bool {
    let mut step = Step::new();
    let id = plan_one(cache, &[seq], 7, &mut step);
    let plain = cache.num_plain() == 1;
    cache.commit_all(id).unwrap();
    cache.check_integrity().unwrap();
    plain
}

#[test]
fn every_token_of_a_decode_is_a_plain_append_but_the_one_that_fills_a_block() {
    // 5 tokens in blocks of 4; the next ones have positions 5 to 16, and those at 7, 11 and 15 fill a block.
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &tokens(0..5));
    let general: Vec<_> = (5..17).filter(|_| !is_plain(&mut cache, seq)).collect();
    assert_eq!(general, [7, 11, 15]);
}

#[test]
fn a_shared_or_claimed_or_unknown_tail_is_no_place_for_a_plain_append() {
    let mut cache = cache(16, 8);
    let seq = sequence_of(&mut cache, &tokens(0..9));
    assert!(is_plain(&mut cache, seq));
    let child = cache.fork(seq).unwrap();
    assert!(!is_plain(&mut cache, seq), "the tail is shared, and copied");
    assert_eq!(cache.stats().copies, 1);
    assert!(!is_plain(&mut cache, child), "the child has never planned");
    assert!(is_plain(&mut cache, seq) && is_plain(&mut cache, child), "each has its own");
    // 12 tokens are there; four more fill the block, and the next block is claimed.
    cache.reserve(seq, 24).unwrap();
    assert!(!is_plain(&mut cache, seq), "a call came between");
    assert!(is_plain(&mut cache, seq));
    let last = run(&mut cache, seq, &[1, 2]);
    assert_eq!((last.rows()[0].seq_len(), cache.stats().reserved), (16, 1));
    assert!(!is_plain(&mut cache, seq), "it takes a claimed block");
    assert_eq!(cache.stats().reserved, 0);
    assert!(is_plain(&mut cache, seq));
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(seq, &[3]).with_lookahead(1)], &mut step).unwrap();
    assert_eq!(cache.num_plain(), 0);
    cache.commit_all(id).unwrap();
    assert!(!is_plain(&mut cache, seq), "the lookahead ends");
    assert!(is_plain(&mut cache, seq));
}

#[test]
fn a_plan_that_fails_takes_plain_appends_back() {
    // Blocks of 4, six of them. a and b hold two each and are in the middle of the second; c holds two full ones, so that
    // its next token wants a block, as do the next five of d, which has none.
    let mut cache = cache(6, 4);
    let [a, b, c] = [0, 20, 40].map(|from| sequence_of(&mut cache, &tokens(from..from + 5)));
    run(&mut cache, c, &[1, 2, 3]);
    let d = cache.create_blank(&Scope::default()).unwrap();
    let (mut step, before) = (Step::new(), cache.snapshot());
    let one = [9];
    let shortfall = Shortfall { needed: 1, free: 0, pending: 0, group: KvCache::<Lru>::GROUP };
    let rows = [Row::ids(a, &one), Row::ids(c, &one), Row::ids(b, &one)];
    assert_eq!(cache.plan(&rows, &mut step), Err(PlanError::Shortfall { shortfall }));
    assert_eq!(cache.fits(&rows), Ok(Fit::Later(shortfall)));
    assert_eq!(cache.snapshot(), before);
    let twice = [Row::ids(a, &one), Row::ids(b, &one), Row::ids(a, &one)];
    assert_eq!(cache.plan(&twice, &mut step), Err(PlanError::RepeatedSequence { row: 2, seq: a }));
    let empty = [Row::ids(a, &one), Row::ids(d, &[])];
    assert_eq!(cache.plan(&empty, &mut step), Err(PlanError::EmptyRow { row: 1 }));
    let stale = SeqId::from_u64(u64::MAX);
    let unknown = [Row::ids(b, &one), Row::ids(stale, &one)];
    assert_eq!(cache.plan(&unknown, &mut step), Err(PlanError::UnknownSequence { row: 1, seq: stale }));
    assert_eq!((cache.snapshot(), step), (before, Step::new()));
    cache.check_integrity().unwrap();
    assert!(is_plain(&mut cache, a) && is_plain(&mut cache, b), "they are as ready as they were");
}

#[test]
fn a_plain_append_of_an_open_step_is_aborted_and_freed_like_others() {
    let mut cache = cache(8, 4);
    let [a, b] = [0, 20].map(|from| sequence_of(&mut cache, &tokens(from..from + 8)));
    let (mut step, before) = (Step::new(), cache.snapshot());
    let first = plan_one(&mut cache, &[a, b], 1, &mut step);
    let second = plan_one(&mut cache, &[b, a], 2, &mut step);
    assert_eq!((cache.num_plain(), cache.stats().held), (2, 6), "each has begun a block");
    cache.check_integrity().unwrap();
    cache.abort(first).unwrap();
    cache.check_integrity().unwrap();
    // Tables are sent again from where an aborted step has touched them, and step ids are not used twice.
    assert_eq!((blocks_of(&cache, a).len(), cache.stats().held, cache.snapshot().len()), (2, 4, before.len()));
    assert_eq!(cache.commit_all(second), Err(StepError::NotOpen { step: second }));
    let id = plan_one(&mut cache, &[a, b], 3, &mut step);
    cache.free(a, Release::Cache).unwrap();
    cache.commit_all(id).unwrap();
    cache.check_integrity().unwrap();
    assert_eq!(cache.sequence(b).unwrap().len(), 9);
}

#[test]
fn a_decode_says_the_same_without_plain_appends_and_in_steps_of_changes() {
    // Sequences at every offset of a block, up to three open steps, now and then an abort.
    let mut cache = cache(128, 8);
    let seqs: Vec<_> = (0..8).map(|i| sequence_of(&mut cache, &tokens(100 * i..100 * i + 9 + i))).collect();
    let mut general = cache.clone();
    let (mut whole, mut changes, mut other) = (Step::new(), Step::of_changes(), Step::new());
    let mut plain = 0;
    for at in 0..60 {
        let token = [at];
        // Another order and another part of the batch each time.
        let turned = (0..seqs.len()).map(|i| seqs[(i * 3 + at as usize) % seqs.len()]);
        let rows: Vec<_> = turned.skip(at as usize % 3).map(|seq| Row::ids(seq, &token)).collect();
        let mut quick = cache.clone();
        general.forget_plain();
        let id = general.plan(&rows, &mut other).unwrap();
        assert_eq!((general.num_plain(), Ok(id)), (0, quick.plan(&rows, &mut changes)));
        assert_eq!(Ok(id), cache.plan(&rows, &mut whole));
        plain += cache.num_plain();
        assert_eq!(whole, other);
        assert_eq!((changes.rows(), changes.tables().slots()), (whole.rows(), whole.tables().slots()));
        for row in 0..rows.len() {
            assert_eq!(changes.tables().changed(row), whole.tables().changed(row));
            assert_eq!(changes.tables().unchanged(row), whole.tables().unchanged(row));
            assert_eq!(changes.tables().table_len(row), whole.tables().table_len(row));
        }
        for cache in [&mut cache, &mut general] {
            if at % 11 == 10 {
                cache.abort(id).unwrap();
            } else if cache.open.len() == 3 {
                cache.commit_all(cache.open[0].id()).unwrap();
            }
            cache.check_integrity().unwrap();
        }
        assert_eq!(cache.snapshot(), general.snapshot());
    }
    assert!(plain > 100, "{plain} plain appends");
}
