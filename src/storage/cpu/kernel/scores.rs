//! Scores of a chunk: the products of some queries with its keys.
//!
//! By the law of [`kernel`](super) a score is one accumulator per lane over `dim`, then the tree of [`Isa::sums`]. There
//! are two ways to the same bits:
//!
//! * [`RowScores`], for few rows: K is read as it is stored, and the lanes of a vector are elements of one key. Each
//!   score ends in a sum across a vector, of which sixteen cost 15 additions and 30 shuffles where vectors have 16 lanes.
//! * [`ColumnScores`], for many rows: K is transposed once for all of them, and the lanes of a vector are keys. What was
//!   a lane of an accumulator is an accumulator now, and the tree is walked vector by vector: sixteen scores cost 15
//!   additions and no shuffle. Two leaves are taken at a time, so that half of the sums stay in registers.
//!
//! Helpers here are functions and not closures, and arrays of vectors are filled by loops and not by `array::from_fn` or
//! `map`: of those the compiler may make calls, to code without the instruction set.

use core::array;

use super::CHUNK;
use super::coming::Coming;
use crate::storage::cpu::element::Stored;
use crate::storage::cpu::isa::{Isa, Work};
use crate::storage::cpu::rows::View;

/// Queries that meet transposed keys together.
pub(super) const TOGETHER: usize = 4;

/// Scores that are taken of them at once: two vectors each.
const TILE: usize = 2 * TOGETHER;

/// Pairs of leaves of the tree over the lanes of a vector, at most.
const PAIRS: usize = 8;

/// Work of its own, entered from within other work: so it is compiled once per instruction set and element type, and
/// not once for every place that needs it.
pub(super) struct RowScores<'m, 's, 'a, E> {
    /// [Side by side](beside).
    pub(super) queries: &'m [f32],
    pub(super) stride: usize,
    pub(super) keys: View<'s, 'a, E>,
    /// V of the same positions, to be asked for on the way.
    pub(super) coming: View<'s, 'a, E>,
    /// Row by row; of each the columns that there are keys for.
    pub(super) to: &'m mut [[f32; CHUNK]],
}

/// How many of the rows that are left go together in [`RowScores`]. Eight save a conversion of K, and cost loads of
/// queries.
#[inline(always)]
const fn group<I: Isa, E: Stored>(left: usize) -> usize {
    match left {
        8.. if I::ACCUMULATORS == 16 && !E::WIDE => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Puts a query where [`RowScores`] reads it: vector by vector beside those of the rows that go together.
#[inline(always)]
pub(super) fn beside<I: Isa, E: Stored>(isa: I, row: usize, query: &[f32], to: &mut [f32]) {
    let (mut first, rows) = (0, to.len() / query.len());
    let mut count = group::<I, E>(rows);
    while first + count <= row {
        first += count;
        count = group::<I, E>(rows - first);
    }
    let to = isa.vectors_mut(&mut to[first * query.len()..]);
    for (step, vector) in isa.vectors(query).iter().enumerate() {
        to[step * count + row - first] = *vector;
    }
}

impl<E: Stored> Work for RowScores<'_, '_, '_, E> {
    #[inline(always)]
    fn run<I: Isa>(mut self, isa: I) {
        let mut coming = Coming::new(self.coming);
        let pace = coming.pace(self.to.len() * self.keys.len());
        let mut row = 0;
        while row < self.to.len() {
            let of = (row, pace);
            let count = group::<I, E>(self.to.len() - row);
            // Rows, keys at a time, their product: as many accumulators as there are registers for.
            match (I::ACCUMULATORS, count) {
                (16, 8) => self.group::<I, 8, 2, 16>(isa, of, &mut coming),
                (16, 4) => self.group::<I, 4, 4, 16>(isa, of, &mut coming),
                (16, 2) => self.group::<I, 2, 8, 16>(isa, of, &mut coming),
                (16, _) => self.group::<I, 1, 16, 16>(isa, of, &mut coming),
                (_, 4) => self.group::<I, 4, 2, 8>(isa, of, &mut coming),
                (_, 2) => self.group::<I, 2, 4, 8>(isa, of, &mut coming),
                _ => self.group::<I, 1, 8, 8>(isa, of, &mut coming),
            }
            row += count;
        }
    }
}

impl<E: Stored> RowScores<'_, '_, '_, E> {
    /// R rows from `row` on: K keys at a time, R × K = N accumulators. Asks for `pace` lines per score.
    #[inline(always)]
    fn group<I: Isa, const R: usize, const K: usize, const N: usize>(
        &mut self,
        isa: I,
        (row, pace): (usize, usize),
        coming: &mut Coming<'_, '_, E>,
    ) {
        let (q, _) = isa.vectors(&self.queries[row * self.stride..]).as_chunks::<R>();
        let mut j = 0;
        while j + K <= self.keys.len() {
            self.tile::<I, R, K, N>(isa, q, (row, j), coming, pace * N);
            j += K;
        }
        while j < self.keys.len() {
            self.tile::<I, R, 1, R>(isa, q, (row, j), coming, pace * R);
            j += 1;
        }
    }

    /// Products of R queries, those from `row` on, with K keys from `at` on.
    #[inline(always)]
    fn tile<I: Isa, const R: usize, const K: usize, const N: usize>(
        &mut self,
        isa: I,
        q: &[[I::Lanes<f32>; R]],
        (row, at): (usize, usize),
        coming: &mut Coming<'_, '_, E>,
        lines: usize,
    ) {
        const { assert!(R * K == N) };
        let dim = self.keys.dim();
        let steps = dim / I::LANES;
        let mut acc = [isa.splat(0.0); N];
        let rows: [&[E]; K] = array::from_fn(|k| self.keys.get(at + k));
        let full: [&[I::Lanes<E>]; K] = rows.map(|row| &isa.vectors(row)[..steps]);
        let each = coming.spread(isa, lines, steps);
        for (step, query) in q[..steps].iter().enumerate() {
            coming.ask(isa, each);
            let mut key = [isa.splat(0.0); K];
            for (key, full) in key.iter_mut().zip(&full) {
                *key = E::load(isa, &full[step]);
            }
            multiply(isa, query, key, &mut acc);
        }
        if !dim.is_multiple_of(I::LANES) {
            let mut key = [isa.splat(0.0); K];
            for (key, row) in key.iter_mut().zip(rows) {
                *key = E::load(isa, &isa.padded(&row[steps * I::LANES..]));
            }
            multiply(isa, &q[steps], key, &mut acc);
        }
        let sums = isa.sums(acc);
        for r in 0..R {
            self.to[row + r][at..at + K].copy_from_slice(&sums[r * K..][..K]);
        }
    }
}

