//! The counts against plain simulations of the same rules, on random traces.

use std::collections::HashMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use replay::policy::Policy;
use replay::report::ResultRow;
use replay::trace::Trace;

use crate::plain;

fn below(rng: &mut Pcg64Mcg, n: u32) -> u32 {
    rng.next_u32() % n
}

/// Requests of up to `longest` numbers from few, so that prompts share beginnings, and the same number stands in
/// different places.
fn random(rng: &mut Pcg64Mcg, field: &str, requests: u32, longest: u32, different: u32) -> String {
    let mut text = String::new();
    for _ in 0..requests {
        let len = below(rng, longest + 1);
        let numbers: Vec<String> = (0..len).map(|_| below(rng, different).to_string()).collect();
        text.push_str(&format!("{{\"{field}\":[{}]}}\n", numbers.join(",")));
    }
    text
}

pub(crate) fn read(text: &str, block_size: u32) -> Trace {
    Trace::read(text.as_bytes(), Some(block_size), false).unwrap()
}

fn run(trace: &Trace, capacity: u32, policy: Policy) -> ResultRow {
    replay::replay(trace, &[capacity], &[policy]).unwrap().remove(0)
}

#[test]
fn the_cache_finds_and_evicts_exactly_what_a_plain_simulation_does() {
    for seed in 0..150 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let (longest, different) = (1 + below(&mut rng, 9), 1 + below(&mut rng, 4));
        let trace = read(&random(&mut rng, "hash_ids", 200, longest, different), 16);
        for capacity in [1, 2, 3, 5, 8, 13, 40, 400] {
            let row = run(&trace, capacity, Policy::Lru);
            let plain = plain::lru(&trace, capacity as usize);
            assert_eq!((row.hit_blocks, row.evictions), plain, "seed {seed}, {capacity} blocks");
            assert_eq!(row.hit_tokens, 16 * row.hit_blocks);
            assert_eq!(row.requests, 200);
        }
    }
}

#[test]
fn the_cache_cuts_tokens_into_the_same_blocks_as_a_plain_simulation() {
    for seed in 0..150 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let text = random(&mut rng, "tokens", 200, 14, 2);
        // Tokens that stand for whole blocks, so that no part of one agrees with a part of another; and one token more
        // where a prompt would be a whole number of blocks of 3.
        let mut blocks = HashMap::new();
        let mut whole = |line: &str| {
            let numbers = line.split(|c: char| !c.is_numeric()).filter(|number| !number.is_empty());
            let mut tokens: Vec<String> = numbers.map(str::to_owned).collect();
            if !tokens.is_empty() && tokens.len().is_multiple_of(3) {
                tokens.push("7".to_owned());
            }
            let ends = (1..=tokens.len()).map(|at| at.div_ceil(3) * 3).map(|end| end.min(tokens.len()));
            let names: Vec<String> = ends
                .map(|end| {
                    let next = blocks.len();
                    blocks.entry(tokens[..end].to_vec()).or_insert(next).to_string()
                })
                .collect();
            format!("{{\"tokens\": [{}]}}", names.join(","))
        };
        let text: Vec<String> = text.lines().map(&mut whole).collect();
        let trace = read(&text.join("\n"), 3);
        for capacity in [1, 2, 3, 4, 6, 9, 30] {
            let row = run(&trace, capacity, Policy::Lru);
            let plain = plain::lru(&trace, capacity as usize);
            assert_eq!((row.hit_blocks, row.evictions), plain, "seed {seed}, {capacity} blocks");
        }
    }
}

#[test]
fn no_way_to_evict_finds_more_than_the_optimum_and_one_finds_as_much() {
    for seed in 0..400 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let (requests, longest) = (4 + below(&mut rng, 9), 1 + below(&mut rng, 3));
        let trace = read(&random(&mut rng, "hash_ids", requests, longest, 2), 16);
        for capacity in 1..7 {
            for (policy, held) in [(Policy::Belady, false), (Policy::BeladyHeld, true)] {
                let best = plain::best(&trace, capacity as usize, held);
                assert_eq!(run(&trace, capacity, policy).hit_blocks, best, "seed {seed}, {capacity} blocks, {policy}");
            }
        }
    }
}

#[test]
fn no_way_to_evict_finds_more_blocks_of_tokens_than_the_bound() {
    let (mut met, mut all) = (0, 0);
    for seed in 0..400 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let requests = 4 + below(&mut rng, 7);
        let trace = read(&random(&mut rng, "tokens", requests, 7, 2), 2);
        for capacity in 1..7 {
            let best = plain::best(&trace, capacity as usize, true);
            let [held, free] = [Policy::BeladyHeld, Policy::Belady].map(|policy| run(&trace, capacity, policy));
            assert!(best <= held.hit_blocks && held.hit_blocks <= free.hit_blocks, "seed {seed}, {capacity} blocks");
            assert!(run(&trace, capacity, Policy::Lru).hit_blocks <= best, "seed {seed}, {capacity} blocks");
            (met, all) = (met + u32::from(best == held.hit_blocks), all + 1);
        }
    }
    // It is a bound, and no loose one.
    assert!(met * 10 > all * 9, "{met} of {all}");
}

#[test]
fn a_prompt_of_all_the_blocks_is_found_whole_and_one_more_block_is_refused() {
    let trace = read("{\"hash_ids\":[1,2,3]}\n{\"hash_ids\":[1,2,3]}\n{\"hash_ids\":[1,2,3,4]}\n", 16);
    for policy in Policy::ALL {
        let row = run(&trace, 3, policy);
        assert_eq!((row.hit_blocks, row.refused, row.evictions), (3, 1, 0), "{policy}");
        assert_eq!((row.requests, row.blocks), (3, 10));
    }
    // 7 tokens are 4 blocks of 2, of which the three full ones are found.
    let trace =
        read("{\"tokens\":[1,2,3,4,5,6,7]}\n{\"tokens\":[1,2,3,4,5,6,7]}\n{\"tokens\":[1,2,3,4,5,6,7,8,9]}\n", 2);
    for policy in Policy::ALL {
        let row = run(&trace, 4, policy);
        assert_eq!((row.hit_blocks, row.hit_tokens, row.refused), (3, 6, 1), "{policy}");
    }
}

#[test]
fn the_last_block_of_ids_counts_the_tokens_that_are_left_of_the_length() {
    let line = "{\"hash_ids\":[1,2],\"input_length\":20}\n";
    let row = run(&read(&line.repeat(2), 16), 9, Policy::Lru);
    assert_eq!((row.tokens, row.hit_tokens), (40, 20));
    // Half of what is found is the full block, where the rest differs.
    let row = run(&read(&format!("{line}{{\"hash_ids\":[1,3],\"input_length\":17}}\n"), 16), 9, Policy::Lru);
    assert_eq!((row.tokens, row.hit_tokens, row.mismatched_lengths), (37, 16, 0));
    assert_eq!((row.request_hit_rate, row.request_block_hit_rate), (16.0 / 17.0 / 2.0, 0.25));
}

#[test]
fn more_blocks_than_the_trace_has_change_nothing_and_cost_nothing() {
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    for (field, size) in [("hash_ids", 512), ("tokens", 1 << 20), ("tokens", 3)] {
        let trace = read(&random(&mut rng, field, 100, 20, 3), size);
        for policy in Policy::ALL {
            let [some, many] =
                [trace.blocks().try_into().unwrap(), 1 << 30].map(|capacity| run(&trace, capacity, policy));
            assert_eq!(ResultRow { capacity: some.capacity, ..many }, some);
            assert_eq!(some.evictions, 0);
        }
    }
}
