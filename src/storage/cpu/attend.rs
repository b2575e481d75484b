//! Attention of a prepared step: the split into tasks, and the threads that take them.
//!
//! A task is a tile of queries over some KV heads. Where there are few of them, or some are far longer than the others,
//! a tile is shared by several tasks, each of which walks some spans of its context and leaves their states; what they
//! left is joined when all are done. By the law of [`kernel`](super::kernel) that changes no bit.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Range;

use super::element::Stored;
use super::geometry::Geometry;
use super::isa::Level;
use super::kernel::{Attend, ROWS, Rules, Scratch, Target, Tile};
use super::prepared::{Prepared, QueryTile};
use super::shared::Shared;
use super::tensor::{CpuTensor, OutTile, SharedOut};
use crate::id::ix;

/// Multiply-adds below which waking other threads costs more than they save: about 10 µs of one core.
const SERIAL_MULADDS: u64 = 1 << 18;

/// Tasks that every thread should find, so that all end at about the same time.
const TASKS_PER_THREAD: usize = 4;

/// Numbers in the states of a call, at most: 64 MiB. A tile that would need more is divided by heads alone. (A context of
/// a million tokens and 32 query heads of 128 elements takes 65, one of 64 thousand 4.)
const MOST_LEFT: usize = 1 << 24;

/// Numbers in the states that tasks leave up to which one thread joins them: half a MiB, some 20 µs.
const SERIAL_JOIN: usize = 1 << 17;

std::thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static PLAN: RefCell<Plan> = RefCell::default();
}

/// Memory of the thread that calls, kept from call to call.
#[derive(Default)]
struct Plan {
    tasks: Vec<Task>,
    /// States that spans left.
    left: Vec<f32>,
}

/// A tile, or some spans of it, over some KV heads.
#[derive(Clone, Debug)]
struct Task {
    tile: usize,
    heads: Range<usize>,
    spans: Range<usize>,
    /// Where the states of the tile over these heads are left, in states of one row and span, if others walk it too.
    left: Option<usize>,
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
    /// Runs all tasks, on the threads of the current `rayon` pool if there is enough to do. Which thread takes which
    /// task changes nothing: each writes rows of its own and shares nothing with others.
    pub(super) fn run(&self) {
        let threads = if self.muladds() < SERIAL_MULADDS { 1 } else { threads() };
        // Taken out, and not borrowed: a thread that waits below may take another call's work meanwhile.
        let Plan { mut tasks, mut left } = PLAN.take();
        let state_len = self.geometry.v_dim + 2;
        let mut states = self.plan(threads, MOST_LEFT / state_len, &mut tasks);
        let more = (states * state_len).saturating_sub(left.len());
        if left.try_reserve(more).is_err() {
            states = self.plan(threads, 0, &mut tasks);
        } else if more > 0 {
            left.resize(states * state_len, 0.0);
        }
        let shared = Shared::new(&mut left);
        each(threads, tasks.len(), |index| self.walk(&tasks[index], &shared));
        // The first of the tasks that share a tile and its heads.
        tasks.retain(|task| task.left.is_some() && task.spans.start == self.tile(task).spans().start);
        let threads = if states * state_len > SERIAL_JOIN { threads } else { 1 };
        each(threads, tasks.len(), |index| self.join(&tasks[index], &left));
        tasks.clear();
        PLAN.set(Plan { tasks, left });
    }

    /// Lists the tasks, and returns how many states they leave: at most `most`.
    fn plan(&self, threads: usize, most: usize, tasks: &mut Vec<Task>) -> usize {
        let kv_heads = self.geometry.kv_heads;
        let tiles = self.prepared.tiles().len();
        let whole = |tile| Task { tile, heads: 0..kv_heads, spans: 0..0, left: None };
        // What a tile costs: its rows are walked over together, and their number is much the same.
        let cost = |tile: &Tile<'_, E>| tile.spans().len() * tile.tokens;
        let total: usize = (0..tiles).map(|tile| cost(&self.tile(&whole(tile)))).sum();
        let share = if threads == 1 { total } else { total.div_ceil(threads * TASKS_PER_THREAD) };
        let mut states = 0;
        tasks.clear();
        for index in 0..tiles {
            let tile = self.tile(&whole(index));
            let spans = tile.spans();
            let pieces = cost(&tile).div_ceil(share.max(1));
            let bundles = kv_heads.div_ceil((ROWS / tile.rows()).max(1));
            // Spans are divided among tasks before heads that go together are parted: to part them is to read K and V in
            // smaller pieces.
            let parts = pieces.div_ceil(bundles).clamp(1, spans.len().max(1));
            let needed = spans.len() * kv_heads * tile.rows();
            let parts = if states + needed > most { 1 } else { parts };
            let bundles = bundles.max(pieces / parts).min(kv_heads);
            for bundle in 0..bundles {
                let heads = kv_heads * bundle / bundles..kv_heads * (bundle + 1) / bundles;
                let left = (parts > 1).then_some(states);
                states += left.map_or(0, |_| spans.len() * heads.len() * tile.rows());
                let at = |part: usize| spans.start + spans.len() * part / parts;
                tasks.extend((0..parts).map(|part| Task {
                    tile: index,
                    heads: heads.clone(),
                    spans: at(part)..at(part + 1),
                    left,
                }));
            }
        }
        states
    }

