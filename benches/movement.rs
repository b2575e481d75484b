//! Movement of K and V: appends, prefill scatter, copies of blocks and records of blocks, each beside a plain and a
//! non-temporal copy of as many bytes.
//!
//! Llama-3-8B's K and V: 8 KV heads, `head_dim` 128, bf16, blocks of 16 in a scattered table, 8 layers of 64 MiB in turn,
//! so that what is written was in no cache. The plain copies go from and to memory that is on huge pages as the storage's
//! is, walked through in the same way. `1t` is one thread, `all` as many as the machine has.
//!
//! Criterion measures one after the other; as a shared machine's bandwidth wanders meanwhile, the ratios come from a run
//! of its own first, in which the three take turns. `-- --ratios` runs that alone.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]
#![allow(unsafe_code, reason = "advice on pages, and the non-temporal copy to compare with")]

use core::time::Duration;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput};
use paged_kv::BlockId;
use paged_kv::layout::{DType, KvLayout, KvShape};
use paged_kv::step::{BlockCopy, Step, TableRow};
use paged_kv::storage::{CpuStorage, CpuTensor, KvStorage, bf16};

const KV_HEADS: u32 = 8;
const DIM: u32 = 128;
const BLOCK: u32 = 16;
const LAYERS: u32 = 8;
const NUM_BLOCKS: u32 = 1024;
/// 8 layers × 1,024 blocks × 16 tokens × 8 heads × 256 elements × 2 bytes, and as much for what is copied plainly.
const POOL_BYTES: usize = 512 << 20;
const TOKEN_BYTES: usize = 8 * 256 * 2;

/// Bytes on huge pages where the system has some.
struct Memory {
    data: Vec<u8>,
    skip: usize,
}

impl Memory {
    fn new() -> Self {
        const HUGE_BYTES: usize = 2 << 20;
        let mut data = vec![0; POOL_BYTES + HUGE_BYTES];
        let skip = data.as_ptr().align_offset(HUGE_BYTES);
        #[cfg(target_os = "linux")]
        // SAFETY: advice changes no byte; the range lies inside of `data`, from which `skip` is less than a huge page.
        unsafe {
            libc::madvise(data[skip..].as_mut_ptr().cast(), POOL_BYTES, libc::MADV_HUGEPAGE);
        }
        data[skip..].fill(1);
        Self { data, skip }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.data[self.skip..][..POOL_BYTES]
    }
}

/// Copies with non-temporal stores of 32 bytes.
#[cfg(target_arch = "x86_64")]
fn stream(from: &[u8], to: &mut [u8]) {
    use core::arch::x86_64::*;
    /// # Safety
    /// The machine has AVX; both are as many bytes, whole lines; `to` is aligned to one.
    #[target_feature(enable = "avx")]
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "four loads, four stores")]
    unsafe fn lines(from: &[u8], to: &mut [u8]) {
        for (from, to) in from.chunks_exact(128).zip(to.chunks_exact_mut(128)) {
            let (from, to) = (from.as_ptr().cast::<__m256i>(), to.as_mut_ptr().cast::<__m256i>());
            // SAFETY: four vectors lie in either chunk, and `to` is aligned by the contract.
            unsafe {
                let x = [0, 1, 2, 3].map(|i| _mm256_loadu_si256(from.wrapping_add(i)));
                _mm256_stream_si256(to, x[0]);
                _mm256_stream_si256(to.wrapping_add(1), x[1]);
                _mm256_stream_si256(to.wrapping_add(2), x[2]);
                _mm256_stream_si256(to.wrapping_add(3), x[3]);
            }
        }
        _mm_sfence();
    }
    assert!(std::arch::is_x86_feature_detected!("avx"));
    assert_eq!((from.len() % 128, to.as_ptr().align_offset(64)), (0, 0));
    assert_eq!(from.len(), to.len());
    // SAFETY: asserted.
    unsafe { lines(from, to) }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

/// A copy on all threads of the pool, from 1 MiB on.
fn spread(from: &[u8], to: &mut [u8], copy: fn(&[u8], &mut [u8])) {
    #[cfg(feature = "rayon")]
    if from.len() >= 1 << 20 && rayon::current_num_threads() > 1 {
        use rayon::prelude::*;
        return to.par_chunks_mut(1 << 18).zip(from.par_chunks(1 << 18)).for_each(|(to, from)| copy(from, to));
    }
    copy(from, to);
}

