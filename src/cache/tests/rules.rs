//! How the leading system, vLLM 0.33, caches prefixes, as rules R1 to R28: each holds here too, in its numbers, or is
//! different on purpose, and then its test says what is done instead, and why.
//!
//! Its pool keeps block 0 back, as ours does for padding; so blocks are numbered from 1 in both. Rules of sliding
//! windows, of several groups and of recurrent layers (R21 to R24, R26) wait for those.

mod blocks;
mod found;
mod told;

use super::*;
use crate::error::Shortfall;
use crate::id::GroupId;

/// A pool of `num_blocks` blocks of 4 tokens, the first of which is kept back.
fn pool(num_blocks: u32) -> KvCache {
    KvCache::new(CacheConfig::new(num_blocks, 4)).unwrap()
}

/// The blocks that are handed out from now on, one after the other, until none is left.
fn order(cache: &KvCache) -> Vec<u32> {
    let mut cache = cache.clone();
    let seq = cache.create_blank(&Scope::default()).unwrap();
    let available = cache.stats().available;
    cache.plan(&[Row::count(seq, available * cache.block_size())], &mut Step::new()).unwrap();
    blocks_of(&cache, seq)
}
