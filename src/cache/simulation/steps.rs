//! The calls on steps: what each should answer, from the model alone, and what it should do to the model.

use alloc::vec::Vec;

use super::calls::OutcomeSpec;
use super::events::{answer, caught};
use super::model::{Kind, ModelRow, RowSpec};
use super::world::{Part, World};
use crate::cache::{Fit, Row};
use crate::error::{PlanError, StepError};
use crate::id::{BlockId, GroupId, SeqId, StepId, ix};
use crate::step::Step;

impl World {
    pub(super) fn plan_huge(&mut self, seq: SeqId, count: u32, lookahead: u32) -> bool {
        let row = Row::count(seq, count).with_lookahead(lookahead);
        let mut step = Step::new();
        let result = both!(self, |cache| cache.plan(&[row], &mut step));
        let Some(model) = self.seq(seq) else {
            assert_eq!(result, Err(PlanError::UnknownSequence { row: 0, seq }));
            return false;
        };
        let end = u64::from(model.planned()) + u64::from(count) + u64::from(lookahead);
        let (blocks, capacity) = (end.div_ceil(u64::from(self.block_size())), self.cache.capacity());
        assert!(blocks > u64::from(capacity), "not out of all bounds");
        let expected = if end > u64::from(u32::MAX) {
            PlanError::TooLong { row: 0 }
        } else {
            let blocks = u32::try_from(blocks).unwrap();
            PlanError::NeverFits { row: 0, blocks, capacity, group: GroupId::new(0) }
        };
        assert_eq!((result, step), (Err(expected), Step::new()));
        false
    }

    pub(super) fn plan(&mut self, specs: &[RowSpec]) -> bool {
        let expected = self.predict_plan(specs);
        let tables: Vec<_> = specs.iter().map(|spec| self.table(spec.seq)).collect();
        let most = expected.is_ok().then(|| self.most_needed(specs, &tables));
        let tails = self.named_tails(specs, &tables);
        let rows: Vec<_> = specs.iter().map(RowSpec::row).collect();
        let (stats, before) = (self.cache.stats(), self.step.clone());
        let fits = self.cache.fits(&rows);
        let refs: Vec<_> = self.blocks().map(|block| self.cache.refs(block)).collect();
        let result = caught(|| self.cache.plan(&rows, &mut self.step));
        let replicated = self.replica.as_deref_mut().map(|replica| replica.plan(&rows, &mut self.replica_step));
        let result = answer(result, replicated);
        match (fits, result) {
            (Ok(Fit::Now), Ok(_)) | (Ok(Fit::Never), Err(PlanError::NeverFits { .. })) => {}
            (Ok(Fit::Later(one)), Err(PlanError::Shortfall { shortfall })) if one == shortfall => {}
            (Err(one), Err(other)) if one == other => {}
            _ => panic!("fits says {fits:?} and plan {result:?}"),
        }
        match result {
            Ok(id) => {
                assert_eq!(expected, Ok(()), "plan took bad input");
                self.planned(id, specs, tables, &refs);
                let spent = |&&(seq, place, tail): &&(SeqId, usize, BlockId)| {
                    let by_others = self.cache.blocks.index.is_computed(tail);
                    self.table(seq)[place] == tail && (self.cache.blocks.node_of(tail).is_none() || !by_others)
                };
                self.seen.spent += tails.iter().filter(spent).count() as u64;
                return true;
            }
            Err(PlanError::Shortfall { shortfall }) => {
                assert_eq!(expected, Ok(()));
                let (needed, total) = most.unwrap();
                assert!(total > u64::from(stats.available), "there was room: {shortfall}, at most {needed} needed");
                assert!(
                    shortfall.needed > shortfall.free && shortfall.needed <= needed,
                    "{shortfall}, at most {needed} needed"
                );
                assert_eq!(shortfall.pending, stats.pending);
                self.seen.failed_plans += 1;
            }
            Err(error) => assert_eq!(expected, Err(error)),
        }
        assert_eq!(self.step, before, "a plan that failed changed the step");
        false
    }

    /// The partly filled tails that others can find.
    fn named_tails(&self, specs: &[RowSpec], tables: &[Vec<BlockId>]) -> Vec<(SeqId, usize, BlockId)> {
        let tail = |(spec, table): (&RowSpec, &Vec<BlockId>)| {
            let len = self.seq(spec.seq)?.planned();
            let place = ix(len / self.block_size());
            let tail = *table.get(place).filter(|_| len % self.block_size() != 0)?;
            self.cache.blocks.node_of(tail).map(|_| (spec.seq, place, tail))
        };
        specs.iter().zip(tables).filter_map(tail).collect()
    }

