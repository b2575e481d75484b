//! Tensors of the engine in device memory, `[tokens, heads, dim]`.
#![allow(unsafe_code)]

use alloc::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};

use super::params::{Tensor, number};
use super::pool::int;
use crate::layout::DType;
use crate::storage::cpu::{Element, dtype_of};
use crate::storage::shape::Shape;
use crate::storage::{CudaExec, StorageError};

/// Elements that the engine owns, as long as a call takes.
#[derive(Debug)]
struct Elems<'a> {
    first: u64,
    /// `usize::MAX` where nobody knows.
    len: usize,
    dtype: DType,
    lent: Option<Lent<'a>>,
}

/// What `cudarc` knows about elements of its own.
#[derive(Debug)]
struct Lent<'a> {
    /// Whether the memory is of the stream's context.
    one_context: bool,
    /// The stream that the elements are used on.
    stream: &'a CudaStream,
    /// Tells `cudarc` that they were used, when the call is over.
    _guard: SyncOnDrop<'a>,
}

impl<'a> Elems<'a> {
    fn read<T: Element>(data: &'a impl DevicePtr<T>, stream: &'a CudaStream) -> Self {
        let (len, one_context) = (data.len(), data.stream().context() == stream.context());
        let (first, guard) = data.device_ptr(stream);
        Self { first, len, dtype: dtype_of::<T>(), lent: Some(Lent { one_context, stream, _guard: guard }) }
    }

    fn write<T: Element>(data: &'a mut impl DevicePtrMut<T>, stream: &'a CudaStream) -> Self {
        let (len, one_context) = (data.len(), data.stream().context() == stream.context());
        let (first, guard) = data.device_ptr_mut(stream);
        Self { first, len, dtype: dtype_of::<T>(), lent: Some(Lent { one_context, stream, _guard: guard }) }
    }

    const fn raw<T: Element>(first: u64) -> Self {
        Self { first, len: usize::MAX, dtype: dtype_of::<T>(), lent: None }
    }

    fn check(&self, tensor: &'static str, context: &CudaContext, exec: CudaExec<'_>) -> Result<(), StorageError> {
        if let Some(lent) = &self.lent {
            if !lent.one_context || **lent.stream.context() != *context {
                return Err(StorageError::OtherContext);
            }
            // By their handles, which for the default streams of all contexts are the same.
            if lent.stream.cu_stream() != exec.handle() {
                return Err(StorageError::OtherStream { tensor });
            }
        }
        if !self.first.is_multiple_of(self.dtype.bytes()) {
            return Err(StorageError::Misaligned { tensor });
        }
        Ok(())
    }

    /// As kernels take it.
    fn params(&self, shape: &Shape) -> Result<Tensor, StorageError> {
        // Of one there is no step, and its stride may be any number.
        let bytes = |stride: usize, count: usize| {
            let stride = if count > 1 { stride as u64 } else { 0 };
            let (given, max) = (stride.saturating_mul(self.dtype.bytes()), i64::MAX as u64);
            i64::try_from(given).map_err(|_| StorageError::Limit { what: "bytes of a stride", given, max })
        };
        Ok(Tensor {
            data: self.first,
            token_bytes: bytes(shape.token_stride, shape.tokens)?,
            head_bytes: bytes(shape.head_stride, shape.heads)?,
            dtype: number(self.dtype),
            tokens: int("query tokens of a tensor", shape.tokens)?,
        })
    }
}

/// A tensor to read: queries, keys or values of a step.
///
/// Element `d` of head `h` of token `t` is at `t × token_stride + h × head_stride + d`, in elements. `f32`, `f16` or
/// `bf16`, whatever the pool keeps. It may have more tokens than the step: those are padding, as a captured graph has.
#[derive(Debug)]
pub struct CudaTensor<'a> {
    elems: Elems<'a>,
    shape: Shape,
}

impl<'a> CudaTensor<'a> {
    /// A dense tensor: `[tokens, heads, dim]`, in memory of `cudarc`, to be read on `stream`, which is that of the call.
    ///
    /// Where `cudarc` tracks the use of its memory (as it does with several streams, unless told otherwise), a slice
    /// cannot be part of a CUDA graph: take [`from_raw`](Self::from_raw) there.
    pub fn new<T: Element>(data: &'a impl DevicePtr<T>, stream: &'a Arc<CudaStream>, shape: [usize; 3]) -> Self {
        Self { elems: Elems::read(data, stream), shape: Shape::dense(shape) }
    }

