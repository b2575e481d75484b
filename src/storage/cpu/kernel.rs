//! Attention of a tile of queries over one KV head, written once for every instruction set and element type.
//!
//! A tile is a run of query tokens of one step row, times the query heads of one KV head: its *rows*, token-major, so
//! that all heads of a token stand together and each line of K and V is used for all of them. The context is walked in
//! chunks of [`CHUNK`] positions, whatever the block size, with an online softmax (Milakov & Gimelshein 2018): per row
//! a running maximum, a running sum, and a running weighted sum of V.
//!
//! **The law of this file:** the operations that make one output row, and their order, depend on its position and on
//! nothing else. Neither tiling, nor the block size, nor the other rows of the batch can change a bit:
//!
//! * a score is one vector accumulator over `dim` in steps of eight, then one fixed tree ([`Isa::sums`]);
//! * the weights of a chunk are summed in eight lanes and a fixed tree; positions beyond the row's own weigh exactly 0;
//! * a chunk's weighted V is summed from zero in the order of positions, per element, over the row's own positions
//!   only, then joined to the running sum by one multiply-add.
//!
//! Tiles of rows see the same positions, except at the causal diagonal, where rows are taken one by one.

mod state;

use alloc::vec::Vec;

use state::{Chunk, State};

use super::element::Stored;
use super::geometry::Geometry;
use super::isa::{Isa, LANES, Lane, Work};
use super::tensor::{CpuTensor, OutTile};
use crate::id::BlockId;

/// Positions of a chunk. Part of the definition of the result, like the order of operations.
const CHUNK: usize = 64;

/// Rows that share one walk over the context: 64 rows of 128 elements keep 64 KiB of state, within a second-level
/// cache together with a chunk of K and V.
const ROWS: usize = 64;

/// From this many rows on, a chunk of 16-bit K and V is widened once instead of once per four rows.
const WIDEN_ROWS: usize = 9;

/// One tile of queries over one KV head.
pub(super) struct Tile<'a, E> {
    /// The allocation of the layer.
    pub(super) elems: &'a [E],
    pub(super) geometry: &'a Geometry,
    pub(super) kv_head: usize,
    pub(super) block_size: usize,
    /// The blocks of the step row, at least up to the last query's position; all inside the pool.
    pub(super) table: &'a [BlockId],
    /// Position in the sequence of the first query.
    pub(super) start: usize,
    /// The first query among the query tokens of the step.
    pub(super) first_token: usize,
    /// Query tokens of the tile.
    pub(super) tokens: usize,
    /// Query heads per KV head.
    pub(super) group: usize,
    pub(super) q: CpuTensor<'a>,
    /// What scores are multiplied by, times log₂ e: the softmax is taken to base 2.
    pub(super) scale: f32,
}

/// Memory of one thread, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Queries: `[ROWS, ⌈k_dim / 8⌉]` lanes, zero beyond `k_dim`.
    q: Vec<Lane>,
    /// Weighted sums of V: `[ROWS, ⌈v_dim / 8⌉]` lanes.
    acc: Vec<Lane>,
    /// A widened chunk of K, `[CHUNK, k_dim]`.
    k: Vec<f32>,
    /// A widened chunk of V, `[CHUNK, v_dim]`.
    v: Vec<f32>,
}

impl Scratch {
    /// Makes room for heads of these sizes; grows and never shrinks.
    fn fit(&mut self, k_dim: usize, v_dim: usize) {
        fn grow<T: Copy>(buffer: &mut Vec<T>, len: usize, zero: T) {
            if buffer.len() < len {
                buffer.resize(len, zero);
            }
        }
        grow(&mut self.q, ROWS * k_dim.div_ceil(LANES), Lane::ZERO);
        grow(&mut self.acc, ROWS * v_dim.div_ceil(LANES), Lane::ZERO);
        grow(&mut self.k, CHUNK * k_dim, 0.0);
        grow(&mut self.v, CHUNK * v_dim, 0.0);
    }
}

/// A tile and the memory to work in.
pub(super) struct Attend<'a, E> {
    pub(super) tile: Tile<'a, E>,
    /// The tile's rows of the output.
    pub(super) out: OutTile<'a>,
    pub(super) scratch: &'a mut Scratch,
}

impl<E: Stored> Work for Attend<'_, E> {
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let Geometry { k_dim, v_dim, .. } = *self.tile.geometry;
        self.scratch.fit(k_dim, v_dim);
        let rows = self.tile.tokens * self.tile.group;
        let mut first = 0;
        while first < rows {
            let len = ROWS.min(rows - first);
            self.tile.rows(isa, self.scratch, &mut self.out, first, len);
            first += len;
        }
    }
}

