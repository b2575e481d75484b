//! K and V of new tokens, from the caller's tensors to their slots.
#![allow(unsafe_code)]

use super::stream::Mover;
use super::{PAST_CACHES_BYTES, spread, streaming};
use crate::storage::cpu::element::{Data, Stored};
use crate::storage::cpu::geometry::Geometry;
use crate::storage::cpu::memory::{bytes_of, bytes_of_mut};
use crate::storage::cpu::prepared::Prepared;
use crate::storage::cpu::shared::Shared;
use crate::storage::cpu::tensor::CpuTensor;

/// Elements that are converted at a time where they do not go straight to their place.
const PIECE: usize = 128;

/// Writes K and V of the tokens of a prepared step, to slots that exist; shapes are checked. `apart` says that no two
/// slots or heads of the layer, K and V, share memory.
pub(in super::super) fn write<T: Stored>(
    elems: &mut [T],
    geometry: &Geometry,
    apart: bool,
    prepared: &Prepared,
    k: &CpuTensor<'_>,
    v: &CpuTensor<'_>,
) {
    let runs = prepared.slot_runs();
    let row_elems = geometry.kv_heads.saturating_mul(geometry.k_dim + geometry.v_dim);
    let bytes = row_elems.saturating_mul(size_of::<T>()).saturating_mul(prepared.slots().len());
    if !(apart && prepared.slots_differ() && bytes >= PAST_CACHES_BYTES) {
        for run in runs {
            for token in 0..run.tokens {
                write_token(elems, geometry, run.first_token + token, run.block, run.offset + token, k, v);
            }
        }
        return;
    }
    let elems = Shared::new(elems);
    let heads = geometry.kv_heads;
    spread(runs.len() * heads, bytes, |task, mover| {
        let (run, head) = (&runs[task / heads], task % heads);
        for (tensor, strides, dim) in [(k, &geometry.k, geometry.k_dim), (v, &geometry.v, geometry.v_dim)] {
            for token in 0..run.tokens {
                let from = tensor.elem(run.first_token + token, head);
                let to = strides.elem(run.block, head, run.offset + token);
                // SAFETY: each claim of this call is of another slot (the step's differ, and tasks run once each), of
                // another head, or of the other one of K and V, and all of those are `apart`. Nothing else is read from
                // the memory, which is borrowed uniquely.
                let to = unsafe { elems.claim(to..to + dim) };
                // SAFETY: by the same, nothing in this call touches `to` again, and nothing else can before it returns.
                unsafe { put(mover, tensor.data(), from, to) };
            }
        }
    });
}

/// Writes K and V of one token to a slot that exists, with ordinary stores; shapes are checked.
pub(in super::super) fn write_token<T: Stored>(
    elems: &mut [T],
    geometry: &Geometry,
    token: usize,
    block: usize,
    offset: usize,
    k: &CpuTensor<'_>,
    v: &CpuTensor<'_>,
) {
    streaming(false, |mover| {
        for head in 0..geometry.kv_heads {
            for (tensor, strides, dim) in [(k, &geometry.k, geometry.k_dim), (v, &geometry.v, geometry.v_dim)] {
                let to = &mut elems[strides.elem(block, head, offset)..][..dim];
                // SAFETY: the contract is about stores past the caches, and this mover makes none.
                unsafe { put(mover, tensor.data(), tensor.elem(token, head), to) };
            }
        }
    });
}

/// Writes the elements from `at` on, as many as `to` has.
///
/// # Safety
/// As [`Mover::copy`].
#[inline]
unsafe fn put<T: Stored>(mover: &Mover, from: Data<'_>, at: usize, to: &mut [T]) {
    if let Some(from) = T::own(from) {
        // SAFETY: the caller's contract.
        return unsafe { mover.copy(bytes_of(&from[at..][..to.len()]), bytes_of_mut(to), 0) };
    }
    if !mover.past_caches() {
        return convert(from, at, to);
    }
    let mut piece = [T::ZERO; PIECE];
    for (to, at) in to.chunks_mut(PIECE).zip((at..).step_by(PIECE)) {
        let piece = &mut piece[..to.len()];
        convert(from, at, piece);
        // SAFETY: the caller's contract; chunks are disjoint.
        unsafe { mover.copy(bytes_of(piece), bytes_of_mut(to), 0) };
    }
}

/// Converts the elements from `at` on, as many as `to` has: straight, or, from one 16-bit type to the other, by way of
/// `f32`, which holds both exactly.
fn convert<T: Stored>(from: Data<'_>, at: usize, to: &mut [T]) {
    if let Data::F32(from) = from {
        return T::narrow(&from[at..][..to.len()], to);
    }
    if let Some(to) = T::wide(to) {
        return from.widen(at, to);
    }
    let mut wide = [0.0; PIECE];
    for (to, at) in to.chunks_mut(PIECE).zip((at..).step_by(PIECE)) {
        let wide = &mut wide[..to.len()];
        from.widen(at, wide);
        T::narrow(wide, to);
    }
}