    /// A dense tensor by its address.
    ///
    /// # Safety
    /// From `first` on there is device memory for all elements that shape and strides span, of the storage's context,
    /// until the work of the call that takes the tensor is done; nobody writes to it meanwhile.
    pub const unsafe fn from_raw<T: Element>(first: u64, shape: [usize; 3]) -> Self {
        Self { elems: Elems::raw::<T>(first), shape: Shape::dense(shape) }
    }

    /// The same with other strides, in elements.
    #[must_use]
    pub fn with_strides(mut self, token_stride: usize, head_stride: usize) -> Self {
        (self.shape.token_stride, self.shape.head_stride) = (token_stride, head_stride);
        self
    }

    pub(super) const fn tokens(&self) -> usize {
        self.shape.tokens
    }

    pub(super) const fn heads(&self) -> usize {
        self.shape.heads
    }

    /// That it is `[tokens, heads, dim]`, inside its memory, and on the stream; as kernels take it.
    pub(super) fn check(
        &self,
        tensor: &'static str,
        context: &CudaContext,
        exec: CudaExec<'_>,
        expected: [usize; 3],
    ) -> Result<Tensor, StorageError> {
        self.shape.check(tensor, expected, self.elems.len)?;
        self.elems.check(tensor, context, exec)?;
        self.elems.params(&self.shape)
    }
}

/// A tensor to write: the output of [`attend`](crate::storage::KvStorage::attend), in `f32`, `f16` or `bf16`.
///
/// As [`CudaTensor`]; in addition no two heads may share elements.
#[derive(Debug)]
pub struct CudaTensorMut<'a> {
    elems: Elems<'a>,
    shape: Shape,
    lse: Option<Elems<'a>>,
}

impl<'a> CudaTensorMut<'a> {
    /// A dense tensor: `[tokens, heads, dim]`, in memory of `cudarc`, to be written on `stream`, which is that of the
    /// call.
    pub fn new<T: Element>(data: &'a mut impl DevicePtrMut<T>, stream: &'a Arc<CudaStream>, shape: [usize; 3]) -> Self {
        Self { elems: Elems::write(data, stream), shape: Shape::dense(shape), lse: None }
    }

    /// A dense tensor by its address.
    ///
    /// # Safety
    /// As [`CudaTensor::from_raw`]; and nobody else reads or writes the memory until the work is done.
    pub const unsafe fn from_raw<T: Element>(first: u64, shape: [usize; 3]) -> Self {
        Self { elems: Elems::raw::<T>(first), shape: Shape::dense(shape), lse: None }
    }

    /// Takes the log-sum-exp of every query and head, too: `[tokens, heads]`, dense. It is the natural logarithm of the
    /// sum of e^score over the keys that the query sees (and its sink), −∞ where there are none.
    #[must_use]
    pub fn with_lse(mut self, lse: &'a mut CudaSlice<f32>, stream: &'a Arc<CudaStream>) -> Self {
        self.lse = Some(Elems::write(lse, stream));
        self
    }

    /// The same by its address.
    ///
    /// # Safety
    /// As [`from_raw`](Self::from_raw), for `tokens` × `heads` numbers.
    #[must_use]
    pub unsafe fn with_raw_lse(mut self, first: u64) -> Self {
        self.lse = Some(Elems::raw::<f32>(first));
        self
    }

    /// The same with other strides, in elements.
    #[must_use]
    pub fn with_strides(mut self, token_stride: usize, head_stride: usize) -> Self {
        (self.shape.token_stride, self.shape.head_stride) = (token_stride, head_stride);
        self
    }

    /// As [`CudaTensor::check`]; and the address of the log-sum-exps, 0 where nobody asks for them.
    pub(super) fn check(
        &self,
        context: &CudaContext,
        exec: CudaExec<'_>,
        expected: [usize; 3],
    ) -> Result<(Tensor, u64), StorageError> {
        self.shape.check("out", expected, self.elems.len)?;
        self.shape.check_apart()?;
        self.elems.check("out", context, exec)?;
        let params = self.elems.params(&self.shape)?;
        let Some(lse) = &self.lse else { return Ok((params, 0)) };
        let needed = self.shape.tokens.saturating_mul(self.shape.heads);
        if lse.len < needed {
            return Err(StorageError::TooShort { tensor: "lse", needed, given: lse.len });
        }
        lse.check("lse", context, exec)?;
        Ok((params, lse.first))
    }
}
