//! The most that any policy could have found: the offline optimum.
//!
//! Belady's rule: what is needed again last goes first. Two games are told apart by what a request holds:
//!
//! * [`Holding::Nothing`], the policy `belady`: the classic game of one block after another, in which a new block may go
//!   at once where all others are needed before it. The optimum that is usually published, and a bound for any cache.
//! * [`Holding::Request`], the policy `belady-held`: as in the cache, a request holds all of its blocks together, also
//!   those that nobody needs again, and others must make room for them. The most that eviction alone can reach.
//!
//! In both the rule is optimal: a block that is not found costs the same whichever it is, and a request that needs its
//! blocks together is one access to a set. It keeps the law that no block goes before what builds on it: who walks to a
//! block walks through those in front of it, so that a block is needed again no later than any block behind it; where
//! both are needed at the same time, the deeper goes first. A request of more blocks than the cache has is refused, as
//! it is there.
//!
//! For traces of ids both are exact: a test compares them with an exhaustive search. For traces of tokens they are
//! bounds, in whole blocks: the block that ends a prompt of a whole number of blocks is computed again anyway, and until
//! then they do not keep it, even where a cache must, for the sake of blocks behind it.
//!
//! # Complexity
//! O(n log n) for n blocks in all requests, and O(n) memory.
//!
//! # Source
//! L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5 (2), 1966.

use core::ops::Range;
use std::collections::{BinaryHeap, HashMap};

use indicatif::ProgressBar;

use crate::counts::Counts;
use crate::play::ids_found;
use crate::trace::{Content, Trace};

/// Never needed again.
const NEVER: usize = usize::MAX;
/// No block in front.
const ROOT: usize = usize::MAX;

/// The requests of a trace as chains of numbered blocks: the same content behind the same blocks has the same number.
#[derive(Debug)]
pub struct Chains {
    /// The chains, one behind the other.
    nodes: Vec<usize>,
    links: Vec<Chain>,
    distinct: usize,
}

#[derive(Debug)]
struct Chain {
    nodes: Range<usize>,
    /// How many of them can be found: with tokens, at least one is left to compute.
    findable: usize,
    /// Blocks that the request needs beside these: a partly filled last one.
    beside: usize,
}

impl Chains {
    /// The chains of a trace.
    pub fn of(trace: &Trace) -> Self {
        // Units that make a block: one id, or as many tokens.
        let (size, left) = match trace.content() {
            Content::Ids => (1, 0),
            Content::Tokens => (usize::try_from(trace.block_size()).unwrap_or(usize::MAX), 1),
        };
        let mut numbers: HashMap<(usize, &[u32]), usize> = HashMap::new();
        let (mut nodes, mut links) = (Vec::new(), Vec::with_capacity(trace.len()));
        for request in trace.requests() {
            let (start, mut parent) = (nodes.len(), ROOT);
            for block in request.units.chunks_exact(size) {
                let next = numbers.len();
                parent = *numbers.entry((parent, block)).or_insert(next);
                nodes.push(parent);
            }
            links.push(Chain {
                nodes: start..nodes.len(),
                findable: request.units.len().saturating_sub(left) / size,
                beside: usize::from(!request.units.len().is_multiple_of(size)),
            });
        }
        Self { distinct: numbers.len(), nodes, links }
    }

    /// For each block of each request that is not refused, the request that can find it next.
    fn next_uses(&self, refused: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut next = vec![NEVER; self.distinct];
        let mut uses = vec![NEVER; self.nodes.len()];
        for (index, chain) in self.links.iter().enumerate().rev().filter(|(index, _)| !refused(*index)) {
            for (depth, at) in chain.nodes.clone().enumerate() {
                let node = self.nodes[at];
                uses[at] = next[node];
                // Who computes it anyway has no use for it.
                next[node] = if depth < chain.findable { index } else { NEVER };
            }
        }
        uses
    }
}

/// What a request holds while it is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// No more than the block it is at.
    Nothing,
    /// All of its blocks.
    Request,
}

/// The counts of the optimum for a cache of so many blocks.
pub fn optimum(trace: &Trace, chains: &Chains, capacity: u32, holding: Holding, bar: &ProgressBar) -> Counts {
    let room = usize::try_from(capacity).unwrap_or(usize::MAX);
    let refused = |index: usize| chains.links[index].nodes.len() + chains.links[index].beside > room;
    let next_uses = chains.next_uses(refused);
    let mut state = State { cached: vec![Cached::No; chains.distinct], idle: BinaryHeap::new(), len: 0 };
    let mut counts = Counts::default();
    for ((index, chain), request) in chains.links.iter().enumerate().zip(trace.requests()) {
        bar.inc(1);
        let size = (request.blocks, request.tokens);
        if refused(index) {
            counts.refuse(size);
            continue;
        }
        let nodes = &chains.nodes[chain.nodes.clone()];
        let cached = nodes[..chain.findable].iter().map(|&node| state.cached[node] != Cached::No);
        let found = match trace.content() {
            // A walk ends at the first miss. None is behind it, which this shows rather than assumes.
            Content::Ids => cached.take_while(|&cached| cached).count(),
            // The bound may have lost a block in front of what it has.
            Content::Tokens => cached.filter(|&cached| cached).count(),
        };
        nodes.iter().for_each(|&node| state.hold(node));
        if holding == Holding::Request {
            counts.evictions += state.shrink(room - chain.beside);
        }
        for (depth, (&node, &next)) in nodes.iter().zip(&next_uses[chain.nodes.clone()]).enumerate() {
            state.release(node, next, depth);
        }
        counts.evictions += state.shrink(room);
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        let found = match trace.content() {
            Content::Ids => ids_found(&request, found, trace.block_size()),
            Content::Tokens => (found, found.saturating_mul(trace.block_size())),
        };
        counts.add(size, found);
    }
    counts
}

struct State {
    cached: Vec<Cached>,
    /// Candidates by next use, depth and number, and entries that are no longer true.
    idle: BinaryHeap<(usize, usize, usize)>,
    /// Blocks cached.
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cached {
    No,
    Held,
    /// Until this next use.
    Idle(usize),
}

impl State {
    fn hold(&mut self, node: usize) {
        self.len += usize::from(self.cached[node] == Cached::No);
        self.cached[node] = Cached::Held;
    }

    fn release(&mut self, node: usize, next_use: usize, depth: usize) {
        self.cached[node] = Cached::Idle(next_use);
        self.idle.push((next_use, depth, node));
    }

    /// Evicts what is needed again last until so many are left. Returns how many went.
    fn shrink(&mut self, len: usize) -> u64 {
        let mut evicted = 0;
        while self.len > len {
            let Some((next_use, _, node)) = self.idle.pop() else { break };
            // Else the entry is of a block that was used since, or is gone.
            if self.cached[node] == Cached::Idle(next_use) {
                self.cached[node] = Cached::No;
                self.len -= 1;
                evicted += 1;
            }
        }
        evicted
    }
}
