//! Copies of whole blocks inside the pool.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;

use super::regions::{Region, Regions};
use super::{PAST_CACHES_BYTES, spread};
use crate::step::BlockCopy;
use crate::storage::cpu::memory::{Pools, each};
use crate::storage::cpu::shared::Shared;
use crate::storage::geometry::Geometry;

/// Bytes that a task copies, at least: a block of one layer of a usual model.
const TASK_BYTES: usize = 64 << 10;

/// Runs copies of which no destination is a source or the destination of another, and whose blocks exist.
pub(in super::super) fn copy_blocks(
    pools: &mut Pools,
    layers: &[Geometry],
    regions: &Regions,
    block_size: usize,
    copies: &[BlockCopy],
) {
    let regions = &regions.regions[..];
    if regions.is_empty() {
        return one_by_one(pools, layers, block_size, copies);
    }
    let elem_bytes = pools.elem_bytes();
    let bytes =
        regions.iter().map(Region::elems).sum::<usize>().saturating_mul(elem_bytes).saturating_mul(copies.len());
    if bytes < PAST_CACHES_BYTES {
        for region in regions {
            let elems = pools.bytes_mut(region.allocation);
            for copy in copies {
                for run in &region.runs {
                    let [from, to] = [copy.src, copy.dst].map(|block| at(region, block.index(), run, elem_bytes));
                    elems.copy_within(from, to.start);
                }
            }
        }
        return;
    }
    let allocations: Vec<_> = pools.all_bytes_mut().into_iter().map(Shared::new).collect();
    let pairs = regions.len() * copies.len();
    let parts = (bytes / TASK_BYTES / pairs).max(1);
    spread(pairs * parts, bytes, |task, mover| {
        let (pair, part) = (task / parts, task % parts);
        let (region, copy) = (&regions[pair / copies.len()], copies[pair % copies.len()]);
        let memory = &allocations[region.allocation];
        for run in region_part(region, part, parts) {
            let [from, to] = [copy.src, copy.dst].map(|block| at(region, block.index(), &run, elem_bytes));
            // The rest of the block, which is the next part's.
            let follows = region.runs.last().map_or(0, |last| (last.end - run.end) * elem_bytes);
            // SAFETY: what is claimed anywhere in this call is of blocks that are destinations, and no destination is a
            // source by the contract of the copies (`Prepared` checks it). Blocks of a region are disjoint, and so are
            // regions: `Regions` lists only such.
            let from = unsafe { memory.read(from) };
            // SAFETY: as above; and of two claims one is of another region, or of another destination, or, tasks being
            // run once each, of another part of the same block, and parts are disjoint as runs are.
            let to = unsafe { memory.claim(to) };
            // SAFETY: by the same, nothing in this call touches `to` again, and nothing else can before it returns.
            unsafe { mover.copy(from, to, follows) };
        }
    });
}

/// The bytes of a run of block 0 in another block.
fn at(region: &Region, block: usize, run: &Range<usize>, elem_bytes: usize) -> Range<usize> {
    let skip = block * region.stride;
    (skip + run.start) * elem_bytes..(skip + run.end) * elem_bytes
}

/// One of `parts` parts of a region's block: some of its runs, or a piece of its only one.
fn region_part(region: &Region, part: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    /// Elements of a page of 4 KiB, at four bytes: pieces end on lines.
    const ALIGN_ELEMS: usize = 1024;
    let share = |count: usize, unit: usize| {
        let units = count.div_ceil(unit);
        let bound = |part: usize| (units / parts * part + (units % parts).min(part)) * unit;
        bound(part).min(count)..bound(part + 1).min(count)
    };
    let (runs, piece) = match &region.runs[..] {
        [run] => (0..1, share(run.len(), ALIGN_ELEMS)),
        runs => (share(runs.len(), 1), 0..usize::MAX),
    };
    region.runs[runs].iter().map(move |run| run.start + piece.start..run.end.min(run.start.saturating_add(piece.end)))
}

/// Copies of layers that may share memory: in their order, and with ordinary stores.
fn one_by_one(pools: &mut Pools, layers: &[Geometry], block_size: usize, copies: &[BlockCopy]) {
    for copy in copies {
        let [src, dst] = [copy.src, copy.dst].map(|block| block.index());
        for layer in layers {
            for (strides, dim) in layer.planes() {
                let from = strides.runs(src, layer.kv_heads, block_size, dim);
                let to = strides.runs(dst, layer.kv_heads, block_size, dim);
                each!(&mut *pools, buffers => {
                    let elems = &mut buffers[layer.allocation];
                    from.zip(to).for_each(|(from, to)| elems.copy_within(from, to.start));
                });
            }
        }
    }
}
