//! The workloads, and the rounds over them.
//!
//! In each round every workload runs on every manager, one after the other, with the same prompts; the manager that
//! goes first changes from round to round. What brings a manager into the state that a workload wants, and what checks
//! that it did its work, is not timed.

use std::iter;

use clap::ValueEnum;

use crate::clock::Clock;
use crate::manager::{BLOCK_SIZE, Entrant, Manager};
use crate::options::Options;
use crate::report::{Line, Report};
use crate::tokens::{Prompts, Random, noise};
use crate::{kvbm, libmir, ours};

/// What is measured; per what is in [`unit`](Self::unit).
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Workload {
    /// Admit 512 new tokens, 32 blocks; the pool has blank blocks.
    AdmitBlank,
    /// The same; the pool is full of cached blocks, so that each block evicts another.
    AdmitEvicting,
    /// 256 tokens for each of 256 sequences of 512, one for each at a time.
    Append,
    /// End a sequence of 768 tokens, 48 blocks, into the cache.
    Free,
    /// Look up 4,096 cached tokens, 256 idle blocks: always the same.
    PeekSame,
    /// Look up 4,096 cached tokens: any of those that fit into the pool.
    PeekAny,
    /// Look up 4,096 cached tokens and take references: always the same.
    AdoptSame,
    /// Look up 4,096 cached tokens and take references: any of those that fit into the pool.
    AdoptAny,
    /// Take 64 blocks from a pool that is full of cached blocks.
    Allocate,
    /// Plan one token for each of 256 sequences of 2,048, and write their block tables as compressed rows.
    Decode,
    /// Plan the same step for a storage that keeps the tables, and list what changed of them.
    DecodeEdits,
    /// Fork a sequence of 2,040 tokens and free the fork.
    Fork,
}

/// A prompt whose 256 full blocks are cached, and one token, since one is always left to compute.
const LONG_TOKENS: usize = 256 * 16 + 1;
const LONG_BLOCKS: u32 = 256;

impl Workload {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("no workload is hidden").get_name().to_owned()
    }

    /// What one figure is for.
    fn unit(self) -> &'static str {
        match self {
            Self::AdmitBlank | Self::AdmitEvicting => "512 tokens",
            Self::Append => "token",
            Self::Free => "768 tokens",
            Self::PeekSame | Self::PeekAny | Self::AdoptSame | Self::AdoptAny => "4,096 tokens",
            Self::Allocate => "block",
            Self::Decode | Self::DecodeEdits => "step",
            Self::Fork => "fork",
        }
    }
}

/// A manager in the states that the workloads start from.
struct Bench {
    /// Without content.
    blank: Box<dyn Manager>,
    /// Full of content that nobody holds.
    full: Box<dyn Manager>,
    /// Holds the long prompts, idle.
    long: Box<dyn Manager>,
    /// Big enough for 256 sequences of 2k.
    big: Box<dyn Manager>,
    pool: u32,
    prompts: Prompts,
}

/// What a workload does in one round: the same for all managers.
struct Input {
    prompts: Vec<Vec<u32>>,
    tokens: Vec<u32>,
    operations: u32,
}

/// Measures as the options say.
pub(crate) fn compare(options: &Options) -> Result<String, String> {
    let clock = Clock::calibrated();
    let mut entrants: Vec<Entrant> = options.policies.iter().map(|&policy| ours::entrant(policy)).collect();
    entrants.extend([kvbm::entrant(kvbm::Inactive::Default), kvbm::entrant(kvbm::Inactive::Lru), libmir::entrant()]);
    let mut long = Prompts::default();
    let long = long.batch(num_long(options.pool), LONG_TOKENS);
    let mut benches: Vec<Bench> = entrants.iter().map(|entrant| Bench::new(entrant, options.pool, &long)).collect();
    let chosen = |workload: &&Workload| options.only.is_empty() || options.only.contains(workload);
    let mut lines: Vec<Line> = Vec::new();
    for workload in Workload::value_variants().iter().filter(chosen) {
        lines.push(Line::new(workload.name(), workload.unit(), benches.len()));
    }

    let mut prompts = Prompts::default();
    for round in 0..=options.rounds as usize {
        for (workload, line) in Workload::value_variants().iter().filter(chosen).zip(&mut lines) {
            let input = Input::new(*workload, options.pool, round, &mut prompts, &long);
            for turn in 0..benches.len() {
                let which = (round + turn) % benches.len();
                // The first round warms up: buffers grow, pages are touched.
                let ns = benches[which].run(*workload, &input, &clock);
                if let (Some(ns), 1..) = (ns, round) {
                    line.push(which, ns as f64 / f64::from(input.operations));
                }
            }
        }
    }
    let names = entrants.into_iter().map(|entrant| entrant.name).collect();
    let title = format!("pool of {} blocks of {BLOCK_SIZE} tokens, {} rounds", options.pool, options.rounds);
    let report = Report { title, columns: names, lines };
    Ok(if options.json { report.json(&clock) } else { report.table(&clock) })
}

