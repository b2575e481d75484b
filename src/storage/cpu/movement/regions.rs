//! Which memory a block is, and a proof that blocks, layers and tokens do not share any.
//!
//! A layout may be anything that lies inside its allocations: layers may share K and V, V may be a part of K. Moving
//! several things at once, and past the caches, is only sound where they are apart, so that it is proven here, once, at
//! construction, by comparing intervals; where it is not, everything moves one by one as the words say.
//!
//! The unit of the proof is a *region*: memory of which every block has the same part, `stride` elements further from
//! block to block, and no longer than that. Blocks of a region are therefore disjoint. With the default layout a layer is
//! a region, and a block of it one run; across layers all layers are; with planes of K and V apart, each plane is.

use alloc::vec::Vec;
use core::ops::Range;

use crate::id::ix;
use crate::storage::geometry::{Geometry, Strides};

/// Runs of a plane's block that are looked at, at most. No real layout comes near; an odd one keeps the plain path.
const MAX_RUNS: usize = 1 << 16;

/// Memory that every block has a part of. In elements.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) allocation: usize,
    /// From block to block.
    pub(super) stride: usize,
    /// What belongs to block 0: sorted, disjoint, and not touching. They span at most `stride`.
    pub(super) runs: Vec<Range<usize>>,
}

impl Region {
    /// From the first element of block 0 to its last.
    fn hull(&self) -> Range<usize> {
        let first = self.runs.first().map_or(0, |run| run.start);
        first..self.runs.last().map_or(first, |run| run.end)
    }

    /// From the first element of the first block to the last of the last. The layout was checked to contain all of it.
    fn extent(&self, num_blocks: usize) -> Range<usize> {
        let hull = self.hull();
        hull.start..hull.end + (num_blocks - 1) * self.stride
    }

    pub(super) fn elems(&self) -> usize {
        self.runs.iter().map(Range::len).sum()
    }
}

/// What is known about the memory of a layout.
#[derive(Debug, Default)]
pub(in super::super) struct Regions {
    /// All memory of K and V, in regions that are pairwise disjoint. Empty where that could not be shown.
    pub(super) regions: Vec<Region>,
    /// Per layer, whether K and V of all slots and heads, and their scales, are pairwise disjoint.
    apart: Vec<bool>,
    /// Whether all of that holds across layers too.
    pub(super) all_apart: bool,
}

impl Regions {
    /// Whether K and V of all slots and heads of a layer that exists are pairwise disjoint.
    pub(in super::super) fn apart(&self, layer: u32) -> bool {
        self.apart[ix(layer)]
    }

    pub(in super::super) fn new(layers: &[Geometry], num_blocks: usize, block_size: usize) -> Self {
        let mut regions = Vec::new();
        let mut apart = Vec::new();
        // Elements before runs were joined: as many as after where none is in two of them.
        let mut elems = 0_usize;
        let mut complete = true;
        for layer in layers {
            let of = |planes: &[(Strides, usize)]| region(layer, planes, num_blocks, block_size);
            let planes: Vec<_> = layer.planes().collect();
            let found = of(&planes).map(|all| alloc::vec![all]);
            let found = found.or_else(|| planes.iter().map(|plane| of(&[*plane])).collect());
            let Some(found) = found else {
                apart.push(false);
                complete = false;
                continue;
            };
            // K and V may share memory, so that this may be more than there is.
            let written = layer.kv_heads.saturating_mul(block_size).saturating_mul(layer.head_elems());
            let kept: usize = found.iter().map(Region::elems).sum();
            apart.push(written == kept && disjoint(&found, num_blocks));
            elems = elems.saturating_add(written);
            regions.extend(found);
        }
        if !complete {
            return Self { regions: Vec::new(), apart, all_apart: false };
        }
        let regions = joined(regions, num_blocks);
        let all_apart = apart.iter().all(|apart| *apart) && regions.iter().map(Region::elems).sum::<usize>() == elems;
        if disjoint(&regions, num_blocks) {
            Self { regions, apart, all_apart }
        } else {
            Self { regions: Vec::new(), apart, all_apart: false }
        }
    }
}

