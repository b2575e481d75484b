//! Traffic to try policies on: kinds of requests that favour recency, frequency, both, or neither, and pools of as many
//! blocks as make a difference.

use std::collections::HashMap;
use std::fmt::Write;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use replay::trace::Trace;

use crate::games::read;

/// Requests, each a list of ids.
pub(crate) type Requests = Vec<Vec<u32>>;

/// A kind of traffic.
pub(crate) struct Kind {
    pub name: String,
    pub requests: Requests,
    pub capacities: Vec<u32>,
}

impl Kind {
    fn new(name: impl Into<String>, requests: Requests, capacities: &[u32]) -> Self {
        Self { name: name.into(), requests, capacities: capacities.to_vec() }
    }

    pub(crate) fn trace(&self) -> Trace {
        let mut text = String::new();
        for ids in &self.requests {
            let _ = writeln!(text, "{{\"hash_ids\":{ids:?}}}");
        }
        read(&text, 16)
    }
}

struct Source {
    rng: Pcg64Mcg,
    next: u32,
}

impl Source {
    fn new(seed: u64) -> Self {
        Self { rng: Pcg64Mcg::seed_from_u64(seed), next: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.next_u32() as usize % n
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        f64::from(self.rng.next_u32()) / f64::from(u32::MAX)
    }

    fn chain(&mut self, len: usize) -> Vec<u32> {
        (0..len)
            .map(|_| {
                self.next += 1;
                self.next
            })
            .collect()
    }

    fn chains(&mut self, count: usize, len: usize) -> Requests {
        (0..count).map(|_| self.chain(len)).collect()
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let other = self.below(at + 1);
            list.swap(at, other);
        }
    }

    /// A rank, by the cumulated chances of all.
    fn ranked(&mut self, cumulated: &[f64]) -> usize {
        let at = self.share() * cumulated[cumulated.len() - 1];
        cumulated.partition_point(|&sum| sum < at).min(cumulated.len() - 1)
    }
}

/// Of ranks from 0 to n, whose chances are as (rank + 1)^-alpha.
fn cumulated(n: usize, alpha: f64) -> Vec<f64> {
    let mut sum = 0.0;
    (1..=n)
        .map(|rank| {
            sum += (rank as f64).powf(-alpha);
            sum
        })
        .collect()
}

/// Sets of chains that are used round after round, and then never again.
fn phases(seed: u64, phases: usize, chains: usize, len: usize, rounds: usize, shuffled: bool) -> Requests {
    let mut source = Source::new(seed);
    let mut requests = Vec::new();
    for _ in 0..phases {
        let mut set = source.chains(chains, len);
        for _ in 0..rounds {
            if shuffled {
                source.shuffle(&mut set);
            }
            requests.extend(set.iter().cloned());
        }
    }
    requests
}

/// Chains by rank, so skewed; every `drift` requests one gives way to a new one, or none does for 0.
fn zipf(seed: u64, chains: usize, len: usize, alpha: f64, count: usize, drift: usize) -> Requests {
    let mut source = Source::new(seed);
    let mut set = source.chains(chains, len);
    let chances = cumulated(chains, alpha);
    let mut requests = Vec::new();
    for at in 0..count {
        if drift > 0 && at % drift == drift - 1 {
            // A chain anywhere gives way to a new one.
            let place = source.below(chains);
            set[place] = source.chain(len);
        }
        requests.push(set[source.ranked(&chances)].clone());
    }
    requests
}

