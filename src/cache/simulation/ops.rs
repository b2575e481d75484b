//! What the calls on sequences should answer, from the model alone, and do to the model.

use alloc::rc::Rc;
use alloc::vec::Vec;

use super::calls::Op;
use super::events::{answer, caught};
use super::model::{Kind, ModelSeq, QuerySpec, RowSpec};
use super::world::World;
use crate::cache::{Fit, ViewRow};
use crate::error::{CreateError, SelectError, SequenceError, ViewError};
use crate::id::{SeqId, TokenId, ix};
use crate::prefix::Scope;

impl World {
    pub(super) fn call(&mut self, op: &Op) -> bool {
        match op {
            Op::Create { scope, prompt, query } => self.create(scope, prompt, query).is_some(),
            Op::CreateBlank { scope } => {
                let seq = both!(self, |cache| cache.create_blank(scope)).unwrap();
                self.seqs.push(ModelSeq::new(seq, Rc::clone(scope), Rc::default(), Rc::from([])));
                true
            }
            Op::Admit { scope, prompt, query, extra } => self.admit(scope, prompt, query, extra),
            Op::Plan { rows } => self.plan(rows),
            Op::PlanHuge { seq, count, lookahead } => self.plan_huge(*seq, *count, *lookahead),
            Op::Run { steps } => {
                self.run((*steps).min(self.open.len()) - 1);
                true
            }
            Op::Commit { step, outcomes } => self.commit(*step, Some(outcomes)),
            Op::CommitAll { step } => self.commit(*step, None),
            Op::Abort { step, ran } => self.abort(*step, *ran),
            Op::AbortAll => {
                both!(self, |cache| cache.abort_all());
                self.unplan(0);
                true
            }
            Op::Fork { seq, children } => self.fork(*seq, *children),
            Op::Select { beams, parents } => self.select(beams, parents),
            Op::Truncate { seq, len } => self.truncate(*seq, *len),
            Op::Free { seq, release } => {
                let known = self.seq(*seq).is_some();
                let expected = if known { Ok(()) } else { Err(SequenceError::Unknown { seq: *seq }) };
                assert_eq!(both!(self, |cache| cache.free(*seq, *release)), expected);
                self.seqs.retain(|other| other.id != *seq);
                known
            }
            Op::Reserve { seq, tokens } => self.reserve(*seq, *tokens),
            Op::View { rows } => self.view(rows),
            Op::Retire { step } => self.retire(*step),
            Op::Pin { scope, prompt, query } => self.pin(scope, prompt, query),
            Op::Unpin { pin } => self.unpin(*pin),
            Op::Invalidate(what) => self.invalidate(what),
            Op::SetTime { now } => {
                both!(self, |cache| cache.set_time(*now));
                true
            }
            Op::Listen(sink) => self.listen(*sink),
            Op::Unlisten => self.unlisten(),
            Op::Flush => self.flush(),
            Op::Identity { block } => self.identity(*block),
        }
    }

    fn create(&mut self, scope: &Rc<Scope>, prompt: &Rc<[TokenId]>, query: &Rc<QuerySpec>) -> Option<SeqId> {
        let blocks = u32::try_from(prompt.len()).unwrap().div_ceil(self.block_size());
        let capacity = self.cache.capacity();
        let peek = self.cache.peek(scope, prompt, query.query());
        let stats = self.cache.stats();
        let expected = if peek.is_ok() { self.expected_hit(scope, prompt, query) } else { 0 };
        let result = both!(self, |cache| cache.create(scope, prompt, query.query()));
        assert_eq!(peek.err(), result.err(), "peek and create disagree");
        let created = match result {
            Ok(created) => created,
            Err(CreateError::EmptyPrompt) => return assert_no(prompt.is_empty()),
            Err(CreateError::NeverFits { blocks: wanted, capacity: had, .. }) => {
                return assert_no((wanted, had) == (blocks, capacity) && blocks > capacity);
            }
            Err(CreateError::BadRange { .. }) => return assert_no(!query.is_valid()),
            Err(error) => panic!("create: {error}"),
        };
        assert!(!prompt.is_empty() && blocks <= capacity && query.is_valid(), "create took a bad prompt");
        let (found, cached) = (peek.unwrap(), created.cached_tokens);
        assert_eq!(found.cached_tokens, expected);
        self.check_announced(scope, prompt, query, expected);
        // Without claims, and with enough room beside them, a hit is as long as there is content for.
        if found.idle_blocks <= stats.available - stats.reserved {
            assert_eq!(cached, found.cached_tokens);
        }
        assert!(cached <= found.cached_tokens);
        assert!(cached == 0 || query.may_end(cached), "a hit ends where it must not");
        assert!(cached < u32::try_from(prompt.len()).unwrap());
        self.seen.parts += u64::from(cached % self.block_size() > 0);
        self.seen.prefix_hits += u64::from(cached > 0);
        let mut seq = ModelSeq::new(created.seq, Rc::clone(scope), Rc::clone(query), Rc::clone(prompt));
        let root = self.known.root(scope);
        prompt.iter().take(ix(cached)).for_each(|&token| seq.push(token, root));
        seq.committed = cached;
        self.check_known(&seq.stamps);
        self.seqs.push(seq);
        Some(created.seq)
    }