/// Adds the products of one vector of R queries and K keys.
#[inline(always)]
fn multiply<I: Isa, const R: usize, const K: usize, const N: usize>(
    isa: I,
    query: &[I::Lanes<f32>; R],
    key: [I::V; K],
    acc: &mut [I::V; N],
) {
    for r in 0..R {
        let query = isa.load(&query[r]);
        for k in 0..K {
            acc[r * K + k] = isa.fma(query, key[k], acc[r * K + k]);
        }
    }
}

/// Keys transposed: of each lane of a vector the elements that come into it, `[LANES, steps, CHUNK]`, the lanes in the
/// order of the [tree](Isa::TREE), so that all is read in the order of memory.
///
/// Columns beyond the last key, up to a whole vector, are 0; those beyond, anything.
pub(super) struct Transpose<'m, 's, 'a, E> {
    pub(super) keys: View<'s, 'a, E>,
    pub(super) to: &'m mut [[f32; CHUNK]],
}

impl<E: Stored> Work for Transpose<'_, '_, '_, E> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { keys, to } = self;
        let steps = keys.dim().div_ceil(I::LANES);
        for first in (0..keys.len()).step_by(I::LANES) {
            for step in 0..steps {
                let row = |lane: usize| {
                    if first + lane >= keys.len() {
                        return isa.splat(0.0);
                    }
                    let rest = &keys.get(first + lane)[step * I::LANES..];
                    match isa.vectors(rest).first() {
                        Some(full) => E::load(isa, full),
                        None => E::load(isa, &isa.padded(rest)),
                    }
                };
                isa.transpose(row, |place, column| {
                    isa.store(column, &mut isa.vectors_mut(&mut to[place * steps + step])[first / I::LANES]);
                });
            }
        }
    }
}

/// Queries in the order in which [`ColumnScores`] reads them: for [`TOGETHER`] rows at a time, `[LANES, steps, TOGETHER]`,
/// zeros for the rows beyond the last.
#[inline(always)]
pub(super) fn interleave<I: Isa>(row: usize, query: &[f32], dim: usize, to: &mut [[f32; TOGETHER]]) {
    let steps = dim.div_ceil(I::LANES);
    let to = &mut to[row / TOGETHER * steps * I::LANES..][..steps * I::LANES];
    for (place, &lane) in I::TREE.iter().enumerate() {
        for step in 0..steps {
            to[place * steps + step][row % TOGETHER] = query[step * I::LANES + lane];
        }
    }
}