/// Conversations that grow by a turn at a time; `active` at a time, each of some turns, a share of one turn only.
fn conversations(seed: u64, active: usize, turns: usize, len: usize, single: f64, count: usize) -> Requests {
    let mut source = Source::new(seed);
    let system = source.chain(2);
    let mut talks: Vec<(Vec<u32>, usize)> = Vec::new();
    let mut requests = Vec::new();
    while requests.len() < count {
        if talks.len() < active {
            let left = if source.share() < single { 1 } else { 1 + source.below(2 * turns) };
            talks.push((system.clone(), left));
        }
        let at = source.below(talks.len());
        let more = 1 + source.below(2 * len);
        let more = source.chain(more);
        talks[at].0.extend(more);
        requests.push(talks[at].0.clone());
        talks[at].1 -= 1;
        if talks[at].1 == 0 {
            talks.swap_remove(at);
        }
    }
    requests
}

/// A hot set, and scans of what is never seen again between.
fn scans(seed: u64, hot: usize, len: usize, scan: usize, rounds: usize) -> Requests {
    let mut source = Source::new(seed);
    let set = source.chains(hot, len);
    let mut requests = Vec::new();
    for _ in 0..rounds {
        requests.extend(set.iter().cloned());
        requests.extend(source.chains(scan, len));
    }
    requests
}

/// Every chain is used so many times, each within a window of so many requests, and then never again.
fn bursts(seed: u64, chains: usize, len: usize, uses: usize, window: usize) -> Requests {
    let mut source = Source::new(seed);
    let mut at: Vec<(f64, usize)> = Vec::new();
    for chain in 0..chains {
        let start = chain as f64 * uses as f64;
        at.push((start, chain));
        for _ in 1..uses {
            at.push((start + source.share() * window as f64, chain));
        }
    }
    at.sort_by(|a, b| a.0.total_cmp(&b.0));
    let set = source.chains(chains, len);
    at.into_iter().map(|(_, chain)| set[chain].clone()).collect()
}

/// Walks down a tree of so many branches at each node, so deep.
fn tree(seed: u64, branches: usize, depth: usize, alpha: f64, count: usize) -> Requests {
    let mut source = Source::new(seed);
    let chances = cumulated(branches, alpha);
    let mut names = HashMap::new();
    let mut requests = Vec::new();
    for _ in 0..count {
        let len = 1 + source.below(depth);
        let mut path = Vec::new();
        let mut ids = Vec::new();
        for _ in 0..len {
            path.push(source.ranked(&chances));
            let next = u32::try_from(names.len()).unwrap();
            ids.push(*names.entry(path.clone()).or_insert(next));
        }
        requests.push(ids);
    }
    requests
}

/// One kind after the other, again and again, with ids of their own.
fn alternating(parts: &[&Requests], pieces: usize) -> Requests {
    let mut requests = Vec::new();
    for piece in 0..pieces {
        for (whole, offset) in parts.iter().zip((0..).step_by(100_000_000)) {
            let len = whole.len() / pieces;
            let piece = &whole[piece * len..(piece + 1) * len];
            requests.extend(piece.iter().map(|ids| ids.iter().map(|id| id + offset).collect::<Vec<_>>()));
        }
    }
    requests
}