    fn admit(&mut self, scope: &Rc<Scope>, prompt: &Rc<[TokenId]>, query: &Rc<QuerySpec>, extra: &[TokenId]) -> bool {
        let more = u32::try_from(extra.len()).unwrap();
        let fit = self.cache.fits_prompt(scope, prompt, query.query(), more);
        let Some(seq) = self.create(scope, prompt, query) else {
            assert!(matches!(fit, Err(_) | Ok(Fit::Never)), "fits_prompt: {fit:?}, and create fails");
            return false;
        };
        let tokens: Vec<_> = prompt.iter().chain(extra).copied().skip(self.seqs.last().unwrap().stamps.len()).collect();
        let fits = self.plan(&[RowSpec { seq, tokens, kind: Kind::Ids, drafts: 0, lookahead: 0 }]);
        match fit {
            Ok(Fit::Now) => assert!(fits, "fits_prompt promised room and the plan found none"),
            // Tokens behind the prompt may be found too, which the prompt alone does not tell.
            Ok(Fit::Later(_) | Fit::Never) if extra.is_empty() => assert!(!fits, "fits_prompt: {fit:?}, and it fits"),
            Ok(_) => {}
            Err(error) => panic!("fits_prompt: {error}"),
        }
        true
    }

    fn fork(&mut self, seq: SeqId, children: usize) -> bool {
        let mut handles = alloc::vec![SeqId::from_u64(u64::MAX); children];
        let result = if children == 1 {
            both!(self, |cache| cache.fork(seq)).map(|child| handles[0] = child)
        } else {
            let mut replicated = handles.clone();
            let result = self.cache.fork_into(seq, &mut handles);
            if let Some(replica) = self.replica.as_deref_mut() {
                assert_eq!((result, &handles), (replica.fork_into(seq, &mut replicated), &replicated));
            }
            result
        };
        let Some(parent) = self.seq(seq).cloned() else {
            assert_eq!(result, Err(SequenceError::Unknown { seq }));
            assert!(handles.iter().all(|handle| handle.to_u64() == u64::MAX));
            return false;
        };
        assert_eq!(result, Ok(()));
        handles.into_iter().for_each(|child| self.forked(&parent, child));
        true
    }

    fn forked(&mut self, parent: &ModelSeq, child: SeqId) {
        let partial = !parent.committed.is_multiple_of(self.block_size());
        self.seen.forks_at_a_partial_tail += u64::from(partial);
        assert_eq!(self.table(child), self.committed_table(parent), "a fork shares other blocks than its parent's");
        let mut seq = ModelSeq { id: child, lookahead: 0, open_rows: 0, most_blocks: 0, ..parent.clone() };
        seq.truncate(parent.committed);
        self.seqs.push(seq);
    }

    fn select(&mut self, beams: &[SeqId], parents: &[usize]) -> bool {
        let expected = self.predict_select(beams, parents);
        let mut after = beams.to_vec();
        let result = caught(|| self.cache.select(&mut after, parents));
        let mut replicated = beams.to_vec();
        let other = self.replica.as_deref_mut().map(|replica| replica.select(&mut replicated, parents));
        assert!(other.is_none() || after == replicated);
        let result = answer(result, other);
        assert_eq!(result, expected);
        if result.is_err() {
            assert_eq!(after, beams, "a select that failed changed the beams");
            return false;
        }
        assert_eq!(after.len(), parents.len());
        for (place, (&beam, &parent)) in after.iter().zip(parents).enumerate() {
            if parents[..place].contains(&parent) {
                let parent = self.seq(beams[parent]).unwrap().clone();
                self.forked(&parent, beam);
            } else {
                assert_eq!(beam, beams[parent], "a parent that is chosen keeps its handle");
            }
        }
        self.seqs.retain(|seq| !beams.contains(&seq.id) || after.contains(&seq.id));
        true
    }

