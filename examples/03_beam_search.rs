//! Beam search: every step keeps the best hypotheses, forks them and drops the losers, in one call.
//!
//! `cargo run --example 03_beam_search`

#[path = "toy/model.rs"]
#[allow(dead_code, reason = "every example uses its part of the toy")]
mod model;

use std::error::Error;

use model::Toy;
use paged_kv::cache::Row;
use paged_kv::layout::KvLayout;
use paged_kv::storage::CpuStorage;
use paged_kv::{CacheConfig, KvCache, Query, Scope, SeqId, Step};

const NUM_BLOCKS: u32 = 64;
const BLOCK_SIZE: u32 = 4;
const BEAMS: usize = 3;
const STEPS: usize = 6;

struct Engine {
    toy: Toy,
    cache: KvCache,
    storage: CpuStorage,
    step: Step,
}

impl Engine {
    /// One step over several sequences; per row, the logarithm of every next token's probability.
    fn run(&mut self, inputs: &[(SeqId, &[u32])]) -> Result<Vec<Vec<f64>>, Box<dyn Error>> {
        let rows: Vec<_> = inputs.iter().map(|&(seq, tokens)| Row::ids(seq, tokens)).collect();
        let id = self.cache.plan(&rows, &mut self.step)?;
        let skips = self.step.rows().iter().map(|row| row.skip as usize);
        let tokens: Vec<u32> = inputs.iter().zip(skips).flat_map(|(input, skip)| input.1[skip..].to_vec()).collect();
        let scores = self.toy.forward(&mut self.storage, &self.step, &tokens);
        self.cache.commit_all(id)?;
        Ok(scores.iter().map(|scores| log_softmax(scores)).collect())
    }
}

fn log_softmax(scores: &[f32]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    let shifted: Vec<f64> = scores.iter().map(|score| f64::from(score - most)).collect();
    let sum = shifted.iter().map(|score| score.exp()).sum::<f64>().ln();
    shifted.iter().map(|score| score - sum).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let storage = CpuStorage::new(KvLayout::per_layer(&Toy::shape(), NUM_BLOCKS, BLOCK_SIZE)?)?;
    let cache = KvCache::new(CacheConfig::new(NUM_BLOCKS, BLOCK_SIZE))?;
    let mut engine = Engine { toy: Toy::new(), cache, storage, step: Step::new() };

    let prompt: Vec<u32> = (0..10).map(|i| i * 13 % 61).collect();
    let root = engine.cache.create(&Scope::default(), &prompt, Query::default())?.seq;
    let mut logprobs = engine.run(&[(root, &prompt)])?;
    let mut beams = vec![root];
    let mut hypotheses: Vec<(f64, Vec<u32>)> = vec![(0.0, Vec::new())];

    for _ in 0..STEPS {
        let mut candidates: Vec<(f64, usize, u32)> = Vec::new();
        for (beam, (hypothesis, logprobs)) in hypotheses.iter().zip(&logprobs).enumerate() {
            candidates.extend((0..).zip(logprobs).map(|(token, logprob)| (hypothesis.0 + logprob, beam, token)));
        }
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        candidates.truncate(BEAMS);

        let parents: Vec<usize> = candidates.iter().map(|candidate| candidate.1).collect();
        engine.cache.select(&mut beams, &parents)?;
        hypotheses = candidates
            .iter()
            .map(|&(score, parent, token)| (score, [&hypotheses[parent].1[..], &[token]].concat()))
            .collect();
        let tokens: Vec<[u32; 1]> = candidates.iter().map(|candidate| [candidate.2]).collect();
        let inputs: Vec<_> = beams.iter().zip(&tokens).map(|(&seq, token)| (seq, &token[..])).collect();
        logprobs = engine.run(&inputs)?;
    }

    for (score, tokens) in &hypotheses {
        println!("{score:8.4}  {tokens:?}");
        // The score is the sum of what a sequence without any sharing computes.
        let alone = score_alone(&prompt, tokens)?;
        assert!((alone - score).abs() < 1e-4, "{alone} and {score}");
    }
    let stats = engine.cache.stats();
    println!("{} blocks held, {} copies in {STEPS} steps of {BEAMS} beams", stats.held, stats.copies);
    assert_eq!(stats.sequences as usize, BEAMS);
    Ok(())
}

/// The score of a hypothesis, computed token by token in a cache of its own.
fn score_alone(prompt: &[u32], tokens: &[u32]) -> Result<f64, Box<dyn Error>> {
    let storage = CpuStorage::new(KvLayout::per_layer(&Toy::shape(), NUM_BLOCKS, BLOCK_SIZE)?)?;
    let cache = KvCache::new(CacheConfig::new(NUM_BLOCKS, BLOCK_SIZE))?;
    let mut engine = Engine { toy: Toy::new(), cache, storage, step: Step::new() };
    let seq = engine.cache.create(&Scope::default(), prompt, Query::default())?.seq;
    let mut logprobs = engine.run(&[(seq, prompt)])?;
    let mut score = 0.0;
    for &token in tokens {
        score += logprobs[0][token as usize];
        logprobs = engine.run(&[(seq, &[token])])?;
    }
    Ok(score)
}
