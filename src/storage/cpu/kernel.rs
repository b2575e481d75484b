//! Attention of a tile of queries over some KV heads, written once for every instruction set and element type.
//!
//! A tile is a run of query tokens of one step row, or query tokens of several that begin with the same blocks and are
//! walked over these together. Over one KV head these are its *rows*: tokens times query heads of that KV head,
//! token-major, so that all heads of a token stand together and each line of K and V is used for all of them. A tile of
//! few rows takes several KV heads along, chunk by chunk: then K and V are read in the order of memory, a block of all
//! heads after the other, which is what a processor's prefetcher follows. The context is cut into
//! *spans* of [`SPAN`] positions, a span into *chunks* of [`CHUNK`], whatever the block size; chunks are walked with an
//! online softmax (Milakov & Gimelshein 2018): per row a running maximum, a running sum, and a running weighted sum of
//! V. Spans start afresh and are joined in their order, so that threads can share a long context.
//!
//! **The law of this file:** the operations that make one output row, and their order, depend on its position and on
//! the call's parameters, and on nothing else. Neither tiling, nor the split among threads, nor the block size, nor the
//! other rows of the batch can change a bit:
//!
//! * a score is one vector accumulator over `dim`, then one fixed tree ([`Isa::sums`]), then, where elements have scales,
//!   a multiplication by that of the key;
//! * the weights of a chunk are those of the positions that the row sees, in their order, summed in fixed lanes and by
//!   a fixed tree;
//! * where elements have scales, a weight is multiplied by that of the value after it was summed;
//! * a chunk's weighted V is summed from zero in the order of positions, per element, over the positions that the row
//!   sees only, then joined to the sum of the span by one multiply-add;
//! * spans are joined from the first that the row sees anything of to the last, each by the same two factors.
//!
//! A chunk is met in three phases, each for all rows before the next: products of queries and K ([`scores`]), softmax,
//! weighted sum of V ([`meet`]). So one of K and V is in the first-level cache at a time, and not both. Rows see the same
//! positions, except at the causal diagonal, at the edge of a window and under a mask: there the products are taken for
//! all rows, and from the softmax on the heads of one token go together, with the columns that it sees.

mod coming;
mod ends;
mod meet;
mod pass;
mod rules;
mod scores;
mod scratch;
mod state;

use core::ops::Range;

use pass::Pass;
use state::State;

use super::element::Stored;
use super::isa::{Isa, Work};
use super::rows::Rows;
use super::tensor::CpuTensor;
use crate::id::{BlockId, ix};
use crate::storage::geometry::{Geometry, Strides};

pub(super) use ends::Ends;
pub(super) use rules::Rules;
pub(super) use scratch::Scratch;

/// Positions of a chunk. Part of the definition of the result, like the order of operations.
pub(super) const CHUNK: usize = 64;

/// Positions of a span: as few as make the joining of two cheap beside the reading of one (a head of 128 elements in 16
/// bits is 128 KiB of K and V, and half a KiB of state per query head). Part of the definition of the result.
pub(super) const SPAN: usize = 4 * CHUNK;

/// Rows, of all its KV heads together, that share one walk over the context: 128 rows of 128 elements keep 128 KiB of
/// state and 96 KiB of queries and scores, within a second-level cache together with a chunk of K and V.
pub(super) const ROWS: usize = 128;

/// From this many rows on, a chunk of K is transposed once for all of them (see [`scores`]), and one of V in 16 bits
/// widened once instead of once per eight rows. With 16 rows both cost more than they save.
const MANY_ROWS: usize = 24;

/// A query token of the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Query {
    /// Its number among those of the step.
    pub(super) token: u32,
    /// Its position in its sequence.
    pub(super) position: u32,
}

/// One tile of queries over some KV heads.
pub(super) struct Tile<'a, E> {
    /// The allocation of the layer.
    pub(super) elems: &'a [E],
    pub(super) geometry: &'a Geometry,
    /// The KV heads: one, or as many as have [`ROWS`] rows together.
    pub(super) heads: Range<usize>,
    pub(super) block_size: usize,
    /// The blocks of the context, at least up to `end`; all inside the pool.
    pub(super) table: &'a [BlockId],
    /// Query tokens of a step row, one after the other; or of several, all of which see all positions before `end`.
    pub(super) queries: &'a [Query],
    /// Position of the first query token of the step row, which a mask is about; `end` where there are several rows.
    pub(super) row_start: usize,
    /// Where what the tile looks at ends: the step row, or what several of them share.
    pub(super) end: usize,
    /// Leading spans that the rows have behind them: [`Ends`] have the state after these.
    pub(super) walked: usize,
    /// Query heads per KV head.
    pub(super) group: usize,
    pub(super) q: CpuTensor<'a>,
    pub(super) rules: &'a Rules<'a>,
}

/// Where the rows of a tile go.
pub(super) enum Target<'a> {
    /// All spans are walked, from one end to the other.
    Finish(Ends<'a>),
    /// These spans are walked, and each leaves its state: `[spans, heads, rows, v_dim + 2]`.
    Leave(Range<usize>, &'a mut [f32]),
    /// The states that all spans left, in the same shape, are joined, from one end to the other.
    Join(&'a [f32], Ends<'a>),
}

/// A tile and the memory to work in.
pub(super) struct Attend<'a, E> {
    pub(super) tile: Tile<'a, E>,
    pub(super) target: Target<'a>,
    pub(super) scratch: &'a mut Scratch,
}

