//! The encoding of a step, byte by byte, and bytes that are none.

use super::*;

/// A view of 2 tokens from position 1 in blocks of 2, which lie in blocks 5 and 6; block 3 is copied to 4.
fn small() -> Step {
    let row = TableRow { start: 1, len: 2, blocks: &blocks([5, 6]) };
    let [src, dst] = blocks([3, 4]);
    Step::from_tables(2, &[row], &[BlockCopy { src, dst }]).unwrap()
}

fn encoded(step: &Step) -> Vec<u8> {
    let mut bytes = Vec::new();
    step.encode(&mut bytes);
    bytes
}

/// A step of a cache: an id, handles, a skipped block, a copy, lookahead, scratch.
fn planned() -> Step {
    let mut cache = KvCache::new(CacheConfig::new(16, 4)).unwrap();
    let scope = crate::Scope::default();
    let mut step = Step::new();
    let first = cache.create(&scope, &[1, 2, 3, 4, 5], crate::Query::default()).unwrap().seq;
    let id = cache.plan(&[Row::ids(first, &[1, 2, 3, 4, 5])], &mut step).unwrap();
    let second = cache.create(&scope, &[1, 2, 3, 4, 5], crate::Query::default()).unwrap().seq;
    cache.commit_all(id).unwrap();
    let fork = cache.fork(first).unwrap();
    let rows = [Row::ids(fork, &[6]), Row::ids(second, &[1, 2, 3, 4, 5]).with_lookahead(5), Row::ids(first, &[6, 7])];
    cache.plan(&rows, &mut step).unwrap();
    assert_eq!((step.tables().copies().len(), step.rows()[1].skip, step.tables().table(1).len()), (1, 4, 3));
    step
}

#[test]
fn a_step_is_these_bytes() {
    let words: [u32; 16] = [
        0,
        0,
        0,
        1,
        2, // the row: handle (index, generation), skip, start, len
        2,
        u32::MAX,
        0, // block size, no scratch block, whole tables
        1,
        3,
        4, // one copy
        2,
        0, // the row's table: blocks, unchanged
        5,
        6, // all blocks
        0,
    ];
    let mut expected = b"PKS2".to_vec();
    expected.extend([0; 8]); // no id
    expected.extend([1, 0, 0, 0, 1, 0]); // one row, one group
    words[..15].iter().for_each(|word| expected.extend(word.to_le_bytes()));
    assert_eq!(encoded(&small()), expected);
}

#[test]
fn a_step_comes_back_from_its_bytes() {
    for step in [small(), example(), planned()] {
        let mut bytes = encoded(&step);
        let len = bytes.len();
        bytes.extend([1, 2, 3]);
        let mut decoded = planned();
        assert_eq!(decoded.decode(&bytes, step.num_tokens()), Ok(len));
        assert_eq!(decoded, step);
    }
}

#[test]
fn bytes_that_end_early_are_refused_and_change_nothing() {
    for step in [small(), example(), planned()] {
        let bytes = encoded(&step);
        for len in 0..bytes.len() {
            let mut decoded = example();
            let error = decoded.decode(&bytes[..len], u32::MAX).unwrap_err();
            assert!(matches!(error, MalformedStep::Truncated { needed, given } if needed > given && given == len));
            assert_eq!(decoded, example());
        }
    }
}

#[test]
fn a_changed_byte_gives_another_step_or_an_error_and_never_a_panic() {
    for step in [small(), example(), planned()] {
        let bytes = encoded(&step);
        for place in 0..bytes.len() {
            for value in 0..=u8::MAX {
                let mut changed = bytes.clone();
                changed[place] = value;
                check(&changed);
            }
        }
    }
}

