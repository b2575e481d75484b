//! Whether an operation costs more in a larger pool.
//!
//! The pool is full of cached content. Most operations touch the same few blocks again and again, so that what is
//! measured is the work and not the machine's memory; those that evict go around the pool by nature.

use std::hint::black_box;

use clap::ValueEnum;

use crate::clock::Clock;
use crate::manager::{Entrant, Manager, Paged};
use crate::options::{Count, Options};
use crate::ours;
use crate::report::{Line, Report};
use crate::tokens::{Prompts, noise};
use crate::workload::fill;

/// Pools of the table, in blocks.
const POOLS: [u32; 3] = [1_024, 100_000, 4_194_304];

/// An operation on a small working set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Op {
    /// Admit 512 new tokens into blocks that were just given up.
    Admit,
    /// Admit 512 new tokens; each block evicts another.
    AdmitEvicting,
    /// A token of 8 sequences of 512, one of 16 fills its block.
    Append,
    /// End a sequence of 768 tokens into the cache.
    Free,
    /// Look up 4,096 cached tokens.
    Peek,
    /// Look up 4,096 cached tokens and take references.
    Adopt,
    /// Take a block, 64 at once; each evicts another.
    Allocate,
    /// Plan a token for each of 8 sequences of 512 and write their block tables as compressed rows.
    Decode,
    /// Fork a sequence of 2,040 tokens and free the fork.
    Fork,
}

impl Op {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("no operation is hidden").get_name().to_owned()
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Admit | Self::AdmitEvicting => "512 tokens",
            Self::Append => "token",
            Self::Free => "768 tokens",
            Self::Peek | Self::Adopt => "4,096 tokens",
            Self::Allocate => "block",
            Self::Decode => "step",
            Self::Fork => "fork",
        }
    }

    /// Operations in one run.
    const fn operations(self) -> u32 {
        match self {
            Self::Admit | Self::AdmitEvicting | Self::Free | Self::Fork => 8,
            Self::Append => 128,
            Self::Peek => 4,
            Self::Adopt | Self::Decode => 1,
            Self::Allocate => 64,
        }
    }
}

/// A cache, and what an operation on it needs.
struct Bench {
    manager: Box<dyn Manager>,
    prompts: Prompts,
    long: Vec<u32>,
    /// For the run to come.
    input: Vec<Vec<u32>>,
    tokens: Vec<u32>,
    found: Vec<u32>,
    written: usize,
}

impl Bench {
    fn new(entrant: &Entrant, pool: u32) -> Self {
        let mut prompts = Prompts::default();
        let mut manager = (entrant.make)(pool);
        fill(&mut *manager, &mut prompts);
        let long = prompts.next(4_097);
        Self { manager, prompts, long, input: Vec::new(), tokens: Vec::new(), found: Vec::new(), written: 0 }
    }

    fn paged(&mut self) -> &mut dyn Paged {
        self.manager.paged().expect("paged-kv")
    }

    /// Fills the pool, and brings in what all runs of an operation share.
    fn start(&mut self, op: Op) {
        self.paged().discard_all();
        fill(&mut *self.manager, &mut self.prompts);
        match op {
            Op::Peek | Op::Adopt => {
                self.manager.admit(&mut [self.long.clone()]);
                self.manager.free_all();
            }
            Op::Fork => self.manager.admit(&mut [self.prompts.next(2_040)]),
            _ => {}
        }
    }

