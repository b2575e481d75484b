//! The kernels: loaded into the context, and launched.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use core::ffi::c_void;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, result};
use cudarc::nvrtc::Ptx;

use super::driver::fault;
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
            gather_blocks: kernel(&records, "pk_gather_blocks")?,
            scatter_blocks: kernel(&records, "pk_scatter_blocks")?,
        })
    }
}

fn load<P: Params>(
    context: &Arc<CudaContext>,
    ptx: &'static str,
    name: &'static str,
) -> Result<Kernel<P>, StorageError> {
    kernel(&module(context, ptx)?, name)
}

fn module(context: &Arc<CudaContext>, ptx: &'static str) -> Result<Arc<CudaModule>, StorageError> {
    let _beside = BesideCaptures::new();
    context.load_module(Ptx::from_src(ptx)).map_err(fault("cuModuleLoadData"))
}

fn kernel<P: Params>(module: &Arc<CudaModule>, name: &'static str) -> Result<Kernel<P>, StorageError> {
    let function = module.load_function(name).map_err(fault("cuModuleGetFunction"))?;
    Ok(Kernel { function, name, params: core::marker::PhantomData })
}
