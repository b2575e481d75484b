//! Steps of changes, from a cache, beside the same steps with whole tables on the CPU.

use alloc::vec::Vec;

use super::super::CudaStorage;
use super::found;
use super::rig::{BLOCK_SIZE, BLOCKS, LAYERS, LIMITS, Rig, assert_near, layout, row, step};
use crate::cache::{Release, Row};
use crate::id::ix;
use crate::layout::DType;
use crate::step::{Step, TableRow};
use crate::storage::{AttendParams, KvStorage, StorageError};
use crate::{CacheConfig, KvCache, Query, Scope, SeqId};

/// The same step with whole tables, which the cache gives by a view of the same rows.
fn whole(cache: &KvCache, changes: &Step) -> Step {
    let tables: Vec<Vec<_>> =
        changes.rows().iter().map(|row| cache.sequence(row.seq).unwrap().table().ids().collect()).collect();
    let rows: Vec<_> = (changes.rows().iter().zip(&tables))
        .map(|(row, blocks)| TableRow { start: row.start, len: row.len, blocks })
        .collect();
    Step::from_tables(BLOCK_SIZE, &rows, changes.tables().copies()).unwrap()
}

fn rig_with_cache() -> (Rig, KvCache) {
    let mut rig = Rig::new(DType::F16);
    rig.cuda = CudaStorage::new(&rig.context, layout(DType::F16), LIMITS.with_sequences(20)).unwrap();
    (rig, KvCache::new(CacheConfig::new(BLOCKS, BLOCK_SIZE)).unwrap())
}

/// Plans, runs on both, compares, commits.
fn run(rig: &mut Rig, cache: &mut KvCache, rows: &[Row<'_>], changes: &mut Step, seed: u32) {
    let id = cache.plan(rows, changes).unwrap();
    let step = whole(cache, changes);
    rig.cuda.prepare((&rig.stream).into(), changes, 6).unwrap();
    rig.cuda.copy_blocks((&rig.stream).into()).unwrap();
    rig.prepare_cpu(&step);
    let tokens = ix(step.num_tokens());
    for layer in 0..LAYERS {
        rig.write(layer, tokens, seed + layer);
        let [cuda, cpu] = rig.attend(layer, tokens, &AttendParams::new(24));
        assert_near(&cuda, &cpu);
    }
    rig.assert_same_bytes();
    cache.commit_all(id).unwrap();
}

#[test]
fn steps_of_changes_are_steps_with_whole_tables() {
    if !found() {
        return;
    }
    let (mut rig, mut cache) = rig_with_cache();
    let mut changes = Step::of_changes();
    let prompt = |from: u32, len: u32| (from..from + len).collect::<Vec<u32>>();
    let create = |cache: &mut KvCache, tokens: &[u32]| -> SeqId {
        cache.create(&Scope::default(), tokens, Query::default()).unwrap().seq
    };
    let (first, second) = (prompt(0, 21), prompt(500, 9));
    let (a, b) = (create(&mut cache, &first), create(&mut cache, &second));
    run(&mut rig, &mut cache, &[Row::ids(a, &first), Row::ids(b, &second)], &mut changes, 1);
    // Decode over borders of blocks, in any order of rows.
    for token in 0..20 {
        let (of_a, of_b) = ([1000 + token], [2000 + token]);
        let mut rows = [Row::ids(a, &of_a), Row::ids(b, &of_b)];
        rows.rotate_left(usize::from(token % 3 == 0));
        run(&mut rig, &mut cache, &rows, &mut changes, 3 * token);
    }
    // A fork shares all blocks and copies the last; the parent goes on.
    let c = cache.fork(a).unwrap();
    let rows = [Row::ids(c, &[7]), Row::ids(a, &[8]), Row::ids(b, &[9])];
    run(&mut rig, &mut cache, &rows, &mut changes, 90);
    // One leaves, and another takes its place, and its blocks.
    cache.free(b, Release::Discard).unwrap();
    let third = prompt(900, 30);
    let d = create(&mut cache, &third);
    run(&mut rig, &mut cache, &[Row::ids(d, &third), Row::ids(c, &[11])], &mut changes, 120);
    run(&mut rig, &mut cache, &[Row::ids(a, &[12]), Row::ids(d, &[13])], &mut changes, 150);
}

#[test]
fn changes_to_a_table_that_is_not_kept_are_refused() {
    if !found() {
        return;
    }
    let (mut rig, mut cache) = rig_with_cache();
    let mut changes = Step::of_changes();
    let prompt: Vec<u32> = (0..20).collect();
    let a = cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq;
    run(&mut rig, &mut cache, &[Row::ids(a, &prompt)], &mut changes, 1);
    // A step with whole tables takes the place of the first table.
    rig.run(&[row(0, 3, [30])], &[], 2);
    let id = cache.plan(&[Row::ids(a, &[1])], &mut changes).unwrap();
    let refused = rig.cuda.prepare((&rig.stream).into(), &changes, 1);
    // 20 tokens: three blocks, of which none is kept.
    assert_eq!(refused, Err(StorageError::UnknownTable { row: 0, unchanged: 3, kept: 0 }));
    cache.abort(id).unwrap();

    // A step that the storage is not given: another sequence's changes build on it.
    let b = cache.create(&Scope::default(), &prompt, Query::default()).unwrap().seq;
    let id = cache.plan(&[Row::ids(b, &prompt)], &mut changes).unwrap();
    cache.commit_all(id).unwrap();
    cache.plan(&[Row::ids(b, &[1])], &mut changes).unwrap();
    let refused = rig.cuda.prepare((&rig.stream).into(), &changes, 1);
    assert!(matches!(refused, Err(StorageError::UnknownTable { row: 0, unchanged: 1.., kept: 0 })), "{refused:?}");

    // More sequences than tables.
    let few = CudaStorage::new(&rig.context, layout(DType::F16), LIMITS.with_sequences(0)).unwrap();
    rig.cuda = few;
    let limit = StorageError::Limit { what: "sequences in the cache", given: 2, max: 0 };
    assert_eq!(rig.cuda.prepare((&rig.stream).into(), &changes, 1), Err(limit));
    assert_eq!(rig.cuda.prepare((&rig.stream).into(), &step(&[row(0, 1, [3])], &[]), 1), Ok(()));
}
