//! Every sequence of calls on very small caches, to the depth that the time allows.
//!
//! Pools of 1 to 4 blocks of 1 to 3 tokens, up to 3 sequences, 2 token values, 2 open steps, a pin; some content is
//! invalidated once. After each call everything
//! that the [simulation](super::simulation) checks must hold. States that differ in nothing but names (numbers of
//! steps, generations of handles) or in counters are one. The search deepens by one call at a time; it prints how deep
//! it came and how many states it saw. `PAGED_KV_EXHAUSTIVE_SECONDS=n` gives it more time.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;
use std::collections::HashMap;
use std::time::Instant;

use super::simulation::{Invalid, Kind, Op, OutcomeSpec, QuerySpec, RowSpec, Watched, World, from_env, mix};
use super::{CacheConfig, Release};
use crate::StepId;
use crate::id::{BlockId, SeqId, TokenId, ix};
use crate::prefix::Scope;

/// Time for all caches together, if the environment does not say.
const SECONDS: u64 = 20;
const MOST_SEQS: usize = 3;
const MOST_OPEN: usize = 2;

#[test]
fn every_short_sequence_of_calls_does_what_the_model_does() {
    let mut caches = Vec::new();
    for block_size in [1, 2] {
        for num_blocks in 1..=4 {
            let config = CacheConfig::new(num_blocks, block_size).with_scratch(false);
            caches.extend([(config, true), (config, false)]);
        }
    }
    // Blocks that have a middle: a tail may then be longer for one holder than for another.
    caches.extend([2, 3].map(|num_blocks| (CacheConfig::new(num_blocks, 3).with_scratch(false), true)));
    caches.push((CacheConfig::new(3, 2).with_scratch(true).with_withhold(true), true));
    let seconds = from_env("PAGED_KV_EXHAUSTIVE_SECONDS").unwrap_or(SECONDS);
    let each = Duration::from_secs(seconds) / u32::try_from(caches.len()).unwrap();
    let mut total = 0;
    for (config, eager) in caches {
        total += search(config, eager, each);
    }
    std::println!("{total} states in all");
}

/// Deepens until the time is over; returns how many states it saw.
fn search(config: CacheConfig, eager: bool, time: Duration) -> usize {
    let end = Instant::now() + time;
    let (mut states, mut depth, mut calls) = (0, 0, 0);
    loop {
        let mut search = Search { end, seen: HashMap::new(), calls: 0 };
        let world = World::new(config, &Watched::of(0), eager, false);
        let finished = search.explore(&world, depth + 1);
        (states, calls) = (search.seen.len().max(states), calls + search.calls);
        if !finished {
            break;
        }
        depth += 1;
        if depth == u8::MAX - 1 {
            break;
        }
    }
    let CacheConfig { num_blocks, block_size, withhold, .. } = config;
    std::println!(
        "{num_blocks} blocks of {block_size}, eager {eager}, withhold {withhold}: all of depth {depth}, {states} states, \
         {calls} calls"
    );
    assert!(depth >= 3, "{config:?}: not even three calls deep");
    states
}

struct Search {
    end: Instant,
    /// How many further calls a state was tried with.
    seen: HashMap<(u64, u64), u8>,
    calls: u64,
}

impl Search {
    /// Tries every sequence of `depth` calls; `false` where time was over before.
    fn explore(&mut self, world: &World, depth: u8) -> bool {
        for op in calls(world) {
            self.calls += 1;
            let mut next = world.clone();
            next.apply(op);
            let tried = self.seen.entry(key(&next)).or_insert(0);
            if *tried >= depth {
                continue;
            }
            *tried = depth;
            if Instant::now() > self.end || (depth > 1 && !self.explore(&next, depth - 1)) {
                return false;
            }
        }
        true
    }
}