    fn predict_plan(&self, specs: &[RowSpec]) -> Result<(), PlanError> {
        for (row, spec) in specs.iter().enumerate() {
            let (seq, tokens) = (spec.seq, u32::try_from(spec.tokens.len()).unwrap());
            let model = self.seq(seq).ok_or(PlanError::UnknownSequence { row, seq })?;
            if specs[..row].iter().any(|before| before.seq == seq) {
                return Err(PlanError::RepeatedSequence { row, seq });
            }
            if tokens == 0 {
                return Err(PlanError::EmptyRow { row });
            }
            if spec.drafts >= tokens {
                return Err(PlanError::TooManyDrafts { row, drafts: spec.drafts, tokens });
            }
            let blocks = (model.planned() + tokens + spec.lookahead).div_ceil(self.block_size());
            let capacity = self.cache.capacity();
            if blocks > capacity {
                return Err(PlanError::NeverFits { row, blocks, capacity, group: GroupId::new(0) });
            }
        }
        Ok(())
    }

    /// The most blocks that a plan may need, if it finds nothing, and the most that then have to be available: a claim
    /// pays for what its sequence needs, and a copy of a shared tail is not covered by it.
    fn most_needed(&self, specs: &[RowSpec], tables: &[Vec<BlockId>]) -> (u32, u64) {
        let (mut needed, mut total) = (0, u64::from(self.cache.stats().reserved));
        for (spec, table) in specs.iter().zip(tables) {
            let model = self.seq(spec.seq).unwrap();
            let end = model.planned() + u32::try_from(spec.tokens.len()).unwrap() + spec.lookahead;
            let grown = end.div_ceil(self.block_size()).saturating_sub(u32::try_from(table.len()).unwrap());
            let partial = !model.planned().is_multiple_of(self.block_size());
            let tail = table.get(ix(model.planned() / self.block_size())).filter(|_| partial);
            // In a plan of several rows one may adopt the tail of another; and a former holder may withhold it.
            let alone = specs.len() == 1
                && !self.cache.config().withhold
                && tail.is_some_and(|&tail| self.cache.refs(tail) == 1);
            let copied = u32::from(tail.is_some() && !alone);
            needed += grown + copied;
            let claim = self.cache.sequence(spec.seq).unwrap().reserved_blocks();
            total += u64::from(grown.saturating_sub(claim) + copied);
        }
        (needed, total)
    }

    pub(super) fn commit(&mut self, step: StepId, outcomes: Option<&[OutcomeSpec]>) -> bool {
        let expected = self.predict_commit(step, outcomes);
        if expected.is_ok() {
            self.run(0);
        }
        let given: Option<Vec<_>> = outcomes.map(|outcomes| outcomes.iter().map(OutcomeSpec::outcome).collect());
        let result = both!(self, |cache| match &given {
            Some(outcomes) => cache.commit(step, outcomes),
            None => cache.commit_all(step),
        });
        assert_eq!(result.map_err(Some), expected.as_ref().map(|_| ()).map_err(|&error| Some(error)));
        let Ok(accepted) = expected else { return false };
        let open = self.open.pop_front().unwrap();
        for (place, (row, accepted)) in open.rows.iter().zip(accepted).enumerate() {
            let outcome = outcomes.map_or(&OutcomeSpec::All, |outcomes| &outcomes[place]);
            self.commit_row(row, accepted, outcome);
        }
        true
    }

    fn commit_row(&mut self, row: &ModelRow, accepted: u32, outcome: &OutcomeSpec) {
        let size = self.block_size();
        let first = row.start / size;
        let Some(seq) = self.seqs.iter_mut().find(|seq| seq.id == row.spec.seq) else {
            // Others may have found what it computes for certain.
            self.known.compute(&row.stamps[..ix(row.named())], first, size);
            return;
        };
        let end = row.start + accepted;
        seq.open_rows -= 1;
        seq.committed = end;
        if accepted < row.count() {
            seq.stamps.truncate(ix(end));
        }
        if row.spec.kind != Kind::Ids && !matches!(outcome, OutcomeSpec::Ids(_)) && accepted > 0 {
            seq.nameless_from = seq.nameless_from.min(row.start);
        }
        if !seq.query.private {
            // Names from the plan outlast those of the sequence, where the row does not build on what that lost.
            let named = seq.nameless_from.min(end).max(row.named());
            self.known.compute(&row.stamps[..ix(named)], first, size);
        }
    }

