//! The data plane: memory that holds K and V, and attention over it.
//!
//! A wing beside the floors: it sees floor 0 and [`step`](crate::step), never the cache. A storage knows blocks and
//! slots and no sequence; the cache knows sequences and owns no tensor memory.

#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod geometry;
mod params;
#[cfg(feature = "std")]
mod shape;
#[cfg(all(test, feature = "std"))]
mod suite;

use crate::layout::KvLayout;
use crate::step::Step;

#[cfg(feature = "cuda")]
pub use cudarc;
#[cfg(feature = "std")]
pub use half::{bf16, f16};

pub use params::{AttendParams, QueryMask};

#[cfg(feature = "std")]
pub use cpu::{CpuStats, CpuStorage, CpuTensor, CpuTensorMut, Element, merge_states};
#[cfg(feature = "cuda")]
pub use cuda::{
    CudaExec, CudaKernel, CudaLimits, CudaRecords, CudaStorage, CudaTensor, CudaTensorMut, MAX_CUDA_HEAD_DIM,
};
#[cfg(feature = "std")]
pub use error::StorageError;
#[cfg(feature = "std")]
pub use geometry::MAX_HEAD_DIM;

/// Memory for K and V, and the four things that a forward pass does with it.
///
/// Per step: [`prepare`](Self::prepare) and [`copy_blocks`](Self::copy_blocks) once; then, per layer,
/// [`write_kv`](Self::write_kv) and [`attend`](Self::attend). All four work on the *query tokens* of the prepared
/// step, row after row, tokens that a row skips left out: `T` in the shapes below.
pub trait KvStorage {
    /// What can go wrong.
    type Error: core::error::Error;
    /// Where work is enqueued: `()` on the CPU, a stream on a device.
    type Exec<'a>;
    /// A tensor to read: `[T, heads, head_dim]` with strides.
    type Input<'a>;
    /// A tensor to write: `[T, heads, head_dim]` with strides.
    type Output<'a>;

    /// The geometry of this memory.
    fn layout(&self) -> &KvLayout;

    /// Takes over the metadata of a step, once, for all layers. `padded_rows` is the number of rows that a captured
    /// graph runs, at least the rows of the step; storages without graphs ignore what goes beyond.
    ///
    /// # Errors
    /// Where the step does not fit the layout: another block size, a block outside the pool; tables that are not whole
    /// ([`Step::of_changes`]) for a storage that keeps none.
    fn prepare(&mut self, ex: Self::Exec<'_>, step: &Step, padded_rows: u32) -> Result<(), Self::Error>;

    /// Runs the copies of the prepared step, on all layers, K and V and their scales. To be called before the first write.
    ///
    /// # Errors
    /// Those of the implementation.
    fn copy_blocks(&mut self, ex: Self::Exec<'_>) -> Result<(), Self::Error>;

    /// Writes K `[T, kv_heads, k_dim]` and V `[T, kv_heads, v_dim]` of one layer to the slots of the prepared step.
    ///
    /// # Errors
    /// Where the layer does not exist or a shape does not fit.
    fn write_kv(
        &mut self,
        ex: Self::Exec<'_>,
        layer: u32,
        k: Self::Input<'_>,
        v: Self::Input<'_>,
    ) -> Result<(), Self::Error>;

    /// Causal attention of the queries `[T, q_heads, k_dim]` over the rows' sequences, into `[T, q_heads, v_dim]`. The
    /// query at position p sees the keys 0 ..= p, unless [`params`](AttendParams) say otherwise. `q_heads` is a
    /// multiple of the layer's KV heads; query head h reads KV head h / (`q_heads` / `kv_heads`). A query that sees no key gets
    /// zeros.
    ///
    /// # Errors
    /// Where the layer does not exist or a shape does not fit.
    fn attend(
        &self,
        ex: Self::Exec<'_>,
        layer: u32,
        q: Self::Input<'_>,
        out: Self::Output<'_>,
        params: &AttendParams<'_>,
    ) -> Result<(), Self::Error>;
}