impl<E: Stored> Work for Attend<'_, E> {
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let Geometry { k_dim, v_dim, .. } = *self.tile.geometry;
        let mut scratch = self.scratch.fit(k_dim, v_dim);
        let (heads, rows) = (self.tile.heads.len(), self.tile.rows());
        for first in (0..rows).step_by(ROWS) {
            let pass = Pass { tile: &self.tile, first, rows: ROWS.min(rows - first) };
            // Among those of all heads and all passes of a span.
            let place = |head: usize, row: usize| head * rows + first + row;
            let mut state = State::new(&mut scratch.sums, heads * pass.rows, v_dim);
            match &mut self.target {
                Target::Finish(ends) => {
                    ends.begin(&pass, &mut state);
                    pass.walk(isa, &mut state, &mut scratch.inputs, self.tile.spans(), |isa, state, _| state.join(isa));
                    ends.end(isa, &pass, &state);
                }
                Target::Leave(spans, left) => {
                    pass.walk(isa, &mut state, &mut scratch.inputs, spans.clone(), |_, state, span| {
                        let at = (span - spans.start) * heads * rows;
                        pass.each(|head, row| {
                            let left = &mut left[(at + place(head, row)) * (v_dim + 2)..][..v_dim + 2];
                            state.leave(head * pass.rows + row, left);
                        });
                    });
                }
                Target::Join(left, ends) => {
                    ends.begin(&pass, &mut state);
                    for span in left.chunks_exact(heads * rows * (v_dim + 2)) {
                        pass.each(|head, row| {
                            let left = &span[place(head, row) * (v_dim + 2)..][..v_dim + 2];
                            state.take(head * pass.rows + row, left);
                        });
                        state.join(isa);
                    }
                    ends.end(isa, &pass, &state);
                }
            }
        }
    }
}

impl<E> Tile<'_, E> {
    /// Rows over one KV head.
    #[inline(always)]
    pub(super) const fn rows(&self) -> usize {
        self.queries.len() * self.group
    }

    /// Spans that any row of the tile sees something of, but for those that were walked.
    #[inline(always)]
    pub(super) fn spans(&self) -> Range<usize> {
        let (first, last) = (self.seen(0), self.seen(self.queries.len() - 1));
        self.walked.max(first.start / SPAN)..last.end.div_ceil(SPAN)
    }

    /// Position in the sequence of a query token of the tile.
    #[inline(always)]
    fn position(&self, token: usize) -> usize {
        ix(self.queries[token].position)
    }

    /// The positions that a query token sees; under a mask, those among which it sees some. Both ends grow with it.
    #[inline(always)]
    fn seen(&self, token: usize) -> Range<usize> {
        let position = self.position(token);
        let end = if self.rules.mask.is_some() { self.end } else { self.end.min(position + 1) };
        self.rules.window.map_or(0, |window| (position + 1).saturating_sub(window))..end
    }

    /// Token and query head, in the tensors of the whole step, of a row over a KV head.
    #[inline(always)]
    fn query(&self, kv_head: usize, row: usize) -> (usize, usize) {
        (ix(self.queries[row / self.group].token), kv_head * self.group + row % self.group)
    }

    /// Calls `each` with the runs of some positions within blocks: block, offset, length.
    #[inline(always)]
    fn runs(&self, positions: Range<usize>, mut each: impl FnMut(usize, usize, usize)) {
        let Range { start: mut from, end } = positions;
        while from < end {
            let (block, offset) = (self.table[from / self.block_size], from % self.block_size);
            let count = (self.block_size - offset).min(end - from);
            each(block.index(), offset, count);
            from += count;
        }
    }

    /// Points `rows` at the elements of some positions of a KV head, by their block and offset.
    #[inline(always)]
    fn gather<'s>(&'s self, kv_head: usize, positions: Range<usize>, strides: &Strides, rows: &mut Rows<'s, E>) {
        rows.clear();
        self.runs(positions, |block, offset, count| {
            rows.add(&self.elems[strides.elem(block, kv_head, offset)..], strides.token(), count);
        });
    }

    /// Reads the scales of some positions of a KV head.
    #[inline(always)]
    fn gather_scales(&self, kv_head: usize, positions: Range<usize>, strides: &Strides, to: &mut [f32; CHUNK])
    where
        E: Stored,
    {
        let mut done = 0;
        self.runs(positions, |block, offset, count| {
            let from = &self.elems[strides.elem(block, kv_head, offset)..];
            let to = &mut to[done..done + count];
            done += count;
            if strides.token() == E::SCALE_ELEMS {
                // One after the other: a copy of bytes, without which int8 decodes 6 to 9 % slower.
                let from = from[..count * E::SCALE_ELEMS].chunks_exact(E::SCALE_ELEMS.max(1));
                to.iter_mut().zip(from).for_each(|(to, from)| *to = E::scale(from));
            } else {
                to.iter_mut().enumerate().for_each(|(i, to)| *to = E::scale(&from[i * strides.token()..]));
            }
        });
    }

    /// Asks for the scales of some positions of a KV head ahead of their use.
    #[inline(always)]
    fn ask_for_scales<I: Isa>(&self, isa: I, kv_head: usize, positions: Range<usize>, strides: &Strides) {
        self.runs(positions, |block, offset, _| {
            isa.prefetch(self.elems.as_ptr().wrapping_add(strides.elem(block, kv_head, offset)));
        });
    }
}