/// All kinds.
pub(crate) fn kinds() -> Vec<Kind> {
    let mut kinds = vec![
        Kind::new(
            "phases 6 × 5,000 × 4 × 5",
            phases(1, 6, 5000, 4, 5, false),
            &[15_000, 19_000, 20_000, 22_000, 30_000],
        ),
        Kind::new("phases 2 × 5,000 × 4 × 5", phases(1, 2, 5000, 4, 5, false), &[20_000, 21_000]),
        Kind::new("phases 3 × 5,000 × 4 × 3", phases(1, 3, 5000, 4, 3, false), &[20_000, 21_000]),
        Kind::new("phases 30 × 200 × 4 × 15 shuffled", phases(2, 30, 200, 4, 15, true), &[600, 800, 1000, 1200]),
        Kind::new("phases 3 × 2,000 × 4 × 8 shuffled", phases(3, 3, 2000, 4, 8, true), &[7000, 8000, 9000]),
        Kind::new("phases 4 × 2,000 × 4 × 15 shuffled", phases(4, 4, 2000, 4, 15, true), &[7000, 8000, 9000]),
        Kind::new("phases 200 × 12 × 4 × 20 shuffled", phases(5, 200, 12, 4, 20, true), &[36, 48, 60]),
        Kind::new("phases 20 × 1,000 × 1 × 10", phases(6, 20, 1000, 1, 10, false), &[800, 1000, 1100, 1500]),
        Kind::new("phases 5 × 40 × 100 × 10 shuffled", phases(7, 5, 40, 100, 10, true), &[3000, 4000, 4500, 6000]),
        Kind::new("phases 50 × 30 × 20 × 2", phases(8, 50, 30, 20, 2, false), &[500, 600, 700, 1200]),
        Kind::new("cycle of 1,000 × 4", phases(9, 1, 1000, 4, 30, false), &[500, 2000, 3000, 3900, 4000]),
        Kind::new("unique", phases(10, 1, 20_000, 5, 1, false), &[100, 5000]),
    ];
    for alpha in [0.6, 0.9, 1.2] {
        kinds.push(Kind::new(
            format!("zipf {alpha}, 20,000 × 4"),
            zipf(11, 20_000, 4, alpha, 60_000, 0),
            &[200, 1000, 5000, 20_000, 50_000],
        ));
        kinds.push(Kind::new(
            format!("zipf {alpha}, 5,000 × 10, one in 3 gives way"),
            zipf(12, 5000, 10, alpha, 40_000, 3),
            &[200, 1000, 5000, 20_000],
        ));
    }
    kinds.push(Kind::new("zipf 0.8 of single blocks", zipf(13, 50_000, 1, 0.8, 200_000, 0), &[50, 500, 5000, 20_000]));
    kinds.push(Kind::new(
        "zipf 0.9 of single blocks, drifting fast",
        zipf(14, 2000, 1, 0.9, 150_000, 2),
        &[50, 500, 1500],
    ));
    for (active, turns, single) in [(50, 5, 0.0), (200, 8, 0.5), (1000, 10, 0.8), (1000, 3, 0.0)] {
        kinds.push(Kind::new(
            format!("conversations {active} × {turns}, {single} single"),
            conversations(15, active, turns, 6, single, 15_000),
            &[300, 1000, 3000, 10_000, 30_000],
        ));
    }
    kinds.push(Kind::new("scans", scans(16, 100, 5, 200, 100), &[400, 500, 1000, 1500, 2000]));
    kinds.push(Kind::new("short scans", scans(17, 1000, 2, 50, 60), &[1500, 2000, 2050, 2200]));
    for (uses, window) in [(2, 200), (2, 2000), (3, 1000), (5, 3000), (10, 1000)] {
        kinds.push(Kind::new(
            format!("bursts of {uses} in {window}"),
            bursts(18, 60_000 / uses, 5, uses, window),
            &[300, 1000, 3000, 6000, 12_000],
        ));
    }
    kinds.push(Kind::new("tree of 4", tree(19, 4, 8, 1.0, 30_000), &[100, 1000, 5000, 15_000]));
    kinds.push(Kind::new("tree of 30", tree(20, 30, 4, 1.0, 30_000), &[100, 1000, 5000, 15_000]));
    let cycle = phases(21, 1, 500, 4, 60, false);
    let recent = bursts(22, 10_000, 4, 3, 400);
    kinds.push(Kind::new("cycle, then bursts, 3 times", alternating(&[&cycle, &recent], 3), &[1000, 1600, 1900]));
    let steady = zipf(23, 10_000, 4, 0.9, 30_000, 0);
    let change = phases(24, 10, 500, 4, 6, true);
    kinds.push(Kind::new("zipf, then phases, 5 times", alternating(&[&steady, &change], 5), &[1000, 2000, 2200, 8000]));
    kinds.push(Kind::new(
        "zipf and phases by turns",
        alternating(&[&steady, &change], 3000),
        &[1000, 2000, 4000, 8000],
    ));
    kinds
}
