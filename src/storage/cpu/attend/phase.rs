//! One phase of a call: parts that need nothing of each other, the split into tasks, and the threads that take them.
//!
//! A task is a tile of queries over some KV heads. Where there are few of them, or some are far longer than the others,
//! a tile is shared by several tasks, each of which walks some spans of its context and leaves their states; what they
//! left is joined when all are done. By the law of [`kernel`](crate::storage::cpu::kernel) that changes no bit.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;

use super::{Call, MOST_LEFT, SCRATCH, each, grow};
use crate::id::ix;
use crate::storage::cpu::cascade::Prefix;
use crate::storage::cpu::element::Stored;
use crate::storage::cpu::kernel::{Attend, Ends, ROWS, SPAN, Target, Tile};
use crate::storage::cpu::shared::Shared;
use crate::storage::cpu::tensor::SharedOut;

/// Tasks that every thread should find, so that all end at about the same time.
const TASKS_PER_THREAD: usize = 4;

/// Numbers in the states that tasks leave up to which one thread joins them: half a MiB, some 20 µs.
const SERIAL_JOIN: usize = 1 << 17;

/// What a tile is of.
#[derive(Clone, Debug)]
pub(super) enum Part {
    /// One of the step's tiles, over what its rows have for themselves.
    Row(usize),
    /// One of the cascade's prefixes, for some of the queries that share it.
    Prefix(usize, Range<usize>),
}

impl Part {
    /// A prefix, divided into as few tiles of up to `most` queries as will do, all about the same.
    pub(super) fn prefix(index: usize, prefix: &Prefix, most: usize) -> impl Iterator<Item = Self> {
        let (first, len) = (prefix.queries.start, prefix.queries.len());
        let tiles = len.div_ceil(most);
        let at = move |tile| first + len * tile / tiles;
        (0..tiles).map(move |tile| Self::Prefix(index, at(tile)..at(tile + 1)))
    }
}

/// A tile, or some spans of it, over some KV heads.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// Of which part.
    part: usize,
    heads: Range<usize>,
    spans: Range<usize>,
    /// Where the states of the tile over these heads are left, in states of one row and span, if others walk it too.
    left: Option<usize>,
}

/// See the [module](self).
pub(super) struct Phase<'a, E> {
    pub(super) call: &'a Call<'a, E>,
    /// No two have a query in common.
    pub(super) parts: &'a [Part],
    /// States of the rows that share something, if prefixes are walked together.
    pub(super) paused: Option<&'a SharedOut<'a>>,
}