    fn predict_select(&self, beams: &[SeqId], parents: &[usize]) -> Result<(), SelectError> {
        for (place, &seq) in beams.iter().enumerate() {
            let model = self.seq(seq).ok_or(SelectError::Unknown { seq })?;
            if model.open_rows > 0 {
                return Err(SelectError::Busy { seq });
            }
            if beams[..place].contains(&seq) {
                return Err(SelectError::RepeatedBeam { seq });
            }
        }
        match parents.iter().find(|&&parent| parent >= beams.len()) {
            Some(&parent) => Err(SelectError::NoSuchParent { parent, beams: beams.len() }),
            None => Ok(()),
        }
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> bool {
        let result = both!(self, |cache| cache.truncate(seq, len));
        let expected = match self.seq(seq) {
            None => Err(SequenceError::Unknown { seq }),
            Some(model) if model.open_rows > 0 => Err(SequenceError::Busy { seq }),
            Some(model) if len > model.committed => Err(SequenceError::BeyondEnd { len, committed: model.committed }),
            Some(_) => Ok(()),
        };
        assert_eq!(result, expected);
        let size = self.block_size();
        if let (Ok(()), Some(model)) = (result, self.seq_mut(seq)) {
            let block = len - len % size;
            if block < len && block + size <= model.committed && block + size > model.nameless_from {
                // The tokens of a full block are its name's, and it has none.
                model.nameless_from = model.nameless_from.min(block);
            }
            model.truncate(len);
            (model.committed, model.lookahead) = (len, 0);
        }
        result.is_ok()
    }

    fn reserve(&mut self, seq: SeqId, tokens: u32) -> bool {
        let stats = self.cache.stats();
        let before = self.cache.sequence(seq).map(|seq| (seq.table().len(), seq.reserved_blocks()));
        let result = both!(self, |cache| cache.reserve(seq, tokens));
        let blocks = tokens.div_ceil(self.block_size());
        let Ok((held, claim)) = before else {
            assert_eq!(result, Err(SequenceError::Unknown { seq }));
            return false;
        };
        let needed = blocks.saturating_sub(held);
        let free = stats.available - (stats.reserved - claim);
        match result {
            Ok(()) => {
                assert!(needed <= free && blocks <= stats.capacity);
                assert_eq!(self.cache.sequence(seq).unwrap().reserved_blocks(), needed);
            }
            Err(SequenceError::NeverFits { .. }) => assert!(blocks > stats.capacity),
            Err(SequenceError::Shortfall { shortfall }) => {
                assert_eq!((shortfall.needed, shortfall.free, shortfall.pending), (needed, free, stats.pending));
                assert!(needed > free, "there was room for a claim");
            }
            Err(error) => panic!("reserve: {error}"),
        }
        result.is_ok()
    }

    fn view(&mut self, rows: &[(SeqId, u32, u32)]) -> bool {
        let views: Vec<_> = rows.iter().map(|&(seq, start, len)| ViewRow { seq, start, len }).collect();
        let mut expected = Ok(());
        for (row, &(seq, start, len)) in rows.iter().enumerate() {
            let held = self.table(seq).len() as u64 * u64::from(self.block_size());
            let end = u64::from(start) + u64::from(len);
            if self.seq(seq).is_none() {
                expected = Err(ViewError::UnknownSequence { row, seq });
            } else if len == 0 {
                expected = Err(ViewError::EmptyRow { row });
            } else if end > held {
                expected = Err(ViewError::BeyondTable { row, end, held });
            } else {
                continue;
            }
            break;
        }
        let before = self.step.clone();
        assert_eq!(self.cache.view(&views, &mut self.step), expected);
        if expected.is_err() {
            assert_eq!(self.step, before, "a view that failed changed the step");
            return false;
        }
        assert_eq!((self.step.id(), self.step.rows().len()), (None, rows.len()));
        for (index, (row, &(seq, start, len))) in self.step.rows().iter().zip(rows).enumerate() {
            assert_eq!((row.seq, row.skip, row.start, row.len), (seq, 0, start, len));
            assert_eq!(self.step.tables().table(index), self.table(seq));
        }
        self.check_slots();
        self.check_encoding();
        true
    }
}

fn assert_no(expected: bool) -> Option<SeqId> {
    assert!(expected, "a good prompt was refused");
    None
}
