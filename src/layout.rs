//! The geometry of KV memory: what a token weighs, and where its K and V lie.
//!
//! Floor 0. [`KvShape`] answers the questions of sizing (bytes per token, blocks that fit a budget, shares of a rank);
//! [`KvLayout`] says for every layer where the K plane and the V plane lie, and those of their [scales](Scales), with all
//! strides explicit, 64-bit, and in elements. A layout owns no memory.

use alloc::vec::Vec;
use core::ops::Range;

use crate::error::LayoutError;
use crate::id::{BlockId, ix};

/// The element type of K and V in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// fp8: OCP 8-bit floating point E4M3: a sign, four bits of exponent (bias 7), three of mantissa; ±448 at most, no
    /// infinities, one NaN. It has no scale: a calibrated one goes into the keys and values that are written, and, for K,
    /// into the scale of the scores.
    F8E4M3,
    /// int8: integers in −127 ..= 127, times a scale for each token and head, of K and of V apart: see [`Scales`].
    I8,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::F8E4M3 | Self::I8 => 1,
        }
    }

    /// Elements that the scale of one head of one token takes: an `f32`, or 0 where there is none.
    pub const fn scale_elems(self) -> u32 {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::F8E4M3 => 0,
            Self::I8 => 4,
        }
    }
}

/// What a model keeps per token: the shape that every sizing question starts from.
///
/// # Example
/// OPT-13B in the paper (Kwon et al., SOSP 2023, section 3): 2 (K and V) × 5,120 hidden × 40 layers × 2 bytes =
/// 819,200 bytes per token. 12 GiB hold 15,728 slots, or 983 blocks of 16 tokens; at 2,048 positions each, that is
/// 7.68 requests of maximum length.
/// ```
/// use paged_kv::layout::{DType, KvShape};
///
/// let opt_13b = KvShape::new(40, 40, 128, DType::F16);
/// assert_eq!(opt_13b.bytes_per_token()?, 819_200);
///
/// let budget_bytes = 12 << 30;
/// assert_eq!(opt_13b.tokens_in(budget_bytes)?, 15_728);
/// assert_eq!(opt_13b.blocks_in(budget_bytes, 16)?, 983);
/// let requests = opt_13b.tokens_in(budget_bytes)? as f64 / 2048.0;
/// assert_eq!(format!("{requests:.2}"), "7.68");
/// # Ok::<(), paged_kv::error::LayoutError>(())
/// ```
/// Table 1 of the paper, with sizes read as GiB (that is what makes its 13B and 175B columns come out): 15.7K slots
/// for 13B, 60.1K for OPT-175B (96 layers of 12,288). For OPT-66B (64 layers of 9,216) the paper prints 9.7K, where
/// 21 GiB give 9,557.
/// ```
/// # use paged_kv::layout::{DType, KvShape};
/// let opt_175b = KvShape::new(96, 96, 128, DType::F16);
/// assert_eq!(opt_175b.tokens_in(264 << 30)?, 60_074); // printed as 60.1K
/// let opt_66b = KvShape::new(64, 72, 128, DType::F16);
/// assert_eq!(opt_66b.tokens_in(21 << 30)?, 9_557); // the paper prints 9.7K
/// # Ok::<(), paged_kv::error::LayoutError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KvShape {
    /// Layers that keep K and V.
    pub num_layers: u32,
    /// KV heads per layer (fewer than query heads under grouped-query attention).
    pub kv_heads: u32,
    /// Elements of one K head.
    pub k_dim: u32,
    /// Elements of one V head.
    pub v_dim: u32,
    /// Element type.
    pub dtype: DType,
}

impl KvShape {
    /// A shape with K and V heads of the same `head_dim`, in elements.
    pub const fn new(num_layers: u32, kv_heads: u32, head_dim: u32, dtype: DType) -> Self {
        Self { num_layers, kv_heads, k_dim: head_dim, v_dim: head_dim, dtype }
    }

    /// The same with V heads of `v_dim` elements.
    pub const fn with_v_dim(self, v_dim: u32) -> Self {
        Self { v_dim, ..self }
    }

