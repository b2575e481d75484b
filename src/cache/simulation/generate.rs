//! Which call comes next.

mod content;

use alloc::rc::Rc;
use alloc::vec::Vec;

use super::calls::{Op, OutcomeSpec};
use super::model::{Kind, ModelSeq, QuerySpec, RowSpec};
use super::rng::Rng;
use super::world::{Part, World};
use crate::cache::{PinId, Release};
use crate::id::{SeqId, StepId, TokenId, ix};
use crate::prefix::{Extra, RangeRetention, Retention, Scope};

/// Chooses calls such that pools are always nearly full and prompts share their beginnings.
pub(crate) struct Generator {
    pub(crate) rng: Rng,
    /// The most open steps.
    depth: usize,
    /// Once a step is open, there is always one.
    never_idle: bool,
    most_seqs: usize,
    documents: Vec<Rc<[TokenId]>>,
    scopes: Vec<Rc<Scope>>,
    vocabulary: [TokenId; TOKENS],
    embeddings: u32,
    /// A pin to be given back once more.
    old_pin: Option<PinId>,
}

/// Tokens of a vocabulary.
const TOKENS: usize = 3;

/// Tokens to choose them from: some differ in their lowest bits, some in their highest.
const ALL_TOKENS: [TokenId; 7] = [0, 1, 2, 3, 1 << 16, 1 << 31, u32::MAX];

impl Generator {
    pub(crate) fn new(mut rng: Rng, capacity_tokens: u32) -> Self {
        let longest = capacity_tokens.min(14);
        let mut tokens = ALL_TOKENS;
        rng.shuffle(&mut tokens);
        let vocabulary = *tokens.first_chunk().unwrap();
        let document = |rng: &mut Rng| (0..longest).map(|_| *rng.pick(&vocabulary).unwrap()).collect();
        let documents = (0..3).map(|_| document(&mut rng)).collect();
        let plain = Scope::default();
        let scopes = [plain.clone(), plain.clone(), plain.with_salt(b"tenant").with_adapter(b"adapter", 1)];
        Self {
            depth: ix(rng.within(1, 3)),
            never_idle: rng.chance(25),
            most_seqs: ix(rng.within(3, 9)),
            rng,
            documents,
            scopes: scopes.into_iter().map(Rc::new).collect(),
            vocabulary,
            embeddings: 1 << 31,
            old_pin: None,
        }
    }

    pub(crate) fn next(&mut self, world: &World) -> Op {
        loop {
            if let Some(op) = self.candidate(world) {
                return op;
            }
        }
    }

    /// A call, or `None` where the one that was drawn makes no sense now.
    fn candidate(&mut self, world: &World) -> Option<Op> {
        let open = world.open.len();
        if self.rng.chance(8) {
            return Some(self.content(world));
        }
        if world.seqs.len() >= self.most_seqs && self.rng.chance(60) {
            return Some(self.free(world));
        }
        if open >= self.depth && self.rng.chance(80) {
            return self.end_step(world);
        }
        let stats = world.cache.stats();
        if stats.available <= stats.reserved && self.rng.chance(30) {
            return Some(self.free(world));
        }
        let withhold = world.cache.config().withhold;
        Some(match self.rng.below(100) {
            0..=11 => self.create(world),
            12 => Op::CreateBlank { scope: self.scope() },
            13..=46 if open < self.depth => self.plan(world)?,
            47..=61 => return self.end_step(world),
            62..=64 if open > 0 && !world.eager => Op::Run { steps: ix(self.rng.within(1, 3)) },
            65..=72 if world.seqs.len() < self.most_seqs + 3 => {
                Op::Fork { seq: self.seq(world), children: if self.rng.chance(80) { 1 } else { ix(self.rng.below(4)) } }
            }
            73..=75 => self.select(world),
            76..=80 => {
                let seq = self.seq(world);
                let committed = world.seq(seq).map_or(0, |seq| seq.committed);
                Op::Truncate { seq, len: self.rng.below(committed + 2) }
            }
            81..=84 => self.free(world),
            85..=88 => {
                let most = if self.rng.chance(40) { 1 } else { (world.cache.capacity() + 1) * world.block_size() + 2 };
                let tokens = self.rng.below(most);
                Op::Reserve { seq: self.seq(world), tokens }
            }
            89..=90 => self.view(world),
            91 => Op::Retire { step: self.step(world) },
            92..=97 if withhold => {
                // All that can be retired, or all but the last.
                let oldest = world.open.front().map_or(world.last_step + 1, |open| open.id.get());
                Op::Retire { step: StepId::new(oldest.saturating_sub(u64::from(self.rng.within(1, 2)))) }
            }
            98 => Op::PlanHuge { seq: self.seq(world), count: u32::MAX - self.rng.below(3), lookahead: 1 << 31 },
            99 => {
                let tokens = world.cache.capacity() * world.block_size() + 1;
                Op::PlanHuge { seq: self.seq(world), count: tokens, lookahead: self.rng.below(3) }
            }
            _ => return None,
        })
    }

