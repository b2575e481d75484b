//! Attention of the CPU storage: decode in bytes of K and V per second, beside what a plain read of as much memory
//! reaches in the same run; prefill in multiply-adds per second.
//!
//! `cascade` is decode of 32 sequences with a prefix of 4,096 tokens in common, in the same blocks and in copies.
//!
//! Llama-3-8B's attention: 32 query heads, 8 KV heads, `head_dim` 128, blocks of 16 in a scattered table. Decode walks
//! over as many layers as make half a gigabyte. `1t` is one thread, `all` as many as the machine has.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use core::hint::black_box;
use core::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use paged_kv::BlockId;
use paged_kv::layout::{DType, KvLayout, KvShape};
use paged_kv::step::{Step, TableRow};
use paged_kv::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage};

const Q_HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const DIM: u32 = 128;
const BLOCK: u32 = 16;
const POOL_BYTES: u64 = 512 << 20;

/// A storage, and tables of some rows.
struct Bench {
    storage: CpuStorage,
    layers: u32,
    layer_bytes: u64,
    /// Queries and outputs of the prepared step, and their shape.
    q: Vec<f32>,
    out: Vec<f32>,
    shape: [usize; 3],
}

impl Bench {
    /// `rows` rows of `len` tokens, of which the last `tokens` are queries; no block is shared.
    fn new(dtype: DType, rows: u32, len: u32, tokens: u32, pool_bytes: u64) -> Self {
        Self::sharing(dtype, rows, 0, len, tokens, pool_bytes)
    }

    /// The same, where all rows have the blocks of their first `shared` tokens in common.
    fn sharing(dtype: DType, rows: u32, shared: u32, len: u32, tokens: u32, pool_bytes: u64) -> Self {
        let (prefix, blocks) = (shared / BLOCK, (len - shared).div_ceil(BLOCK));
        let num_blocks = prefix + rows * blocks;
        let layer_bytes = KvShape::new(1, KV_HEADS, DIM, dtype).bytes_per_block(BLOCK).unwrap() * u64::from(num_blocks);
        let layers = u32::try_from(pool_bytes.div_ceil(layer_bytes)).unwrap();
        let layout = KvLayout::per_layer(&KvShape::new(layers, KV_HEADS, DIM, dtype), num_blocks, BLOCK).unwrap();
        let mut storage = CpuStorage::new(layout).unwrap();
        storage.fill(0.5); // every page is touched
        // Scattered: neighbours in the table stand a prime number of blocks apart.
        assert!(!num_blocks.is_multiple_of(7_919));
        let mut scattered = (0..num_blocks).map(|i| BlockId::new(i * 7_919 % num_blocks));
        let mut take = |blocks: u32| scattered.by_ref().take(usize::try_from(blocks).unwrap()).collect::<Vec<_>>();
        let prefix = take(prefix);
        let tables: Vec<Vec<_>> = (0..rows).map(|_| [&prefix[..], &take(blocks)].concat()).collect();
        let step_rows: Vec<_> =
            tables.iter().map(|blocks| TableRow { start: len - tokens, len: tokens, blocks }).collect();
        storage.prepare((), &Step::from_tables(BLOCK, &step_rows, &[]).unwrap(), u32::MAX).unwrap();
        let shape = [rows * tokens, Q_HEADS, DIM].map(|n| usize::try_from(n).unwrap());
        let q: Vec<f32> = (0..7).map(|i: u8| f32::from(i) * 0.1).cycle().take(shape.iter().product()).collect();
        let out = vec![0.0; q.len()];
        Self { storage, layers, layer_bytes, q, out, shape }
    }

    fn attend(&mut self, layer: u32) {
        let out = CpuTensorMut::new(&mut self.out, self.shape);
        let q = CpuTensor::new(&self.q, self.shape);
        self.storage.attend((), layer, q, out, &AttendParams::new(DIM)).unwrap();
    }
}

/// Measures on one thread, then on all: `run` gets a name and a function that runs work on that many.
fn on_threads(mut run: impl FnMut(&str, &dyn Fn(&mut (dyn FnMut() + Send)))) {
    #[cfg(feature = "rayon")]
    for (name, threads) in [("1t", 1), ("all", std::thread::available_parallelism().map_or(1, usize::from))] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        run(name, &|work| pool.install(work));
    }
    #[cfg(not(feature = "rayon"))]
    run("1t", &|work| work());
}

/// Sums a slice in 64 lanes: as fast as memory lets it.
fn read(data: &[u64]) -> u64 {
    let mut lanes = [0_u64; 64];
    for chunk in data.chunks_exact(64) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*x);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

fn roof(c: &mut Criterion) {
    let data = vec![1_u64; usize::try_from(POOL_BYTES / 8).unwrap()];
    let mut group = c.benchmark_group("roof");
    group.throughput(Throughput::Bytes(POOL_BYTES));
    group.bench_function("read/1t", |b| b.iter(|| read(black_box(&data))));
    #[cfg(feature = "rayon")]
    group.bench_function("read/all", |b| {
        use rayon::prelude::*;
        b.iter(|| black_box(&data).par_chunks(1 << 16).map(read).reduce(|| 0, u64::wrapping_add));
    });
}

const DTYPES: [(&str, DType); 5] =
    [("bf16", DType::BF16), ("f16", DType::F16), ("f32", DType::F32), ("int8", DType::I8), ("fp8", DType::F8E4M3)];

/// Attention of one layer after the other.
fn over_layers(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, bench: &mut Bench) {
    on_threads(|threads, on| {
        let mut layer = 0;
        group.bench_function(BenchmarkId::new(name, threads), |b| {
            b.iter(|| {
                on(&mut || bench.attend(layer));
                layer = (layer + 1) % bench.layers;
            });
        });
    });
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode");
    for (name, dtype) in DTYPES {
        for (rows, len) in [(8, 1024), (8, 4096)] {
            let mut bench = Bench::new(dtype, rows, len, 1, POOL_BYTES);
            group.throughput(Throughput::Bytes(bench.layer_bytes));
            over_layers(&mut group, &format!("{name}/{rows}x{len}"), &mut bench);
        }
    }
}

fn cascade(c: &mut Criterion) {
    let mut group = c.benchmark_group("cascade");
    for (name, shared) in [("shared", 4096), ("copies", 0)] {
        let mut bench = Bench::sharing(DType::BF16, 32, shared, 4096 + 128, 1, POOL_BYTES);
        over_layers(&mut group, &format!("bf16/32x4096+128/{name}"), &mut bench);
    }
}

fn prefill(c: &mut Criterion) {
    let mut group = c.benchmark_group("prefill");
    let len = 512;
    for (name, dtype) in DTYPES {
        let mut bench = Bench::new(dtype, 1, len, len, 1);
        // Query t sees t + 1 keys, and every pair costs one multiply-add per element of K and of V.
        let pairs = u64::from(len) * u64::from(len + 1) / 2;
        group.throughput(Throughput::Elements(pairs * u64::from(Q_HEADS) * 2 * u64::from(DIM)));
        on_threads(|threads, on| {
            group.bench_function(BenchmarkId::new(format!("{name}/{len}"), threads), |b| {
                b.iter(|| on(&mut || bench.attend(0)));
            });
        });
    }
}

fn config() -> Criterion {
    let config = Criterion::default().measurement_time(Duration::from_secs(3));
    config.warm_up_time(Duration::from_millis(500)).sample_size(20)
}

criterion_group! { name = benches; config = config(); targets = roof, decode, cascade, prefill }
criterion_main!(benches);
