//! What an identity costs: one block, and a prompt of 4,096 tokens.
//!
//! `cargo bench --bench identity --features sha256,blake3`. A cache whose events somebody reads pays this once per block
//! that becomes findable; a router pays it for every full block of every prompt.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use paged_kv::Scope;
use paged_kv::prefix::hash::{Blake3, BlockHasher, Hashed, Sha256Cbor, identities};

fn hashers(c: &mut Criterion) {
    let hashers: [(&str, &dyn BlockHasher); 2] = [("sha256_cbor", &Sha256Cbor::new()), ("blake3", &Blake3::new())];
    let scope = Scope::default();
    // Numbers of five digits, as a vocabulary of 128k gives them.
    let prompt: Vec<u32> = (0..4_096_u32).map(|at| at.wrapping_mul(2_654_435_761) % 128_000).collect();
    let parent = [7; 32];

    let mut group = c.benchmark_group("block");
    for (name, hasher) in hashers {
        for block_size in [16, 64] {
            let block = Hashed::new(Some(&parent), &scope, 16, &prompt[..block_size]);
            group.bench_function(BenchmarkId::new(name, block_size), |b| {
                b.iter(|| hasher.identity(black_box(&block)));
            });
        }
    }
    group.finish();

    let mut group = c.benchmark_group("prompt");
    group.throughput(Throughput::Elements(4_096));
    for (name, hasher) in hashers {
        group.bench_function(BenchmarkId::new(name, 4_096), |b| {
            b.iter(|| identities(hasher, &scope, black_box(&prompt), 16, &[]).expect("no extras").last());
        });
    }
    group.finish();
}

criterion_group!(benches, hashers);
criterion_main!(benches);
