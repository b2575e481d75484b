//! The memory of K and V on the device, and where the planes of layers lie in it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use cudarc::driver::CudaContext;

use super::memory::DeviceMemory;
use super::params::{Plane, Run};
use crate::id::ix;
use crate::layout::KvLayout;
use crate::storage::StorageError;
use crate::storage::geometry::{Geometry, Strides};

/// One layer, as kernels take it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) geometry: Geometry,
    pub(super) k: Plane,
    pub(super) v: Plane,
    /// Of K and of V; null where the type has none.
    pub(super) scales: [Plane; 2],
}

impl Layer {
    /// All planes in the order of records; each with its strides and its elements per head and token.
    pub(super) fn planes(&self) -> impl Iterator<Item = (Plane, Strides, usize)> {
        let planes = [self.k, self.v, self.scales[0], self.scales[1]];
        planes.into_iter().zip(self.geometry.planes()).map(|(plane, (strides, dim))| (plane, strides, dim))
    }
}

/// The allocations of a layout.
#[derive(Debug)]
pub(super) struct Pool {
    firsts: Vec<u64>,
    /// Those of them that are this storage's own.
    _owned: Vec<DeviceMemory>,
}

impl Pool {
    /// Zeros of this storage's own.
    pub(super) fn zeroed(context: &Arc<CudaContext>, layout: &KvLayout) -> Result<Self, StorageError> {
        let allocate = |(allocation, elems): (u32, &u64)| {
            let bytes = elems.saturating_mul(layout.dtype().bytes());
            DeviceMemory::zeroed(context, bytes, StorageError::OutOfMemory { allocation, bytes })
        };
        let owned: Vec<_> = (0..).zip(layout.allocations()).map(allocate).collect::<Result<_, _>>()?;
        Ok(Self { firsts: owned.iter().map(DeviceMemory::first).collect(), _owned: owned })
    }

    /// Somebody else's memory.
    pub(super) fn adopted(layout: &KvLayout, firsts: &[u64]) -> Result<Self, StorageError> {
        let (given, expected) = (firsts.len(), layout.allocations().len());
        if given != expected {
            let (given, max) = (given as u64, expected as u64);
            return Err(StorageError::Limit { what: "addresses for the allocations of the layout", given, max });
        }
        if firsts.iter().any(|first| !first.is_multiple_of(layout.dtype().bytes())) {
            return Err(StorageError::Misaligned { tensor: "the pool" });
        }
        Ok(Self { firsts: firsts.to_vec(), _owned: Vec::new() })
    }

    /// The address of an allocation, if there is such.
    pub(super) fn first(&self, allocation: u32) -> Option<u64> {
        self.firsts.get(ix(allocation)).copied()
    }

    /// The layers of the layout.
    pub(super) fn layers(&self, layout: &KvLayout) -> Result<Vec<Layer>, StorageError> {
        let elem_bytes = layout.dtype().bytes();
        (0..)
            .zip(layout.layers())
            .map(|(index, layer)| {
                let geometry = Geometry::new(layout, layer, index)?;
                let first = self.firsts[geometry.allocation];
                let plane = |strides: Strides| plane(first, strides, elem_bytes);
                let scales = geometry.scales.map_or([Plane::default(); 2], |scales| scales.map(plane));
                Ok(Layer { geometry, k: plane(geometry.k), v: plane(geometry.v), scales })
            })
            .collect()
    }

    /// What a block is made of, over all layers: as few runs as there can be, none longer than `max_bytes`.
    pub(super) fn runs(&self, layout: &KvLayout, layers: &[Layer], max_bytes: i64) -> Vec<Run> {
        let (block_size, elem_bytes) = (ix(layout.block_size()), layout.dtype().bytes());
        let mut runs: Vec<(u64, i64, Range<i64>)> = Vec::new();
        for Layer { geometry, .. } in layers {
            let first = self.firsts[geometry.allocation];
            for (strides, dim) in geometry.planes() {
                let block_bytes = bytes(strides.block(), elem_bytes);
                runs.extend(strides.runs(0, geometry.kv_heads, block_size, dim).map(|run| {
                    let [start, end] = [run.start, run.end].map(|elem| bytes(elem, elem_bytes));
                    (first, block_bytes, start..end)
                }));
            }
        }
        // Of one allocation and stride, neighbours become one run. Those that overlap too: layers may share K and V.
        runs.sort_unstable_by_key(|(first, block_bytes, run)| (*first, *block_bytes, run.start));
        runs.dedup_by(|next, run| {
            let joins = next.0 == run.0 && next.1 == run.1 && next.2.start <= run.2.end;
            if joins {
                run.2.end = run.2.end.max(next.2.end);
            }
            joins
        });
        let pieces = |(first, block_bytes, run): (u64, i64, Range<i64>)| {
            cut(run, max_bytes).map(move |piece| Run {
                base: first.wrapping_add_signed(piece.start),
                block_bytes,
                bytes: piece.end - piece.start,
            })
        };
        runs.into_iter().flat_map(pieces).collect()
    }
}

/// Bytes of elements of memory that exists, so that their number is one of 63 bits.
pub(super) fn bytes(elems: usize, elem_bytes: u64) -> i64 {
    i64::try_from((elems as u64).saturating_mul(elem_bytes)).unwrap_or(i64::MAX)
}

fn plane(first: u64, strides: Strides, elem_bytes: u64) -> Plane {
    let [base, block, head, token] =
        [strides.base(), strides.block(), strides.head(), strides.token()].map(|elems| bytes(elems, elem_bytes));
    Plane { base: first.wrapping_add_signed(base), block_bytes: block, head_bytes: head, token_bytes: token }
}

/// A number that kernels take as an `int`.
pub(super) fn int(what: &'static str, number: usize) -> Result<i32, StorageError> {
    i32::try_from(number).map_err(|_| StorageError::Limit { what, given: number as u64, max: i32::MAX as u64 })
}

/// `range` in pieces of at most `max_bytes`.
pub(super) fn cut(range: Range<i64>, max_bytes: i64) -> impl Iterator<Item = Range<i64>> {
    let step = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    range.clone().step_by(step).map(move |start| start..range.end.min(start.saturating_add(max_bytes)))
}
