//! Some rows of a tile on their walk over the context.

use core::array;
use core::ops::Range;

use super::meet::{Chunk, Meet, ScaleView};
use super::rules::Positions;
use super::scratch::{Inputs, LINE};
use super::state::State;
use super::{CHUNK, SPAN, Tile, WIDEN_ROWS};
use crate::id::ix;
use crate::storage::QueryMask;
use crate::storage::cpu::element::{Stored, widen_row};
use crate::storage::cpu::geometry::Geometry;
use crate::storage::cpu::isa::Isa;
use crate::storage::cpu::rows::{Rows, View};
use crate::storage::cpu::tensor::OutTile;

/// Scales of a chunk, one per position.
struct Scale {
    keys: [f32; CHUNK],
    values: [f32; CHUNK],
}

impl Default for Scale {
    fn default() -> Self {
        Self { keys: [0.0; CHUNK], values: [0.0; CHUNK] }
    }
}

impl Scale {
    #[inline(always)]
    fn view(&self, len: usize) -> ScaleView<'_> {
        ScaleView { keys: &self.keys[..len], values: &self.values[..len] }
    }
}

/// Rows `first .. first + rows` of a tile over each of its KV heads.
pub(super) struct Pass<'a, E> {
    pub(super) tile: &'a Tile<'a, E>,
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl<E: Stored> Pass<'_, E> {
    /// The query token of a row, among those of the tile.
    #[inline(always)]
    fn token(&self, row: usize) -> usize {
        (self.first + row) / self.tile.group
    }

    /// Calls `each` with every KV head, counted from the first of the tile, and every row.
    #[inline(always)]
    pub(super) fn each(&self, mut each: impl FnMut(usize, usize)) {
        for head in 0..self.tile.heads.len() {
            (0..self.rows).for_each(|row| each(head, row));
        }
    }

    /// Walks over spans, in their order, and calls `after` with the state of each.
    #[inline(always)]
    pub(super) fn walk<'p, I: Isa>(
        &self,
        isa: I,
        state: &mut State<'p>,
        Inputs { q, q_stride, k, v }: &'p mut Inputs<'_>,
        spans: Range<usize>,
        mut after: impl FnMut(I, &mut State<'p>, usize),
    ) {
        let tile = self.tile;
        self.each(|head, row| {
            let to = &mut q[(head * self.rows + row) * *q_stride..][..*q_stride];
            let (token, head) = tile.query(tile.heads.start + head, self.first + row);
            tile.q.widen(isa, token, head, to);
        });
        state.take_queries(q, *q_stride);
        for span in spans {
            state.begin();
            self.span(isa, state, (k, v), span);
            after(isa, state, span);
        }
    }

    /// One span, into a fresh state.
    #[inline(always)]
    fn span<I: Isa>(&self, isa: I, state: &mut State<'_>, (wide_k, wide_v): (&mut [f32], &mut [f32]), span: usize) {
        let Tile { geometry: Geometry { k, v, scales, k_dim, v_dim, .. }, ref heads, .. } = *self.tile;
        // What the first row sees begins first, what the last one sees ends last: nothing beyond is touched.
        let (seen_from, seen_to) = (self.tile.seen(self.token(0)).start, self.tile.seen(self.token(self.rows - 1)).end);
        let (begin, end) = (seen_from.max(span * SPAN), seen_to.min((span + 1) * SPAN));
        let upto = |from: usize| end.min((from / CHUNK + 1) * CHUNK);
        let as_stored = E::WIDE || self.rows < WIDEN_ROWS;
        let (mut keys, mut values, mut ahead) = (Rows::new(*k_dim), Rows::new(*v_dim), Rows::new(*k_dim));
        let mut scale = Scale::default();
        self.tile.gather(heads.start, begin..upto(begin), k, &mut keys);
        let mut from = begin;
        while from < end {
            let to = upto(from);
            for head in heads.clone() {
                self.tile.gather(head, from..to, v, &mut values);
                // What is read next: the next head, or the next chunk, which may lie in the next span.
                let (next, positions) = if head + 1 < heads.end {
                    (head + 1, from..to)
                } else {
                    (heads.start, to..seen_to.min(to + CHUNK))
                };
                self.tile.gather(next, positions.clone(), k, &mut ahead);
                let scale = scales.as_ref().map(|[k, v]| {
                    self.tile.ask_for_scales(isa, next, positions.clone(), k);
                    self.tile.ask_for_scales(isa, next, positions, v);
                    self.tile.gather_scales(head, from..to, k, &mut scale.keys);
                    self.tile.gather_scales(head, from..to, v, &mut scale.values);
                    scale.view(to - from)
                });
                let keys_here = keys.view();
                if as_stored {
                    let (values, ahead) = (values.view(), ahead.view());
                    let chunk = Chunk { keys: keys_here, values, scale, coming: values, ahead };
                    self.chunk(isa, state, head, chunk, from);
                } else {
                    // Widening is exact, so that the bits are those of above.
                    let (keys, values) = (widen(isa, keys_here, wide_k), widen(isa, values.view(), wide_v));
                    let (keys, values) = (keys.view(), values.view());
                    let none = keys.slice(0..0);
                    let chunk = Chunk { keys, values, scale, coming: none, ahead: none };
                    self.chunk(isa, state, head, chunk, from);
                }
                core::mem::swap(&mut keys, &mut ahead);
            }
            from = to;
        }
    }

    /// One chunk, which begins at position `from`, for all rows: those together that see the same of it.
    #[inline(always)]
    fn chunk<I: Isa, W: Stored>(
        &self,
        isa: I,
        state: &mut State<'_>,
        head: usize,
        chunk: Chunk<'_, '_, W>,
        from: usize,
    ) {
        let to = from + chunk.keys.len();
        if let Some(mask) = self.tile.rules.mask.filter(|_| to > self.tile.row_start) {
            return self.masked_chunk(isa, state, head, chunk, from, mask);
        }
        let seen = |row: usize| {
            let seen = self.tile.seen(self.token(row));
            seen.start.clamp(from, to)..seen.end.clamp(from, to)
        };
        let mut row = 0;
        while row < self.rows {
            let here = seen(row);
            // Both ends grow with the row: where those of two are the same, so are those between.
            let alike = |count| row + count <= self.rows && seen(row + count - 1) == here;
            let count = together::<I, W>(alike);
            let part = chunk.slice(here.start - from..here.end - from, row..row + count, self.rows);
            self.some(isa, state, head, row..row + count, part, Positions::From(here.start));
            row += count;
        }
    }

    /// One chunk that lies among the query tokens at least in part, token by token: each sees what the mask says.
    #[inline(always)]
    fn masked_chunk<I: Isa, W: Stored>(
        &self,
        isa: I,
        state: &mut State<'_>,
        head: usize,
        chunk: Chunk<'_, '_, W>,
        from: usize,
        mask: QueryMask<'_>,
    ) {
        let tile = self.tile;
        let (mut keys, mut values, mut scale) = (Rows::new(0), Rows::new(0), Scale::default());
        let mut row = 0;
        while row < self.rows {
            let token = self.token(row);
            let seen = tile.seen(token);
            let sees = |at: &usize| {
                let number = at.checked_sub(tile.row_start);
                seen.contains(at) && number.is_none_or(|number| bit(mask, ix(tile.queries[token].token), number))
            };
            let (mut at, mut count_seen) = ([0; CHUNK], 0);
            for position in (from..from + chunk.keys.len()).filter(sees) {
                at[count_seen] = position;
                count_seen += 1;
            }
            let which = || at[..count_seen].iter().map(|at| at - from);
            let (keys, values) = (chunk.keys.pick(which(), &mut keys), chunk.values.pick(which(), &mut values));
            let scale = chunk.scale.map(|all| {
                for (to, from) in which().enumerate() {
                    (scale.keys[to], scale.values[to]) = (all.keys[from], all.values[from]);
                }
                scale.view(count_seen)
            });
            while row < self.rows && self.token(row) == token {
                let alike = |count| row + count <= self.rows && self.token(row + count - 1) == token;
                let count = together::<I, W>(alike);
                let part = Chunk { keys, values, scale, ..chunk }.slice(0..keys.len(), row..row + count, self.rows);
                self.some(isa, state, head, row..row + count, part, Positions::At(&at[..count_seen]));
                row += count;
            }
        }
    }

    /// A chunk, or what is left of it, for some rows, as many as [`together`] said. `at` are the positions of its keys.
    #[inline(always)]
    fn some<I: Isa, W: Stored>(
        &self,
        isa: I,
        state: &mut State<'_>,
        head: usize,
        rows: Range<usize>,
        chunk: Chunk<'_, '_, W>,
        at: Positions<'_>,
    ) {
        if chunk.keys.len() > 0 {
            let tile = self.tile;
            let biases = array::from_fn(|r| {
                let row = (rows.start + r).min(rows.end - 1);
                let slope = tile.rules.slopes.map(|slopes| slopes[tile.query(head, self.first + row).1]);
                slope.map(|slope| (slope, tile.position(self.token(row))))
            });
            // Among the rows of all heads.
            let row = (head - tile.heads.start) * self.rows + rows.start;
            isa.enter(Meet { state, row, rows: rows.len(), chunk, rules: tile.rules, biases, at });
        }
    }

    /// Writes the output of all rows.
    #[inline(always)]
    pub(super) fn finish<I: Isa>(&self, isa: I, state: &State<'_>, out: &mut OutTile<'_>) {
        self.each(|index, row| {
            let (token, head) = self.tile.query(self.tile.heads.start + index, self.first + row);
            let sink = self.tile.rules.sinks.map(|sinks| sinks[head]);
            let lse = state.finish(isa, index * self.rows + row, sink, out.head(token, head));
            if let Some(to) = out.lse(token, head) {
                *to = lse;
            }
        });
    }
}

