//! The parameters of kernels, as `kernels/params.cuh` has them.
//!
//! Addresses are numbers: what they point to is the device's. Sizes are asserted here and there.

use crate::layout::DType;

/// Query heads whose sinks and slopes fit the parameters of a launch.
pub(super) const MAX_PER_HEAD: usize = 256;

/// A plane of the pool.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Plane {
    pub(super) base: u64,
    pub(super) block_bytes: i64,
    pub(super) head_bytes: i64,
    pub(super) token_bytes: i64,
}

/// A tensor of the engine.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Tensor {
    pub(super) data: u64,
    pub(super) token_bytes: i64,
    pub(super) head_bytes: i64,
    pub(super) dtype: i32,
    pub(super) tokens: i32,
}

/// Where the metadata of a step lies.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Step {
    pub(super) counts: u64,
    pub(super) rows: u64,
    pub(super) token_rows: u64,
    pub(super) slots: u64,
    pub(super) copies: u64,
    pub(super) tables: u64,
    pub(super) table_len: i64,
}

/// Of `pk_prepare`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Prepare {
    pub(super) step: Step,
    pub(super) packed: u64,
}

/// Of `pk_write_kv_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Write {
    pub(super) step: Step,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) k_pool: Plane,
    pub(super) v_pool: Plane,
    pub(super) k_scales: Plane,
    pub(super) v_scales: Plane,
    pub(super) kv_heads: i32,
    pub(super) k_dim: i32,
    pub(super) v_dim: i32,
    pub(super) block_size: i32,
    pub(super) num_blocks: i32,
    pub(super) unused: i32,
}

/// A part of every block, in one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(super) struct Run {
    pub(super) base: u64,
    pub(super) block_bytes: i64,
    pub(super) bytes: i64,
}

/// Of `pk_copy_blocks`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Copy {
    pub(super) step: Step,
    pub(super) runs: u64,
    pub(super) num_runs: i32,
    pub(super) num_blocks: i32,
}

/// A run of a block, and where it lies in the block's record.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Piece {
    pub(super) base: u64,
    pub(super) block_bytes: i64,
    pub(super) bytes: i64,
    pub(super) at: i64,
}

/// Of `pk_gather_blocks` and `pk_scatter_blocks`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Records {
    pub(super) pieces: u64,
    pub(super) blocks: u64,
    pub(super) records: u64,
    pub(super) record_bytes: i64,
    pub(super) num_pieces: i32,
    pub(super) count: i32,
    pub(super) num_blocks: i32,
    pub(super) unused: i32,
}

/// What a model asks for beside the softmax of scaled scores.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Variant {
    pub(super) scale: f32,
    pub(super) soft_cap: f32,
    pub(super) window: i32,
    pub(super) has_sinks: i32,
    pub(super) has_slopes: i32,
    pub(super) mask_words: i32,
    pub(super) mask: u64,
    pub(super) sinks: [f32; MAX_PER_HEAD],
    pub(super) slopes: [f32; MAX_PER_HEAD],
}

/// Of `pk_attend_naive_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Attend {
    pub(super) step: Step,
    pub(super) q: Tensor,
    pub(super) out: Tensor,
    pub(super) lse: u64,
    pub(super) k_pool: Plane,
    pub(super) v_pool: Plane,
    pub(super) k_scales: Plane,
    pub(super) v_scales: Plane,
    pub(super) q_heads: i32,
    pub(super) kv_heads: i32,
    pub(super) k_dim: i32,
    pub(super) v_dim: i32,
    pub(super) block_size: i32,
    pub(super) num_blocks: i32,
    pub(super) variant: Variant,
}

/// Where a plan lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(super) struct Plan {
    pub(super) head: u64,
    pub(super) row_spans: u64,
    pub(super) spans: u64,
}

/// Bytes of a plan's head, and of a span.
pub(super) const PLAN_HEAD_BYTES: u64 = 16;
pub(super) const SPAN_BYTES: u64 = 32;

/// Shared memory of `pk_plan`.
pub(super) const PLAN_SHARED_BYTES: u32 = 2176;

/// Of `pk_plan`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct MakePlan {
    pub(super) step: Step,
    pub(super) plan: Plan,
    pub(super) part_heads: i32,
    pub(super) columns: i32,
    pub(super) window: i32,
    pub(super) has_mask: i32,
    pub(super) block_size: i32,
    pub(super) max_rows: i32,
    pub(super) max_tables: i32,
    pub(super) max_spans: i32,
}

/// Of `pk_decode_*` and `pk_merge`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Decode {
    pub(super) step: Step,
    pub(super) q: Tensor,
    pub(super) out: Tensor,
    pub(super) lse: u64,
    pub(super) k_pool: Plane,
    pub(super) v_pool: Plane,
    pub(super) plan: Plan,
    pub(super) partials: u64,
    pub(super) q_heads: i32,
    pub(super) kv_heads: i32,
    pub(super) parts: i32,
    pub(super) part_heads: i32,
    pub(super) columns: i32,
    pub(super) head_dim: i32,
    pub(super) block_size: i32,
    pub(super) num_blocks: i32,
    pub(super) ctas: i32,
    pub(super) min_tiles: i32,
    pub(super) split_tiles: i32,
    pub(super) slots: i32,
    pub(super) stages: i32,
    pub(super) unused: i32,
    pub(super) variant: Variant,
}

/// The parameters of a kernel: plain data.
pub(super) trait Params: core::marker::Copy {}

impl Params for Prepare {}
impl Params for Write {}
impl Params for Copy {}
impl Params for Attend {}
impl Params for MakePlan {}
impl Params for Decode {}
impl Params for Records {}

/// What kernels read an array of.
pub(super) trait PlainData: core::marker::Copy {}

impl PlainData for Run {}
impl PlainData for Piece {}

// As `params.cuh` asserts.
const _: () = assert!(size_of::<Plane>() == 32 && size_of::<Tensor>() == 32 && size_of::<Step>() == 56);
const _: () = assert!(size_of::<Prepare>() == 64 && size_of::<Write>() == 272 && size_of::<Run>() == 24);
const _: () = assert!(size_of::<Piece>() == 32 && size_of::<Records>() == 48);
const _: () = assert!(size_of::<Copy>() == 72 && size_of::<Variant>() == 2080 && size_of::<Attend>() == 2360);
const _: () = assert!(size_of::<Plan>() == 24 && size_of::<MakePlan>() == 112 && size_of::<Decode>() == 2360);

/// The number of an element type.
pub(super) const fn number(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::F8E4M3 => 3,
        DType::I8 => 4,
    }
}