impl<E: Stored> Tile<'_, E> {
    /// Position in the sequence of a row's query.
    #[inline(always)]
    fn position(&self, row: usize) -> usize {
        self.start + row / self.group
    }

    /// Rows `first .. first + rows` of the tile, from query to output.
    #[inline(always)]
    fn rows<I: Isa>(&self, isa: I, scratch: &mut Scratch, out: &mut OutTile<'_>, first: usize, rows: usize) {
        let Geometry { k_dim, v_dim, .. } = *self.geometry;
        let Scratch { q, acc, k: wide_k, v: wide_v } = scratch;
        for row in 0..rows {
            let (token, head) = self.query(first + row);
            self.q.lanes(token, head, &mut q[row * k_dim.div_ceil(LANES)..]);
        }
        let mut state = State::new(q, acc, rows, k_dim, v_dim, self.scale);
        // The last row sees most: no position beyond its own is touched.
        let end = self.position(first + rows - 1) + 1;
        let wide = E::WIDE || rows < WIDEN_ROWS;
        let mut keys: [&[E]; CHUNK] = [&[]; CHUNK];
        let mut values: [&[E]; CHUNK] = [&[]; CHUNK];
        let mut ahead: [&[E]; CHUNK] = [&[]; CHUNK];
        self.gather_keys(0, &mut keys[..CHUNK.min(end)]);
        let mut from = 0;
        while from < end {
            let n = CHUNK.min(end - from);
            let n_ahead = CHUNK.min(end - from - n);
            self.gather_values(from, &mut values[..n]);
            self.gather_keys(from + n, &mut ahead[..n_ahead]);
            let visible = |row| (self.position(first + row) + 1).saturating_sub(from).min(n);
            if wide {
                let chunk = Chunk { keys: &keys[..n], values: &values[..n], ahead: &ahead[..n_ahead] };
                state.chunk(isa, rows, &chunk, visible);
            } else {
                // Rows of a widened chunk are contiguous; widening is exact, so that the bits are those of above.
                let mut wide_keys: [&[f32]; CHUNK] = [&[]; CHUNK];
                let mut wide_values: [&[f32]; CHUNK] = [&[]; CHUNK];
                widen(&keys[..n], wide_k, k_dim, &mut wide_keys);
                widen(&values[..n], wide_v, v_dim, &mut wide_values);
                let chunk = Chunk { keys: &wide_keys[..n], values: &wide_values[..n], ahead: &[] };
                state.chunk(isa, rows, &chunk, visible);
            }
            keys = ahead;
            from += n;
        }
        for row in 0..rows {
            let (token, head) = self.query(first + row);
            state.finish(row, out.head(token, head));
        }
    }

    /// Token and query head, in the tensors of the whole step, of a row of this tile.
    #[inline(always)]
    fn query(&self, row: usize) -> (usize, usize) {
        (self.first_token + row / self.group, self.kv_head * self.group + row % self.group)
    }

    /// Points each of `to` at the elements of a position, by its block and offset; the first position is `from`.
    #[inline(always)]
    fn gather<'s>(&'s self, from: usize, mut to: &mut [&'s [E]], elems: impl Fn(usize, usize) -> &'s [E]) {
        let mut offset = from % self.block_size;
        for id in &self.table[from / self.block_size..] {
            let (here, later) = to.split_at_mut(to.len().min(self.block_size - offset));
            for (to, offset) in here.iter_mut().zip(offset..) {
                *to = elems(id.index(), offset);
            }
            if later.is_empty() {
                break;
            }
            (to, offset) = (later, 0);
        }
    }

    /// K of the positions `from ..`, as many as there is room for.
    #[inline(always)]
    fn gather_keys<'s>(&'s self, from: usize, keys: &mut [&'s [E]]) {
        let Geometry { k, k_dim, .. } = self.geometry;
        self.gather(from, keys, |block, offset| &self.elems[k.elem(block, self.kv_head, offset)..][..*k_dim]);
    }

    /// V of the positions `from ..`, as many as there is room for.
    #[inline(always)]
    fn gather_values<'s>(&'s self, from: usize, values: &mut [&'s [E]]) {
        let Geometry { v, v_dim, .. } = self.geometry;
        self.gather(from, values, |block, offset| &self.elems[v.elem(block, self.kv_head, offset)..][..*v_dim]);
    }
}

/// Widens rows into `scratch`, one after the other, and points `to` at them.
#[inline(always)]
fn widen<'s, E: Stored>(from: &[&[E]], scratch: &'s mut [f32], dim: usize, to: &mut [&'s [f32]; CHUNK]) {
    for ((from, wide), to) in from.iter().zip(scratch.chunks_exact_mut(dim)).zip(to) {
        E::widen(from, wide);
        *to = wide;
    }
}
