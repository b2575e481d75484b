//! Tensors of the caller, `[tokens, heads, dim]`, borrowed for a call.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

use super::element::{Data, Element};
use super::isa::Isa;
use crate::storage::StorageError;
use crate::storage::shape::Shape;

/// A tensor to read: queries, keys or values of a step.
///
/// Element `d` of head `h` of token `t` is at `t × token_stride + h × head_stride + d`, in elements. Any
/// [`Element`] type, whatever the storage keeps. Shapes are checked by the call that takes the tensor.
///
/// # Example
/// ```
/// use paged_kv::storage::CpuTensor;
///
/// // Q, K and V of 2 tokens as one projection leaves them: 4 query heads, 2 KV heads, head_dim 8, one row per token.
/// let qkv = vec![0.0_f32; 2 * (4 + 2 + 2) * 8];
/// let row = (4 + 2 + 2) * 8;
/// let q = CpuTensor::new(&qkv, [2, 4, 8]).with_strides(row, 8);
/// let k = CpuTensor::new(&qkv[4 * 8..], [2, 2, 8]).with_strides(row, 8);
/// # let _ = (q, k);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CpuTensor<'a> {
    data: Data<'a>,
    shape: Shape,
}

impl<'a> CpuTensor<'a> {
    /// A dense tensor: `[tokens, heads, dim]`.
    pub fn new<T: Element>(data: &'a [T], shape: [usize; 3]) -> Self {
        Self { data: T::tensor(data), shape: Shape::dense(shape) }
    }

    /// The same with other strides, in elements.
    pub const fn with_strides(mut self, token_stride: usize, head_stride: usize) -> Self {
        self.shape.token_stride = token_stride;
        self.shape.head_stride = head_stride;
        self
    }

    pub(super) fn check(&self, tensor: &'static str, expected: [usize; 3]) -> Result<(), StorageError> {
        self.shape.check(tensor, expected, self.data.len())
    }

    pub(super) const fn heads(&self) -> usize {
        self.shape.heads
    }

    pub(super) const fn data(&self) -> Data<'a> {
        self.data
    }

    /// Where a head begins.
    pub(super) const fn elem(&self, token: usize, head: usize) -> usize {
        self.shape.elem(token, head)
    }

    /// A head as `f32`, and zeros behind it.
    #[inline(always)]
    pub(super) fn widen<I: Isa>(&self, isa: I, token: usize, head: usize, to: &mut [f32]) {
        let (to, behind) = to.split_at_mut(self.shape.dim);
        self.data.widen(isa, self.shape.elem(token, head), to);
        behind.fill(0.0);
    }
}

/// A tensor to write: the output of [`attend`](crate::storage::KvStorage::attend), in `f32`.
///
/// As [`CpuTensor`]; in addition no two heads may share elements. Any strides do where the smaller one is at least
/// `dim` and the larger one at least what the smaller one spans.
#[derive(Debug)]
pub struct CpuTensorMut<'a> {
    data: &'a mut [f32],
    shape: Shape,
    lse: Option<&'a mut [f32]>,
}

impl<'a> CpuTensorMut<'a> {
    /// A dense tensor: `[tokens, heads, dim]`.
    pub fn new(data: &'a mut [f32], shape: [usize; 3]) -> Self {
        Self { data, shape: Shape::dense(shape), lse: None }
    }

    /// Takes the log-sum-exp of every query and head, too: `[tokens, heads]`, dense. It is the natural logarithm of the
    /// sum of e^score over the keys that the query sees (and its sink), −∞ where there are none.
    #[must_use]
    pub fn with_lse(mut self, lse: &'a mut [f32]) -> Self {
        self.lse = Some(lse);
        self
    }

    /// The same with other strides, in elements.
    #[must_use]
    pub fn with_strides(mut self, token_stride: usize, head_stride: usize) -> Self {
        self.shape.token_stride = token_stride;
        self.shape.head_stride = head_stride;
        self
    }

    /// Checks the tensor and makes it writable from several threads.
    pub(super) fn share(self, tensor: &'static str, expected: [usize; 3]) -> Result<SharedOut<'a>, StorageError> {
        self.shape.check(tensor, expected, self.data.len())?;
        let needed = self.shape.tokens.saturating_mul(self.shape.heads);
        if let Some(lse) = self.lse.as_ref().filter(|lse| lse.len() < needed) {
            return Err(StorageError::TooShort { tensor: "lse", needed, given: lse.len() });
        }
        let lse = self.lse.map(<[f32]>::as_mut_ptr);
        let shared = SharedOut { first: self.data.as_mut_ptr(), lse, shape: self.shape, data: PhantomData };
        self.shape.check_apart()?;
        Ok(shared)
    }
}

/// An output that was checked, to be written tile by tile from several threads.
///
/// Invariant, established by [`CpuTensorMut::share`]: every head lies inside the borrowed slice, and the elements of
/// different heads are disjoint; `lse` begins `tokens` × `heads` numbers that are borrowed for as long.
#[derive(Debug)]
pub(super) struct SharedOut<'a> {
    first: *mut f32,
    lse: Option<*mut f32>,
    shape: Shape,
    data: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for unique borrows of slices of `f32`, which may be sent.
unsafe impl Send for SharedOut<'_> {}
// SAFETY: all that can be done with a shared one, `claim`, is unsafe and demands that claims do not overlap.
unsafe impl Sync for SharedOut<'_> {}

impl SharedOut<'_> {
    /// The heads `heads` of the tokens `tokens`, to be written by whoever holds the result.
    ///
    /// # Safety
    /// No two claims that are alive together have a head of a token in common.
    pub(super) unsafe fn claim(&self, tokens: Range<usize>, heads: Range<usize>) -> OutTile<'_> {
        OutTile { out: self, tokens, heads }
    }
}

/// Some heads of some tokens of an output, which nobody else has.
#[derive(Debug)]
pub(super) struct OutTile<'a> {
    out: &'a SharedOut<'a>,
    tokens: Range<usize>,
    heads: Range<usize>,
}

impl OutTile<'_> {
    /// The elements of one head of one token of this tile.
    #[inline(always)]
    pub(super) fn head(&mut self, token: usize, head: usize) -> &mut [f32] {
        let shape = &self.out.shape;
        assert!(self.tokens.contains(&token) && token < shape.tokens, "the token is one of the tile");
        assert!(self.heads.contains(&head) && head < shape.heads, "the head is one of the tile");
        // SAFETY: by the invariant of `SharedOut` a head that exists begins inside the borrowed slice.
        let first = unsafe { self.out.first.add(shape.elem(token, head)) };
        // SAFETY: by that invariant all its `dim` elements are in the slice and in no other head. This tile alone has
        // the head, by the contract of `claim`, and gives it out by a unique borrow of itself.
        unsafe { core::slice::from_raw_parts_mut(first, shape.dim) }
    }

    /// The log-sum-exp of one head of one token of this tile, where it was asked for.
    #[inline(always)]
    pub(super) fn lse(&mut self, token: usize, head: usize) -> Option<&mut f32> {
        let shape = &self.out.shape;
        assert!(self.tokens.contains(&token) && token < shape.tokens, "the token is one of the tile");
        assert!(self.heads.contains(&head) && head < shape.heads, "the head is one of the tile");
        self.out.lse.map(|lse| {
            // SAFETY: by the invariant of `SharedOut` there are `tokens` × `heads` numbers.
            let lse = unsafe { lse.add(token * shape.heads + head) };
            // SAFETY: as above; this tile alone has the head, as in `head`.
            unsafe { &mut *lse }
        })
    }
}
