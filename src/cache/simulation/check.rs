//! What must hold after every call.

use alloc::rc::Rc;
use alloc::vec::Vec;

use super::model::{Kind, ModelRow, ModelSeq, ModelStep, QuerySpec, RowSpec, Stamp, extend};
use super::world::{World, edit, read};
use crate::id::{BlockId, StepId, TokenId, ix};
use crate::prefix::Scope;
use crate::prefix::index::Parent;
use crate::step::Step;

impl World {
    /// All blocks, the scratch block included.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.cache.config().num_blocks).map(BlockId::new)
    }

    /// Checks a step that was planned, and enters it in the model.
    pub(super) fn planned(&mut self, id: StepId, specs: &[RowSpec], tables: Vec<Vec<BlockId>>, refs: &[u32]) {
        let size = self.block_size();
        assert_eq!((self.step.id(), id.get()), (Some(id), self.last_step + 1));
        assert_eq!(self.step.rows().len(), specs.len());
        self.last_step = id.get();
        self.seen.plain_appends += self.cache.num_plain() as u64;
        self.check_slots();
        self.check_encoding();
        let (mut rows, mut fresh, mut displaced) = (Vec::new(), Vec::new(), 0);
        for (index, (spec, before)) in specs.iter().zip(tables).enumerate() {
            let (meta, table) = (self.step.rows()[index], self.step.tables().table(index).to_vec());
            let model = self.seqs.iter_mut().find(|seq| seq.id == spec.seq).unwrap();
            let start = model.planned();
            let end = start + u32::try_from(spec.tokens.len()).unwrap();
            assert_eq!((meta.seq, meta.start, meta.seq_len()), (spec.seq, start + meta.skip, end));
            assert!(meta.len > 0, "a row has nothing to compute");
            if meta.skip > 0 {
                assert!(spec.kind == Kind::Ids && meta.start % size == 0);
                assert!(meta.start + spec.drafts < end, "a token that is certain is left to compute");
                assert!(model.query.may_end(meta.start) && !model.query.private && model.nameless_from == u32::MAX);
                self.seen.prefix_hits += 1;
            }
            let target = (end + spec.lookahead).div_ceil(size);
            assert_eq!(table.len(), before.len().max(ix(target)), "a table as long as its sequence and lookahead");
            // A part that was found may give way to a whole block, even the one that it is a part of.
            let gave_way = meta.skip > 0 && start % size != 0;
            self.seen.gave_way += u64::from(gave_way);
            let copied = before.iter().zip(&table).position(|(before, now)| before != now);
            let copied = copied.or(gave_way.then_some(ix(start / size)));
            let mut row = ModelRow {
                spec: spec.clone(),
                start,
                stamps: Rc::from([]),
                table_before: Rc::from(before),
                lookahead_before: model.lookahead,
                nameless_from: if model.query.private { 0 } else { model.nameless_from },
                displaced: None,
            };
            let before = &row.table_before;
            if let Some(place) = copied {
                let (src, dst) = (before[place], table[place]);
                assert!(place == ix(start / size) && start % size != 0, "only a partly filled tail is copied");
                assert_eq!(before[place + 1..], table[place + 1..before.len()]);
                let copies = self.step.tables().copies().iter();
                let copies = copies.filter(|copy| (copy.src, copy.dst) == (src, dst)).count();
                assert!(gave_way || copies == 1 || crate::planted::any());
                let withheld = self.cache.config().withhold;
                let findable = self.cache.blocks.node_of(src).is_some();
                let must = refs[src.index()] > 1 || specs.len() > 1 || withheld || findable;
                assert!(must, "the last sharer writes in place");
                row.displaced = Some((u32::try_from(place).unwrap(), src));
                if !gave_way {
                    fresh.push(dst);
                }
                displaced += usize::from(!gave_way);
            }
            let found = if meta.skip > 0 { ix(meta.start / size) } else { 0 };
            fresh.extend(&table[found.max(before.len())..]);
            if model.open_rows == 0 {
                model.most_blocks = u32::try_from(before.len()).unwrap();
            }
            model.most_blocks = model.most_blocks.max(target);
            model.lookahead = spec.lookahead;
            model.open_rows += 1;
            let root = self.known.root(&model.scope);
            spec.tokens.iter().for_each(|&token| model.push(token, root));
            row.stamps = Rc::from(&*model.stamps);
            let skipped = (start / size + 1..=meta.start / size).map(|blocks| ix(blocks * size) - 1);
            for last in skipped.filter(|_| meta.skip > 0) {
                let stamp = row.stamps[last];
                let mut others = self.open.iter().flat_map(|open| &open.rows).chain(&rows);
                let computed = self.known.has_block(stamp) || others.any(|other| other.computes(last, stamp));
                assert!(computed, "a row skips what nobody computes");
            }
            rows.push(row);
        }
        assert!(self.step.tables().copies().len() == displaced || crate::planted::any());
        self.seen.copies += displaced as u64;
        for (place, &block) in fresh.iter().enumerate() {
            assert!(!fresh[..place].contains(&block), "a block was taken twice");
            assert_eq!(refs[block.index()], 0, "a block was taken that somebody holds");
            assert!(Some(block) != self.cache.scratch());
            let named = self.named.iter().find(|(_, named)| named.contains(&block));
            assert!(named.is_none(), "{block:?} was taken, which {named:?} names and which is not retired");
        }
        let step = Rc::new(self.step.clone());
        let open = ModelStep { id, rows, step: Rc::clone(&step), fresh: Rc::from(fresh), ran: false };
        if self.cache.config().withhold {
            self.named.push((id, Rc::from(open.named())));
        }
        self.open.push_back(open);
        self.check_writes();
        edit(&mut self.mirror_of_plans, &step, "that were planned");
        if self.eager {
            self.run(self.open.len() - 1);
        }
    }

    /// Slots follow from tables and positions, by the definition of a slot.
    pub(super) fn check_slots(&self) {
        let (size, tables) = (self.block_size(), self.step.tables());
        let mut expected = Vec::new();
        for (index, row) in self.step.rows().iter().enumerate() {
            assert_eq!(ix(row.first_token), expected.len());
            let positions = row.start..row.start + row.len;
            let table = tables.table(index);
            expected.extend(positions.map(|at| table[ix(at / size)].get() * size + at % size));
        }
        assert!(tables.slots().iter().map(|slot| slot.get()).eq(expected));
    }

    pub(super) fn check_encoding(&self) {
        let (mut bytes, mut decoded) = (Vec::new(), Step::new());
        self.step.encode(&mut bytes);
        assert_eq!(decoded.decode(&bytes, self.step.num_tokens()), Ok(bytes.len()));
        assert_eq!(decoded, self.step, "a step does not survive its encoding");
        if self.replica.is_some() && self.step.id().is_some() {
            let mut replicated = Vec::new();
            self.replica_step.encode(&mut replicated);
            assert_eq!(bytes, replicated, "a replica plans other bytes");
        }
    }

    /// Nothing is written where anybody reads, and copies are safe in any order.
    fn check_writes(&self) {
        let (size, tables, id) = (self.block_size(), self.step.tables(), self.step.id().unwrap());
        let copies = tables.copies();
        for (place, copy) in copies.iter().enumerate() {
            assert!(copies[..place].iter().all(|other| other.dst != copy.dst), "two copies to one block");
            assert!(copies.iter().all(|other| other.src != copy.dst), "a copy to the source of another");
        }
        let mut slots = tables.slots().to_vec();
        slots.sort();
        assert!(slots.windows(2).all(|pair| pair[0] != pair[1]), "a slot is written twice in a step");
        for (row, meta) in self.step.rows().iter().enumerate() {
            for position in meta.start..meta.seq_len() {
                let block = tables.table(row)[ix(position / size)];
                if self.cache.blocks.node_of(block).is_some() {
                    let by_this_step = self.cache.blocks.index.is_computed_by(block, id.get());
                    assert!(by_this_step, "{block:?} is written and can be found");
                }
                for seq in self.seqs.iter().filter(|seq| seq.id != meta.seq) {
                    let read = self.relied_on(seq);
                    let place = read.iter().position(|&(held, _)| held == block);
                    let offset = position % size;
                    assert!(place.is_none_or(|place| offset >= read[place].1), "{:?} reads what is written", seq.id);
                }
            }
        }
    }

    /// The blocks that a sequence may come back to, and how many of their slots.
    fn relied_on(&self, seq: &ModelSeq) -> Vec<(BlockId, u32)> {
        let size = self.block_size();
        let mut blocks = self.committed_table(seq);
        let mut len = seq.committed;
        if let Some((row, _)) = self.displacing(seq.id) {
            // Older steps of the sequence may commit and this one be aborted.
            len = row.start;
            blocks = row.table_before[..ix(len.div_ceil(size))].to_vec();
        }
        blocks.into_iter().zip(0..).map(|(block, index)| (block, (len - index * size).min(size))).collect()
    }

    /// After every call.
    pub(super) fn check(&self) {
        let mut holders = alloc::vec![0_u32; ix(self.cache.config().num_blocks)];
        assert_eq!(self.cache.sequences().count(), self.seqs.len());
        for seq in &self.seqs {
            self.check_sequence(seq);
            let displaced = self.displacing(seq.id).and_then(|(row, _)| row.displaced);
            let held = self.cache.sequence(seq.id).unwrap().table().ids();
            held.chain(displaced.map(|(_, block)| block)).for_each(|block| holders[block.index()] += 1);
        }
        for pin in &self.pins {
            self.check_pin(pin);
            pin.blocks.iter().for_each(|block| holders[block.index()] += 1);
        }
        let stats = self.cache.stats();
        assert_eq!(ix(stats.pins), self.pins.len());
        for block in self.blocks() {
            let candidate = self.cache.blocks.pool.is_candidate(block);
            assert_eq!(self.cache.policy().is_candidate(block), candidate, "{block:?}: the policy was not told");
            assert_eq!(self.cache.refs(block), holders[block.index()], "{block:?} miscounts its holders");
        }
        let held = holders.iter().filter(|&&holders| holders > 0).count();
        assert_eq!(ix(stats.held), held, "held blocks are not those that sequences hold");
        assert_eq!(stats.held + stats.available + stats.pending, stats.capacity);
        assert_eq!(stats.pending > 0, stats.pending > 0 && self.cache.config().withhold);
        let claims: u32 = self.cache.sequences().map(|(_, seq)| seq.reserved_blocks()).sum();
        assert!(stats.reserved == claims && claims <= stats.available);
        assert!(self.cache.open_steps().eq(self.open.iter().map(|open| open.id)));
        self.check_names();
        for (block, stamps) in self.findable() {
            let index = &self.cache.blocks.index;
            let ran = |open: &super::model::ModelStep| open.ran && index.is_computed_by(block, open.id.get());
            if index.is_computed(block) || self.open.iter().any(ran) {
                let held = read(&self.memory, &[block], self.block_size(), self.block_size());
                assert_eq!(held, stamps, "{block:?} is found under the name of other content");
            }
            let known = self.known.has_block(stamps[stamps.len() - 1]);
            assert!(known || !index.is_computed(block), "{block:?} is found, and nobody computed it since");
        }
        // A planted bug is to be found by what the cache does, not by what it knows of itself.
        if !crate::planted::any() {
            self.cache.check_integrity().unwrap();
        }
    }

    fn check_sequence(&self, seq: &ModelSeq) {
        let size = self.block_size();
        let held = self.cache.sequence(seq.id).unwrap();
        assert_eq!((held.len(), held.planned_len()), (seq.committed, seq.planned()), "{:?} miscounts", seq.id);
        assert_eq!(held.open_steps(), seq.open_rows);
        let wanted = (seq.planned() + seq.lookahead).div_ceil(size);
        let most = if seq.open_rows == 0 { wanted } else { seq.most_blocks.max(wanted) };
        assert!((wanted..=most).contains(&held.table().len()), "{:?} holds {} blocks", seq.id, held.table().len());
        let committed = read(&self.memory, &self.committed_table(seq), size, seq.committed);
        assert_eq!(committed, seq.stamps[..ix(seq.committed)], "{:?} does not read back its tokens", seq.id);
        if let Some((row, _)) = self.displacing(seq.id) {
            // As far as older steps have run, an abort comes back to more than is committed.
            let ran = self.open.iter().filter(|open| open.ran).flat_map(|open| &open.rows);
            let reach = ran.filter(|other| other.spec.seq == seq.id && other.end() <= row.start).map(ModelRow::end);
            if let Some(reach) = reach.max() {
                let before = read(&self.memory, &row.table_before, size, reach);
                assert_eq!(before, seq.stamps[..ix(reach)], "{:?} cannot come back to its tail", seq.id);
            }
        }
        let mut ran = self.open.iter().filter(|open| open.ran).flat_map(|open| &open.rows);
        if let Some(row) = ran.rfind(|row| row.spec.seq == seq.id) {
            let table: Vec<_> = held.table().ids().collect();
            let unrun = self.displacing(seq.id).is_some_and(|(_, ran)| !ran);
            let end = if unrun { row.end() - row.end() % size } else { row.end() };
            let planned = read(&self.memory, &table, size, end);
            assert_eq!(planned, seq.stamps[..ix(end)], "{:?} does not read back what it planned", seq.id);
        }
    }

    /// Every block that has a name, and what it should hold, from the names on its path alone.
    pub(super) fn findable(&self) -> Vec<(BlockId, Vec<Stamp>)> {
        let named = self.blocks().filter_map(|block| Some((block, self.cache.blocks.node_of(block)?)));
        let root = |scope: &Scope| self.known.root(scope);
        named.map(|(block, node)| (block, self.stamps_of(node, &root).1)).collect()
    }

    /// The position behind a node's block, and the stamps of the block.
    pub(super) fn stamps_of(&self, node: u32, root: &dyn Fn(&Scope) -> Stamp) -> (u32, Vec<Stamp>) {
        let index = &self.cache.blocks.index;
        let (tokens, extras) = (index.tokens(node), index.extras(node));
        let (mut at, mut stamp) = match index.parent(node) {
            Parent::Scope(scope) => (0, root(index.scopes.get(scope))),
            Parent::Node(parent) => {
                let (end, stamps) = self.stamps_of(parent, root);
                (end, stamps[stamps.len() - 1])
            }
        };
        let mut stamps = Vec::new();
        for &token in tokens {
            stamp = extend(stamp, at, token, extras);
            stamps.push(stamp);
            at += 1;
        }
        (at, stamps)
    }

    /// How much of a prompt should be found: as many leading blocks as computed content exists for, by comparing stamps,
    /// and of the next block as many tokens as any computed one agrees for; no more than leaves a token; ending where it
    /// may.
    pub(super) fn expected_hit(&self, scope: &Scope, prompt: &[TokenId], query: &QuerySpec) -> u32 {
        let size = self.block_size();
        let index = &self.cache.blocks.index;
        let all = self.findable();
        let computed = all.iter().filter(|(block, _)| index.is_computed(*block));
        let there: Vec<&Vec<Stamp>> = computed.map(|(_, stamps)| stamps).collect();
        let (mut stamp, mut stamps) = (self.known.root(scope), Vec::new());
        for (position, &token) in (0..).zip(prompt.iter().take(prompt.len() - 1)) {
            stamp = extend(stamp, position, token, &query.extras);
            stamps.push(stamp);
        }
        if query.private {
            return 0;
        }
        let found = |end: &u32| there.iter().any(|held| held[ix((end - 1) % size)] == stamps[ix(end - 1)]);
        let len = u32::try_from(stamps.len()).unwrap();
        // Whole blocks that are there, whether a hit may end behind them or not.
        let wanted = |end: u32| end <= len && query.max_hit.is_none_or(|most| end <= most);
        let whole = (1..=len).filter(|&end| end % size == 0 && wanted(end)).take_while(found).last().unwrap_or(0);
        let next = whole + size;
        let coming = |held: &Vec<Stamp>| held[ix(size - 1)] == stamps[ix(next - 1)];
        // An open step may compute the next block, which a plan will find whole.
        let is_coming =
            wanted(next) && all.iter().any(|(_, held)| coming(held)) && !there.iter().any(|held| coming(held));
        let parts = (whole + 1..=len.min(next)).take_while(|end| !is_coming && found(end));
        (1..=whole).chain(parts).filter(|&end| query.may_end(end)).last().unwrap_or(0)
    }
}
