//! The memory that a thread works in.

use alloc::vec::Vec;

use super::{CHUNK, ROWS};

/// `f32` in a cache line. Rows begin on one, so that no vector straddles two.
pub(super) const LINE: usize = 16;

/// Memory of one thread, kept from call to call.
#[derive(Debug, Default)]
pub(in super::super) struct Scratch {
    q: Aligned,
    k: Aligned,
    v: Aligned,
    state: Aligned,
}

/// A scratch, cut to the sizes of a call.
pub(super) struct Fit<'a> {
    pub(super) inputs: Inputs<'a>,
    /// For [`State`](super::state::State).
    pub(super) state: &'a mut [f32],
}

/// What a chunk is computed from, widened.
pub(super) struct Inputs<'a> {
    /// Queries: `[ROWS, q_stride]`, zero beyond `k_dim`.
    pub(super) q: &'a mut [f32],
    pub(super) q_stride: usize,
    /// A chunk of K: `[CHUNK, k_dim]`, rows on lines of their own.
    pub(super) k: &'a mut [f32],
    /// A chunk of V: `[CHUNK, v_dim]`, rows on lines of their own.
    pub(super) v: &'a mut [f32],
}

impl Scratch {
    /// Makes room for heads of these sizes; grows and never shrinks.
    pub(super) fn fit(&mut self, k_dim: usize, v_dim: usize) -> Fit<'_> {
        let [k_stride, v_stride] = [k_dim, v_dim].map(|dim| dim.next_multiple_of(LINE));
        let inputs = Inputs {
            q: self.q.get(ROWS * k_stride),
            q_stride: k_stride,
            k: self.k.get(CHUNK * k_stride),
            v: self.v.get(CHUNK * v_stride),
        };
        Fit { inputs, state: self.state.get(2 * ROWS * v_stride) }
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
