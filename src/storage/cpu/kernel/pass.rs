//! Some rows of a tile on their walk over the context.

use core::ops::Range;

use super::meet::{Chunk, Meet, multiply};
use super::rules::Positions;
use super::scores::{self, ColumnScores, RowScores, TOGETHER, Transpose};
use super::scratch::{Inputs, LINE};
use super::state::State;
use super::{CHUNK, MANY_ROWS, SPAN, Tile};
use crate::id::ix;
use crate::storage::QueryMask;
use crate::storage::cpu::element::{Stored, widen_row};
use crate::storage::cpu::isa::Isa;
use crate::storage::cpu::rows::{Rows, View};
use crate::storage::cpu::tensor::OutTile;
use crate::storage::geometry::Geometry;

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
        inputs: &mut Inputs<'_>,
        spans: Range<usize>,
        mut after: impl FnMut(I, &mut State<'p>, usize),
    ) {
        self.take_queries(isa, state, inputs);
        for span in spans {
            state.begin();
            self.span(isa, state, inputs, span);
            after(isa, state, span);
        }
    }

    /// Whether K is transposed, and what is not of 32 bits widened, once for all rows.
    #[inline(always)]
    const fn many(&self) -> bool {
        self.rows >= MANY_ROWS
    }

    /// Takes in the queries of all rows, as [`RowScores`] or [`ColumnScores`] read them, and their biases.
    #[inline(always)]
    fn take_queries<I: Isa>(&self, isa: I, state: &mut State<'_>, inputs: &mut Inputs<'_>) {
        let (tile, stride) = (self.tile, inputs.q_stride);
        let many = self.many();
        let queries = self.queries::<I>(stride);
        if many {
            inputs.q[..tile.heads.len() * queries].fill(0.0);
        }
        self.each(|index, row| {
            let (token, head) = tile.query(tile.heads.start + index, self.first + row);
            if let Some(slopes) = tile.rules.slopes {
                state.biases[index * self.rows + row] = (slopes[head], tile.position(self.token(row)));
            }
            let q = &mut inputs.q[index * queries..][..queries];
            tile.q.widen(isa, token, head, inputs.one);
            if many {
                scores::interleave::<I>(row, inputs.one, tile.geometry.k_dim, q.as_chunks_mut().0);
            } else {
                scores::beside::<I, E>(isa, row, inputs.one, q);
            }
        });
    }

    /// Numbers in the queries of one head.
    #[inline(always)]
    fn queries<I: Isa>(&self, stride: usize) -> usize {
        if self.many() {
            self.rows.next_multiple_of(TOGETHER) * self.tile.geometry.k_dim.next_multiple_of(I::LANES)
        } else {
            self.rows * stride
        }
    }

    /// One span, into a fresh state.
    #[inline(always)]
    fn span<I: Isa>(&self, isa: I, state: &mut State<'_>, inputs: &mut Inputs<'_>, span: usize) {
        let Tile { geometry: Geometry { k, v, scales, k_dim, v_dim, .. }, ref heads, .. } = *self.tile;
        // What the first row sees begins first, what the last one sees ends last: nothing beyond is touched.
        let (seen_from, seen_to) = (self.tile.seen(self.token(0)).start, self.tile.seen(self.token(self.rows - 1)).end);
        let (begin, end) = (seen_from.max(span * SPAN), seen_to.min((span + 1) * SPAN));
        let upto = |from: usize| end.min((from / CHUNK + 1) * CHUNK);
        let (mut keys, mut values, mut ahead) = (Rows::new(*k_dim), Rows::new(*v_dim), Rows::new(*k_dim));
        let (mut k_scales, mut v_scales) = ([0.0; CHUNK], [0.0; CHUNK]);
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
                self.score(isa, state, inputs, head - heads.start, keys.view(), values.view());
                let scales = scales.as_ref().map(|[k, v]| {
                    self.tile.ask_for_scales(isa, next, positions.clone(), k);
                    self.tile.ask_for_scales(isa, next, positions, v);
                    self.tile.gather_scales(head, from..to, k, &mut k_scales);
                    self.tile.gather_scales(head, from..to, v, &mut v_scales);
                    multiply(&mut state.scores[..self.rows], &k_scales[..to - from]);
                    &v_scales[..to - from]
                });
                if E::WIDE || !self.many() {
                    let chunk = Chunk { values: values.view(), scales, ahead: ahead.view() };
                    self.chunk(isa, state, head, chunk, from);
                } else {
                    // Widening is exact, so that the bits are those of above.
                    let values = widen(isa, values.view(), inputs.v);
                    let values = values.view();
                    self.chunk(isa, state, head, Chunk { values, scales, ahead: values.slice(0..0) }, from);
                }
                core::mem::swap(&mut keys, &mut ahead);
            }
            from = to;
        }
    }

    /// Takes the scores of all rows over a head with a chunk, whether or not they see all of it.
    #[inline(always)]
    fn score<I: Isa>(
        &self,
        isa: I,
        state: &mut State<'_>,
        inputs: &mut Inputs<'_>,
        index: usize,
        keys: View<'_, '_, E>,
        coming: View<'_, '_, E>,
    ) {
        let stride = inputs.q_stride;
        let queries = self.queries::<I>(stride);
        let q = &inputs.q[index * queries..][..queries];
        if self.many() {
            let columns = &mut inputs.k[..self.tile.geometry.k_dim.next_multiple_of(I::LANES)];
            isa.enter(Transpose { keys, to: columns });
            let to = &mut state.scores[..self.rows.next_multiple_of(TOGETHER)];
            isa.enter(ColumnScores { queries: q.as_chunks().0, columns, keys: keys.len(), coming, to });
        } else {
            isa.enter(RowScores { queries: q, stride, keys, coming, to: &mut state.scores[..self.rows] });
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
        let to = from + chunk.values.len();
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
            let count = self.alike(row, |other| seen(other) == here);
            let columns = here.start - from..here.end - from;
            // Weights are summed in lanes that are counted from the first position that a row sees.
            if columns.start > 0 {
                state.scores[row..row + count].iter_mut().for_each(|scores| scores.copy_within(columns.clone(), 0));
            }
            let chunk = chunk.slice(columns);
            self.some(isa, state, head, row..row + count, chunk, Positions::From(here.start));
            row += count;
        }
    }

    /// How many rows from `row` on see the same, given which see the same as it does: those up to the last of them, as
    /// what a row sees begins and ends no sooner than with the one before.
    #[inline(always)]
    fn alike(&self, row: usize, same: impl Fn(usize) -> bool) -> usize {
        if same(self.rows - 1) {
            return self.rows - row;
        }
        // Rows of a token see the same.
        let token = |row: usize| (self.token(row) + 1) * self.tile.group - self.first;
        let mut end = token(row);
        while same(end) {
            end = token(end);
        }
        end - row
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
        let (mut picked, mut picked_scales) = (Rows::new(0), [0.0; CHUNK]);
        let mut row = 0;
        while row < self.rows {
            let token = self.token(row);
            let seen = tile.seen(token);
            let sees = |at: &usize| {
                let number = at.checked_sub(tile.row_start);
                seen.contains(at) && number.is_none_or(|number| bit(mask, ix(tile.queries[token].token), number))
            };
            let (mut at, mut count_seen) = ([0; CHUNK], 0);
            for position in (from..from + chunk.values.len()).filter(sees) {
                at[count_seen] = position;
                count_seen += 1;
            }
            let at = &at[..count_seen];
            let values = chunk.values.pick(at.iter().map(|at| at - from), &mut picked);
            let scales = chunk.scales.map(|scales| {
                at.iter().zip(&mut picked_scales).for_each(|(at, to)| *to = scales[at - from]);
                &picked_scales[..count_seen]
            });
            let count = self.alike(row, |other| self.token(other) == token);
            for scores in &mut state.scores[row..row + count] {
                for (to, at) in at.iter().enumerate() {
                    scores[to] = scores[at - from];
                }
            }
            let chunk = Chunk { values, scales, ..chunk };
            self.some(isa, state, head, row..row + count, chunk, Positions::At(at));
            row += count;
        }
    }

    /// A chunk, or what is left of it, for some rows that see all of that. `at` are the positions of its keys.
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
        if chunk.values.len() > 0 {
            // Each asks for its share.
            let share = |row: usize| chunk.ahead.len() * row / self.rows;
            let ahead = chunk.ahead.slice(share(rows.start)..share(rows.end));
            let chunk = Chunk { ahead, ..chunk };
            let (scored, rules) = (rows.start, self.tile.rules);
            let row = (head - self.tile.heads.start) * self.rows + rows.start;
            isa.enter(Meet { state, row, scored, rows: rows.len(), chunk, rules, at });
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
