//! K and V of new tokens, from the caller's tensors to their slots.
#![allow(unsafe_code)]

use super::stream::Mover;
use super::{PAST_CACHES_BYTES, spread, streaming};
use crate::storage::cpu::element::{Convert, Largest, MAX_SCALE_ELEMS, PIECE, Stored};
use crate::storage::cpu::isa::Level;
use crate::storage::cpu::memory::{bytes_of, bytes_of_mut};
use crate::storage::cpu::prepared::Prepared;
use crate::storage::cpu::shared::Shared;
use crate::storage::cpu::tensor::CpuTensor;
use crate::storage::geometry::{Geometry, Strides};

/// A tensor of K or V, and where its tokens go.
struct Source<'a> {
    tensor: &'a CpuTensor<'a>,
    strides: Strides,
    scales: Option<Strides>,
    dim: usize,
}

/// K and V.
fn sources<'a>(geometry: &Geometry, k: &'a CpuTensor<'a>, v: &'a CpuTensor<'a>) -> [Source<'a>; 2] {
    let [of_k, of_v] = geometry.kv();
    [(k, of_k), (v, of_v)].map(|(tensor, (strides, scales, dim))| Source { tensor, strides, scales, dim })
}

/// Writes K and V of the tokens of a prepared step, to slots that exist; shapes are checked. `apart` says that no two
/// slots or heads of the layer, K and V and their scales, share memory.
pub(in super::super) fn write<T: Stored>(
    level: Level,
    elems: &mut [T],
    geometry: &Geometry,
    apart: bool,
    prepared: &Prepared,
    [k, v]: [&CpuTensor<'_>; 2],
) {
    let runs = prepared.slot_runs();
    let row_elems = geometry.kv_heads.saturating_mul(geometry.k_dim + geometry.v_dim);
    let bytes = row_elems.saturating_mul(size_of::<T>()).saturating_mul(prepared.slots().len());
    if !(apart && prepared.slots_differ() && bytes >= PAST_CACHES_BYTES) {
        for run in runs {
            for token in 0..run.tokens {
                let place = (run.block, run.offset + token);
                write_token(level, elems, geometry, run.first_token + token, place, [k, v]);
            }
        }
        return;
    }
    let elems = Shared::new(elems);
    let heads = geometry.kv_heads;
    spread(runs.len() * heads, bytes, |task, mover| {
        let (run, head) = (&runs[task / heads], task % heads);
        for source in sources(geometry, k, v) {
            for token in 0..run.tokens {
                let at = |strides: Strides| strides.elem(run.block, head, run.offset + token);
                let to = at(source.strides);
                // SAFETY: each claim of this call is of another slot (the step's differ, and tasks run once each), of
                // another head, or of another one of K and V and their scales, and all of those are `apart`. Nothing
                // else is read from the memory, which is borrowed uniquely.
                let to = unsafe { elems.claim(to..to + source.dim) };
                let scale = source.scales.map(at).map_or(0..0, |at| at..at + T::SCALE_ELEMS);
                // SAFETY: as above; where there are no scales it is empty.
                let scale = unsafe { elems.claim(scale) };
                // SAFETY: by the same, nothing in this call touches the two again, and nothing else can before it
                // returns.
                unsafe { put(level, mover, source.tensor, (run.first_token + token, head), to, scale) };
            }
        }
    });
}

/// Writes K and V of one token to a block and offset that exist, with ordinary stores; shapes are checked.
pub(in super::super) fn write_token<T: Stored>(
    level: Level,
    elems: &mut [T],
    geometry: &Geometry,
    token: usize,
    (block, offset): (usize, usize),
    [k, v]: [&CpuTensor<'_>; 2],
) {
    streaming(false, |mover| {
        for head in 0..geometry.kv_heads {
            for source in sources(geometry, k, v) {
                let mut scale = [T::ZERO; MAX_SCALE_ELEMS];
                let to = &mut elems[source.strides.elem(block, head, offset)..][..source.dim];
                // SAFETY: the contract is about stores past the caches, and this mover makes none.
                unsafe { put(level, mover, source.tensor, (token, head), to, &mut scale[..T::SCALE_ELEMS]) };
                if let Some(scales) = source.scales {
                    let to = &mut elems[scales.elem(block, head, offset)..][..T::SCALE_ELEMS];
                    to.copy_from_slice(&scale[..T::SCALE_ELEMS]);
                }
            }
        }
    });
}

/// Writes a head of a token, and its scale where the type has one.
///
/// # Safety
/// As [`Mover::copy`], for both.
#[inline]
unsafe fn put<T: Stored>(
    level: Level,
    mover: &Mover,
    tensor: &CpuTensor<'_>,
    (token, head): (usize, usize),
    to: &mut [T],
    scale_to: &mut [T],
) {
    let (from, at) = (tensor.data(), tensor.elem(token, head));
    if let Some(from) = T::own(from) {
        // SAFETY: the caller's contract.
        return unsafe { mover.copy(bytes_of(&from[at..][..to.len()]), bytes_of_mut(to), 0) };
    }
    let mut scale = 1.0;
    if T::SCALE_ELEMS > 0 {
        level.run(Largest { from, at, len: to.len(), scale: &mut scale });
        T::set_scale(scale, scale_to);
    }
    if !mover.past_caches() {
        return level.run(Convert { from, at, scale, to });
    }
    let mut piece = [T::ZERO; PIECE];
    for (to, at) in to.chunks_mut(PIECE).zip((at..).step_by(PIECE)) {
        let piece = &mut piece[..to.len()];
        level.run(Convert { from, at, scale, to: piece });
        // SAFETY: the caller's contract; chunks are disjoint.
        unsafe { mover.copy(bytes_of(piece), bytes_of_mut(to), 0) };
    }
}