fn number(x: u32) -> usize {
    usize::try_from(x).unwrap()
}

/// Something that moves bytes, and memory for plain copies of as many.
struct Bench {
    storage: CpuStorage,
    blocks: Vec<BlockId>,
    from: Memory,
    to: Memory,
    k: Vec<bf16>,
    wide: Vec<f32>,
    turn: usize,
}

#[derive(Clone, Copy)]
enum Case {
    Append(u32),
    Prefill(u32),
    PrefillFromF32(u32),
    Copy(u32),
    Read(u32),
    Write(u32),
}

const CASES: [(&str, Case); 10] = [
    ("append/1", Case::Append(1)),
    ("append/8", Case::Append(8)),
    ("append/32", Case::Append(32)),
    ("prefill/2048", Case::Prefill(2048)),
    ("prefill_from_f32/2048", Case::PrefillFromF32(2048)),
    ("copy_blocks/1", Case::Copy(1)),
    ("copy_blocks/16", Case::Copy(16)),
    ("read_blocks/1", Case::Read(1)),
    ("read_blocks/16", Case::Read(16)),
    ("write_blocks/16", Case::Write(16)),
];

impl Bench {
    fn new() -> Self {
        let shape = KvShape::new(LAYERS, KV_HEADS, DIM, DType::BF16);
        let mut storage = CpuStorage::new(KvLayout::per_layer(&shape, NUM_BLOCKS, BLOCK).unwrap()).unwrap();
        storage.fill(0.5);
        // Scattered: neighbours stand an odd number of blocks apart.
        let blocks = (0..NUM_BLOCKS).map(|i| BlockId::new(i * 389 % NUM_BLOCKS)).collect();
        let k: Vec<_> = (0..2048 * 8 * 128_u32).map(|x| bf16::from_f32(x as f32)).collect();
        let wide = k.iter().map(|x| x.to_f32()).collect();
        Self { storage, blocks, from: Memory::new(), to: Memory::new(), k, wide, turn: 0 }
    }

    fn bytes(case: Case) -> usize {
        match case {
            Case::Append(tokens) | Case::Prefill(tokens) | Case::PrefillFromF32(tokens) => number(tokens) * TOKEN_BYTES,
            Case::Copy(n) | Case::Read(n) | Case::Write(n) => number(n * LAYERS * BLOCK) * TOKEN_BYTES,
        }
    }

    fn prepare(&mut self, case: Case) {
        let step = match case {
            Case::Append(rows) => {
                let rows: Vec<_> = self
                    .blocks
                    .chunks(4)
                    .take(number(rows))
                    .map(|blocks| TableRow { start: 37, len: 1, blocks })
                    .collect();
                Step::from_tables(BLOCK, &rows, &[])
            }
            Case::Prefill(len) | Case::PrefillFromF32(len) => {
                Step::from_tables(BLOCK, &[TableRow { start: 0, len, blocks: &self.blocks }], &[])
            }
            _ => return,
        };
        self.storage.prepare((), &step.unwrap(), u32::MAX).unwrap();
    }

    /// Some of the scattered blocks, others at each turn.
    fn some(&self, n: u32, skip: usize) -> impl Iterator<Item = BlockId> {
        let first = (self.turn * number(n) + skip) % self.blocks.len();
        self.blocks.iter().copied().cycle().skip(first).take(number(n))
    }

