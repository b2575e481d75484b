//! Asynchronous scheduling: the next step is planned before the tokens of this one are known, and a request is
//! cancelled in between.
//!
//! `cargo run --example 05_async`

#[path = "toy/model.rs"]
#[allow(dead_code, reason = "every example uses its part of the toy")]
mod model;

use std::error::Error;

use model::{Toy, greedy};
use paged_kv::cache::{Outcome, Release, Row};
use paged_kv::layout::KvLayout;
use paged_kv::storage::CpuStorage;
use paged_kv::{CacheConfig, KvCache, Query, Scope, Step};

const NUM_BLOCKS: u32 = 32;
const BLOCK_SIZE: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let toy = Toy::new();
    let mut cache = KvCache::new(CacheConfig::new(NUM_BLOCKS, BLOCK_SIZE))?;
    let mut storage = CpuStorage::new(KvLayout::per_layer(&Toy::shape(), NUM_BLOCKS, BLOCK_SIZE)?)?;
    // One buffer for the step that runs and one for the step that is planned meanwhile.
    let (mut running, mut next) = (Step::new(), Step::new());

    let prompts: [Vec<u32>; 2] = [(0..9).collect(), (20..33).collect()];
    let mut seqs = Vec::new();
    for prompt in &prompts {
        seqs.push(cache.create(&Scope::default(), prompt, Query::default())?.seq);
    }
    let rows: Vec<_> = seqs.iter().zip(&prompts).map(|(&seq, prompt)| Row::ids(seq, prompt)).collect();
    let first = cache.plan(&rows, &mut running)?;

    // Before the first step has given its tokens, the second one is planned: one token each, whatever they will be.
    let rows: Vec<_> = seqs.iter().map(|&seq| Row::count(seq, 1)).collect();
    let second = cache.plan(&rows, &mut next)?;
    println!("open: {:?}", cache.open_steps().collect::<Vec<_>>());

    let scores = toy.forward(&mut storage, &running, &prompts.concat());
    let tokens: Vec<u32> = scores.iter().map(|scores| greedy(scores)).collect();
    cache.commit_all(first)?;

    // The second request is cancelled while a step of it is open. Its handle is stale at once; the step is run as it
    // was planned, and its row means nothing when it commits.
    cache.free(seqs[1], Release::Cache)?;
    let scores = toy.forward(&mut storage, &next, &tokens);
    let (mine, gone) = tokens.split_at(1);
    cache.commit(second, &[Outcome::Ids(mine), Outcome::Ids(gone)])?;
    assert!(cache.sequence(seqs[1]).is_err());
    assert_eq!(cache.sequence(seqs[0])?.len(), 10);
    println!("request 0: {} then {}; request 1 cancelled", tokens[0], greedy(&scores[0]));

    // What was committed of the cancelled request can still be found: three full blocks of its prompt.
    let found = cache.peek(&Scope::default(), &prompts[1], Query::default())?;
    println!("{} tokens of the cancelled prompt are cached", found.cached_tokens);
    assert_eq!(found.cached_tokens, 12);

    // A step that fails on the device is aborted, with all later ones, and leaves nothing behind.
    let before = cache.sequence(seqs[0])?.len();
    let failed = cache.plan(&[Row::ids(seqs[0], &[greedy(&scores[0])])], &mut next)?;
    cache.plan(&[Row::count(seqs[0], 1)], &mut running)?;
    cache.abort(failed)?;
    assert_eq!((cache.sequence(seqs[0])?.len(), cache.open_steps().len()), (before, 0));
    cache.check_integrity()?;
    Ok(())
}