/// How many long prompts fit, with room for the last block of one more.
fn num_long(pool: u32) -> usize {
    ((pool - LONG_BLOCKS - 1) / LONG_BLOCKS).min(1_024) as usize
}

/// How many of `wanted` sequences fit into half of a pool.
fn fitting(pool: u32, blocks: u32, wanted: u32) -> usize {
    (pool / 2 / blocks).clamp(1, wanted) as usize
}

impl Input {
    fn new(workload: Workload, pool: u32, round: usize, prompts: &mut Prompts, long: &[Vec<u32>]) -> Self {
        let seed = round as u64;
        let prompts = match workload {
            Workload::AdmitBlank | Workload::AdmitEvicting => prompts.batch(fitting(pool, 32, 64), 512),
            Workload::Append => prompts.batch(((pool / 48) as usize).min(256), 512),
            Workload::Free => prompts.batch(fitting(pool, 48, 64), 768),
            Workload::PeekSame | Workload::AdoptSame => vec![long[long.len() / 2].clone(); 16],
            Workload::PeekAny | Workload::AdoptAny => some_of(long, 16, seed),
            Workload::Allocate => Vec::new(),
            // Rows end anywhere in their last block.
            Workload::Decode | Workload::DecodeEdits => {
                (0..256).map(|row| prompts.next(2_048 - 16 + row % 16)).collect()
            }
            Workload::Fork => vec![prompts.next(2_040)],
        };
        let tokens = match workload {
            Workload::Append => noise(seed, prompts.len() * 256),
            Workload::Decode | Workload::DecodeEdits => noise(seed, prompts.len() * 16),
            _ => Vec::new(),
        };
        let operations = match workload {
            Workload::Append => tokens.len(),
            Workload::Allocate => fitting(pool, 64, 32) * 64,
            Workload::Decode | Workload::DecodeEdits => 16,
            Workload::Fork => 64,
            _ => prompts.len(),
        };
        Self { prompts, tokens, operations: u32::try_from(operations).expect("a batch") }
    }
}

/// Some of the prompts, none twice.
fn some_of(prompts: &[Vec<u32>], count: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut random = Random::new(seed);
    let mut order: Vec<usize> = (0..prompts.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at + 1));
    }
    order.iter().take(count).map(|&at| prompts[at].clone()).collect()
}

impl Bench {
    fn new(entrant: &Entrant, pool: u32, long: &[Vec<u32>]) -> Self {
        let mut bench = Self {
            blank: (entrant.make)(pool),
            full: (entrant.make)(pool),
            long: (entrant.make)(pool),
            big: (entrant.make)(pool.max(40_960)),
            pool,
            // Not those of the input.
            prompts: Prompts::starting_at(1 << 32),
        };
        for prompt in long {
            bench.long.admit(&mut [prompt.clone()]);
            bench.long.free_all();
        }
        assert_eq!(bench.long.counts().cached, long.len() as u64 * u64::from(LONG_BLOCKS));
        bench
    }

    /// Runs a workload and checks it; returns the nanoseconds of all its operations, or `None` where a manager has none
    /// of the kind.
    fn run(&mut self, workload: Workload, input: &Input, clock: &Clock) -> Option<u64> {
        match workload {
            Workload::AdmitBlank => Some(self.admit_blank(input, clock)),
            Workload::AdmitEvicting => Some(self.admit_evicting(input, clock)),
            Workload::Append => Some(self.append(input, clock)),
            Workload::Free => Some(self.free(input, clock)),
            Workload::PeekSame | Workload::PeekAny => Some(self.peek(input, clock)),
            Workload::AdoptSame => Some(self.adopt(input, 1, clock)),
            Workload::AdoptAny => Some(self.adopt(input, input.prompts.len(), clock)),
            Workload::Allocate => Some(self.allocate(input, clock)),
            Workload::Decode => self.decode(input, clock),
            Workload::DecodeEdits => self.decode_edits(input, clock),
            Workload::Fork => self.fork(input, clock),
        }
    }

    fn admit_blank(&mut self, input: &Input, clock: &Clock) -> u64 {
        let manager = &mut self.blank;
        manager.reset();
        assert_eq!((manager.counts().blank, manager.counts().cached), (u64::from(self.pool), 0));
        let mut prompts = input.prompts.clone();
        let evictions = manager.counts().evictions;
        let ns = clock.time(|| manager.admit(&mut prompts));
        let blocks = u64::from(input.operations) * 32;
        assert_eq!(manager.held_blocks(), blocks);
        assert_eq!(manager.counts().evictions, evictions);
        manager.free_all();
        assert_eq!(manager.counts().cached, blocks, "every block was published");
        ns
    }