    /// Bytes of K and V of one token, all layers together, scales included.
    ///
    /// # Errors
    /// [`LayoutError::Zero`] names a field that is zero; [`LayoutError::Overflow`] where 64 bits do not suffice.
    pub fn bytes_per_token(&self) -> Result<u64, LayoutError> {
        let fields = [
            (self.num_layers, "num_layers"),
            (self.kv_heads, "kv_heads"),
            (self.k_dim, "k_dim"),
            (self.v_dim, "v_dim"),
        ];
        for (value, field) in fields {
            if value == 0 {
                return Err(LayoutError::Zero { field });
            }
        }
        (u64::from(self.k_dim) + u64::from(self.v_dim) + 2 * u64::from(self.dtype.scale_elems()))
            .checked_mul(u64::from(self.kv_heads))
            .and_then(|elems| elems.checked_mul(u64::from(self.num_layers)))
            .and_then(|elems| elems.checked_mul(self.dtype.bytes()))
            .ok_or(LayoutError::Overflow { field: "bytes per token" })
    }

    /// Bytes of one block of `block_size` tokens, all layers together.
    ///
    /// # Errors
    /// As [`bytes_per_token`](Self::bytes_per_token), and where `block_size` is zero.
    pub fn bytes_per_block(&self, block_size: u32) -> Result<u64, LayoutError> {
        if block_size == 0 {
            return Err(LayoutError::Zero { field: "block_size" });
        }
        self.bytes_per_token()?
            .checked_mul(u64::from(block_size))
            .ok_or(LayoutError::Overflow { field: "bytes per block" })
    }

    /// Tokens whose K and V fit into `budget_bytes`.
    ///
    /// # Errors
    /// As [`bytes_per_token`](Self::bytes_per_token).
    pub fn tokens_in(&self, budget_bytes: u64) -> Result<u64, LayoutError> {
        Ok(budget_bytes / self.bytes_per_token()?)
    }

    /// Blocks of `block_size` tokens that fit into `budget_bytes`.
    ///
    /// # Errors
    /// As [`bytes_per_block`](Self::bytes_per_block).
    pub fn blocks_in(&self, budget_bytes: u64, block_size: u32) -> Result<u64, LayoutError> {
        Ok(budget_bytes / self.bytes_per_block(block_size)?)
    }

    /// The shape that one of `ranks` holds under tensor parallelism: the KV heads are split evenly, or, where there
    /// are fewer heads than ranks, each head is replicated on as many ranks as share it.
    ///
    /// # Errors
    /// [`LayoutError::RanksDoNotDivide`] where neither number divides the other; [`LayoutError::Zero`].
    ///
    /// # Example
    /// ```
    /// use paged_kv::layout::{DType, KvShape};
    ///
    /// let llama_70b = KvShape::new(80, 8, 128, DType::BF16);
    /// assert_eq!(llama_70b.per_rank(4)?.kv_heads, 2);
    /// assert_eq!(llama_70b.per_rank(16)?.kv_heads, 1); // two ranks hold each head
    /// assert!(llama_70b.per_rank(3).is_err());
    /// # Ok::<(), paged_kv::error::LayoutError>(())
    /// ```
    pub fn per_rank(&self, ranks: u32) -> Result<Self, LayoutError> {
        if ranks == 0 {
            return Err(LayoutError::Zero { field: "ranks" });
        }
        if self.kv_heads == 0 {
            return Err(LayoutError::Zero { field: "kv_heads" });
        }
        let kv_heads = if self.kv_heads.is_multiple_of(ranks) {
            self.kv_heads / ranks
        } else if ranks.is_multiple_of(self.kv_heads) {
            1
        } else {
            return Err(LayoutError::RanksDoNotDivide { kv_heads: self.kv_heads, ranks });
        };
        Ok(Self { kv_heads, ..*self })
    }
}

