//! Attention of a prepared step: the split into tiles, and the threads that take them.
#![allow(unsafe_code)]

use core::cell::RefCell;

use super::element::Stored;
use super::geometry::Geometry;
use super::isa::Level;
use super::kernel::{Attend, Scratch, Tile};
use super::prepared::Prepared;
use super::tensor::{CpuTensor, SharedOut};
use crate::id::ix;

/// Multiply-adds below which waking other threads costs more than they save: about 10 µs of one core.
const SERIAL_MULADDS: u64 = 1 << 18;

std::thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
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
    /// What scores are multiplied by before the softmax.
    pub(super) scale: f32,
}

impl<E: Stored> Call<'_, E> {
    /// Runs all tiles, on the threads of the current `rayon` pool if there is enough to do. Which thread takes which
    /// tile changes nothing: each writes rows of its own and shares nothing with others.
    pub(super) fn run(&self) {
        let tasks = self.prepared.tiles().len() * self.geometry.kv_heads;
        if tasks > 1 && self.muladds() >= SERIAL_MULADDS {
            self.run_all(tasks);
        } else {
            (0..tasks).for_each(|task| self.task(task));
        }
    }

    #[cfg(feature = "rayon")]
    fn run_all(&self, tasks: usize) {
        use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
        if rayon::current_num_threads() == 1 {
            return (0..tasks).for_each(|task| self.task(task));
        }
        // A task is long enough to be stolen alone, and tasks differ widely in length.
        (0..tasks).into_par_iter().with_max_len(1).for_each(|task| self.task(task));
    }

    #[cfg(not(feature = "rayon"))]
    fn run_all(&self, tasks: usize) {
        (0..tasks).for_each(|task| self.task(task));
    }

    /// What the call costs.
    fn muladds(&self) -> u64 {
        let per_pair = self.q.heads().saturating_mul(self.geometry.k_dim + self.geometry.v_dim);
        self.prepared.pairs().saturating_mul(u64::try_from(per_pair).unwrap_or(u64::MAX))
    }

    /// One tile of queries over one KV head.
    fn task(&self, task: usize) {
        let Geometry { kv_heads, .. } = *self.geometry;
        let tile = &self.prepared.tiles()[task / kv_heads];
        let kv_head = task % kv_heads;
        let group = self.q.heads() / kv_heads;
        let tokens = Prepared::tokens(tile);
        // SAFETY: tasks run once each. Two of them differ in their tile, and tiles are disjoint ranges of query
        // tokens; or in their KV head, and then in the query heads that belong to it.
        let out = unsafe { self.out.claim(tokens.clone(), kv_head * group..(kv_head + 1) * group) };
        let tile = Tile {
            elems: self.elems,
            geometry: self.geometry,
            kv_head,
            block_size: ix(self.block_size),
            table: self.prepared.table(tile),
            start: ix(tile.start),
            first_token: tokens.start,
            tokens: tokens.len(),
            group,
            q: self.q,
            scale: self.scale * core::f32::consts::LOG2_E,
        };
        // Nothing in a tile calls back or waits, so that the borrow is the thread's only one.
        SCRATCH.with_borrow_mut(|scratch| self.level.run(Attend { tile, out, scratch }));
    }
}
