//! The kernels: loaded into the context, and launched.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, result, sys};
use cudarc::nvrtc::Ptx;

use super::driver::{capability, fault};
use super::memory::BesideCaptures;
use super::params::{self, Params};
use super::stream::Turn;
use crate::layout::DType;
use crate::storage::StorageError;

/// A kernel whose parameters are a `P`.
#[derive(Debug)]
pub(super) struct Kernel<P> {
    function: CudaFunction,
    name: &'static str,
    params: core::marker::PhantomData<fn(P)>,
}

/// How many threads, in what groups, with how much memory in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) ctas: u32,
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

impl<P: Params> Kernel<P> {
    /// Enqueues the kernel. Nothing where there are no CTAs.
    ///
    /// # Safety
    /// The parameters are such that the kernel stays inside memory that is there until it is done.
    pub(super) unsafe fn launch(&self, turn: &Turn<'_>, grid: Grid, params: &P) -> Result<(), StorageError> {
        if grid.ctas == 0 {
            return Ok(());
        }
        let mut arguments = [core::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        let (function, stream) = (self.function.cu_function(), turn.stream());
        let (ctas, threads) = ((grid.ctas, 1, 1), (grid.threads, 1, 1));
        // SAFETY: the function takes one struct, a `P`, of which the driver makes a copy before this returns; the stream
        // is one of the context by the invariant of `Turn`; the rest by the contract.
        unsafe { result::launch_kernel(function, ctas, threads, grid.shared_bytes, stream, &mut arguments) }
            .map_err(fault(self.name))
    }
}

impl<P> Kernel<P> {
    /// Lets launches have so many bytes of memory in common, beyond the 48 KiB that all may have.
    pub(super) fn allow_shared(&self, bytes: u32) -> Result<(), StorageError> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        self.function.set_attribute(attribute, bytes).map_err(fault("cuFuncSetAttribute"))
    }
}

/// The kernels of a storage.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) prepare: Kernel<params::Prepare>,
    pub(super) copy_blocks: Kernel<params::Copy>,
    pub(super) write_kv: Kernel<params::Write>,
    pub(super) attend_naive: Kernel<params::Attend>,
    pub(super) gather_blocks: Kernel<params::Records>,
    pub(super) scatter_blocks: Kernel<params::Records>,
}

const PREPARE: &str = include_str!("../../../kernels/ptx/prepare.ptx");
const COPY_BLOCKS: &str = include_str!("../../../kernels/ptx/copy_blocks.ptx");
const WRITE_KV: &str = include_str!("../../../kernels/ptx/write_kv.ptx");
const RECORDS: &str = include_str!("../../../kernels/ptx/records.ptx");
const ATTEND_NAIVE: &str = include_str!("../../../kernels/ptx/attend_naive.ptx");
const PLAN: &str = include_str!("../../../kernels/ptx/plan.ptx");
const MERGE: &str = include_str!("../../../kernels/ptx/merge.ptx");
const DECODE_F16: &str = include_str!("../../../kernels/ptx/decode_f16.ptx");
const DECODE_BF16: &str = include_str!("../../../kernels/ptx/decode_bf16.ptx");
const DECODE_E4M3: &str = include_str!("../../../kernels/ptx/decode_e4m3.ptx");
/// For devices that convert by an instruction.
const DECODE_E4M3_SM_90: &str = include_str!("../../../kernels/ptx/decode_e4m3_sm_90.ptx");