/// Where K (or V) of one layer lies in its allocation. Element `d` of head `h` of the token at `offset` of `block` is
/// at `base + block × block_stride + h × head_stride + offset × token_stride + d`, all in elements, not bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Plane {
    /// First element, in elements from the start of the allocation.
    pub base_elems: u64,
    /// From one block to the next, in elements.
    pub block_stride_elems: u64,
    /// From one KV head to the next, in elements.
    pub head_stride_elems: u64,
    /// From one token to the next within a block, in elements.
    pub token_stride_elems: u64,
}

impl Plane {
    /// The first element of a token's head; see the type. No bounds are checked here: [`KvLayout`] checks once that
    /// every block, head and token lies inside the allocation. Numbers from elsewhere may wrap around.
    #[inline]
    pub const fn elem(&self, block: BlockId, head: u32, offset: u32) -> u64 {
        self.base_elems
            .wrapping_add((block.get() as u64).wrapping_mul(self.block_stride_elems))
            .wrapping_add((head as u64).wrapping_mul(self.head_stride_elems))
            .wrapping_add((offset as u64).wrapping_mul(self.token_stride_elems))
    }

    /// Elements from the start of the allocation to the end of this plane, if 64 bits hold the number.
    fn span(&self, num_blocks: u32, heads: u32, block_size: u32, dim: u32) -> Option<u64> {
        let last = |count: u32, stride: u64| u64::from(count - 1).checked_mul(stride);
        self.base_elems
            .checked_add(last(num_blocks, self.block_stride_elems)?)?
            .checked_add(last(heads, self.head_stride_elems)?)?
            .checked_add(last(block_size, self.token_stride_elems)?)?
            .checked_add(u64::from(dim))
    }

    /// Whether no two heads of any tokens share elements: what the smaller strides span fits between two steps of each
    /// larger one. Sound where [`span`](Self::span) is a number.
    fn is_apart(&self, num_blocks: u32, heads: u32, block_size: u32, dim: u32) -> bool {
        let mut strides = [
            (self.token_stride_elems, block_size),
            (self.head_stride_elems, heads),
            (self.block_stride_elems, num_blocks),
        ];
        strides.sort_unstable();
        let mut span = u64::from(dim);
        // Of one there is no step.
        strides.into_iter().filter(|(_, count)| *count > 1).all(|(stride, count)| {
            let apart = stride >= span;
            span = span.saturating_add(stride.saturating_mul(u64::from(count - 1)));
            apart
        })
    }
}

/// Where the scales of one layer lie, one for K and one for V of each token and head: the number is the element times the
/// scale. Each is an `f32` in the byte order of the machine, in the [`DType::scale_elems`] elements from
/// [`Plane::elem`] on; they lie in the layer's allocation and travel with every copy and record of a block.
///
/// # Example
/// A layer of 2 KV heads of 64 in blocks of 16, all of K, then all of V, then their scales: `[blocks, heads, 16]` with 64
/// elements of a byte for each token, and then with 4.
/// ```
/// use paged_kv::layout::{DType, KvLayout, LayerLayout, Plane, Scales};
///
/// let (blocks, heads, tokens) = (100, 2, 16);
/// let plane = |base_elems, dim| Plane {
///     base_elems,
///     block_stride_elems: heads * tokens * dim,
///     head_stride_elems: tokens * dim,
///     token_stride_elems: dim,
/// };
/// let elems = blocks * heads * tokens; // of a byte, times the bytes of a token
/// let scales = Scales { k: plane(elems * 128, 4), v: plane(elems * 132, 4) };
/// let (k, v) = (plane(0, 64), plane(elems * 64, 64));
/// let layer = LayerLayout { k, v, scales: Some(scales), kv_heads: 2, k_dim: 64, v_dim: 64, allocation: 0 };
/// let layout = KvLayout::custom(100, 16, DType::I8, vec![layer], vec![elems * 136])?;
/// assert_eq!(layout.bytes(), 100 * 2 * 16 * (64 + 64 + 4 + 4));
/// # Ok::<(), paged_kv::error::LayoutError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scales {
    /// Of K.
    pub k: Plane,
    /// Of V.
    pub v: Plane,
}

