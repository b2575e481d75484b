//! The cache, a replica of it, the model, and the memory that steps run on.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;

use super::calls::Op;
use super::content::ModelPin;
use super::events::Listener;
use super::known::Known;
use super::model::{Memory, ModelRow, ModelSeq, ModelStep, Stamp};
use super::policies::Watched;
use super::rng::Rng;
use crate::cache::{CacheConfig, KvCache};
use crate::id::{BlockId, SeqId, StepId, ix};
use crate::step::Step;

/// What a run has seen.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Coverage {
    pub(crate) operations: u64,
    pub(crate) refused: u64,
    pub(crate) forks_at_a_partial_tail: u64,
    pub(crate) copies: u64,
    pub(crate) evictions: u64,
    pub(crate) prefix_hits: u64,
    pub(crate) parts: u64,
    pub(crate) failed_plans: u64,
    pub(crate) aborts: u64,
    pub(crate) plain_appends: u64,
    /// Plans that wrote into a block that others could find, since there was none left to copy it to.
    pub(crate) spent: u64,
    /// Parts that gave way to a whole block.
    pub(crate) gave_way: u64,
    pub(crate) pins: u64,
    /// Blocks that lost their name to an invalidation.
    pub(crate) invalidated: u64,
    pub(crate) events: u64,
    /// Calls after which a sink had refused something.
    pub(crate) refused_events: u64,
    /// Bits of the policies under which blocks were evicted.
    pub(crate) policies: u32,
}

/// How much of a step runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    All,
    Copies,
    Rows(usize),
}

/// The tables that a storage has which keeps one row per sequence and is sent edits.
type Mirror = BTreeMap<u32, Vec<BlockId>>;

/// Everything that a run needs.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) cache: KvCache<Watched>,
    /// Is fed the calls that change something, with another hash seed.
    pub(crate) replica: Option<Box<KvCache<Watched>>>,
    pub(crate) seqs: Vec<ModelSeq>,
    pub(crate) pins: Vec<ModelPin>,
    pub(crate) known: Known,
    pub(crate) listener: Option<Listener>,
    /// Whether the cache has a hasher.
    pub(crate) hashed: bool,
    pub(crate) open: VecDeque<ModelStep>,
    pub(crate) memory: Memory,
    /// Steps run when they are planned; otherwise when they are committed, or in part when they are aborted.
    pub(crate) eager: bool,
    pub(crate) last_step: u64,
    /// Blocks named by steps that are not retired, where the cache withholds.
    pub(crate) named: Vec<(StepId, Rc<[BlockId]>)>,
    /// Edited by every step that was planned, and by every step that ran.
    pub(crate) mirror_of_plans: Mirror,
    pub(crate) mirror_of_runs: Mirror,
    pub(crate) step: Step,
    pub(crate) replica_step: Step,
    pub(crate) snapshot: Vec<u64>,
    pub(crate) seen: Coverage,
    /// The calls, and whether they succeeded.
    trace: Vec<(Rc<Op>, bool)>,
}

impl World {
    pub(crate) fn new(config: CacheConfig, policy: &Watched, eager: bool, replicated: bool) -> Self {
        let with_seed = |seed| KvCache::with_policy(config.with_hash_seed(seed), policy.clone()).unwrap();
        let replica = replicated.then(|| Box::new(with_seed(0x5eed)));
        let cache = with_seed(config.hash_seed);
        Self {
            snapshot: cache.snapshot(),
            cache,
            replica,
            seqs: Vec::new(),
            pins: Vec::new(),
            known: Known::default(),
            listener: None,
            hashed: false,
            open: VecDeque::new(),
            memory: Memory::new(config.num_blocks, config.block_size),
            eager,
            last_step: 0,
            named: Vec::new(),
            mirror_of_plans: Mirror::new(),
            mirror_of_runs: Mirror::new(),
            step: Step::new(),
            replica_step: Step::new(),
            seen: Coverage::default(),
            trace: Vec::new(),
        }
    }

    /// Makes a call, and checks its result and everything that the cache then holds. Returns whether it succeeded.
    pub(crate) fn apply(&mut self, op: Op) -> bool {
        let op = Rc::new(op);
        self.trace.push((Rc::clone(&op), true));
        self.seen.operations += 1;
        if let Some(replica) = &mut self.replica {
            replica.forget_plain();
        }
        let succeeded = self.call(&op);
        self.trace.last_mut().unwrap().1 = succeeded;
        let snapshot = self.cache.snapshot();
        if !succeeded {
            self.seen.refused += 1;
            assert_eq!(snapshot, self.snapshot, "a call that failed changed something");
        }
        if let Some(replica) = &self.replica {
            assert_eq!(snapshot, replica.snapshot(), "a replica that was fed the same calls differs");
        }
        self.snapshot = snapshot;
        self.check();
        self.check_events();
        succeeded
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.cache.block_size()
    }