/// As [`RowScores`], of keys that were [transposed](Transpose).
pub(super) struct ColumnScores<'m, 's, 'a, E> {
    /// [Interleaved](interleave).
    pub(super) queries: &'m [[f32; TOGETHER]],
    pub(super) columns: &'m [[f32; CHUNK]],
    /// Keys that there are.
    pub(super) keys: usize,
    /// V of the same positions, to be asked for on the way.
    pub(super) coming: View<'s, 'a, E>,
    /// Row by row, up to a multiple of [`TOGETHER`].
    pub(super) to: &'m mut [[f32; CHUNK]],
}

impl<E: Stored> Work for ColumnScores<'_, '_, '_, E> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { queries, columns, keys, coming, to } = self;
        let (steps, vectors) = (columns.len() / I::LANES, keys.div_ceil(I::LANES));
        let (to, _) = to.as_chunks_mut::<TOGETHER>();
        let mut coming = Coming::new(coming);
        let pace = coming.pace(to.len() * vectors.div_ceil(2));
        let mut pairs = [[isa.splat(0.0); TILE]; PAIRS];
        for (to, queries) in to.iter_mut().zip(queries.chunks_exact(columns.len())) {
            for at in (0..vectors).step_by(2) {
                coming.spread(isa, pace, 0);
                for pair in 0..I::LANES / 2 {
                    let (queries, columns) = (&queries[2 * pair * steps..], &columns[2 * pair * steps..]);
                    pairs[pair] = pair_of_leaves(isa, queries, columns, steps, at);
                }
                for r in 0..TOGETHER {
                    let to = &mut isa.vectors_mut(&mut to[r])[at..at + 2];
                    for c in 0..2 {
                        let mut sums = pairs.map(|pair| pair[2 * r + c]);
                        let mut len = I::LANES / 2;
                        while len > 1 {
                            len /= 2;
                            for i in 0..len {
                                sums[i] = isa.add(sums[2 * i], sums[2 * i + 1]);
                            }
                        }
                        isa.store(sums[0], &mut to[c]);
                    }
                }
            }
        }
    }
}

/// Sums of two neighbouring leaves of the tree: products of [`TOGETHER`] queries with the keys of two vectors from `at`
/// on.
#[inline(always)]
fn pair_of_leaves<I: Isa>(
    isa: I,
    queries: &[[f32; TOGETHER]],
    columns: &[[f32; CHUNK]],
    steps: usize,
    at: usize,
) -> [I::V; TILE] {
    let (mut left, mut right) = ([isa.splat(0.0); TILE], [isa.splat(0.0); TILE]);
    let (queries, columns) = (&queries[..2 * steps], &columns[..2 * steps]);
    if I::ACCUMULATORS == 16 {
        // Both at once: there are registers for it, and half of the sums never leave them.
        let (queries_left, queries_right) = queries.split_at(steps);
        let (columns_left, columns_right) = columns.split_at(steps);
        let leaves = queries_left.iter().zip(columns_left).zip(queries_right.iter().zip(columns_right));
        for ((query_left, column_left), (query_right, column_right)) in leaves {
            step(isa, query_left, column_left, at, &mut left);
            step(isa, query_right, column_right, at, &mut right);
        }
    } else {
        for (query, column) in queries[..steps].iter().zip(&columns[..steps]) {
            step(isa, query, column, at, &mut left);
        }
        for (query, column) in queries[steps..].iter().zip(&columns[steps..]) {
            step(isa, query, column, at, &mut right);
        }
    }
    for (left, right) in left.iter_mut().zip(right) {
        *left = isa.add(*left, right);
    }
    left
}

/// Adds the products of one element of the queries and of the keys.
#[inline(always)]
fn step<I: Isa>(isa: I, query: &[f32; TOGETHER], column: &[f32; CHUNK], at: usize, acc: &mut [I::V; TILE]) {
    let column = &isa.vectors(column)[at..at + 2];
    let key = [isa.load(&column[0]), isa.load(&column[1])];
    for r in 0..TOGETHER {
        let query = isa.splat(query[r]);
        for c in 0..2 {
            acc[2 * r + c] = isa.fma(query, key[c], acc[2 * r + c]);
        }
    }
}
