//! The decode kernel: which layers it takes, what it needs, and how it is launched.
//!
//! A call is three kernels: `pk_plan`, where the step has no plan yet for this way of attending; `pk_decode_*`, which
//! takes the work in equal shares; `pk_merge`, which joins what shares have cut and writes what nobody has.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{CudaContext, sys};

use super::driver::{Capture, fault};
use super::kernels::{self, Grid, Kernel};
use super::limits::CudaLimits;
use super::memory::DeviceMemory;
use super::params;
use super::plans::{Plans, Way, plans_bytes};
use super::pool::{Layer, int};
use super::stream::Turn;
use crate::id::ix;
use crate::layout::{DType, KvLayout};
use crate::storage::StorageError;

/// Keys of a tile of work.
pub(super) const TILE: u32 = 64;

/// Tiles that a CTA starts for, at least: eight pages.
const MIN_TILES: u32 = 2;

/// Pieces that the longest context is cut into, with fixed splits, and keys of the smallest: the more pieces, the more
/// CTAs work on one row, and the more memory partials take.
const SPLITS: u32 = 16;
const MIN_SPLIT: u32 = 512;

/// Warps of a CTA, threads of it, and tokens of a page.
const WARPS: u32 = 4;
const THREADS: u32 = 128;
const PAGE: u32 = 16;

/// A compiled kernel, of one head dimension and number of columns.
#[derive(Debug)]
struct Form {
    kernel: Kernel<params::Decode>,
    columns: u32,
    /// CTAs that the device has room for at once.
    ctas: u32,
    /// Pages on their way, of each warp.
    stages: u32,
    shared_bytes: u32,
}

/// The kernels of a head dimension, the fewest columns first.
#[derive(Debug)]
struct Shape {
    head_dim: u32,
    forms: Vec<Form>,
}

/// Where an item's work is cut.
#[derive(Clone, Copy, Debug)]
struct Splits {
    /// 0: where a CTA's share ends.
    tiles: u32,
    /// Partials of a CTA.
    slots: u32,
}

/// A call of `attend`, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) step: params::Step,
    pub(super) q: params::Tensor,
    pub(super) out: params::Tensor,
    pub(super) lse: u64,
    pub(super) variant: params::Variant,
    pub(super) q_heads: usize,
    pub(super) num_blocks: u32,
    /// The number of the step among all that were prepared.
    pub(super) number: u64,
    /// Query tokens of the longest row of the step, outside of captures.
    pub(super) row_tokens: usize,
    /// Tiles of keys of all query tokens of the step, each by itself.
    pub(super) tiles: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Decode {
    shapes: Vec<Shape>,
    merge: Kernel<params::Decode>,
    plans: Mutex<Plans>,
    splits: Splits,
    block_size: u32,
    partials: DeviceMemory,
    bytes: u64,
}

/// The head dimension of a layer that the kernel takes: K and V of the same, of a type and in blocks that it knows, every
/// row of which begins at a multiple of 16 bytes.
fn head_dim_of(layout: &KvLayout, layer: &Layer) -> Option<u32> {
    let geometry = &layer.geometry;
    let head_dim = u32::try_from(geometry.k_dim).ok().filter(|dim| matches!(dim, 64 | 128 | 256))?;
    let has_type = matches!(layout.dtype(), DType::F16 | DType::BF16 | DType::F8E4M3);
    let aligned = [layer.k, layer.v].iter().all(|plane| {
        let strides = [plane.block_bytes, plane.head_bytes, plane.token_bytes];
        plane.base.is_multiple_of(16) && strides.iter().all(|stride| stride % 16 == 0)
    });
    let fits = geometry.v_dim == geometry.k_dim && has_type && layout.block_size().is_multiple_of(PAGE) && aligned;
    fits.then_some(head_dim)
}

/// Pages on their way and CTAs of a multiprocessor that the kernels are built for: what fills the 228 KiB of one.
fn built_for(dtype: DType, head_dim: u32) -> (u32, u32) {
    match (dtype, head_dim) {
        (DType::F8E4M3, 64) => (6, 4),
        (DType::F8E4M3, 128) => (4, 3),
        (DType::F8E4M3, _) => (4, 1),
        (_, 64) => (4, 3),
        (_, 128) => (3, 2),
        _ => (3, 1),
    }
}