impl Kernels {
    /// Those for a pool of this type.
    pub(super) fn load(context: &Arc<CudaContext>, dtype: DType) -> Result<Self, StorageError> {
        let (write_kv, attend_naive) = match dtype {
            DType::F32 => ("pk_write_kv_f32", "pk_attend_naive_f32"),
            DType::F16 => ("pk_write_kv_f16", "pk_attend_naive_f16"),
            DType::BF16 => ("pk_write_kv_bf16", "pk_attend_naive_bf16"),
            DType::F8E4M3 => ("pk_write_kv_e4m3", "pk_attend_naive_e4m3"),
            DType::I8 => ("pk_write_kv_i8", "pk_attend_naive_i8"),
        };
        let records = module(context, RECORDS)?;
        Ok(Self {
            prepare: load(context, PREPARE, "pk_prepare")?,
            copy_blocks: load(context, COPY_BLOCKS, "pk_copy_blocks")?,
            write_kv: load(context, WRITE_KV, write_kv)?,
            attend_naive: load(context, ATTEND_NAIVE, attend_naive)?,
            gather_blocks: function(&records, "pk_gather_blocks")?,
            scatter_blocks: function(&records, "pk_scatter_blocks")?,
        })
    }
}

/// The one that plans steps.
pub(super) fn load_plan(context: &Arc<CudaContext>) -> Result<Kernel<params::MakePlan>, StorageError> {
    load(context, PLAN, "pk_plan")
}

/// The one that joins partials.
pub(super) fn load_merge(context: &Arc<CudaContext>) -> Result<Kernel<params::Decode>, StorageError> {
    load(context, MERGE, "pk_merge")
}

/// The decode kernels of a pool type and head dimension, with their columns, the fewest first: none where there are none.
/// 16 columns of 256 elements would not fit the registers of a thread.
pub(super) fn load_decode(
    context: &Arc<CudaContext>,
    dtype: DType,
    head_dim: u32,
) -> Result<Vec<(u32, Kernel<params::Decode>)>, StorageError> {
    let e4m3 = if capability(context)? >= 90 { DECODE_E4M3_SM_90 } else { DECODE_E4M3 };
    let (ptx, names): (_, &[_]) = match (dtype, head_dim) {
        (DType::F16, 64) => (DECODE_F16, &[(8, "pk_decode_f16_64x8"), (16, "pk_decode_f16_64x16")]),
        (DType::F16, 128) => (DECODE_F16, &[(8, "pk_decode_f16_128x8"), (16, "pk_decode_f16_128x16")]),
        (DType::F16, 256) => (DECODE_F16, &[(8, "pk_decode_f16_256x8")]),
        (DType::BF16, 64) => (DECODE_BF16, &[(8, "pk_decode_bf16_64x8"), (16, "pk_decode_bf16_64x16")]),
        (DType::BF16, 128) => (DECODE_BF16, &[(8, "pk_decode_bf16_128x8"), (16, "pk_decode_bf16_128x16")]),
        (DType::BF16, 256) => (DECODE_BF16, &[(8, "pk_decode_bf16_256x8")]),
        (DType::F8E4M3, 64) => (e4m3, &[(8, "pk_decode_e4m3_64x8"), (16, "pk_decode_e4m3_64x16")]),
        (DType::F8E4M3, 128) => (e4m3, &[(8, "pk_decode_e4m3_128x8"), (16, "pk_decode_e4m3_128x16")]),
        (DType::F8E4M3, 256) => (e4m3, &[(8, "pk_decode_e4m3_256x8")]),
        _ => return Ok(Vec::new()),
    };
    let module = module(context, ptx)?;
    names.iter().map(|&(columns, name)| Ok((columns, function(&module, name)?))).collect()
}

fn module(context: &Arc<CudaContext>, ptx: &'static str) -> Result<Arc<CudaModule>, StorageError> {
    let _beside = BesideCaptures::new();
    context.load_module(Ptx::from_src(ptx)).map_err(fault("cuModuleLoadData"))
}

fn function<P: Params>(module: &Arc<CudaModule>, name: &'static str) -> Result<Kernel<P>, StorageError> {
    let function = module.load_function(name).map_err(fault("cuModuleGetFunction"))?;
    Ok(Kernel { function, name, params: core::marker::PhantomData })
}

fn load<P: Params>(
    context: &Arc<CudaContext>,
    ptx: &'static str,
    name: &'static str,
) -> Result<Kernel<P>, StorageError> {
    function(&module(context, ptx)?, name)
}
