//! The memory that a thread works in.

use alloc::vec::Vec;

use super::scores::TOGETHER;
use super::{CHUNK, MANY_ROWS, ROWS};

/// `f32` in a cache line. Rows begin on one, so that no vector straddles two.
pub(super) const LINE: usize = 16;

/// Memory of one thread, kept from call to call.
#[derive(Debug, Default)]
pub(in super::super) struct Scratch {
    q: Aligned,
    one: Aligned,
    k: Aligned,
    v: Aligned,
    scores: Aligned,
    span: Aligned,
    total: Aligned,
}

/// A scratch, cut to the sizes of a call.
pub(super) struct Fit<'a> {
    pub(super) inputs: Inputs<'a>,
    pub(super) sums: Sums<'a>,
}

/// For [`State`](super::state::State).
pub(super) struct Sums<'a> {
    /// `[ROWS, CHUNK]`.
    pub(super) scores: &'a mut [[f32; CHUNK]],
    /// `[ROWS, v_dim]`, rows on lines of their own.
    pub(super) span: &'a mut [f32],
    /// The same.
    pub(super) total: &'a mut [f32],
}

/// What a chunk is computed from, widened.
pub(super) struct Inputs<'a> {
    /// Queries: `[ROWS, q_stride]`, zero beyond `k_dim`, or the same [interleaved](super::scores::interleave).
    pub(super) q: &'a mut [f32],
    /// One query.
    pub(super) one: &'a mut [f32],
    pub(super) q_stride: usize,
    /// A chunk of K, [transposed](super::scores::Transpose): `[q_stride, CHUNK]`.
    pub(super) k: &'a mut [[f32; CHUNK]],
    /// A chunk of V: `[CHUNK, v_dim]`, rows on lines of their own.
    pub(super) v: &'a mut [f32],
}

impl Scratch {
    /// Makes room for heads of these sizes; grows and never shrinks.
    pub(super) fn fit(&mut self, k_dim: usize, v_dim: usize) -> Fit<'_> {
        let [k_stride, v_stride] = [k_dim, v_dim].map(|dim| dim.next_multiple_of(LINE));
        let inputs = Inputs {
            // Those of every head are filled up to a multiple of `TOGETHER`, where they are many.
            q: self.q.get((ROWS + ROWS / MANY_ROWS * TOGETHER) * k_stride),
            one: self.one.get(k_stride),
            q_stride: k_stride,
            k: self.k.get(CHUNK * k_stride).as_chunks_mut().0,
            v: self.v.get(CHUNK * v_stride),
        };
        let sums = Sums {
            scores: self.scores.get(ROWS * CHUNK).as_chunks_mut().0,
            span: self.span.get(ROWS * v_stride),
            total: self.total.get(ROWS * v_stride),
        };
        Fit { inputs, sums }
    }
}

/// Numbers of which the first stands at the start of a cache line.
#[derive(Debug, Default)]
struct Aligned(Vec<f32>);

impl Aligned {
    fn get(&mut self, len: usize) -> &mut [f32] {
        // `LINE` more, to begin where a line does.
        if self.0.len() < len + LINE {
            self.0.resize(len + LINE, 0.0);
        }
        let skip = self.0.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        &mut self.0[skip..skip + len]
    }
}