/// Shared memory of a CTA, as `decode_shape.cuh` lays it out: rings, queries of 16 bits, columns, and of five softmaxes
/// of eight columns maxima and sums.
fn shared_bytes(dtype: DType, head_dim: u32, columns: u32, stages: u32) -> u32 {
    let row = head_dim * u32::try_from(dtype.bytes()).unwrap_or(0);
    WARPS * stages * 2 * PAGE * row + columns * (2 * head_dim + 32) + (WARPS + 1) * 64
}

impl Splits {
    fn new(limits: &CudaLimits, block_size: u32) -> Self {
        if !limits.fixed_splits {
            return Self { tiles: 0, slots: 2 };
        }
        let longest = u64::from(limits.max_row_blocks) * u64::from(block_size);
        let split = longest.div_ceil(u64::from(SPLITS)).max(u64::from(MIN_SPLIT)).next_multiple_of(u64::from(TILE));
        // The longest context has no more than SPLITS of them.
        let slots = u32::try_from(longest.div_ceil(split)).unwrap_or(SPLITS) + 1;
        Self { tiles: u32::try_from(split / u64::from(TILE)).unwrap_or(u32::MAX), slots }
    }
}

/// What a device has of something.
fn device_has(context: &CudaContext, what: sys::CUdevice_attribute) -> Result<u32, StorageError> {
    let number = context.attribute(what).map_err(fault("cuDeviceGetAttribute"))?;
    Ok(u32::try_from(number).unwrap_or(0))
}

