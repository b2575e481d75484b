//! A layer of the layout in the numbers that index memory.

use core::ops::Range;

use super::error::StorageError;
use crate::id::ix;
use crate::layout::{KvLayout, LayerLayout, Plane};

/// The longest head, in elements, of K or V that this storage takes; the longest in use are below a thousand.
pub const MAX_HEAD_DIM: u32 = 1 << 16;

/// Strides of a plane, in elements.
///
/// [`elem`](Self::elem) cannot overflow for a block, head and offset that exist: the layout was checked to lie inside
/// its allocation, and the allocation exists, so that every index into it fits a `usize`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    base: usize,
    block: usize,
    head: usize,
    token: usize,
}

impl Strides {
    fn new(plane: &Plane, num_blocks: u32, heads: u32, block_size: u32) -> Self {
        // A stride of which there is no second step is never multiplied by more than 0, and may be any number.
        let stride = |elems: u64, count: u32| if count == 1 { 0 } else { usize::try_from(elems).unwrap_or(0) };
        Self {
            base: usize::try_from(plane.base_elems).unwrap_or(0),
            block: stride(plane.block_stride_elems, num_blocks),
            head: stride(plane.head_stride_elems, heads),
            token: stride(plane.token_stride_elems, block_size),
        }
    }

    /// The first element of a token's head.
    #[inline(always)]
    pub(super) const fn elem(&self, block: usize, head: usize, offset: usize) -> usize {
        self.base + block * self.block + head * self.head + offset * self.token
    }

    /// The first element.
    #[cfg(feature = "cuda")]
    pub(super) const fn base(self) -> usize {
        self.base
    }

    /// From head to head; 0 where there is one head.
    #[cfg(feature = "cuda")]
    pub(super) const fn head(self) -> usize {
        self.head
    }

    /// From block to block; 0 where there is one block.
    pub(super) const fn block(self) -> usize {
        self.block
    }

    /// From one token to the next.
    pub(super) const fn token(&self) -> usize {
        self.token
    }

    /// The contiguous runs that make up a block, as ranges from the start of the allocation.
    pub(super) fn runs(
        self,
        block: usize,
        heads: usize,
        block_size: usize,
        dim: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let (heads, tokens, run) = self.run_shape(heads, block_size, dim);
        (0..heads).flat_map(move |head| {
            (0..tokens).map(move |token| {
                let from = self.elem(block, head, token);
                from..from + run
            })
        })
    }

    /// How many runs those are.
    pub(super) const fn num_runs(self, heads: usize, block_size: usize, dim: usize) -> usize {
        let (heads, tokens, _) = self.run_shape(heads, block_size, dim);
        heads.saturating_mul(tokens)
    }

    /// Heads and tokens that begin a run, and its elements.
    const fn run_shape(self, heads: usize, block_size: usize, dim: usize) -> (usize, usize, usize) {
        let (tokens, run) = if self.token == dim { (1, block_size * dim) } else { (block_size, dim) };
        if tokens == 1 && self.head == run { (1, tokens, heads * run) } else { (heads, tokens, run) }
    }
}

/// One layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) k: Strides,
    pub(super) v: Strides,
    /// Of the scales of K and of V.
    pub(super) scales: Option<[Strides; 2]>,
    /// Elements of a scale; 0 where there are none.
    pub(super) scale_elems: usize,
    pub(super) kv_heads: usize,
    pub(super) k_dim: usize,
    pub(super) v_dim: usize,
    pub(super) allocation: usize,
}

impl Geometry {
    pub(super) fn new(layout: &KvLayout, layer: &LayerLayout, index: u32) -> Result<Self, StorageError> {
        for dim in [layer.k_dim, layer.v_dim] {
            if dim > MAX_HEAD_DIM {
                return Err(StorageError::HeadTooLong { layer: index, dim, max: MAX_HEAD_DIM });
            }
        }
        let strides = |plane: &Plane| Strides::new(plane, layout.num_blocks(), layer.kv_heads, layout.block_size());
        Ok(Self {
            k: strides(&layer.k),
            v: strides(&layer.v),
            scales: layer.scales.map(|scales| [scales.k, scales.v].map(|plane| strides(&plane))),
            scale_elems: ix(layout.dtype().scale_elems()),
            kv_heads: ix(layer.kv_heads),
            k_dim: ix(layer.k_dim),
            v_dim: ix(layer.v_dim),
            allocation: ix(layer.allocation),
        })
    }

    /// K and V: where each lies, where its scales do, and its elements per head and token.
    pub(super) fn kv(&self) -> [(Strides, Option<Strides>, usize); 2] {
        let [k_scales, v_scales] = self.scales.map_or([None; 2], |scales| scales.map(Some));
        [(self.k, k_scales, self.k_dim), (self.v, v_scales, self.v_dim)]
    }

    /// All planes, in the order of records: K, V, and the scales of K and of V; each with its elements per head and token.
    pub(super) fn planes(&self) -> impl Iterator<Item = (Strides, usize)> + use<> {
        let scale_elems = self.scale_elems;
        let scales = self.scales.into_iter().flatten().map(move |strides| (strides, scale_elems));
        [(self.k, self.k_dim), (self.v, self.v_dim)].into_iter().chain(scales)
    }

    /// Elements of one head of one token, in all planes.
    pub(super) fn head_elems(&self) -> usize {
        self.planes().map(|(_, dim)| dim).sum()
    }
}