/// How many of the next rows to take together, given whether the next 8, 4 or 2 see the same.
#[inline(always)]
fn together<I: Isa, W: Stored>(alike: impl Fn(usize) -> bool) -> usize {
    // Eight save a conversion of K and V, and cost loads of queries.
    if I::ACCUMULATORS == 16 && !W::WIDE && alike(8) {
        8
    } else {
        [4, 2].into_iter().find(|&count| alike(count)).unwrap_or(1)
    }
}

/// Whether a query token of the step sees query token `number` of its row.
fn bit(mask: QueryMask<'_>, token: usize, number: usize) -> bool {
    mask.words[token * ix(mask.words_per_token) + number / 64] >> (number % 64) & 1 == 1
}

/// Widens rows into `scratch`, one after the other.
#[inline(always)]
fn widen<'s, I: Isa, E: Stored>(isa: I, from: View<'_, '_, E>, scratch: &'s mut [f32]) -> Rows<'s, f32> {
    let stride = from.dim().next_multiple_of(LINE);
    for (row, wide) in scratch.chunks_exact_mut(stride).take(from.len()).enumerate() {
        let row = from.get(row);
        widen_row(isa, row, &mut wide[..row.len()]);
    }
    let mut rows = Rows::new(from.dim());
    rows.add(scratch, stride, from.len());
    rows
}