impl Shape {
    fn load(context: &Arc<CudaContext>, dtype: DType, head_dim: u32) -> Result<Self, StorageError> {
        use sys::CUdevice_attribute as Attribute;
        let multiprocessors = device_has(context, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let of_cta = device_has(context, Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let of_all = device_has(context, Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        let (most_stages, most_ctas) = built_for(dtype, head_dim);
        let forms = kernels::load_decode(context, dtype, head_dim)?
            .into_iter()
            .map(|(columns, kernel)| {
                let bytes = |stages| shared_bytes(dtype, head_dim, columns, stages);
                let stages = (1..=most_stages).rev().find(|stages| bytes(*stages) <= of_cta).unwrap_or(1);
                let shared_bytes = bytes(stages);
                kernel.allow_shared(shared_bytes)?;
                // The system has a KiB of each CTA's for itself.
                let ctas = (of_all / (shared_bytes + 1024)).clamp(1, most_ctas) * multiprocessors.max(1);
                Ok(Form { kernel, columns, ctas, stages, shared_bytes })
            })
            .collect::<Result<_, StorageError>>()?;
        Ok(Self { head_dim, forms })
    }

    /// The form for so many columns of a row and heads of a group: the smallest that has room, or the largest.
    fn form(&self, row_tokens: usize, group: usize) -> Option<&Form> {
        let columns = row_tokens.saturating_mul(group);
        self.forms.iter().find(|form| columns <= ix(form.columns)).or(self.forms.last())
    }
}

impl Form {
    fn partial_bytes(&self, head_dim: u32, slots: u32) -> u64 {
        let floats = u64::from(self.columns) * u64::from(head_dim + 2);
        u64::from(self.ctas) * u64::from(slots) * floats * 4
    }
}

impl Decode {
    /// `None` where no layer is one for the kernel.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        layout: &KvLayout,
        layers: &[Layer],
        limits: CudaLimits,
    ) -> Result<Option<Self>, StorageError> {
        let mut dims: Vec<u32> = layers.iter().filter_map(|layer| head_dim_of(layout, layer)).collect();
        dims.sort_unstable();
        dims.dedup();
        if dims.is_empty() {
            return Ok(None);
        }
        let shapes: Vec<_> =
            dims.iter().map(|dim| Shape::load(context, layout.dtype(), *dim)).collect::<Result<_, _>>()?;
        let splits = Splits::new(&limits, layout.block_size());
        // Layers come one after the other and have one workspace.
        let of_shape = |shape: &Shape| {
            shape.forms.iter().map(|form| form.partial_bytes(shape.head_dim, splits.slots)).max().unwrap_or(0)
        };
        let bytes = shapes.iter().map(of_shape).max().unwrap_or(0);
        let plan = kernels::load_plan(context)?;
        Ok(Some(Self {
            merge: kernels::load_merge(context)?,
            plans: Mutex::new(Plans::new(context, plan, limits, layout.block_size())?),
            shapes,
            splits,
            block_size: layout.block_size(),
            partials: DeviceMemory::zeroed(context, bytes, StorageError::NoBuffers { bytes })?,
            bytes: bytes + plans_bytes(&limits),
        }))
    }

    /// Bytes of partials and plans.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it takes a layer.
    pub(super) fn takes(layout: &KvLayout, layer: &Layer) -> bool {
        head_dim_of(layout, layer).is_some()
    }

    /// # Safety
    /// The tensors have the shapes that the layer asks for, inside memory that is there until the kernels are done; the
    /// step's metadata is on the device when the stream is there; the layer is one that [`takes`](Self::takes) accepts.
    pub(super) unsafe fn attend(&self, turn: &Turn<'_>, layer: &Layer, call: Call) -> Result<(), StorageError> {
        let geometry = &layer.geometry;
        let kv_heads = geometry.kv_heads;
        let group = call.q_heads / kv_heads;
        let capture = turn.capture()?;
        let shape = self.shapes.iter().find(|shape| ix(shape.head_dim) == geometry.k_dim);
        let Some((shape, form)) = shape.and_then(|shape| Some((shape, shape.form(call.row_tokens, group)?))) else {
            unreachable!("`new` has loaded kernels for every layer that it takes")
        };
        let parts = group.div_ceil(ix(form.columns));
        let way = Way {
            part_heads: int("query heads of a part", group.div_ceil(parts))?,
            columns: int("columns", ix(form.columns))?,
            window: call.variant.window,
            has_mask: call.variant.mask_words > 0,
        };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.get(turn, capture, call.number, way, call.step)?;
        let params = params::Decode {
            step: call.step,
            q: call.q,
            out: call.out,
            lse: call.lse,
            k_pool: layer.k,
            v_pool: layer.v,
            plan,
            partials: self.partials.first(),
            q_heads: int("query heads", call.q_heads)?,
            kv_heads: int("KV heads", kv_heads)?,
            parts: int("parts of a group", parts)?,
            part_heads: way.part_heads,
            columns: way.columns,
            head_dim: int("elements of a head", ix(shape.head_dim))?,
            block_size: int("tokens in a block", ix(self.block_size))?,
            num_blocks: int("blocks", ix(call.num_blocks))?,
            ctas: int("groups of threads", ix(form.ctas))?,
            min_tiles: int("tiles", ix(MIN_TILES))?,
            split_tiles: int("tiles", ix(self.splits.tiles))?,
            slots: int("partials", ix(self.splits.slots))?,
            stages: int("stages", ix(form.stages))?,
            unused: 0,
            variant: call.variant,
        };
        // A graph may be replayed with more work than the step of its capture has.
        let useful = match capture {
            Capture::None => call.tiles.saturating_mul((kv_heads * parts) as u64).div_ceil(u64::from(MIN_TILES)),
            _ => u64::MAX,
        };
        let ctas = u32::try_from(useful).unwrap_or(u32::MAX).min(form.ctas);
        let grid = Grid { ctas, threads: THREADS, shared_bytes: form.shared_bytes };
        // SAFETY: tensors by the contract. The plan names spans of rows of the step; of their tables the kernel reads the
        // entries of keys that are seen, and follows those that are blocks of the pool; planes lie inside of its
        // allocations. There are partials for every CTA of the largest form.
        unsafe { form.kernel.launch(turn, grid, &params) }?;
        let ctas = super::grid_of(usize::try_from(call.out.tokens).unwrap_or(0), kv_heads * parts)?;
        // SAFETY: as above; it reads the partials that the plan says were written, and writes the output's own heads.
        unsafe { self.merge.launch(turn, Grid { ctas, threads: THREADS, shared_bytes: 0 }, &params) }
    }
}
