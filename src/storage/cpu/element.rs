//! The element types of K and V, and those of the caller's tensors, so that everything else is written once.

mod convert;
mod e4m3;
mod scale;

use core::fmt::Debug;

use half::{bf16, f16};

use super::isa::Isa;
#[cfg(feature = "cuda")]
use crate::layout::DType;

#[cfg(test)]
use convert::narrow_row;
pub(super) use convert::{Convert, PIECE, ReadHead, widen_row};
pub(super) use e4m3::E4m3;
pub(super) use scale::Largest;

/// An element that query, key and value tensors may have. Sealed: `f32`, [`half::f16`], [`half::bf16`].
#[expect(private_bounds, reason = "the supertrait seals it")]
pub trait Element: Given {}

impl Element for f32 {}
impl Element for f16 {}
impl Element for bf16 {}

/// The type of a tensor's elements.
#[cfg(feature = "cuda")]
pub(in crate::storage) const fn dtype_of<T: Element>() -> DType {
    T::DTYPE
}

/// An element of the caller's tensors.
pub(super) trait Given: Stored {
    /// The type as a number, for kernels.
    #[cfg(feature = "cuda")]
    const DTYPE: DType;

    /// Which of the three it is.
    fn tensor(data: &[Self]) -> Data<'_>;
}

/// What the storage does with an element of K or V. Plain numbers: all bits zero is the value zero, and every byte a
/// valid one.
pub(super) trait Stored: Copy + Debug + Send + Sync + 'static {
    const ZERO: Self;

    /// Whether it is an `f32` already.
    const WIDE: bool = false;

    /// Elements that the scale of a head of a token takes.
    const SCALE_ELEMS: usize = 0;

    /// The elements, where they are of this type.
    fn own(data: Data<'_>) -> Option<&[Self]> {
        let _ = data;
        None
    }

    /// The elements of a vector as `f32`, exactly; without their scale.
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V;

    /// Rounds to the nearest, ties to even. What is beyond the largest number becomes it, infinities included. A NaN of
    /// 16 bits or 8 stays one; integers have none.
    fn store<I: Isa>(isa: I, x: I::V, to: &mut I::Lanes<Self>);

    /// The scale that begins at the first of these elements.
    fn scale(from: &[Self]) -> f32 {
        let _ = from;
        1.0
    }

    /// Writes a scale to the first of these elements.
    fn set_scale(scale: f32, to: &mut [Self]) {
        let _ = (scale, to);
    }
}

/// The most elements that any type's scale takes.
pub(super) const MAX_SCALE_ELEMS: usize = <i8 as Stored>::SCALE_ELEMS;

/// Elements of one of the three types of tensors.
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
    #[inline(always)]
    pub(super) fn widen<I: Isa>(&self, isa: I, at: usize, to: &mut [f32]) {
        match self {
            Self::F32(data) => to.copy_from_slice(&data[at..][..to.len()]),
            Self::F16(data) => widen_row(isa, &data[at..][..to.len()], to),
            Self::BF16(data) => widen_row(isa, &data[at..][..to.len()], to),
        }
    }
}

/// x, or what is nearest to it in −most ..= most; NaN stays as it is.
#[inline(always)]
fn saturate<I: Isa>(isa: I, x: I::V, most: f32) -> I::V {
    isa.max(isa.splat(-most), isa.min(isa.splat(most), x))
}

/// Stores lane by lane, in code that the compiler vectorises for the instruction set that it stands in.
#[inline(always)]
fn store_lanes<I: Isa, E: Stored>(isa: I, x: I::V, to: &mut I::Lanes<E>, narrow: impl Fn(f32) -> E) {
    let mut wide = isa.padded(&[]);
    isa.store(x, &mut wide);
    for (to, wide) in to.as_mut().iter_mut().zip(wide.as_ref()) {
        *to = narrow(*wide);
    }
}

impl Given for f32 {
    #[cfg(feature = "cuda")]
    const DTYPE: DType = DType::F32;

    fn tensor(data: &[Self]) -> Data<'_> {
        Data::F32(data)
    }
}

impl Stored for f32 {
    const ZERO: Self = 0.0;
    const WIDE: bool = true;

    fn own(data: Data<'_>) -> Option<&[Self]> {
        if let Data::F32(data) = data { Some(data) } else { None }
    }

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V {
        isa.load(from)
    }

    #[inline(always)]
    fn store<I: Isa>(isa: I, x: I::V, to: &mut I::Lanes<Self>) {
        isa.store(x, to);
    }
}

impl Given for f16 {
    #[cfg(feature = "cuda")]
    const DTYPE: DType = DType::F16;

    fn tensor(data: &[Self]) -> Data<'_> {
        Data::F16(data)
    }
}

impl Stored for f16 {
    const ZERO: Self = Self::ZERO;

    fn own(data: Data<'_>) -> Option<&[Self]> {
        if let Data::F16(data) = data { Some(data) } else { None }
    }

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V {
        isa.load_f16(from)
    }

    #[inline(always)]
    fn store<I: Isa>(isa: I, x: I::V, to: &mut I::Lanes<Self>) {
        isa.store_f16(saturate(isa, x, Self::MAX.to_f32_const()), to);
    }
}

impl Given for bf16 {
    #[cfg(feature = "cuda")]
    const DTYPE: DType = DType::BF16;

    fn tensor(data: &[Self]) -> Data<'_> {
        Data::BF16(data)
    }
}

impl Stored for bf16 {
    const ZERO: Self = Self::ZERO;

    fn own(data: Data<'_>) -> Option<&[Self]> {
        if let Data::BF16(data) = data { Some(data) } else { None }
    }

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V {
        isa.load_bf16(from)
    }

    #[inline(always)]
    fn store<I: Isa>(isa: I, x: I::V, to: &mut I::Lanes<Self>) {
        store_lanes(isa, saturate(isa, x, Self::MAX.to_f32_const()), to, |x| {
            let bits = x.to_bits();
            // Half of the last kept bit, less one where that is even: the carry rounds to nearest, ties to even.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            // A NaN is quieted and keeps its sign and the upper bits of its payload.
            let kept = if x.is_nan() { bits | 0x0040_0000 } else { rounded };
            Self::from_bits((kept >> 16) as u16)
        });
    }
}

/// Integers, of which a head has a [scale](scale) of its own.
impl Stored for i8 {
    const ZERO: Self = 0;
    const SCALE_ELEMS: usize = 4;

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V {
        isa.load_i8(from)
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "whole, and in range")]
    fn store<I: Isa>(isa: I, x: I::V, to: &mut I::Lanes<Self>) {
        store_lanes(isa, saturate(isa, x, 127.0), to, |x| x.round_ties_even() as Self);
    }

    fn scale(from: &[Self]) -> f32 {
        f32::from_ne_bytes(core::array::from_fn(|byte| from[byte].cast_unsigned()))
    }

    fn set_scale(scale: f32, to: &mut [Self]) {
        for (to, byte) in to[..Self::SCALE_ELEMS].iter_mut().zip(scale.to_ne_bytes()) {
            *to = byte.cast_signed();
        }
    }
}