    /// How many tokens each row accepts, or why the commit is refused.
    fn predict_commit(&self, step: StepId, outcomes: Option<&[OutcomeSpec]>) -> Result<Vec<u32>, StepError> {
        if self.open.iter().all(|open| open.id != step) {
            return Err(StepError::NotOpen { step });
        }
        let oldest = self.open[0].id;
        if oldest != step {
            return Err(StepError::OutOfOrder { step, oldest });
        }
        let rows = &self.open[0].rows;
        let Some(outcomes) = outcomes else { return Ok(rows.iter().map(ModelRow::count).collect()) };
        if rows.len() != outcomes.len() {
            return Err(StepError::OutcomeCount { rows: rows.len(), outcomes: outcomes.len() });
        }
        let mut all = Vec::new();
        for ((row, model), outcome) in rows.iter().enumerate().zip(outcomes) {
            let seq = model.spec.seq;
            let Some(sequence) = self.seq(seq) else {
                all.push(0);
                continue;
            };
            let most = model.count();
            let by_id = model.spec.kind == Kind::Ids;
            let least = if by_id { most - model.spec.drafts } else { 0 };
            let accepted = match outcome {
                OutcomeSpec::All => most,
                OutcomeSpec::Accept(accepted) => *accepted,
                OutcomeSpec::Ids(_) if by_id => return Err(StepError::IdsGivenTwice { row }),
                OutcomeSpec::Ids(ids) => u32::try_from(ids.len()).unwrap(),
            };
            if accepted < least || accepted > most {
                return Err(StepError::Accepted { row, accepted: ix(accepted), least, most });
            }
            if accepted < most && sequence.open_rows > 1 {
                return Err(StepError::LaterStepOpen { row, seq });
            }
            all.push(accepted);
        }
        Ok(all)
    }

    pub(super) fn abort(&mut self, step: StepId, ran: Option<(usize, Part)>) -> bool {
        let found = self.open.iter().position(|open| open.id == step);
        if let (Some(first), Some((whole, part))) = (found, ran) {
            let end = (first + whole).min(self.open.len());
            if let Some(last) = end.checked_sub(1) {
                self.run(last);
            }
            if end < self.open.len() && !self.open[end].ran {
                self.run_part(end, part);
            }
        }
        let result = both!(self, |cache| cache.abort(step));
        let Some(first) = found else {
            assert_eq!(result, Err(StepError::NotOpen { step }));
            return false;
        };
        assert_eq!(result, Ok(()));
        self.unplan(first);
        true
    }

    /// Takes the steps from this one on back.
    pub(super) fn unplan(&mut self, first: usize) {
        while self.open.len() > first {
            let open = self.open.pop_back().unwrap();
            self.seen.aborts += 1;
            for row in open.rows.iter().rev() {
                let Some(seq) = self.seq_mut(row.spec.seq) else { continue };
                seq.truncate(row.start);
                seq.lookahead = row.lookahead_before;
                seq.open_rows -= 1;
                // The oldest row that was aborted tells what the table was.
                let older = self.open.iter().skip(first).flat_map(|open| &open.rows);
                if !older.into_iter().any(|older| older.spec.seq == row.spec.seq) {
                    let table = self.table(row.spec.seq);
                    let before = row.table_before.get(..table.len());
                    assert_eq!(before, Some(&*table), "an abort gives another table back");
                }
            }
        }
    }

    pub(super) fn retire(&mut self, step: StepId) -> bool {
        let result = both!(self, |cache| cache.retire(step));
        let oldest = self.open.front().map(|open| open.id).filter(|&oldest| oldest <= step);
        let expected = match oldest {
            _ if step.get() == 0 || step.get() > self.last_step => Err(StepError::NotOpen { step }),
            Some(step) => Err(StepError::StillOpen { step }),
            None => Ok(()),
        };
        assert_eq!(result, expected);
        if result.is_ok() {
            self.named.retain(|(named, _)| *named > step);
        }
        result.is_ok()
    }
}
