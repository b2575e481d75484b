//! The element types of K and V, so that everything else is written once.
#![allow(unsafe_code)]

use core::fmt::Debug;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::isa::{Isa, LANES};

/// An element that K and V can be stored as, and that query, key and value tensors may have. Sealed: `f32`,
/// [`half::f16`], [`half::bf16`].
#[expect(private_bounds, reason = "the supertrait seals it")]
pub trait Element: Stored {}

impl Element for f32 {}
impl Element for f16 {}
impl Element for bf16 {}

/// What the storage does with an element. Plain numbers: all bits zero is the value zero.
pub(super) trait Stored: Copy + Debug + Send + Sync + 'static {
    const ZERO: Self;

    /// Whether it is an `f32` already.
    const WIDE: bool = false;

    /// Which of the three it is.
    fn tensor(data: &[Self]) -> Data<'_>;

    /// Exact.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds to the nearest, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);

    /// Eight elements as `f32`, exactly.
    fn load<I: Isa>(isa: I, from: &[Self; LANES]) -> I::V;
}

/// Elements of one of the three types.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

impl Data<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::F16(data) => data.len(),
            Self::BF16(data) => data.len(),
        }
    }

    /// The elements from `at` on as `f32`, as many as `to` has; both in bounds by the caller's check.
    pub(super) fn widen(&self, at: usize, to: &mut [f32]) {
        match self {
            Self::F32(data) => f32::widen(&data[at..][..to.len()], to),
            Self::F16(data) => f16::widen(&data[at..][..to.len()], to),
            Self::BF16(data) => bf16::widen(&data[at..][..to.len()], to),
        }
    }
}

impl Stored for f32 {
    const ZERO: Self = 0.0;
    const WIDE: bool = true;

    fn tensor(data: &[Self]) -> Data<'_> {
        Data::F32(data)
    }

    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &[Self; LANES]) -> I::V {
        isa.load(from)
    }
}

impl Stored for f16 {
    const ZERO: Self = Self::ZERO;

    fn tensor(data: &[Self]) -> Data<'_> {
        Data::F16(data)
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &[Self; LANES]) -> I::V {
        isa.load_f16(from)
    }
}

impl Stored for bf16 {
    const ZERO: Self = Self::ZERO;

    fn tensor(data: &[Self]) -> Data<'_> {
        Data::BF16(data)
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &[Self; LANES]) -> I::V {
        isa.load_bf16(from)
    }
}

/// The full groups of eight of a row, as arrays, and what is left over.
#[inline(always)]
pub(super) fn lanes<E>(row: &[E]) -> (&[[E; LANES]], &[E]) {
    let (full, rest) = row.split_at(row.len() / LANES * LANES);
    // SAFETY: `full` is ⌊len / 8⌋ × 8 elements that are borrowed for as long as the result, and `[E; 8]` has the
    // alignment of `E` and is eight of them without padding. (`slice::as_chunks` needs Rust 1.88.)
    let full = unsafe { core::slice::from_raw_parts(full.as_ptr().cast(), full.len() / LANES) };
    (full, rest)
}
