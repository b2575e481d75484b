//! Proof that the crate needs no `std`: a program that has none plans, commits and forks. `cargo check` is the test.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::panic::PanicInfo;

use paged_kv::cache::{Release, Row};
use paged_kv::event::{Event, EventEncoder, Frames, Publisher};
use paged_kv::prefix::hash::{Blake3, Digest, Sha256Cbor, identities};
use paged_kv::{CacheConfig, KvCache, Query, Scope, Step};

#[global_allocator]
static ALLOCATOR: emballoc::Allocator<65_536> = emballoc::Allocator::new();

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

/// What a firmware would call. Returns the blocks that are held at the end.
pub fn serve() -> Option<u32> {
    let mut cache = KvCache::new(CacheConfig::new(64, 16)).ok()?;
    let mut step = Step::new();
    let created = cache.create(&Scope::default(), &[1, 2, 3], Query::default()).ok()?;
    let id = cache.plan(&[Row::ids(created.seq, &[1, 2, 3])], &mut step).ok()?;
    cache.commit_all(id).ok()?;
    let fork = cache.fork(created.seq).ok()?;
    cache.free(created.seq, Release::Cache).ok()?;
    cache.free(fork, Release::Discard).ok()?;
    Some(cache.stats().held)
}

/// What a router without an operating system would call.
pub fn last_identities(prompt: &[u32]) -> Option<(Digest, Digest)> {
    let scope = Scope::default();
    let vllm = identities(&Sha256Cbor::new(), &scope, prompt, 16, &[]).ok()?.last()?;
    let own = identities(&Blake3::new(), &scope, prompt, 16, &[]).ok()?.last()?;
    Some((vllm, own))
}

/// What its events become.
pub fn publish(publisher: &mut Publisher, events: &[Event]) -> Frames {
    let mut batch = Vec::new();
    EventEncoder::new().encode_batch(0.0, events, &mut batch);
    publisher.publish(&batch)
}