    fn token(&mut self) -> TokenId {
        *self.rng.pick(&self.vocabulary).unwrap()
    }

    fn scope(&mut self) -> Rc<Scope> {
        Rc::clone(self.rng.pick(&self.scopes).unwrap())
    }

    /// A living sequence; now and then a stale handle, or one that never was.
    fn seq(&mut self, world: &World) -> SeqId {
        let living = self.rng.pick(&world.seqs).map(|seq| seq.id);
        match living {
            Some(seq) if self.rng.chance(97) => seq,
            Some(seq) => SeqId::from_u64(seq.to_u64().wrapping_sub(1 << 32)),
            None => SeqId::from_u64(self.rng.next()),
        }
    }

    /// A step that is open; now and then another number.
    fn step(&mut self, world: &World) -> StepId {
        match world.open.get(ix(self.rng.below(u32::try_from(world.open.len()).unwrap()))) {
            Some(open) if self.rng.chance(90) => open.id,
            _ => StepId::new(self.rng.next() % (world.last_step + 3)),
        }
    }

    /// The beginning of a document, sometimes with another token in it or with others behind it.
    fn prompt(&mut self) -> Vec<TokenId> {
        let document = Rc::clone(self.rng.pick(&self.documents).unwrap());
        let len = ix(self.rng.within(1, u32::try_from(document.len()).unwrap()));
        let mut prompt = document[..len].to_vec();
        if self.rng.chance(25) {
            prompt[ix(self.rng.below(u32::try_from(len).unwrap()))] = self.token();
        }
        if self.rng.chance(15) {
            let last = self.vocabulary[0];
            prompt.extend((0..self.rng.below(3)).map(|_| last));
        }
        prompt
    }

    fn query(&mut self) -> QuerySpec {
        let mut query = QuerySpec::default();
        if self.rng.chance(75) {
            return query;
        }
        let mut range = {
            let first = self.rng.below(6);
            first..first + self.rng.within(1, 5)
        };
        if self.rng.chance(3) {
            range.end = range.start;
        }
        match self.rng.below(5) {
            0 => {
                let kind = u8::try_from(self.rng.below(2)).unwrap();
                query.extras = alloc::vec![Extra { range: range.clone(), digest: [kind; 32] }];
                if self.rng.chance(40) {
                    query.extras.push(Extra { range: range.start + 1..range.end + 2, digest: [7; 32] });
                }
            }
            1 => query.max_hit = Some(self.rng.below(12)),
            2 => query.no_cut = alloc::vec![range],
            3 => {
                let retention = Retention {
                    priority: u8::try_from(self.rng.below(101)).unwrap(),
                    duration: self.rng.chance(50).then(|| u64::from(self.rng.below(20))),
                };
                let all = RangeRetention::new(0..u32::MAX, Retention::default());
                query.retention = alloc::vec![RangeRetention::new(range, retention), all];
            }
            _ => query.private = true,
        }
        query
    }

    fn create(&mut self, world: &World) -> Op {
        let (scope, query) = (self.scope(), Rc::new(self.query()));
        let mut prompt = self.prompt();
        if self.rng.chance(2) {
            prompt.clear();
        } else if self.rng.chance(2) {
            prompt.resize(ix(world.cache.capacity() * world.block_size() + 1), 0);
        }
        let prompt = Rc::from(prompt);
        if world.open.len() < self.depth && self.rng.chance(40) {
            let extra = if self.rng.chance(70) { Vec::new() } else { self.prompt() };
            return Op::Admit { scope, prompt, query, extra };
        }
        Op::Create { scope, prompt, query }
    }

    fn plan(&mut self, world: &World) -> Option<Op> {
        let mut seqs: Vec<_> = world.seqs.iter().map(|seq| seq.id).collect();
        self.rng.shuffle(&mut seqs);
        let most = if self.rng.chance(60) { 2 } else { 5 };
        seqs.truncate(ix(self.rng.within(1, most)));
        if self.rng.chance(3) {
            seqs.push(self.seq(world));
        }
        if seqs.is_empty() && !self.rng.chance(2) {
            return None;
        }
        // A decode step: what most steps of an engine are.
        let decode = self.rng.chance(25);
        let rows = seqs.into_iter().map(|seq| match world.seq(seq) {
            Some(_) if decode => {
                RowSpec { seq, tokens: alloc::vec![self.token()], kind: Kind::Ids, drafts: 0, lookahead: 0 }
            }
            model => self.row(model, seq),
        });
        Some(Op::Plan { rows: rows.collect() })
    }

