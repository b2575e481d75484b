//! What the control plane costs: planning, forking, finding prefixes, allocating under eviction.
//!
//! `cargo bench --bench control_plane`. Every figure is per call as named: read them as budgets (a decode step of 256
//! sequences, say), and compare only within one run. `benches/peers/manager` measures beside other managers.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use paged_kv::cache::{Release, Row};
use paged_kv::{CacheConfig, KvCache, Query, Scope, SeqId, Step};

const BLOCK_SIZE: u32 = 16;

fn cache(num_blocks: u32) -> KvCache {
    KvCache::new(CacheConfig::new(num_blocks, BLOCK_SIZE)).expect("a valid configuration")
}

/// `tokens` tokens that no prompt of another `stream` shares.
fn prompt(stream: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (stream.wrapping_mul(2_654_435_761) ^ at) % 50_000).collect()
}

fn prefill(cache: &mut KvCache, prompt: &[u32], step: &mut Step) -> SeqId {
    let created = cache.create(&Scope::default(), prompt, Query::default()).expect("room");
    let rest = &prompt[created.cached_tokens as usize..];
    let id = cache.plan(&[Row::ids(created.seq, rest)], step).expect("room");
    cache.commit_all(id).expect("open");
    created.seq
}

/// One decode step, planned and committed: 256 sequences, one token each.
fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode_step");
    for context in [16_u32, 2_048] {
        const BATCH: u32 = 256;
        group.throughput(Throughput::Elements(u64::from(BATCH)));
        group.bench_with_input(BenchmarkId::new("batch_256_context", context), &context, |b, &context| {
            let mut cache = cache(BATCH * (context + 65_536).div_ceil(BLOCK_SIZE));
            let mut step = Step::new();
            let seqs: Vec<_> = (0..BATCH).map(|i| prefill(&mut cache, &prompt(i, context), &mut step)).collect();
            let mut token = 0;
            b.iter(|| {
                token = (token + 1) % 50_000;
                let tokens = [token];
                let rows: Vec<_> = seqs.iter().map(|&seq| Row::ids(seq, &tokens)).collect();
                let id = cache.plan(&rows, &mut step).expect("room");
                cache.commit_all(id).expect("open");
                if cache.sequence(seqs[0]).expect("alive").len() > context + 60_000 {
                    seqs.iter().for_each(|&seq| cache.truncate(seq, context).expect("idle"));
                }
                black_box(step.tables().slots().len())
            });
        });
    }
    group.finish();
}

/// Admitting a prompt: nothing of it cached, so that every block evicts another; and all of it cached.
fn admit(c: &mut Criterion) {
    let mut group = c.benchmark_group("admit");
    for tokens in [512_u32, 4_096] {
        group.throughput(Throughput::Elements(u64::from(tokens)));
        group.bench_with_input(BenchmarkId::new("miss_evicting", tokens), &tokens, |b, &tokens| {
            let mut cache = cache(16_384);
            let mut step = Step::new();
            let mut stream = 0;
            let mut next = move || {
                stream += 1;
                prompt(stream, tokens)
            };
            for _ in 0..16_384 * BLOCK_SIZE / tokens + 1 {
                let seq = prefill(&mut cache, &next(), &mut step);
                cache.free(seq, Release::Cache).expect("alive");
            }
            b.iter_batched(
                next,
                |prompt| {
                    let seq = prefill(&mut cache, &prompt, &mut step);
                    cache.free(seq, Release::Cache).expect("alive");
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_with_input(BenchmarkId::new("hit", tokens), &tokens, |b, &tokens| {
            let mut cache = cache(16_384);
            let mut step = Step::new();
            let prompt = prompt(1, tokens + 1);
            let seq = prefill(&mut cache, &prompt, &mut step);
            cache.free(seq, Release::Cache).expect("alive");
            b.iter(|| {
                let created = cache.create(&Scope::default(), &prompt, Query::default()).expect("room");
                cache.free(created.seq, Release::Cache).expect("alive");
                black_box(created.cached_tokens)
            });
        });
        group.bench_with_input(BenchmarkId::new("peek", tokens), &tokens, |b, &tokens| {
            let mut cache = cache(16_384);
            let mut step = Step::new();
            let prompt = prompt(1, tokens + 1);
            prefill(&mut cache, &prompt, &mut step);
            b.iter(|| cache.peek(&Scope::default(), black_box(&prompt), Query::default()).expect("valid"));
        });
    }
    group.finish();
}

/// Forking a sequence and freeing the fork.
fn fork(c: &mut Criterion) {
    let mut group = c.benchmark_group("fork_and_free");
    for tokens in [100_u32, 2_048] {
        group.bench_with_input(BenchmarkId::from_parameter(tokens), &tokens, |b, &tokens| {
            let mut cache = cache(1_024);
            let mut step = Step::new();
            let parent = prefill(&mut cache, &prompt(1, tokens), &mut step);
            b.iter(|| {
                let child = cache.fork(parent).expect("alive");
                cache.free(child, Release::Discard).expect("alive");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decode, admit, fork);
criterion_main!(benches);
