//! The parameters of a call, checked, in the form the kernel takes them.

use core::f32::consts::LOG2_E;

use super::CHUNK;
use crate::id::ix;
use crate::storage::StorageError;
use crate::storage::cpu::exp::tanh;
use crate::storage::cpu::isa::Isa;
use crate::storage::{AttendParams, QueryMask, check};

/// What is done to scores, and who sees whom.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Rules<'a> {
    scale: f32,
    soft_cap: Option<f32>,
    /// Keys that a query sees at most, its own included.
    pub(in super::super) window: Option<usize>,
    pub(super) sinks: Option<&'a [f32]>,
    pub(super) slopes: Option<&'a [f32]>,
    pub(in super::super) mask: Option<QueryMask<'a>>,
}

/// Where keys stand in their sequence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Positions<'a> {
    /// One after the other.
    From(usize),
    /// Each at a place of its own.
    At(&'a [usize]),
}

impl<'a> Rules<'a> {
    /// For `tokens` query tokens, at most `row_tokens` of them in one row, of `q_heads` heads.
    pub(in super::super) fn new(
        params: &AttendParams<'a>,
        q_heads: usize,
        tokens: usize,
        row_tokens: usize,
    ) -> Result<Self, StorageError> {
        let AttendParams { scale, window, soft_cap, sinks, alibi_slopes: slopes, mask } = *params;
        check::params(params, q_heads, tokens, row_tokens)?;
        Ok(Self { scale, soft_cap, window: window.map(ix), sinks, slopes, mask })
    }

    /// From products q · k to scores to base 2, of which a softmax with 2^x makes the same as e^x of the plain ones.
    /// Only the first `seen` columns are there; `bias` is the slope and the position of the query, `at` are those of the
    /// keys.
    #[inline(always)]
    pub(super) fn bend<I: Isa>(
        &self,
        isa: I,
        scores: &mut [f32; CHUNK],
        bias: Option<(f32, usize)>,
        seen: usize,
        at: Positions<'_>,
    ) {
        if let Some(cap) = self.soft_cap {
            // Columns that are not there may be anything up to here, and are −∞ from here on.
            let inner = self.scale / cap;
            for score in &mut *scores {
                *score = tanh(isa, *score * inner) * (cap * LOG2_E);
            }
        } else {
            let scale = self.scale * LOG2_E;
            for score in &mut *scores {
                *score *= scale;
            }
        }
        if let Some((slope, position)) = bias {
            for (column, score) in scores[..seen].iter_mut().enumerate() {
                let key = match at {
                    Positions::From(first) => first + column,
                    Positions::At(at) => at[column],
                };
                // The query is not before its keys, except under a mask. Exact up to 2²⁴ tokens apart.
                let distance = if key > position { (key - position) as f32 } else { -((position - key) as f32) };
                *score = isa.fma1(slope * LOG2_E, distance, *score);
            }
        }
        scores[seen..].fill(f32::NEG_INFINITY);
    }
}