    fn row(&mut self, model: Option<&ModelSeq>, seq: SeqId) -> RowSpec {
        let rest = model.and_then(|model| model.prompt.get(model.stamps.len()..)).unwrap_or(&[]);
        let mut kind = match self.rng.below(100) {
            0..=9 => Kind::Embeddings,
            10..=29 => Kind::Later,
            _ => Kind::Ids,
        };
        let mut tokens: Vec<_> = if !rest.is_empty() && self.rng.chance(90) {
            kind = if self.rng.chance(90) { Kind::Ids } else { kind };
            let len = u32::try_from(rest.len()).unwrap();
            let len = if self.rng.chance(70) { len } else { self.rng.within(1, len) };
            rest[..ix(len)].to_vec()
        } else {
            let len = if self.rng.chance(65) { 1 } else { self.rng.within(1, 6) };
            (0..len).map(|_| self.token()).collect()
        };
        if kind == Kind::Embeddings {
            for token in &mut tokens {
                self.embeddings += 1;
                *token = self.embeddings;
            }
        }
        if self.rng.chance(1) {
            tokens.clear();
        }
        let len = u32::try_from(tokens.len()).unwrap();
        let drafts = if self.rng.chance(25) { self.rng.below(len) } else { 0 };
        let drafts = if self.rng.chance(1) { len + self.rng.below(2) } else { drafts };
        let lookahead = if self.rng.chance(12) { self.rng.within(1, 6) } else { 0 };
        RowSpec { seq, tokens, kind, drafts, lookahead }
    }

    /// A commit or an abort.
    fn end_step(&mut self, world: &World) -> Option<Op> {
        let spared = usize::from(self.never_idle);
        if world.open.len() <= spared {
            return None;
        }
        if self.rng.chance(25) {
            let step = match world.open.range(spared..).nth(ix(self.rng.below(3))) {
                Some(open) if self.rng.chance(95) => open.id,
                _ if self.never_idle => return None,
                _ => self.step(world),
            };
            let parts = [Part::Copies, Part::Rows(1), Part::Rows(2), Part::All];
            let part = *self.rng.pick(&parts).unwrap();
            let ran = self.rng.chance(60).then(|| (ix(self.rng.below(3)), part));
            return Some(if self.rng.chance(5) && spared == 0 { Op::AbortAll } else { Op::Abort { step, ran } });
        }
        let oldest = &world.open[0];
        let step = if self.rng.chance(96) { oldest.id } else { self.step(world) };
        let certain = |spec: &RowSpec| spec.kind != Kind::Later && spec.drafts == 0;
        if oldest.rows.iter().all(|row| certain(&row.spec)) && self.rng.chance(50) {
            return Some(Op::CommitAll { step });
        }
        let outcomes = oldest.rows.iter().map(|row| self.outcome(world, &row.spec));
        let mut outcomes: Vec<_> = outcomes.collect();
        if self.rng.chance(2) && outcomes.pop().is_none() {
            outcomes.push(OutcomeSpec::All);
        }
        Some(Op::Commit { step, outcomes })
    }

    fn outcome(&mut self, world: &World, spec: &RowSpec) -> OutcomeSpec {
        let most = u32::try_from(spec.tokens.len()).unwrap();
        if self.rng.chance(1) {
            return OutcomeSpec::Accept(most + 1);
        }
        let Some(seq) = world.seq(spec.seq) else { return OutcomeSpec::Accept(self.rng.below(most + 3)) };
        let least = if spec.kind == Kind::Ids { most - spec.drafts } else { 0 };
        let may_roll_back = seq.open_rows == 1 || self.rng.chance(12);
        let accepted = if may_roll_back && self.rng.chance(50) { self.rng.within(least, most) } else { most };
        match spec.kind {
            Kind::Later if self.rng.chance(80) => OutcomeSpec::Ids(spec.tokens[..ix(accepted)].to_vec()),
            Kind::Ids if self.rng.chance(1) => OutcomeSpec::Ids(spec.tokens.clone()),
            _ if accepted == most && self.rng.chance(50) => OutcomeSpec::All,
            _ => OutcomeSpec::Accept(accepted),
        }
    }

    fn select(&mut self, world: &World) -> Op {
        let idle = |seq: &&ModelSeq| seq.open_rows == 0;
        let mut beams: Vec<_> = world.seqs.iter().filter(idle).map(|seq| seq.id).collect();
        self.rng.shuffle(&mut beams);
        beams.truncate(ix(self.rng.within(1, 3)));
        if self.rng.chance(5) {
            beams.push(self.seq(world));
        }
        let end = u32::try_from(beams.len()).unwrap() + u32::from(self.rng.chance(3));
        let parents = (0..self.rng.below(4)).map(|_| ix(self.rng.below(end))).collect();
        Op::Select { beams, parents }
    }

    fn free(&mut self, world: &World) -> Op {
        let release = if self.rng.chance(75) { Release::Cache } else { Release::Discard };
        Op::Free { seq: self.seq(world), release }
    }

    fn view(&mut self, world: &World) -> Op {
        let rows = (0..self.rng.within(1, 3)).map(|_| {
            let seq = self.seq(world);
            let held = u32::try_from(world.table(seq).len()).unwrap() * world.block_size();
            let start = self.rng.below(held);
            (seq, start, self.rng.below(held - start + 2))
        });
        Op::View { rows: rows.collect() }
    }
}
