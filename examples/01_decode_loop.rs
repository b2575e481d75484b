//! The decode loop: plan, run, commit; and what a second request finds of the first.
//!
//! `cargo run --example 01_decode_loop`

#[path = "toy/model.rs"]
#[allow(dead_code, reason = "every example uses its part of the toy")]
mod model;

use std::error::Error;

use model::{Toy, greedy};
use paged_kv::cache::{Release, Row};
use paged_kv::layout::KvLayout;
use paged_kv::storage::CpuStorage;
use paged_kv::{CacheConfig, KvCache, Query, Scope, Step};

const NUM_BLOCKS: u32 = 32;
const BLOCK_SIZE: u32 = 16;

/// Generates `count` tokens behind a prompt. Returns them, and how many prompt tokens were found in the cache.
fn generate(
    toy: &Toy,
    cache: &mut KvCache,
    storage: &mut CpuStorage,
    prompt: &[u32],
    count: usize,
) -> Result<(Vec<u32>, u32), Box<dyn Error>> {
    let created = cache.create(&Scope::default(), prompt, Query::default())?;
    let mut step = Step::new();
    // The first step computes what is not cached, each later one the token of the step before.
    let mut input = prompt[created.cached_tokens as usize..].to_vec();
    let mut output = Vec::new();
    while output.len() < count {
        let id = cache.plan(&[Row::ids(created.seq, &input)], &mut step)?;
        let skip = step.rows()[0].skip as usize;
        let scores = toy.forward(storage, &step, &input[skip..]);
        cache.commit_all(id)?;
        let token = greedy(&scores[0]);
        output.push(token);
        input = vec![token];
    }
    cache.free(created.seq, Release::Cache)?;
    Ok((output, created.cached_tokens))
}

fn main() -> Result<(), Box<dyn Error>> {
    let toy = Toy::new();
    let mut cache = KvCache::new(CacheConfig::new(NUM_BLOCKS, BLOCK_SIZE))?;
    let mut storage = CpuStorage::new(KvLayout::per_layer(&Toy::shape(), NUM_BLOCKS, BLOCK_SIZE)?)?;
    let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 61).collect();

    let (first, cached) = generate(&toy, &mut cache, &mut storage, &prompt, 12)?;
    println!("first request:  {cached} of {} prompt tokens cached, {first:?}", prompt.len());
    let (second, cached) = generate(&toy, &mut cache, &mut storage, &prompt, 12)?;
    println!("second request: {cached} of {} prompt tokens cached, {second:?}", prompt.len());

    // The first request filled three blocks of 16 with its 40 tokens and the answer. Of the third the prompt's part is
    // reused too, all but the last token, which is computed; the content is the same, so the answer is.
    assert_eq!((cached, second), (39, first));
    assert_eq!(cache.stats().held, 0);
    Ok(())
}