impl<E: Stored> Phase<'_, E> {
    /// Runs all tasks. Which thread takes which changes nothing: each writes rows of its own and shares nothing with
    /// others.
    pub(super) fn run(&self, threads: usize, tasks: &mut Vec<Task>, left: &mut Vec<f32>) {
        let state_len = self.call.geometry.v_dim + 2;
        let mut states = self.plan(threads, MOST_LEFT / state_len, tasks);
        if !grow(left, states * state_len) {
            states = self.plan(threads, 0, tasks);
        }
        #[cfg(test)]
        super::SPANS_READ.set(super::SPANS_READ.get() + self.spans_read(tasks));
        let shared = Shared::new(left);
        each(threads, tasks.len(), |index| self.walk(&tasks[index], &shared));
        // The first of the tasks that share a tile and its heads.
        tasks.retain(|task| task.left.is_some() && task.spans.start == self.tile(task).spans().start);
        let threads = if states * state_len > SERIAL_JOIN { threads } else { 1 };
        each(threads, tasks.len(), |index| self.join(&tasks[index], left));
    }

    /// Lists the tasks, and returns how many states they leave: at most `most`.
    fn plan(&self, threads: usize, most: usize, tasks: &mut Vec<Task>) -> usize {
        let kv_heads = self.call.geometry.kv_heads;
        let whole = |part| Task { part, heads: 0..kv_heads, spans: 0..0, left: None };
        // What a tile costs: its rows are walked over together, and their number is much the same.
        let cost = |tile: &Tile<'_, E>| tile.spans().len() * tile.queries.len();
        let total: usize = (0..self.parts.len()).map(|part| cost(&self.tile(&whole(part)))).sum();
        let share = if threads == 1 { total } else { total.div_ceil(threads * TASKS_PER_THREAD) };
        let mut states = 0;
        tasks.clear();
        for part in 0..self.parts.len() {
            let tile = self.tile(&whole(part));
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
                let at = |piece: usize| spans.start + spans.len() * piece / parts;
                tasks.extend((0..parts).map(|piece| Task {
                    part,
                    heads: heads.clone(),
                    spans: at(piece)..at(piece + 1),
                    left,
                }));
            }
        }
        states
    }

    /// Spans of K and V of one head that tasks read.
    #[cfg(test)]
    fn spans_read(&self, tasks: &[Task]) -> usize {
        let walk = |task: &Task| if task.left.is_some() { task.spans.len() } else { self.tile(task).spans().len() };
        tasks.iter().map(|task| walk(task) * task.heads.len() * self.tile(task).rows().div_ceil(ROWS)).sum()
    }

    fn tile(&self, task: &Task) -> Tile<'_, E> {
        let Call { prepared, geometry, elems, q, rules, .. } = *self.call;
        let (blocks, cascade, block_size) = (prepared.blocks(), prepared.cascade(), ix(self.call.block_size));
        let (queries, table, row_start, end, walked) = match &self.parts[task.part] {
            Part::Row(index) => {
                let tile = &prepared.tiles()[*index];
                let first = ix(tile.first_token);
                let [row_start, row_tokens] = [tile.row_start, tile.row_tokens].map(ix);
                let queries = &prepared.queries()[first..first + ix(tile.len)];
                let table = &blocks[tile.table..][..tile.blocks];
                (queries, table, row_start, row_start + row_tokens, self.walked(*index))
            }
            Part::Prefix(index, queries) => {
                let prefix = &cascade.prefixes()[*index];
                let end = prefix.spans.end * SPAN;
                let table = &blocks[prefix.table..][..end.div_ceil(block_size)];
                (&cascade.queries()[queries.clone()], table, end, end, prefix.spans.start)
            }
        };
        let (heads, group) = (task.heads.clone(), self.call.group());
        Tile { elems, geometry, heads, block_size, table, queries, row_start, end, walked, group, q, rules }
    }

    /// Leading spans of one of the step's tiles that were walked together with others.
    fn walked(&self, tile: usize) -> usize {
        let role = &self.call.prepared.tiles()[tile].role;
        if self.paused.is_some() && self.call.sees(role.reach) { role.spans } else { 0 }
    }

    /// Where the rows of a task begin and end.
    ///
    /// # Safety
    /// At most one of the tasks that run together, among those with the same part and heads, may have it.
    unsafe fn ends(&self, task: &Task) -> Ends<'_> {
        let group = self.call.group();
        let heads = task.heads.start * group..task.heads.end * group;
        // SAFETY: parts have no query in common, and each has a place of its own among those of the cascade; tasks of one
        // part with other KV heads have other query heads, as `plan` divides the KV heads; the rest is the contract.
        let claim = |queries| self.paused.map(|paused| unsafe { paused.claim(queries, heads.clone()) });
        match &self.parts[task.part] {
            Part::Row(index) => {
                let tile = &self.call.prepared.tiles()[*index];
                let (first, len) = (ix(tile.first_token), ix(tile.len));
                // SAFETY: other parts have other tokens, as tiles are disjoint ranges of query tokens; else as above.
                let out = unsafe { self.call.out.claim(first..first + len, heads.clone()) };
                let (resume, place) = (self.walked(*index) > 0, tile.role.place);
                let paused = if resume { claim(place..place + len) } else { None };
                Ends { paused, place, resume, out: Some(out) }
            }
            Part::Prefix(index, queries) => {
                let resume = self.call.prepared.cascade().prefixes()[*index].level > 1;
                Ends { paused: claim(queries.clone()), place: queries.start, resume, out: None }
            }
        }
    }

    /// Runs a task, to its end or, where the tile is shared, into the states.
    fn walk(&self, task: &Task, states: &Shared<'_, f32>) {
        let tile = self.tile(task);
        let Some(left) = task.left else {
            // SAFETY: tasks run once each, and that of a tile that is not shared is the only one with its heads.
            let ends = unsafe { self.ends(task) };
            return self.work(tile, Target::Finish(ends));
        };
        let per_span = tile.heads.len() * tile.rows();
        let at = |span: usize| (left + (span - tile.spans().start) * per_span) * (self.call.geometry.v_dim + 2);
        let (first, end) = (at(task.spans.start), at(task.spans.end));
        // SAFETY: tiles and bundles of heads have states of their own, by `plan`; among those, a span has the
        // `per_span` ones from `at` on; and two tasks with the same tile and heads have no span in common.
        let left = unsafe { states.claim(first..end) };
        self.work(tile, Target::Leave(task.spans.clone(), left));
    }

    /// Joins the states that the tasks with this task's tile and heads left.
    fn join(&self, task: &Task, left: &[f32]) {
        let tile = self.tile(task);
        let state_len = self.call.geometry.v_dim + 2;
        let states = tile.spans().len() * tile.heads.len() * tile.rows();
        let left = &left[task.left.unwrap_or(0) * state_len..][..states * state_len];
        // SAFETY: one task for each tile and heads is left, and runs once; those before have ended.
        let ends = unsafe { self.ends(task) };
        self.work(tile, Target::Join(left, ends));
    }

    fn work(&self, tile: Tile<'_, E>, target: Target<'_>) {
        // Nothing in a tile calls back or waits, so that the borrow is the thread's only one.
        SCRATCH.with_borrow_mut(|scratch| self.call.level.run(Attend { tile, target, scratch }));
    }
}