    /// Prepares one run. Sequences that a run needs take the blocks that the run before gave up.
    fn before(&mut self, op: Op) {
        match op {
            Op::Admit | Op::AdmitEvicting => self.input = self.prompts.batch(8, 512),
            Op::Append | Op::Decode => {
                self.manager.admit(&mut self.prompts.batch(8, 512));
                let steps = if op == Op::Append { 16 } else { 1 };
                self.tokens = noise(1, 8 * steps);
            }
            Op::Free => self.manager.admit(&mut self.prompts.batch(8, 768)),
            Op::Peek | Op::Adopt => {
                self.input.resize_with(op.operations() as usize, Vec::new);
                self.input.fill(self.long.clone());
            }
            Op::Allocate => fill(&mut *self.manager, &mut self.prompts),
            Op::Fork => {}
        }
        self.found.clear();
        self.found.reserve(op.operations() as usize);
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Admit | Op::AdmitEvicting => self.manager.admit(&mut self.input),
            Op::Append => self.manager.append(&self.tokens),
            Op::Free => self.manager.free_all(),
            Op::Peek => self.manager.peek(&mut self.input, &mut self.found),
            Op::Adopt => self.manager.adopt(&mut self.input),
            Op::Allocate => self.manager.allocate(op.operations()),
            Op::Decode => self.written = self.manager.paged().expect("paged-kv").plan_with_csr(&self.tokens),
            Op::Fork => self.paged().fork_and_free(op.operations()),
        }
    }

    /// Checks a run and takes it back.
    fn after(&mut self, op: Op, evictions: u64) {
        let evicted = self.manager.counts().evictions - evictions;
        match op {
            Op::Admit | Op::AdmitEvicting => assert_eq!(self.manager.held_blocks(), 8 * 32),
            Op::Append => assert_eq!(self.manager.held_blocks(), 8 * 33),
            Op::Free => assert_eq!(self.manager.held_blocks(), 0),
            Op::Peek => assert_eq!(self.found, [256; 4]),
            Op::Adopt => assert_eq!(self.manager.held_blocks(), 256),
            Op::Allocate => assert_eq!(evicted, 64),
            Op::Decode => assert_eq!(self.written, 8 * 33),
            Op::Fork => assert_eq!(self.manager.held_blocks(), 128),
        }
        match op {
            Op::AdmitEvicting => {
                assert_eq!(evicted, 8 * 32);
                self.manager.free_all();
            }
            Op::Admit | Op::Append => self.paged().discard_all(),
            Op::Adopt => self.manager.free_all(),
            Op::Allocate => self.manager.release_blank(),
            Op::Decode => {
                self.paged().commit();
                self.paged().discard_all();
            }
            Op::Free | Op::Peek | Op::Fork => {}
        }
    }

    /// One run: what came before, what is measured by `measure`, what comes behind.
    fn turn<T>(&mut self, op: Op, measure: impl FnOnce(&mut Self) -> T) -> T {
        self.before(op);
        let evictions = self.manager.counts().evictions;
        let measured = measure(self);
        self.after(op, evictions);
        measured
    }
}

/// Measures every operation in pools of several sizes.
pub(crate) fn table(options: &Options) -> Result<String, String> {
    let clock = Clock::calibrated();
    let mut lines = Vec::new();
    let entrants: Vec<Entrant> = options.policies.iter().map(|&policy| ours::entrant(policy)).collect();
    for entrant in &entrants {
        let mut benches = POOLS.map(|pool| Bench::new(entrant, pool));
        for &op in Op::value_variants() {
            let mut line = Line::new(format!("{} {}", entrant.name, op.name()), op.unit(), POOLS.len());
            benches.iter_mut().for_each(|bench| bench.start(op));
            for round in 0..=options.rounds as usize * 4 {
                for (which, bench) in benches.iter_mut().enumerate() {
                    let ns = bench.turn(op, |bench| clock.time(|| bench.run(op)));
                    // The first runs grow buffers and bring the working set in.
                    if round >= 4 {
                        line.push(which, ns as f64 / f64::from(op.operations()));
                    }
                }
            }
            lines.push(line);
        }
    }
    let columns = POOLS.iter().map(|pool| format!("{pool} blocks")).collect();
    let title =
        format!("paged-kv alone, pools full of cached content, {} runs of each operation", options.rounds * 4 - 3);
    let report = Report { title, columns, lines };
    Ok(if options.json { report.json(&clock) } else { report.table(&clock) })
}

/// Runs one operation so often; returns how many operations that were.
pub(crate) fn count(count: &Count) -> Result<String, String> {
    let mut bench = Bench::new(&ours::entrant(count.policy), count.pool);
    bench.start(count.op);
    // Buffers grow.
    for _ in 0..4 {
        bench.turn(count.op, |bench| bench.run(count.op));
    }
    for _ in 0..count.iterations {
        bench.turn(count.op, |bench| counted(bench, count.op));
    }
    Ok((u64::from(count.iterations) * u64::from(count.op.operations())).to_string())
}

/// What is counted. A tool turns on here, and off at the end; nothing else has this name.
#[inline(never)]
fn counted(bench: &mut Bench, op: Op) {
    black_box(bench).run(op);
}
