//! Steps that never happened, and steps whose buffer is lost.

use super::*;
use crate::id::{BlockId, ix};
use crate::step::TableEdit;

/// A table as a storage has it that keeps one row per sequence.
fn edited(mut table: Vec<BlockId>, edits: impl Iterator<Item = TableEdit>) -> Vec<BlockId> {
    for edit in edits {
        table.resize(table.len().max(ix(edit.column) + 1), BlockId::new(u32::MAX));
        table[ix(edit.column)] = edit.block;
    }
    table
}

#[test]
fn edits_behind_an_aborted_step_give_the_table_whether_or_not_it_ran() {
    // A prompt of 5 tokens in blocks of 4 finds one block. The first step that names the sequence brings the edits of
    // columns 0 and 1; it is aborted, and a storage that never saw it knows neither of the two.
    let mut cache = cache(8, 4);
    sequence_of(&mut cache, &tokens(0..5));
    let created = cache.create(&Scope::default(), &tokens(0..5), Query::default()).unwrap();
    assert_eq!(created.cached_tokens, 4);
    let mut step = Step::new();
    let id = cache.plan(&[Row::ids(created.seq, &[9])], &mut step).unwrap();
    let saw_it = edited(Vec::new(), step.table_edits(0..1));
    cache.abort(id).unwrap();
    cache.plan(&[Row::ids(created.seq, &[8])], &mut step).unwrap();
    let table = step.tables().table(0);
    assert_eq!(edited(saw_it, step.table_edits(0..1)), table);
    assert_eq!(edited(Vec::new(), step.table_edits(0..1)), table);
}

#[test]
fn a_tail_that_an_abort_comes_back_to_is_not_written_by_others() {
    // a = [1] in a block of 4; step 1 appends 2 in place, and a fork of [1] shares the block. Step 2 appends 3 to a,
    // in a copy, and may be aborted: then a is [1, 2] again, in the old block. So step 3 must not write its 9 behind
    // the fork's [1] in place, over the 2, though the fork is the only holder that does not wait for a commit.
    let mut cache = cache(8, 4);
    let a = sequence_of(&mut cache, &[1]);
    let old = cache.sequence(a).unwrap().table().get(0).unwrap().id();
    let mut step = Step::new();
    let first = cache.plan(&[Row::ids(a, &[2])], &mut step).unwrap();
    assert_eq!(step.tables().slots(), [old.slot(1, 4)]);
    let fork = cache.fork(a).unwrap();
    let second = cache.plan(&[Row::ids(a, &[3])], &mut step).unwrap();
    assert_eq!(step.tables().copies().len(), 1);
    cache.plan(&[Row::ids(fork, &[9])], &mut step).unwrap();
    assert_ne!(step.tables().slots(), [old.slot(1, 4)]);
    cache.commit_all(first).unwrap();
    cache.abort(second).unwrap();
    assert_eq!((cache.sequence(a).unwrap().len(), cache.sequence(a).unwrap().table().get(0).unwrap().id()), (2, old));
    cache.check_integrity().unwrap();
}

#[test]
fn a_fork_that_was_cut_does_not_write_what_an_abort_comes_back_to() {
    // a = [1, 2, 3]; its fork is cut to [1]. In one step a appends 4, in a copy, and the fork 9: not over the 2.
    let mut cache = cache(8, 4);
    let a = sequence_of(&mut cache, &[1, 2, 3]);
    let old = cache.sequence(a).unwrap().table().get(0).unwrap().id();
    let fork = cache.fork(a).unwrap();
    cache.truncate(fork, 1).unwrap();
    let mut step = Step::new();
    cache.plan(&[Row::ids(a, &[4]), Row::ids(fork, &[9])], &mut step).unwrap();
    assert!(step.tables().slots().iter().all(|slot| slot.block(4) != old));
    assert_eq!(step.tables().copies().len(), 2);
    cache.abort_all();
    cache.check_integrity().unwrap();
}

#[test]
fn a_row_that_a_later_step_builds_on_cannot_roll_back() {
    let mut cache = cache(8, 4);
    let [a, b] = [1, 2].map(|token| sequence_of(&mut cache, &[token]));
    let mut step = Step::new();
    let rows = [Row::ids(a, &[3, 4]).with_drafts(1), Row::count(b, 2)];
    let first = cache.plan(&rows, &mut step).unwrap();
    let second = cache.plan(&[Row::ids(a, &[5]), Row::ids(b, &[5])], &mut step).unwrap();
    let before = cache.snapshot();
    let later = |row, seq| Err(StepError::LaterStepOpen { row, seq });
    assert_eq!(cache.commit(first, &[Outcome::Accept(1), Outcome::All]), later(0, a));
    assert_eq!(cache.commit(first, &[Outcome::All, Outcome::Accept(1)]), later(1, b));
    assert_eq!(cache.commit(first, &[Outcome::All, Outcome::Ids(&[6])]), later(1, b));
    assert_eq!(cache.snapshot(), before);
    // Without the later step it can.
    cache.abort(second).unwrap();
    cache.commit(first, &[Outcome::Accept(1), Outcome::Ids(&[6])]).unwrap();
    assert_eq!([a, b].map(|seq| cache.sequence(seq).unwrap().len()), [2, 2]);
    cache.check_integrity().unwrap();
}

#[test]
fn a_late_abort_leaves_the_older_step_open() {
    let mut cache = cache(8, 4);
    let seq = sequence_of(&mut cache, &[1]);
    let mut step = Step::new();
    let older = cache.plan(&[Row::ids(seq, &[2, 3])], &mut step).unwrap();
    let newer = cache.plan(&[Row::ids(seq, &[4, 5, 6])], &mut step).unwrap();
    cache.abort(newer).unwrap();
    assert_eq!(cache.open_steps().collect::<Vec<_>>(), [older]);
    assert_eq!((cache.sequence(seq).unwrap().planned_len(), cache.stats().held), (3, 1));
    assert_eq!(cache.abort(newer), Err(StepError::NotOpen { step: newer }));
    cache.commit_all(older).unwrap();
    run(&mut cache, seq, &[4]);
    let found = cache.peek(&Scope::default(), &[1, 2, 3, 4, 0], Query::default()).unwrap();
    assert_eq!(found.cached_tokens, 4);
}