/// Planes of a layer as one region; `None` where they are none.
fn region(layer: &Geometry, planes: &[(Strides, usize)], num_blocks: usize, block_size: usize) -> Option<Region> {
    let stride = planes[0].0.block();
    if planes.iter().any(|(strides, _)| strides.block() != stride) {
        return None;
    }
    let mut runs = Vec::new();
    for (strides, dim) in planes {
        let count = strides.num_runs(layer.kv_heads, block_size, *dim);
        if count > MAX_RUNS || runs.try_reserve(count).is_err() {
            return None;
        }
        runs.extend(strides.runs(0, layer.kv_heads, block_size, *dim));
    }
    fits(Region { allocation: layer.allocation, stride, runs: union(runs) }, num_blocks)
}

/// The region, if its blocks are disjoint: a block is no longer than the step to the next one.
fn fits(region: Region, num_blocks: usize) -> Option<Region> {
    (num_blocks == 1 || region.hull().len() <= region.stride).then_some(region)
}

/// Sorts runs and joins those that overlap or touch.
fn union(mut runs: Vec<Range<usize>>) -> Vec<Range<usize>> {
    #[cfg(test)]
    tests::SORTED.set(tests::SORTED.get() + runs.len());
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, run| {
        let joins = next.start <= run.end;
        if joins {
            run.end = run.end.max(next.end);
        }
        joins
    });
    runs
}

/// Makes one of regions that are neighbours in every block, as layers are in a layout across layers.
fn joined(mut regions: Vec<Region>, num_blocks: usize) -> Vec<Region> {
    regions.sort_by_key(|region| (region.allocation, region.hull().start));
    let mut joined: Vec<Region> = Vec::new();
    // Of the last one. Its runs are sorted when all are known: at every layer, it would be quadratic in them.
    let mut hull = 0..0;
    for next in regions {
        if let Some(last) = joined.last_mut() {
            let both = hull.start..hull.end.max(next.hull().end);
            let alike = last.allocation == next.allocation && last.stride == next.stride;
            if alike && (num_blocks == 1 || both.len() <= last.stride) {
                last.runs.extend(next.runs);
                hull = both;
                continue;
            }
        }
        hull = next.hull();
        joined.push(next);
    }
    for region in &mut joined {
        region.runs = union(core::mem::take(&mut region.runs));
    }
    joined
}