/// The K plane and the V plane of one layer, and those of their scales.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LayerLayout {
    /// Where K lies.
    pub k: Plane,
    /// Where V lies.
    pub v: Plane,
    /// Where their scales lie, where the element type has any.
    pub scales: Option<Scales>,
    /// KV heads of this layer.
    pub kv_heads: u32,
    /// Elements of one K head.
    pub k_dim: u32,
    /// Elements of one V head.
    pub v_dim: u32,
    /// The allocation that holds this layer: an index below [`KvLayout::allocations`]'s length.
    pub allocation: u32,
}

impl LayerLayout {
    /// All planes, in the order of records: K, V, and where there are some the scales of K and of V; each with the
    /// elements that it has per head and token.
    pub fn planes(&self, dtype: DType) -> impl Iterator<Item = (Plane, u32)> + use<> {
        let scales = self.scales.map(|scales| [scales.k, scales.v].map(|plane| (plane, dtype.scale_elems())));
        [(self.k, self.k_dim), (self.v, self.v_dim)].into_iter().chain(scales.into_iter().flatten())
    }
}

/// Where every layer of a pool of blocks lies.
///
/// The default is one allocation per layer, `[num_blocks, kv_heads, 2 (K, V), block_size, head_dim]`
/// ([`per_layer`](Self::per_layer)), so that K and V of one head of one block are one contiguous run. Where the element
/// type has [scales](Scales), those of K and then those of V follow, `[2, block_size]`, and are of that run; they lie on
/// multiples of four bytes where `block_size` × (`k_dim` + `v_dim`) is one of four. In the
/// cross-layer form ([`cross_layer`](Self::cross_layer)) there is one allocation,
/// `[num_blocks, num_layers, kv_heads, 2, block_size, head_dim]`, and a block of all layers is one contiguous run.
///
/// A kernel that takes strides reads either as it is. One that assumes dense `[.., block_size, kv_heads, head_dim]`
/// planes (NHD) or K packed in 16-byte pieces does not: describe such a pool with [`custom`](Self::custom).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvLayout {
    num_blocks: u32,
    block_size: u32,
    dtype: DType,
    layers: Vec<LayerLayout>,
    allocation_elems: Vec<u64>,
}

impl KvLayout {
    /// One allocation per layer: `[num_blocks, kv_heads, 2 (K, V), block_size, head_dim]`.
    ///
    /// # Errors
    /// [`LayoutError::Zero`] and [`LayoutError::Overflow`], with the field.
    pub fn per_layer(shape: &KvShape, num_blocks: u32, block_size: u32) -> Result<Self, LayoutError> {
        Self::dense(shape, num_blocks, block_size, false)
    }

    /// One allocation for all layers: `[num_blocks, num_layers, kv_heads, 2 (K, V), block_size, head_dim]`.
    ///
    /// # Errors
    /// [`LayoutError::Zero`] and [`LayoutError::Overflow`], with the field.
    pub fn cross_layer(shape: &KvShape, num_blocks: u32, block_size: u32) -> Result<Self, LayoutError> {
        Self::dense(shape, num_blocks, block_size, true)
    }

