//! The rules of the game, written down plainly and apart from the program: least recently used, and every way to evict.

use std::collections::{BTreeMap, HashMap};

use replay::trace::{Content, Trace};

/// A request's full blocks, each named by all that stands before it and itself; how many of them can be found; and
/// whether there is a partly filled block behind them.
struct Prompt {
    blocks: Vec<Vec<u32>>,
    findable: usize,
    tail: usize,
}

fn prompts(trace: &Trace) -> Vec<Prompt> {
    let (size, left) = match trace.content() {
        Content::Ids => (1, 0),
        Content::Tokens => (trace.block_size() as usize, 1),
    };
    let prompt = |units: &[u32]| Prompt {
        blocks: (1..=units.len() / size).map(|n| units[..n * size].to_vec()).collect(),
        findable: units.len().saturating_sub(left) / size,
        tail: usize::from(!units.len().is_multiple_of(size)),
    };
    trace.requests().map(|request| prompt(request.units)).collect()
}

/// Blocks found and blocks evicted under least recently used, the end of a chain first. A prompt of tokens must not be
/// a whole number of blocks: the last block would be there twice for a while.
pub(crate) fn lru(trace: &Trace, capacity: usize) -> (u64, u64) {
    let (mut found, mut evicted, mut clock) = (0, 0, 0_u64);
    let mut idle: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let mut when: HashMap<Vec<u32>, u64> = HashMap::new();
    for Prompt { blocks, findable, tail } in prompts(trace) {
        assert_eq!(blocks.len(), findable, "a whole number of blocks");
        if blocks.len() + tail > capacity {
            continue;
        }
        for block in &blocks {
            let Some(time) = when.remove(block) else { break };
            idle.remove(&time);
            found += 1;
        }
        while idle.len() + blocks.len() + tail > capacity {
            let (_, block) = idle.pop_first().unwrap();
            when.remove(&block);
            evicted += 1;
        }
        for block in blocks.into_iter().rev() {
            clock += 1;
            when.insert(block.clone(), clock);
            idle.insert(clock, block);
        }
    }
    (found, evicted)
}

/// The most blocks that can be found, by trying every set of blocks that could be kept at every request. With `held`, a
/// request holds all of its blocks while it is at work. For up to about a dozen different blocks.
pub(crate) fn best(trace: &Trace, capacity: usize, held: bool) -> u64 {
    let prompts = prompts(trace);
    let mut numbers: HashMap<&[u32], usize> = HashMap::new();
    let mut before: Vec<u32> = Vec::new();
    for block in prompts.iter().flat_map(|prompt| &prompt.blocks) {
        let next = numbers.len();
        if *numbers.entry(block).or_insert(next) == next {
            // What it stands on is the longest name it starts with.
            let parent = (1..block.len()).rev().find_map(|len| numbers.get(&block[..len]));
            before.push(parent.map_or(0, |&parent| 1 << parent));
        }
    }
    let closed = |set: u32| (0..before.len()).all(|node| set >> node & 1 == 0 || before[node] & !set == 0);
    let mut states: HashMap<u32, u64> = HashMap::from([(0, 0)]);
    for prompt in &prompts {
        if prompt.blocks.len() + prompt.tail > capacity {
            continue;
        }
        let bits: Vec<u32> = prompt.blocks.iter().map(|block| 1 << numbers[block.as_slice()]).collect();
        let chain: u32 = bits.iter().sum();
        let mut next: HashMap<u32, u64> = HashMap::new();
        for (&state, &score) in &states {
            let found = bits[..prompt.findable].iter().take_while(|&&bit| state & bit != 0).count() as u64;
            let all = state | chain;
            let mut kept = all;
            loop {
                let needed = if held { chain } else { 0 };
                let room = if held { capacity - prompt.tail } else { capacity };
                if kept & needed == needed && kept.count_ones() as usize <= room && closed(kept) {
                    let best = next.entry(kept).or_default();
                    *best = (*best).max(score + found);
                }
                if kept == 0 {
                    break;
                }
                kept = (kept - 1) & all;
            }
        }
        states = next;
    }
    states.into_values().max().unwrap()
}
