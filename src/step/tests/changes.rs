//! Steps that hold only what changed of their tables.

use alloc::vec::Vec;

use crate::cache::{Release, Row};
use crate::error::WriteError;
use crate::id::{BlockId, ix};
use crate::step::{Padding, Step, TableEdit};
use crate::{CacheConfig, KvCache, Query, Scope};

/// The same calls on two caches, one with whole tables and one with changes: 40 steps of three sequences, with a fork,
/// copies on write, lookahead and a truncation on the way. `visit` sees both steps of each plan.
fn side_by_side(mut visit: impl FnMut(&Step, &Step)) {
    let config = CacheConfig::new(64, 4);
    let mut caches = [KvCache::new(config).unwrap(), KvCache::new(config).unwrap()];
    let mut steps = [Step::new(), Step::of_changes()];
    let (scope, prompt) = (Scope::default(), [1, 2, 3, 4, 5, 6]);
    let mut seqs = caches.each_mut().map(|cache| {
        let first = cache.create(&scope, &prompt, Query::default()).unwrap().seq;
        [first, cache.create_blank(&scope).unwrap()]
    });
    for round in 0..40 {
        for ((cache, step), seqs) in caches.iter_mut().zip(&mut steps).zip(&mut seqs) {
            let tokens = [round, round + 1, round + 2];
            let mut rows = alloc::vec![Row::ids(seqs[0], if round == 0 { &prompt } else { &tokens[..1] })];
            rows.push(Row::ids(seqs[1], &tokens[..1 + ix(round % 3)]).with_lookahead(round % 5));
            let id = cache.plan(&rows, step).unwrap();
            cache.commit_all(id).unwrap();
            match round {
                7 => {
                    let fork = cache.fork(seqs[0]).unwrap();
                    cache.free(core::mem::replace(&mut seqs[1], fork), Release::Cache).unwrap();
                }
                20 => cache.truncate(seqs[1], 5).unwrap(),
                _ => {}
            }
        }
        let [whole, changes] = &steps;
        visit(whole, changes);
    }
}

#[test]
fn a_step_of_changes_says_the_same_as_one_with_whole_tables() {
    let mut copies = 0;
    side_by_side(|whole, changes| {
        assert_eq!((whole.id(), whole.rows()), (changes.id(), changes.rows()));
        let (all, some) = (whole.tables(), changes.tables());
        assert_eq!((all.slots(), all.copies()), (some.slots(), some.copies()));
        copies += all.copies().len();
        for row in 0..whole.rows().len() {
            assert_eq!(all.changed(row), &all.table(row)[ix(all.unchanged(row))..]);
            assert_eq!((all.unchanged(row), all.changed(row)), (some.unchanged(row), some.changed(row)));
            assert_eq!((all.table_len(row), some.table(row)), (some.table_len(row), &[] as &[BlockId]));
        }
        let edits = |step: &Step| step.table_edits(0..2).collect::<Vec<TableEdit>>();
        assert_eq!(edits(whole), edits(changes));
    });
    assert!(copies > 0, "a fork was written to");
}

#[test]
fn a_step_of_changes_comes_back_from_its_bytes() {
    side_by_side(|_, changes| {
        let (mut bytes, mut decoded) = (Vec::new(), Step::new());
        changes.encode(&mut bytes);
        assert_eq!(decoded.decode(&bytes, changes.num_tokens()), Ok(bytes.len()));
        assert_eq!(&decoded, changes);
    });
}

#[test]
fn a_step_of_changes_has_no_tables_to_write() {
    side_by_side(|_, changes| {
        let rows = 0..changes.rows().len();
        let [mut indptr, mut indices, mut last, mut tables] = [[0_i32; 64]; 4];
        let csr = changes.write_csr(rows.clone(), Padding::AliasFirst, &mut indptr, &mut indices, &mut last[..2]);
        assert_eq!(csr, Err(WriteError::NoTables));
        assert_eq!(
            changes.write_block_tables(rows.clone(), 32, Padding::AliasFirst, &mut tables),
            Err(WriteError::NoTables)
        );
        assert_eq!(changes.write_seq_lens(rows, Padding::AliasFirst, &mut last[..2]), Ok(()));
    });
}

#[test]
fn numbers_of_blocks_that_do_not_fit_are_refused() {
    use crate::step::IndexElem;
    let (fits, too_large) = (BlockId::new(0x7fff_ffff), BlockId::new(0x8000_0000));
    let mut out = [0_i32; 2];
    assert_eq!(i32::write_blocks(&[fits, BlockId::new(1)], &mut out), Ok(()));
    assert_eq!(out, [0x7fff_ffff, 1]);
    let error = WriteError::Overflow { value: 0x8000_0000 };
    assert_eq!(i32::write_blocks(&[BlockId::new(1), too_large], &mut out), Err(error));
    assert_eq!(out, [0x7fff_ffff, 1]);
    assert_eq!(i64::write_blocks(&[too_large], &mut [0]), Ok(()));
}