    fn dense(shape: &KvShape, num_blocks: u32, block_size: u32, cross_layer: bool) -> Result<Self, LayoutError> {
        if num_blocks == 0 {
            return Err(LayoutError::Zero { field: "num_blocks" });
        }
        // The one call that checks every field of the shape, and that the total fits 64 bits.
        shape
            .bytes_per_block(block_size)?
            .checked_mul(u64::from(num_blocks))
            .ok_or(LayoutError::Overflow { field: "bytes of the pool" })?;
        let [num_layers, heads, tokens] = [shape.num_layers, shape.kv_heads, block_size].map(u64::from);
        let [k_dim, v_dim] = [shape.k_dim, shape.v_dim].map(u64::from);
        // Nothing below overflows: every product is at most the number of elements checked above.
        let scale_elems = u64::from(shape.dtype.scale_elems());
        let head_elems = tokens * (k_dim + v_dim + 2 * scale_elems);
        let layer_elems = heads * head_elems;
        let block_stride_elems = if cross_layer { num_layers * layer_elems } else { layer_elems };
        let layer = |index: u32| {
            let base_elems = if cross_layer { u64::from(index) * layer_elems } else { 0 };
            let plane = |base_elems, token_stride_elems| Plane {
                base_elems,
                block_stride_elems,
                head_stride_elems: head_elems,
                token_stride_elems,
            };
            let v_elems = base_elems + tokens * k_dim;
            let scales_elems = v_elems + tokens * v_dim;
            LayerLayout {
                k: plane(base_elems, k_dim),
                v: plane(v_elems, v_dim),
                scales: (scale_elems > 0).then(|| Scales {
                    k: plane(scales_elems, scale_elems),
                    v: plane(scales_elems + tokens * scale_elems, scale_elems),
                }),
                kv_heads: shape.kv_heads,
                k_dim: shape.k_dim,
                v_dim: shape.v_dim,
                allocation: if cross_layer { 0 } else { index },
            }
        };
        let allocations = if cross_layer { 1 } else { ix(shape.num_layers) };
        let no_memory = |_| LayoutError::OutOfMemory { num_layers: shape.num_layers };
        let (mut layers, mut allocation_elems) = (Vec::new(), Vec::new());
        layers.try_reserve_exact(ix(shape.num_layers)).map_err(no_memory)?;
        layers.extend((0..shape.num_layers).map(layer));
        allocation_elems.try_reserve_exact(allocations).map_err(no_memory)?;
        allocation_elems.resize(allocations, u64::from(num_blocks) * block_stride_elems);
        Ok(Self { num_blocks, block_size, dtype: shape.dtype, layers, allocation_elems })
    }

    /// Any layout whose heads are contiguous: planes per layer, and the size of every allocation in elements.
    ///
    /// # Errors
    /// [`LayoutError::OutOfBounds`] where a plane leaves its allocation, [`LayoutError::Scales`] where a layer has none
    /// and the element type asks for them, or the reverse; [`LayoutError::Overlap`] where heads or tokens of one plane
    /// share elements; [`LayoutError::Zero`], [`LayoutError::Overflow`]. Different planes that overlap are the caller's
    /// affair: layers may share K and V.
    pub fn custom(
        num_blocks: u32,
        block_size: u32,
        dtype: DType,
        layers: Vec<LayerLayout>,
        allocation_elems: Vec<u64>,
    ) -> Result<Self, LayoutError> {
        let zero = |field| Err(LayoutError::Zero { field });
        if num_blocks == 0 {
            return zero("num_blocks");
        }
        if block_size == 0 {
            return zero("block_size");
        }
        if layers.is_empty() {
            return zero("num_layers");
        }
        for elems in &allocation_elems {
            elems.checked_mul(dtype.bytes()).ok_or(LayoutError::Overflow { field: "bytes of an allocation" })?;
        }
        for (layer, index) in layers.iter().zip(0_u32..) {
            if layer.kv_heads == 0 {
                return zero("kv_heads");
            }
            if layer.k_dim == 0 || layer.v_dim == 0 {
                return zero("head_dim");
            }
            if layer.scales.is_some() != (dtype.scale_elems() > 0) {
                return Err(LayoutError::Scales { layer: index, scale_elems: dtype.scale_elems() });
            }
            let given_elems = allocation_elems.get(ix(layer.allocation)).copied().unwrap_or(0);
            for (plane, dim) in layer.planes(dtype) {
                let needed_elems = plane
                    .span(num_blocks, layer.kv_heads, block_size, dim)
                    .ok_or(LayoutError::Overflow { field: "elements of a plane" })?;
                if needed_elems > given_elems {
                    return Err(LayoutError::OutOfBounds { layer: index, needed_elems, given_elems });
                }
                if !plane.is_apart(num_blocks, layer.kv_heads, block_size, dim) {
                    return Err(LayoutError::Overlap { layer: index });
                }
            }
        }
        Ok(Self { num_blocks, block_size, dtype, layers, allocation_elems })
    }