    /// What the call costs.
    fn muladds(&self) -> u64 {
        let per_pair = self.q.heads().saturating_mul(self.geometry.k_dim + self.geometry.v_dim);
        let [per_pair, tokens] = [per_pair, self.prepared.slots().len()].map(|n| u64::try_from(n).unwrap_or(u64::MAX));
        let window = self.rules.window.map_or(u64::MAX, |keys| u64::try_from(keys).unwrap_or(u64::MAX));
        self.prepared.pairs().min(tokens.saturating_mul(window)).saturating_mul(per_pair)
    }

    /// Query heads of some KV heads.
    fn query_heads(&self, heads: &Range<usize>) -> Range<usize> {
        let group = self.q.heads() / self.geometry.kv_heads;
        heads.start * group..heads.end * group
    }

    fn tile(&self, task: &Task) -> Tile<'_, E> {
        let tile: &QueryTile = &self.prepared.tiles()[task.tile];
        Tile {
            elems: self.elems,
            geometry: self.geometry,
            heads: task.heads.clone(),
            block_size: ix(self.block_size),
            table: self.prepared.table(tile),
            row_start: ix(tile.row_start),
            row_tokens: ix(tile.row_tokens),
            skipped: ix(tile.skipped),
            first_token: ix(tile.first_token),
            tokens: ix(tile.len),
            group: self.q.heads() / self.geometry.kv_heads,
            q: self.q,
            rules: self.rules,
        }
    }

    /// The output of a task.
    ///
    /// # Safety
    /// At most one of the tasks that run together, among those with the same tile and heads, may have it.
    unsafe fn out(&self, task: &Task) -> OutTile<'_> {
        let tokens = Prepared::tokens(&self.prepared.tiles()[task.tile]);
        // SAFETY: tasks with another tile have other tokens, as tiles are disjoint ranges of query tokens; those with
        // other KV heads have other query heads, as `plan` divides the KV heads; the rest is the contract.
        unsafe { self.out.claim(tokens, self.query_heads(&task.heads)) }
    }

    /// Runs a task, into the output or, where the tile is shared, into the states.
    fn walk(&self, task: &Task, states: &Shared<'_, f32>) {
        let tile = self.tile(task);
        let Some(left) = task.left else {
            // SAFETY: tasks run once each, and that of a tile that is not shared is the only one with its heads.
            let out = unsafe { self.out(task) };
            return self.work(tile, Target::Finish(out));
        };
        let per_span = tile.heads.len() * tile.rows();
        let at = |span: usize| (left + (span - tile.spans().start) * per_span) * (self.geometry.v_dim + 2);
        let (first, end) = (at(task.spans.start), at(task.spans.end));
        // SAFETY: tiles and bundles of heads have states of their own, by `plan`; among those, a span has the
        // `per_span` ones from `at` on; and two tasks with the same tile and heads have no span in common.
        let left = unsafe { states.claim(first..end) };
        self.work(tile, Target::Leave(task.spans.clone(), left));
    }

    /// Joins the states that the tasks with this task's tile and heads left.
    fn join(&self, task: &Task, left: &[f32]) {
        let tile = self.tile(task);
        let state_len = self.geometry.v_dim + 2;
        let states = tile.spans().len() * tile.heads.len() * tile.rows();
        let left = &left[task.left.unwrap_or(0) * state_len..][..states * state_len];
        // SAFETY: one task for each tile and heads is left, and runs once; those before have ended.
        let out = unsafe { self.out(task) };
        self.work(tile, Target::Join(left, out));
    }

    fn work(&self, tile: Tile<'_, E>, target: Target<'_>) {
        // Nothing in a tile calls back or waits, so that the borrow is the thread's only one.
        SCRATCH.with_borrow_mut(|scratch| self.level.run(Attend { tile, target, scratch }));
    }
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
