//! Attention of a prepared step: phases that follow each other, and the memory that they share.
//!
//! What rows have in common comes first: level by level the prefixes of the [`cascade`](super::cascade), then every row
//! for itself. A [`phase`] splits into tasks, which threads take.

mod phase;

use alloc::vec::Vec;
use core::cell::RefCell;

use phase::{Part, Phase, Task};

use super::element::Stored;
use super::isa::Level;
use super::kernel::{ROWS, Rules, Scratch};
use super::prepared::Prepared;
use super::tensor::{CpuTensor, CpuTensorMut, SharedOut};
use crate::storage::geometry::Geometry;

/// Multiply-adds below which waking other threads costs more than they save: about 10 µs of one core.
const SERIAL_MULADDS: u64 = 1 << 18;

/// Numbers in the states that spans leave in a phase, at most, and in those of paused rows: 64 MiB. A tile that would need
/// more is divided by heads alone. (A context of a million tokens and 32 query heads of 128 elements takes 65, one of 64
/// thousand 4.) Where paused rows would need more, nothing is read together. (256 queries with as many heads take 4.)
const MOST_LEFT: usize = 1 << 24;

std::thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static PLAN: RefCell<Plan> = RefCell::default();
}

/// Rows over one KV head, of queries that share a prefix, that are walked over it together, at most: one pass. Where not two
/// queries have so few, each row goes by itself. Sequences of 4,096 shared and 128 own tokens, 8 KV heads of 128 elements in
/// `bf16`, in ms on one core of AVX-512, whose last-level cache keeps the prefix:
///
/// | query heads per KV head, sequences | 16 rows | 32 | 64 | 128 | by itself | by itself, from memory |
/// |---|---|---|---|---|---|---|
/// | 1, 32 | 7.0 | 7.9 | 8.1 | 7.9 | 24.2 | 42.6 |
/// | 4, 32 | 24.8 | 25.4 | 23.7 | 21.3 | 31.1 | 41.7 |
/// | 8, 32 | 48.9 | 51.8 | 47.7 | 42.0 | 52.7 | 61.2 |
/// | 16, 32 | | | | 88.4 | 104.5 | 115.5 |
/// | 4, 2 | | | | 1.6 | 2.0 | 2.0 |
const SHARED_ROWS: usize = ROWS;

#[cfg(test)]
std::thread_local! {
    /// Spans of K and V of one head that this thread's calls have read, on whatever threads.
    pub(super) static SPANS_READ: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// Memory of the thread that calls, kept from call to call.
#[derive(Default)]
struct Plan {
    parts: Vec<Part>,
    tasks: Vec<Task>,
    /// States that spans left.
    left: Vec<f32>,
    /// States of rows between two phases.
    paused: Vec<f32>,
}

/// One call: queries of a prepared step over one layer. Shapes are checked.
pub(super) struct Call<'a, E> {
    pub(super) level: Level,
    pub(super) prepared: &'a Prepared,
    pub(super) geometry: &'a Geometry,
    pub(super) block_size: u32,
    pub(super) elems: &'a [E],
    pub(super) q: CpuTensor<'a>,
    pub(super) out: SharedOut<'a>,
    pub(super) rules: &'a Rules<'a>,
}

impl<E: Stored> Call<'_, E> {
    /// Runs all phases, on the threads of the current `rayon` pool if there is enough to do.
    pub(super) fn run(&self) {
        let threads = if self.muladds() < SERIAL_MULADDS { 1 } else { threads() };
        // Taken out, and not borrowed: a thread that waits below may take another call's work meanwhile.
        let Plan { mut parts, mut tasks, mut left, mut paused } = PLAN.take();
        let paused_rows = self.pausing(&mut paused);
        let mut phase = |parts: &[Part]| {
            Phase { call: self, parts, paused: paused_rows.as_ref() }.run(threads, &mut tasks, &mut left);
        };
        let prefixes = if paused_rows.is_some() { self.prepared.cascade().prefixes() } else { &[] };
        let mut index = 0;
        for level in prefixes.chunk_by(|one, next| one.level == next.level) {
            parts.clear();
            for prefix in level {
                if self.sees(prefix.reach) {
                    parts.extend(Part::prefix(index, prefix, SHARED_ROWS / self.group()));
                }
                index += 1;
            }
            phase(&parts);
        }
        parts.clear();
        parts.extend((0..self.prepared.tiles().len()).map(Part::Row));
        phase(&parts);
        PLAN.set(Plan { parts, tasks, left, paused });
    }

    /// What the call costs, were nothing shared.
    fn muladds(&self) -> u64 {
        let per_pair = self.q.heads().saturating_mul(self.geometry.k_dim + self.geometry.v_dim);
        let [per_pair, tokens] = [per_pair, self.prepared.slots().len()].map(|n| u64::try_from(n).unwrap_or(u64::MAX));
        let window = self.rules.window.map_or(u64::MAX, |keys| u64::try_from(keys).unwrap_or(u64::MAX));
        self.prepared.pairs().min(tokens.saturating_mul(window)).saturating_mul(per_pair)
    }

    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.q.heads() / self.geometry.kv_heads
    }

    /// Whether every query of sequences up to so long sees the first position.
    fn sees(&self, reach: usize) -> bool {
        self.rules.window.is_none_or(|keys| reach <= keys)
    }

    /// Room for the states of all rows that share something, `[queries, q_heads, v_dim + 2]`, or none where prefixes are
    /// not to be walked together.
    fn pausing<'p>(&self, memory: &'p mut Vec<f32>) -> Option<SharedOut<'p>> {
        let cascade = self.prepared.cascade();
        let pays = 2 * self.group() <= SHARED_ROWS && cascade.prefixes().iter().any(|prefix| self.sees(prefix.reach));
        let shape = [cascade.queries().len(), self.q.heads(), self.geometry.v_dim + 2];
        let len = shape.into_iter().try_fold(1, usize::checked_mul).filter(|&len| pays && len <= MOST_LEFT)?;
        grow(memory, len).then(|| CpuTensorMut::new(memory, shape).share("paused", shape).ok()).flatten()
    }
}

/// Makes a buffer this long at least, where there is memory.
fn grow(buffer: &mut Vec<f32>, len: usize) -> bool {
    let more = len.saturating_sub(buffer.len());
    let room = buffer.try_reserve(more).is_ok();
    if room && more > 0 {
        buffer.resize(len, 0.0);
    }
    room
}

/// Threads that work can be split among.
fn threads() -> usize {
    #[cfg(feature = "rayon")]
    return rayon::current_num_threads();
    #[cfg(not(feature = "rayon"))]
    1
}

/// Runs tasks, on all threads if they are several.
fn each(threads: usize, tasks: usize, run: impl Fn(usize) + Sync) {
    #[cfg(feature = "rayon")]
    if threads > 1 {
        use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
        // A task is long enough to be stolen alone, and tasks differ in length.
        return (0..tasks).into_par_iter().with_max_len(1).for_each(&run);
    }
    let _ = threads;
    (0..tasks).for_each(run);
}
