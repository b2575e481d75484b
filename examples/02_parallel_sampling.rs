//! Several samples of one prompt: computed once, shared until they differ.
//!
//! `cargo run --example 02_parallel_sampling`

#[path = "toy/model.rs"]
#[allow(dead_code, reason = "every example uses its part of the toy")]
mod model;

use std::error::Error;

use model::Toy;
use paged_kv::cache::Row;
use paged_kv::layout::KvLayout;
use paged_kv::storage::CpuStorage;
use paged_kv::{CacheConfig, KvCache, Query, Scope, Step};

const NUM_BLOCKS: u32 = 32;
const BLOCK_SIZE: u32 = 8;
const SAMPLES: usize = 4;

/// Draws a token by its probability (softmax); `uniform` is a number from 0 to 1.
fn sample(scores: &[f32], mut uniform: f32) -> u32 {
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - most).exp()).collect();
    uniform *= weights.iter().sum::<f32>();
    let mut token = 0;
    for (candidate, weight) in (0_u32..).zip(weights) {
        token = candidate;
        uniform -= weight;
        if uniform < 0.0 {
            break;
        }
    }
    token
}

fn main() -> Result<(), Box<dyn Error>> {
    let toy = Toy::new();
    let mut cache = KvCache::new(CacheConfig::new(NUM_BLOCKS, BLOCK_SIZE))?;
    let mut storage = CpuStorage::new(KvLayout::per_layer(&Toy::shape(), NUM_BLOCKS, BLOCK_SIZE)?)?;
    let mut step = Step::new();

    // 20 tokens: two full blocks, and four tokens in a third.
    let prompt: Vec<u32> = (0..20).map(|i| i * 11 % 61).collect();
    let root = cache.create(&Scope::default(), &prompt, Query::default())?.seq;
    let id = cache.plan(&[Row::ids(root, &prompt)], &mut step)?;
    let scores = toy.forward(&mut storage, &step, &prompt).remove(0);
    cache.commit_all(id)?;

    let mut seqs = [root; SAMPLES];
    cache.fork_into(root, &mut seqs[1..])?;
    println!("{SAMPLES} samples share {} blocks", cache.stats().held);
    assert_eq!(cache.stats().held, 3);

    // Each sample has its own stream of random numbers.
    let uniform = |sample: usize, step: usize| ((sample * 37 + step * 101) % 97) as f32 / 97.0;
    let mut tokens: Vec<u32> = (0..SAMPLES).map(|i| sample(&scores, uniform(i, 0))).collect();
    let mut samples: Vec<Vec<u32>> = tokens.iter().map(|&token| vec![token]).collect();
    for round in 1..8 {
        let rows: Vec<_> =
            seqs.iter().zip(&tokens).map(|(&seq, token)| Row::ids(seq, core::slice::from_ref(token))).collect();
        let id = cache.plan(&rows, &mut step)?;
        // The first append copies the shared third block for all samples but the last; no later one copies anything.
        let copies = step.tables().copies().len();
        assert_eq!(copies, if round == 1 { SAMPLES - 1 } else { 0 });
        let scores = toy.forward(&mut storage, &step, &tokens);
        cache.commit_all(id)?;
        for (i, scores) in scores.iter().enumerate() {
            tokens[i] = sample(scores, uniform(i, round));
            samples[i].push(tokens[i]);
        }
    }
    for (i, sample) in samples.iter().enumerate() {
        println!("sample {i}: {sample:?}");
    }
    let held = cache.stats().held;
    println!("{held} blocks held, {} without sharing", SAMPLES * 27_usize.div_ceil(BLOCK_SIZE as usize));
    // 27 tokens each: 2 blocks shared by all, and 2 of their own.
    assert_eq!(held as usize, 2 + 2 * SAMPLES);
    Ok(())
}