    fn admit_evicting(&mut self, input: &Input, clock: &Clock) -> u64 {
        fill(&mut *self.full, &mut self.prompts);
        let manager = &mut self.full;
        let mut prompts = input.prompts.clone();
        let evictions = manager.counts().evictions;
        let ns = clock.time(|| manager.admit(&mut prompts));
        let blocks = u64::from(input.operations) * 32;
        assert_eq!(manager.held_blocks(), blocks);
        assert_eq!(manager.counts().evictions - evictions, blocks);
        manager.free_all();
        assert_eq!(manager.counts().cached, u64::from(self.pool), "every block was published");
        ns
    }

    fn append(&mut self, input: &Input, clock: &Clock) -> u64 {
        let manager = &mut self.blank;
        manager.reset();
        manager.admit(&mut input.prompts.clone());
        let ns = clock.time(|| manager.append(&input.tokens));
        let blocks = input.prompts.len() as u64 * 48;
        assert_eq!(manager.held_blocks(), blocks);
        manager.free_all();
        assert_eq!(manager.counts().cached, blocks, "every block was published");
        ns
    }

    fn free(&mut self, input: &Input, clock: &Clock) -> u64 {
        let manager = &mut self.blank;
        manager.reset();
        manager.admit(&mut input.prompts.clone());
        let blocks = u64::from(input.operations) * 48;
        assert_eq!(manager.held_blocks(), blocks);
        let ns = clock.time(|| manager.free_all());
        assert_eq!(manager.held_blocks(), 0);
        assert_eq!(manager.counts().cached, blocks, "every block can be found");
        ns
    }

    fn peek(&mut self, input: &Input, clock: &Clock) -> u64 {
        let mut prompts = input.prompts.clone();
        let mut found = Vec::with_capacity(prompts.len());
        let ns = clock.time(|| self.long.peek(&mut prompts, &mut found));
        assert_eq!(found, vec![LONG_BLOCKS; prompts.len()]);
        ns
    }

    /// Adopts prompts, so many in one interval: blocks that are held are no longer idle.
    fn adopt(&mut self, input: &Input, at_once: usize, clock: &Clock) -> u64 {
        let mut prompts = input.prompts.clone();
        let mut ns = 0;
        for some in prompts.chunks_mut(at_once) {
            let wanted = some.len() as u64 * u64::from(LONG_BLOCKS);
            ns += clock.time(|| self.long.adopt(some));
            assert_eq!(self.long.held_blocks(), wanted);
            self.long.free_all();
        }
        ns
    }

    fn allocate(&mut self, input: &Input, clock: &Clock) -> u64 {
        fill(&mut *self.full, &mut self.prompts);
        let manager = &mut self.full;
        let evictions = manager.counts().evictions;
        let ns = clock.time(|| {
            for _ in 0..input.operations / 64 {
                manager.allocate(64);
            }
        });
        assert_eq!(manager.counts().evictions - evictions, u64::from(input.operations));
        manager.release_blank();
        assert_eq!(manager.counts().blank, u64::from(input.operations));
        ns
    }

    fn decode(&mut self, input: &Input, clock: &Clock) -> Option<u64> {
        self.big.paged()?.discard_all();
        self.big.admit(&mut input.prompts.clone());
        let mut ns = 0;
        for tokens in input.tokens.chunks(input.prompts.len()) {
            let mut written = 0;
            let paged = self.big.paged()?;
            ns += clock.time(|| written = paged.plan_with_csr(tokens));
            paged.commit();
            assert_eq!(written as u64, self.big.held_blocks());
        }
        Some(ns)
    }

    fn decode_edits(&mut self, input: &Input, clock: &Clock) -> Option<u64> {
        self.big.paged()?.discard_all();
        self.big.admit(&mut input.prompts.clone());
        let mut ns = 0;
        for tokens in input.tokens.chunks(input.prompts.len()) {
            let (mut edits, held) = (0, self.big.held_blocks());
            let paged = self.big.paged()?;
            ns += clock.time(|| edits = paged.plan_with_edits(tokens));
            paged.commit();
            assert_eq!(edits as u64, self.big.held_blocks() - held);
        }
        Some(ns)
    }

    fn fork(&mut self, input: &Input, clock: &Clock) -> Option<u64> {
        self.blank.paged()?.discard_all();
        self.blank.admit(&mut input.prompts.clone());
        let held = self.blank.held_blocks();
        let paged = self.blank.paged()?;
        let ns = clock.time(|| paged.fork_and_free(input.operations));
        assert_eq!(self.blank.held_blocks(), held);
        Some(ns)
    }
}

/// Admits and frees new prompts until no block is blank.
pub(crate) fn fill(manager: &mut dyn Manager, prompts: &mut Prompts) {
    while manager.counts().blank > 0 {
        // Each takes 32 blocks, the last one evicts where fewer are blank.
        let some = usize::try_from(manager.counts().blank / 32).expect("blocks of a pool").clamp(1, 16);
        manager.admit(&mut iter::repeat_with(|| prompts.next(512)).take(some).collect::<Vec<_>>());
        manager.free_all();
    }
}