/// All calls that make sense in a state.
fn calls(world: &World) -> Vec<Op> {
    let mut calls = Vec::new();
    let (block_size, capacity) = (world.block_size(), world.cache.capacity());
    let scope: Rc<Scope> = Rc::default();
    let ids: Vec<_> = world.seqs.iter().map(|seq| seq.id).collect();
    if ids.len() < MOST_SEQS {
        // What a prompt's last token is does not matter to a new sequence: nothing can be found there.
        let found = (capacity * block_size - 1).min(2 * block_size);
        for bits in 0..1_u32 << found {
            let prompt: Rc<[TokenId]> = (0..=found).map(|place| bits >> place & 1).collect();
            calls.push(Op::Create { scope: Rc::clone(&scope), prompt, query: Rc::<QuerySpec>::default() });
        }
        calls.extend(ids.iter().map(|&seq| Op::Fork { seq, children: 1 }));
    }
    if world.open.len() < MOST_OPEN {
        plans(&ids, block_size, &mut calls);
    }
    if let Some(oldest) = world.open.front() {
        commits(world, &mut calls);
        calls.extend(world.open.iter().map(|open| Op::Abort { step: open.id, ran: None }));
        if !world.eager && !oldest.ran {
            calls.push(Op::Run { steps: 1 });
        }
    }
    for seq in &world.seqs {
        let id = seq.id;
        calls.extend([Release::Cache, Release::Discard].map(|release| Op::Free { seq: id, release }));
        calls.push(Op::Reserve { seq: id, tokens: capacity * block_size });
        if seq.open_rows == 0 {
            calls.extend((0..seq.committed).map(|len| Op::Truncate { seq: id, len }));
        }
    }
    match world.pins.first() {
        Some(pin) => calls.push(Op::Unpin { pin: pin.id }),
        None => {
            let prompts = [[0, 0], [0, 1]].map(|tokens| tokens[..ix(capacity * block_size).min(2)].into());
            let query = Rc::<QuerySpec>::default();
            let found = prompts.into_iter().filter(|prompt: &Rc<[TokenId]>| world.any_under(prompt));
            calls.extend(found.map(|prompt| Op::Pin { scope: Rc::clone(&scope), prompt, query: Rc::clone(&query) }));
        }
    }
    if world.seen.invalidated == 0 {
        let named = |&block: &BlockId| world.content_of(block).is_some();
        if world.blocks().any(|block| named(&block)) {
            calls.push(Op::Invalidate(Invalid::All));
        }
        let held = |block: &BlockId| world.cache.refs(*block) > 0 && world.seqs.iter().all(|seq| seq.nameless_from > 0);
        let bad = world.blocks().filter(|block| named(block) || held(block));
        calls.extend(bad.map(|block| Op::Invalidate(Invalid::Block(block))));
    }
    if world.cache.config().withhold && world.last_step > 0 {
        let oldest = world.open.front().map_or(world.last_step + 1, |open| open.id.get());
        calls.push(Op::Retire { step: StepId::new(oldest - 1) });
    }
    calls
}

fn plans(ids: &[SeqId], block_size: u32, calls: &mut Vec<Op>) {
    let row =
        |seq, tokens: &[TokenId]| RowSpec { seq, tokens: tokens.to_vec(), kind: Kind::Ids, drafts: 0, lookahead: 0 };
    for &seq in ids {
        let some: [&[TokenId]; 6] = [&[0], &[1], &[0, 0], &[0, 1], &[0, 0, 1], &[0, 0, 0, 1, 0]];
        calls.extend(some.map(|tokens| Op::Plan { rows: alloc::vec![row(seq, tokens)] }));
        let special = [
            RowSpec { kind: Kind::Later, ..row(seq, &[0]) },
            RowSpec { kind: Kind::Later, ..row(seq, &[0, 1]) },
            RowSpec { drafts: 1, ..row(seq, &[0, 0]) },
            RowSpec { lookahead: block_size, ..row(seq, &[0]) },
        ];
        calls.extend(special.map(|row| Op::Plan { rows: alloc::vec![row] }));
        for &other in ids.iter().filter(|&&other| other != seq) {
            let pairs: [[&[TokenId]; 2]; 3] = [[&[0], &[1]], [&[0, 0, 1], &[0, 0, 1]], [&[0, 0], &[0]]];
            calls.extend(pairs.map(|pair| Op::Plan { rows: alloc::vec![row(seq, pair[0]), row(other, pair[1])] }));
        }
    }
}