    /// Blocks of the pool, the scratch block included.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Element type of K and V.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The layers, in order.
    pub fn layers(&self) -> &[LayerLayout] {
        &self.layers
    }

    /// Elements of each allocation.
    pub fn allocations(&self) -> &[u64] {
        &self.allocation_elems
    }

    /// Bytes of all allocations together.
    pub fn bytes(&self) -> u64 {
        self.allocation_elems.iter().fold(0, |sum: u64, elems| sum.saturating_add(elems * self.dtype.bytes()))
    }

    /// The slots of the pool: `0 .. num_blocks × block_size`.
    pub fn slots(&self) -> Range<u64> {
        0..u64::from(self.num_blocks) * u64::from(self.block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_layer_is_block_head_kv_token_dim() {
        // 5 blocks of 4 tokens, 3 heads of 8: a head's K takes 4 × 8 = 32 elements, K and V 64, a block 3 × 64 = 192.
        let layout = KvLayout::per_layer(&KvShape::new(2, 3, 8, DType::F16), 5, 4).unwrap();
        assert_eq!(layout.allocations(), [960, 960]);
        let layer = layout.layers()[1];
        assert_eq!(layer.k.elem(BlockId::new(2), 1, 3), 2 * 192 + 64 + 24);
        assert_eq!(layer.v.elem(BlockId::new(2), 1, 3), 2 * 192 + 64 + 32 + 24);
        assert_eq!(layout.bytes(), 2 * 960 * 2);
    }

    #[test]
    fn a_block_of_all_layers_is_contiguous_across_layers() {
        // As above, but a block takes 2 layers × 192 = 384 elements, layer 1 in its second half.
        let layout = KvLayout::cross_layer(&KvShape::new(2, 3, 8, DType::F32), 5, 4).unwrap();
        assert_eq!(layout.allocations(), [5 * 384]);
        assert_eq!(layout.layers()[1].k.elem(BlockId::new(3), 0, 0), 3 * 384 + 192);
    }

    #[test]
    fn k_and_v_heads_may_differ() {
        let layout = KvLayout::per_layer(&KvShape::new(1, 1, 16, DType::F32).with_v_dim(8), 2, 4).unwrap();
        let layer = layout.layers()[0];
        assert_eq!(layer.v.elem(BlockId::new(1), 0, 1), 4 * (16 + 8) + 4 * 16 + 8);
        assert_eq!(layout.allocations(), [2 * 4 * 24]);
    }

    #[test]
    fn dense_layouts_pass_the_bounds_check_of_custom_ones_exactly() {
        for (cross, dtype) in [(false, DType::F32), (true, DType::F32), (false, DType::I8), (true, DType::I8)] {
            let layout = KvLayout::dense(&KvShape::new(3, 2, 8, dtype).with_v_dim(24), 7, 16, cross).unwrap();
            let (layers, sizes) = (layout.layers.clone(), layout.allocation_elems.clone());
            assert_eq!(KvLayout::custom(7, 16, dtype, layers.clone(), sizes.clone()).unwrap(), layout);
            let short = sizes.iter().map(|elems| elems - 1).collect();
            let error = KvLayout::custom(7, 16, dtype, layers, short).unwrap_err();
            assert!(matches!(error, LayoutError::OutOfBounds { .. }), "{error}");
        }
    }

    #[test]
    fn scales_follow_k_and_v_of_their_head() {
        // 5 blocks of 4 tokens, 3 heads of 8: K and V of a head take 2 × 4 × 8 = 64 bytes, the scales 2 × 4 × 4 = 32.
        let shape = KvShape::new(2, 3, 8, DType::I8);
        assert_eq!(shape.bytes_per_token(), Ok(2 * 3 * (8 + 8 + 4 + 4)));
        let layout = KvLayout::per_layer(&shape, 5, 4).unwrap();
        assert_eq!(layout.bytes(), 5 * shape.bytes_per_block(4).unwrap());
        let layer = layout.layers()[1];
        let scales = layer.scales.unwrap();
        let at = [layer.k, layer.v, scales.k, scales.v].map(|plane| plane.elem(BlockId::new(2), 1, 3));
        let head = 2 * 3 * 96 + 96;
        assert_eq!(at, [head + 24, head + 32 + 24, head + 64 + 12, head + 80 + 12]);
    }

    /// 2 heads of 8, 5 blocks of 4 tokens: a token spans 8, a block's head 32, a block 64. Base and strides of blocks, heads
    /// and tokens.
    #[test]
    fn a_plane_whose_heads_or_tokens_share_elements_is_refused() {
        let layout = |num_blocks, [base_elems, block_stride_elems, head_stride_elems, token_stride_elems]: [u64; 4]| {
            let plane = Plane { base_elems, block_stride_elems, head_stride_elems, token_stride_elems };
            let whole = Plane { base_elems: 0, block_stride_elems: 64, head_stride_elems: 32, token_stride_elems: 8 };
            let layer =
                LayerLayout { k: whole, v: plane, scales: None, kv_heads: 2, k_dim: 8, v_dim: 8, allocation: 0 };
            KvLayout::custom(num_blocks, 4, DType::F32, alloc::vec![layer], alloc::vec![10_000]).map(|_| ())
        };
        let overlap = Err(LayoutError::Overlap { layer: 0 });
        for (strides, expected) in [
            ([0, 64, 32, 8], Ok(())),
            ([7, 64, 8, 16], Ok(())), // tokens of heads instead
            ([0, 8, 40, 80], Ok(())), // heads of blocks, tokens of those
            ([0, 64, 31, 8], overlap),
            ([0, 64, 0, 8], overlap),
            ([0, 64, 32, 7], overlap),
            ([0, 63, 32, 8], overlap),
            ([0, 0, 32, 8], overlap),
            ([0, 8, 39, 80], overlap),
        ] {
            assert_eq!(layout(5, strides), expected, "{strides:?}");
        }
        // Of one block there is no next one.
        assert_eq!(layout(1, [0, 0, 32, 8]), Ok(()));
    }

    #[test]
    fn scales_are_there_where_the_element_type_has_some_and_nowhere_else() {
        for (has, wants) in [(DType::I8, DType::F8E4M3), (DType::F8E4M3, DType::I8)] {
            let layout = KvLayout::per_layer(&KvShape::new(2, 1, 8, has), 4, 4).unwrap();
            let error = KvLayout::custom(4, 4, wants, layout.layers.clone(), layout.allocation_elems).unwrap_err();
            assert_eq!(error, LayoutError::Scales { layer: 0, scale_elems: wants.scale_elems() });
        }
    }

    #[test]
    fn an_element_that_no_layout_has_does_not_panic() {
        let plane = Plane { base_elems: 1, block_stride_elems: u64::MAX, head_stride_elems: 0, token_stride_elems: 2 };
        // 1 + 3 × (2^64 - 1) + 2 × 5, modulo 2^64.
        assert_eq!(plane.elem(BlockId::new(3), 7, 5), 8);
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let huge = KvShape::new(u32::MAX, u32::MAX, u32::MAX, DType::F32);
        assert_eq!(huge.bytes_per_token(), Err(LayoutError::Overflow { field: "bytes per token" }));
        let large = KvShape::new(1 << 12, 1 << 12, 1 << 12, DType::F32);
        assert!(large.bytes_per_token().is_ok());
        assert_eq!(
            KvLayout::per_layer(&large, u32::MAX, 16),
            Err(LayoutError::Overflow { field: "bytes of the pool" })
        );
        let none = KvShape::new(1, 0, 8, DType::F32);
        assert_eq!(none.bytes_per_token(), Err(LayoutError::Zero { field: "kv_heads" }));
        assert_eq!(none.per_rank(2), Err(LayoutError::Zero { field: "kv_heads" }));
        let one = KvShape::new(1, 1, 8, DType::F32);
        assert_eq!(one.bytes_per_block(0), Err(LayoutError::Zero { field: "block_size" }));
        assert_eq!(KvLayout::per_layer(&one, 0, 16), Err(LayoutError::Zero { field: "num_blocks" }));
    }
}