    pub(crate) fn seq(&self, id: SeqId) -> Option<&ModelSeq> {
        self.seqs.iter().find(|seq| seq.id == id)
    }

    pub(crate) fn seq_mut(&mut self, id: SeqId) -> Option<&mut ModelSeq> {
        self.seqs.iter_mut().find(|seq| seq.id == id)
    }

    pub(crate) fn table(&self, id: SeqId) -> Vec<BlockId> {
        self.cache.sequence(id).map_or(Vec::new(), |seq| seq.table().ids().collect())
    }

    /// The open row of a sequence that has replaced its tail by a copy, and whether its step ran.
    pub(crate) fn displacing(&self, id: SeqId) -> Option<(&ModelRow, bool)> {
        let rows = self.open.iter().flat_map(|step| step.rows.iter().map(move |row| (row, step.ran)));
        rows.filter(|(row, _)| row.spec.seq == id).find(|(row, _)| row.displaced.is_some())
    }

    /// The blocks of a sequence's committed tokens: not the copy of the tail, whose content is not committed.
    pub(crate) fn committed_table(&self, seq: &ModelSeq) -> Vec<BlockId> {
        let mut table = self.table(seq.id);
        table.truncate(ix(seq.committed.div_ceil(self.block_size())));
        if let Some((index, block)) = self.displacing(seq.id).and_then(|(row, _)| row.displaced)
            && let Some(place) = table.get_mut(ix(index))
        {
            *place = block;
        }
        table
    }

    /// Runs open steps up to this one, as far as they have not run: a stream runs its work in order.
    pub(crate) fn run(&mut self, last: usize) {
        for index in 0..=last {
            if !self.open[index].ran {
                self.run_part(index, Part::All);
            }
        }
    }

    /// Runs a step, or a part of it: copies in some order, then the writes of its rows, then what attention reads.
    pub(crate) fn run_part(&mut self, index: usize, part: Part) {
        let Self { open, memory, mirror_of_runs, cache, .. } = self;
        let planned = &mut open[index];
        let (step, tables) = (Rc::clone(&planned.step), planned.step.tables());
        planned.fresh.iter().for_each(|&block| memory.poison(block));
        let mut copies = tables.copies().to_vec();
        Rng::new(planned.id.get()).shuffle(&mut copies);
        copies.into_iter().for_each(|copy| memory.copy(copy));
        let rows = match part {
            Part::All => planned.rows.len(),
            Part::Copies => 0,
            Part::Rows(rows) => rows,
        };
        for (row, meta) in planned.rows.iter().zip(step.rows()).take(rows) {
            let slots = &tables.slots()[ix(meta.first_token)..ix(meta.first_token + meta.len)];
            for (slot, &stamp) in slots.iter().zip(&row.stamps[ix(meta.start)..]) {
                memory.write(*slot, stamp);
            }
        }
        edit(mirror_of_runs, &step, "that ran");
        if part == Part::All {
            planned.ran = true;
            for (index, row) in planned.rows.iter().enumerate() {
                let read = read(memory, tables.table(index), cache.block_size(), row.end());
                assert_eq!(&*row.stamps, read, "a row of {:?} attends to something else than its prefix", step.id());
            }
        }
    }
}

/// What lies at the first `len` positions of a table.
pub(crate) fn read(memory: &Memory, table: &[BlockId], block_size: u32, len: u32) -> Vec<Stamp> {
    (0..len).map(|position| memory.read(table[ix(position / block_size)], position % block_size)).collect()
}

/// Applies the edits of a step and compares with its tables.
pub(crate) fn edit(mirror: &mut Mirror, step: &Step, which: &str) {
    for edit in step.table_edits(0..step.rows().len()) {
        let table = mirror.entry(edit.seq_index).or_default();
        let len = table.len().max(ix(edit.column) + 1);
        table.resize(len, BlockId::new(u32::MAX));
        table[ix(edit.column)] = edit.block;
    }
    for (row, index) in step.rows().iter().zip(0..) {
        let table = step.tables().table(index);
        let mirrored = mirror.entry(row.seq.index()).or_default();
        assert_eq!(mirrored.get(..table.len()), Some(table), "edits of the steps {which} do not give the table");
    }
}

impl Drop for World {
    /// Says how a failure came about.
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::eprintln!("after {} calls, of which the last were:", self.trace.len());
            self.trace.iter().rev().take(30).rev().for_each(|(op, succeeded)| {
                std::eprintln!("  {}{op:?}", if *succeeded { "" } else { "refused: " });
            });
        }
    }
}