    fn run(&mut self, case: Case) {
        let layer = u32::try_from(self.turn % 8).unwrap();
        let n = Self::bytes(case);
        let at = self.turn * n % (POOL_BYTES - n + 1) / 64 * 64;
        match case {
            Case::Append(tokens) | Case::Prefill(tokens) => {
                let kv = CpuTensor::new(&self.k, [number(tokens), 8, 128]);
                self.storage.write_kv((), layer, kv, kv).unwrap();
            }
            Case::PrefillFromF32(tokens) => {
                let kv = CpuTensor::new(&self.wide, [number(tokens), 8, 128]);
                self.storage.write_kv((), layer, kv, kv).unwrap();
            }
            Case::Copy(n) => {
                let half = self.blocks.len() / 2;
                let copies: Vec<_> =
                    self.some(n, 0).zip(self.some(n, half)).map(|(src, dst)| BlockCopy { src, dst }).collect();
                self.storage.prepare((), &Step::from_tables(BLOCK, &[], &copies).unwrap(), u32::MAX).unwrap();
                self.storage.copy_blocks(()).unwrap();
            }
            Case::Read(blocks) => {
                let blocks: Vec<_> = self.some(blocks, 0).collect();
                self.storage.read_blocks(&blocks, &mut self.to.bytes()[at..][..n]).unwrap();
            }
            Case::Write(blocks) => {
                let blocks: Vec<_> = self.some(blocks, 0).collect();
                self.storage.write_blocks(&blocks, &self.from.bytes()[at..][..n]).unwrap();
            }
        }
        self.turn += 1;
    }

    fn plain(&mut self, case: Case, copy: fn(&[u8], &mut [u8])) {
        let n = Self::bytes(case);
        let at = self.turn * n % (POOL_BYTES - n + 1) / 64 * 64;
        let to = &mut self.to.bytes()[at..][..n];
        match case {
            // From the same tensors at every turn, as the writes.
            Case::Append(_) | Case::Prefill(_) | Case::PrefillFromF32(_) => spread(&self.from.bytes()[..n], to, copy),
            _ => spread(&self.from.bytes()[at..][..n], to, copy),
        }
        self.turn += 1;
    }

    fn contender(&mut self, case: Case, who: usize) {
        match who {
            0 => self.run(case),
            1 => self.plain(case, |from, to| to.copy_from_slice(from)),
            _ => self.plain(case, stream),
        }
    }
}

const CONTENDERS: [&str; 3] = ["paged_kv", "memcpy", "non_temporal"];

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

/// The three take turns; medians, and how many times the bandwidth of the plain copies is reached.
fn ratios(bench: &mut Bench) {
    println!(
        "{:24}{:>5}{:>12}{:>10}{:>12}{:>10}{:>10}{:>10}",
        "GB/s, medians", "", "paged_kv", "memcpy", "non-temp.", "/memcpy", "/non-t.", "best"
    );
    on_threads(|threads, on| {
        for (name, case) in CASES {
            bench.prepare(case);
            let bytes = Bench::bytes(case);
            let inner = (4_usize << 20).div_ceil(bytes);
            let mut times = [const { Vec::new() }; 3];
            for round in 0..41 {
                for (who, times) in times.iter_mut().enumerate() {
                    let start = Instant::now();
                    on(&mut || (0..inner).for_each(|_| bench.contender(case, who)));
                    if round > 0 {
                        times.push(start.elapsed().as_secs_f64());
                    }
                }
            }
            let rate = |time: f64| (bytes * inner) as f64 / time / 1e9;
            let [ours, memcpy, stream] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                [times[times.len() / 2], times[0]].map(rate)
            });
            println!(
                "{name:24}{threads:>5}{:12.2}{:10.2}{:12.2}{:10.2}{:10.2}{:10.2}",
                ours[0],
                memcpy[0],
                stream[0],
                ours[0] / memcpy[0],
                ours[0] / stream[0],
                ours[1] / stream[1]
            );
        }
    });
}

fn main() {
    let mut bench = Bench::new();
    println!("{:?}", bench.storage.stats());
    ratios(&mut bench);
    if std::env::args().any(|arg| arg == "--ratios") {
        return;
    }
    let config = Criterion::default().measurement_time(Duration::from_secs(1));
    let mut c = config.warm_up_time(Duration::from_millis(300)).sample_size(20).configure_from_args();
    for (name, case) in CASES {
        bench.prepare(case);
        for (who, contender) in CONTENDERS.into_iter().enumerate() {
            on_threads(|threads, on| {
                let mut group = c.benchmark_group(name);
                group.throughput(Throughput::Bytes(Bench::bytes(case) as u64));
                group.bench_function(BenchmarkId::new(contender, threads), |b| {
                    b.iter(|| on(&mut || bench.contender(case, who)));
                });
            });
        }
    }
    c.final_summary();
}