#[test]
fn bytes_at_random_never_panic() {
    // A linear congruential generator (Knuth's MMIX) changes up to eight bytes of a good step.
    let mut state = 1_u64;
    let mut next = move |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % end
    };
    let bytes = encoded(&planned());
    for _ in 0..20_000 {
        let mut changed = bytes.clone();
        for _ in 0..=next(8) {
            let place = next(bytes.len());
            changed[place] = [0, 1, 2, 4, 0x7f, 0x80, 0xff, 16][next(8)];
        }
        changed.truncate(bytes.len() - next(8) * next(8));
        check(&changed);
    }
}

/// Decoding either fails and changes nothing, or gives a step that has these bytes again.
fn check(bytes: &[u8]) {
    let mut decoded = example();
    match decoded.decode(bytes, 64) {
        Err(_) => assert_eq!(decoded, example()),
        Ok(len) => {
            assert_eq!(encoded(&decoded), bytes[..len]);
            assert!(decoded.num_tokens() <= 64);
            assert_eq!(decoded.tables().slots().len(), ix(decoded.num_tokens()));
        }
    }
}

#[test]
fn more_query_tokens_than_allowed_are_refused() {
    let bytes = encoded(&example());
    let mut decoded = small();
    assert!(matches!(decoded.decode(&bytes, 5), Err(MalformedStep::Inconsistent { .. })));
    assert_eq!(decoded, small());
    assert_eq!(decoded.decode(&bytes, 6), Ok(bytes.len()));
}

#[test]
fn groups_do_not_multiply_the_query_tokens_that_are_allowed() {
    // A row of 64 tokens in one large block: every further group takes 32 bytes and brings 64 slots.
    let row = TableRow { start: 0, len: 64, blocks: &[BlockId::new(0)] };
    let mut bytes = encoded(&Step::from_tables(64, &[row], &[]).unwrap());
    // The groups are counted in bytes 16 and 17, and the first one lies behind 18 bytes of head and 20 of the row.
    let group = bytes[38..].to_vec();
    bytes[16] = 2;
    bytes.extend(group);
    let mut decoded = Step::new();
    assert!(matches!(decoded.decode(&bytes, 127), Err(MalformedStep::Inconsistent { .. })));
    assert_eq!(decoded.decode(&bytes, 128), Ok(bytes.len()));
    assert_eq!(encoded(&decoded), bytes);
}

#[test]
fn a_row_that_no_step_has_does_not_panic() {
    let row = StepRow { start: u32::MAX, len: 2, ..planned().rows()[0] };
    assert_eq!(row.seq_len(), u32::MAX);
}

#[test]
fn other_bytes_are_no_step() {
    for magic in [b"PKS1", b"PKS3", b"pks2"] {
        let mut bytes = encoded(&small());
        bytes[..4].copy_from_slice(magic);
        assert_eq!(Step::new().decode(&bytes, u32::MAX), Err(MalformedStep::BadMagic));
    }
}

#[test]
fn numbers_that_contradict_each_other_are_refused() {
    // Offsets follow from the layout: 18 bytes of head, 20 of the row, then the group.
    let put = |at: usize, value: u32| {
        let mut bytes = encoded(&small());
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        Step::new().decode(&bytes, u32::MAX).err()
    };
    let inconsistent = |error| matches!(error, Some(MalformedStep::Inconsistent { .. }));
    assert!(inconsistent(put(26, 2)), "more skipped than lies before");
    assert!(inconsistent(put(30, u32::MAX)), "positions beyond u32");
    assert!(inconsistent(put(34, 0)), "an empty row");
    assert!(inconsistent(put(38, 0)), "no block size");
    assert!(inconsistent(put(46, 2)), "a flag that is none");
    assert!(inconsistent(put(54, 1 << 31)), "a copy of a block without slots");
    assert!(inconsistent(put(62, 1)), "a table shorter than its row");
    assert!(inconsistent(put(66, 3)), "more blocks unchanged than there are");
    assert!(inconsistent(put(70, 1 << 31)), "a block without slots");
    // A table of 2^32 - 1 blocks that the bytes do not hold is not believed.
    assert!(matches!(put(62, u32::MAX), Some(MalformedStep::Truncated { .. })));
    assert_eq!(put(42, 1), None);
}