fn commits(world: &World, calls: &mut Vec<Op>) {
    let oldest = &world.open[0];
    let all = |outcome: fn(&RowSpec) -> OutcomeSpec| Op::Commit {
        step: oldest.id,
        outcomes: oldest.rows.iter().map(|row| outcome(&row.spec)).collect(),
    };
    calls.push(Op::CommitAll { step: oldest.id });
    if oldest.rows.iter().any(|row| row.spec.kind == Kind::Later) {
        calls.push(all(|spec| match spec.kind {
            Kind::Later => OutcomeSpec::Ids(spec.tokens.clone()),
            _ => OutcomeSpec::All,
        }));
    }
    let rolls_back = |spec: &RowSpec| spec.kind == Kind::Later || spec.drafts > 0;
    let last = |seq| world.seq(seq).is_some_and(|seq| seq.open_rows == 1);
    if oldest.rows.iter().any(|row| rolls_back(&row.spec) && last(row.spec.seq)) {
        calls.push(all(|spec| match spec.kind {
            Kind::Later => OutcomeSpec::Ids(spec.tokens[1..].iter().map(|_| 0).collect()),
            _ => OutcomeSpec::Accept(u32::try_from(spec.tokens.len()).unwrap() - spec.drafts),
        }));
    }
}

/// What makes a state, as two numbers: equal states are equal but for one chance in 2^128.
fn key(world: &World) -> (u64, u64) {
    let cache = &world.cache;
    let mut state = Vec::with_capacity(256);
    cache.blocks.pool.snapshot(&mut state);
    cache.blocks.index.snapshot(&cache.blocks.pool.links, &mut state);
    // Steps by their age.
    let age = |step: u64| if step == 0 { 0 } else { cache.next_step - step };
    // A block's state is 0, or u32::MAX, or one more than the step that computes it.
    let states = state.len() - ix(cache.config.num_blocks);
    state[states..].iter_mut().filter(|state| (1..u64::from(u32::MAX)).contains(*state)).for_each(|state| {
        *state = age(*state - 1);
    });
    for open in &world.open {
        state.extend([age(open.id.get()), u64::from(open.ran), open.rows.len() as u64]);
        for row in &open.rows {
            let index = world.seq(row.spec.seq).map_or(u64::MAX, |seq| u64::from(seq.id.index()));
            let displaced =
                row.displaced.map_or(u64::MAX, |(index, block)| u64::from(index) << 32 | u64::from(block.get()));
            state.extend([index, u64::from(row.start), row.stamps.last().copied().unwrap_or(0), displaced]);
            state.extend([u64::from(row.spec.drafts), u64::from(row.lookahead_before), row.spec.kind as u64]);
            state.push(row.table_before.len() as u64);
        }
    }
    for (open, _) in cache.open.iter().zip(&world.open) {
        state.extend(open.published.iter().map(|block| u64::from(block.get())));
        state.push(u64::MAX);
    }
    state.extend(world.pins.iter().flat_map(|pin| &pin.blocks).map(|block| u64::from(block.get())));
    state.push(world.seen.invalidated.min(1));
    for seq in &world.seqs {
        let held = cache.sequence(seq.id).unwrap();
        state
            .extend([seq.id.index(), held.committed, held.planned, held.lookahead, held.anonymous_from].map(u64::from));
        state.extend([held.claim.target, held.claim.blocks, held.open_rows, held.unknown_rows].map(u64::from));
        state.extend([seq.stamps.last().copied().unwrap_or(0), u64::from(held.table.unchanged())]);
        state.push(held.plain.rows.into());
        if cache.config.withhold {
            state.push(held.fence);
        }
        state.extend(held.table.ids().map(|block| u64::from(block.get())));
        state.extend(held.tail.iter().map(|&token| u64::from(token)));
        state.push(u64::MAX);
    }
    let fold = |start| state.iter().fold(start, |hash, &number| mix(hash, number));
    (fold(1), fold(2))
}