/// Whether no two regions have memory in common, by their extents.
fn disjoint(regions: &[Region], num_blocks: usize) -> bool {
    let mut extents: Vec<_> = regions.iter().map(|region| (region.allocation, region.extent(num_blocks))).collect();
    extents.sort_unstable_by_key(|(allocation, extent)| (*allocation, extent.start));
    extents.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].1.end <= pair[1].1.start)
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::layout::{DType, KvLayout, KvShape, LayerLayout, Plane};

    std::thread_local! {
        /// Runs that [`union`] was given, for tests that count them.
        pub(super) static SORTED: Cell<usize> = const { Cell::new(0) };
    }

    fn regions(layout: &KvLayout) -> Regions {
        let layers: Vec<_> = layout
            .layers()
            .iter()
            .zip(0..)
            .map(|(layer, index)| Geometry::new(layout, layer, index).unwrap())
            .collect();
        Regions::new(&layers, layout.num_blocks() as usize, layout.block_size() as usize)
    }

    /// Layers of 2 KV heads of 8, 5 blocks of 4 tokens, all in one allocation of 7 million. Planes are base and strides of
    /// blocks, heads and tokens.
    fn custom(v_dim: u32, layers: &[[[u64; 4]; 2]]) -> Regions {
        let plane = |[base_elems, block_stride_elems, head_stride_elems, token_stride_elems]: [u64; 4]| Plane {
            base_elems,
            block_stride_elems,
            head_stride_elems,
            token_stride_elems,
        };
        let layer = |[k, v]: &[[u64; 4]; 2]| LayerLayout {
            k: plane(*k),
            v: plane(*v),
            scales: None,
            kv_heads: 2,
            k_dim: 8,
            v_dim,
            allocation: 0,
        };
        let layers = layers.iter().map(layer).collect();
        regions(&KvLayout::custom(5, 4, DType::F32, layers, alloc::vec![7_000_000]).unwrap())
    }

    fn shown(regions: &Regions) -> Vec<(usize, usize, usize)> {
        regions.regions.iter().map(|region| (region.hull().start, region.stride, region.runs.len())).collect()
    }

    #[test]
    fn a_block_is_one_run_per_layer_or_across_layers() {
        let shape = KvShape::new(3, 2, 8, DType::F16).with_v_dim(24);
        // 2 heads × 4 tokens × (8 + 24) = 256 elements.
        let per_layer = regions(&KvLayout::per_layer(&shape, 5, 4).unwrap());
        assert_eq!(shown(&per_layer), [(0, 256, 1); 3]);
        let cross_layer = regions(&KvLayout::cross_layer(&shape, 5, 4).unwrap());
        assert_eq!(shown(&cross_layer), [(0, 768, 1)]);
        let one_block = regions(&KvLayout::cross_layer(&shape, 1, 4).unwrap());
        assert_eq!(shown(&one_block), [(0, 0, 1)]);
        for regions in [per_layer, cross_layer, one_block] {
            assert_eq!((regions.apart, regions.all_apart), (alloc::vec![true; 3], true));
        }
    }

    #[test]
    fn planes_and_gaps_are_kept_apart() {
        // Planes of 5 × 64 elements.
        let planes = custom(8, &[[[0, 64, 32, 8], [320, 64, 32, 8]]]);
        assert_eq!(shown(&planes), [(0, 64, 1), (320, 64, 1)]);
        // Tokens of [K, K, V, V] and a gap of 2.
        let gaps = custom(8, &[[[7, 136, 8, 34], [23, 136, 8, 34]], [[700, 136, 8, 34], [716, 136, 8, 34]]]);
        assert_eq!(shown(&gaps), [(7, 136, 4), (700, 136, 4)]);
        assert!(planes.all_apart && gaps.all_apart);
    }

    #[test]
    fn layers_beside_each_other_are_sorted_once_however_many() {
        const LAYERS: u64 = 10_000;
        // Per block and layer [K, V, gap], of 64, 64 and 2 elements.
        let stride = LAYERS * 130;
        let layer = |layer| [[layer * 130, stride, 32, 8], [layer * 130 + 64, stride, 32, 8]];
        let layers: Vec<_> = (0..LAYERS).map(layer).collect();
        SORTED.set(0);
        let found = custom(8, &layers);
        assert_eq!(shown(&found), [(0, 1_300_000, 10_000)]);
        assert!(found.all_apart);
        // K and V of every layer, which are one run, and that run among all.
        assert_eq!(SORTED.get(), 3 * 10_000);
    }

    #[test]
    fn what_shares_memory_is_found() {
        // V is the first half of K: a block is still one run, but K and V are not to be written at once.
        let latent = custom(4, &[[[0, 64, 32, 8], [0, 64, 32, 8]]]);
        assert_eq!(
            (shown(&latent), latent.apart.clone(), latent.all_apart),
            (alloc::vec![(0, 64, 1)], alloc::vec![false], false)
        );
        // Two layers that are one: each of them is apart.
        let layer = [[0, 128, 64, 8], [32, 128, 64, 8]];
        let twice = custom(8, &[layer, layer]);
        assert_eq!(
            (shown(&twice), twice.apart.clone(), twice.all_apart),
            (alloc::vec![(0, 128, 1)], alloc::vec![true; 2], false)
        );
        // K and V of blocks that overlap, K and V that do, and layers of different strides that do.
        let second = [[64, 192, 64, 8], [96, 192, 64, 8]];
        for (layers, apart) in [
            (alloc::vec![[[0, 127, 64, 8], [32, 127, 64, 8]]], alloc::vec![false]),
            (alloc::vec![[[0, 64, 32, 8], [300, 64, 32, 8]]], alloc::vec![false]),
            (alloc::vec![layer, second], alloc::vec![true; 2]),
        ] {
            let found = custom(8, &layers);
            assert_eq!((found.apart.clone(), found.all_apart), (apart, false), "{layers:?}");
        }
        assert!(custom(8, &[layer, second]).regions.is_empty());
    }
}
