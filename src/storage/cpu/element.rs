//! The element types of K and V, so that everything else is written once.
#![allow(unsafe_code)]

use core::fmt::Debug;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::isa::Isa;

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

    /// The elements, where they are of this type.
    fn own(data: Data<'_>) -> Option<&[Self]>;

    /// The slice itself, where it is of `f32` already.
    fn wide(to: &mut [Self]) -> Option<&mut [f32]> {
        let _ = to;
        None
    }

    /// Exact.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds to the nearest, ties to even; beyond the largest number to infinity. A NaN stays one: it is quieted and
    /// keeps its sign and the upper bits of its payload.
    fn narrow(from: &[f32], to: &mut [Self]);

    /// The elements of a vector as `f32`, exactly.
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V;
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

    fn own(data: Data<'_>) -> Option<&[Self]> {
        if let Data::F32(data) = data { Some(data) } else { None }
    }

    fn wide(to: &mut [Self]) -> Option<&mut [f32]> {
        Some(to)
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
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V {
        isa.load(from)
    }
}

impl Stored for f16 {
    const ZERO: Self = Self::ZERO;

    fn tensor(data: &[Self]) -> Data<'_> {
        Data::F16(data)
    }

    fn own(data: Data<'_>) -> Option<&[Self]> {
        if let Data::F16(data) = data { Some(data) } else { None }
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        narrow::f16(from, to);
    }

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V {
        isa.load_f16(from)
    }
}

impl Stored for bf16 {
    const ZERO: Self = Self::ZERO;

    fn tensor(data: &[Self]) -> Data<'_> {
        Data::BF16(data)
    }

    fn own(data: Data<'_>) -> Option<&[Self]> {
        if let Data::BF16(data) = data { Some(data) } else { None }
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        narrow::bf16(from, to);
    }

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V {
        isa.load_bf16(from)
    }
}

/// From `f32` to 16 bits, a vector at a time where the machine can: `half` converts bf16 by branches and calls a function
/// for every eight numbers of f16.
mod narrow {
    use half::slice::HalfFloatSliceExt;

    pub(super) fn f16(from: &[f32], to: &mut [half::f16]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
            // SAFETY: the machine has the instructions.
            return unsafe { x86_64::f16(from, to) };
        }
        to.convert_from_f32_slice(from);
    }

    pub(super) fn bf16(from: &[f32], to: &mut [half::bf16]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has the instructions.
            return unsafe { x86_64::bf16(from, to) };
        }
        bf16_lanes(from, to);
    }

    #[inline(always)]
    pub(super) fn bf16_lanes(from: &[f32], to: &mut [half::bf16]) {
        for (to, from) in to.iter_mut().zip(from) {
            let bits = from.to_bits();
            // Half of the last kept bit, less one where that is even: the carry rounds to nearest, ties to even.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            let kept = if bits & 0x7fff_ffff > 0x7f80_0000 { bits | 0x0040_0000 } else { rounded };
            *to = half::bf16::from_bits((kept >> 16) as u16);
        }
    }

    #[cfg(target_arch = "x86_64")]
    mod x86_64 {
        use core::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps};

        use half::slice::HalfFloatSliceExt;

        /// The compiler vectorises the loop for what is enabled here.
        #[target_feature(enable = "avx2")]
        pub(super) fn bf16(from: &[f32], to: &mut [half::bf16]) {
            super::bf16_lanes(from, to);
        }

        #[target_feature(enable = "avx2,f16c")]
        pub(super) fn f16(from: &[f32], to: &mut [half::f16]) {
            let (mut from, mut to) = (from.chunks_exact(8), to.chunks_exact_mut(8));
            for (from, to) in from.by_ref().zip(to.by_ref()) {
                // SAFETY: eight numbers are readable, at any alignment.
                let wide = unsafe { _mm256_loadu_ps(from.as_ptr()) };
                let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                // SAFETY: eight numbers of 16 bits are writable, at any alignment.
                unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), half) };
            }
            to.into_remainder().convert_from_f32_slice(from.remainder());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every upper half, with lower halves around the places where rounding turns.
    #[test]
    fn bf16_rounds_as_half_does() {
        for upper in 0..=u32::from(u16::MAX) {
            let from = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|lower| f32::from_bits(upper << 16 | lower));
            let mut to = [bf16::ZERO; 6];
            bf16::narrow(&from, &mut to);
            assert_eq!(to.map(bf16::to_bits), from.map(|x| bf16::from_f32(x).to_bits()), "{upper:04x}");
        }
    }

    /// Numbers in vectors and after them, around the ties of f16.
    #[test]
    fn f16_rounds_as_half_does() {
        for upper in 0..=u32::from(u16::MAX) {
            let lower = [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000, 0x3001, 0xefff, 0xf000];
            let from = lower.map(|lower| f32::from_bits(upper << 16 | lower));
            let mut to = [f16::ZERO; 11];
            f16::narrow(&from, &mut to);
            assert_eq!(to.map(f16::to_bits), from.map(|x| f16::from_f32(x).to_bits()), "{upper:04x}");
            let mut portable = [bf16::ZERO; 11];
            narrow::bf16_lanes(&from, &mut portable);
            assert_eq!(portable.map(bf16::to_bits), from.map(|x| bf16::from_f32(x).to_bits()), "{upper:04x}");
        }
    }

    /// The rule for NaN, and what is beyond the largest number.
    #[test]
    fn a_nan_stays_one_and_what_is_too_large_is_infinite() {
        // Quiet and signalling, of both signs, with payload in the bits that are kept and in those that are not.
        let from = [0x7fc0_0000, 0x7f80_0001, 0xffa5_a000, 0x7fbf_ffff].map(f32::from_bits);
        let mut to = [bf16::ZERO; 4];
        bf16::narrow(&from, &mut to);
        assert_eq!(to.map(bf16::to_bits), [0x7fc0, 0x7fc0, 0xffe5, 0x7fff]);
        let mut to = [f16::ZERO; 4];
        f16::narrow(&from, &mut to);
        // f16 keeps 10 bits of the payload of 23, the uppermost of which is set.
        assert_eq!(to.map(f16::to_bits), [0x7e00, 0x7e00, 0xff2d, 0x7fff]);

        let from = [3.4e38, -3.4e38, 65_519.996, 65_520.0];
        let (mut brain, mut half) = ([bf16::ZERO; 4], [f16::ZERO; 4]);
        bf16::narrow(&from, &mut brain);
        f16::narrow(&from, &mut half);
        assert_eq!(brain[0], bf16::INFINITY); // the largest is 3.3895 × 10³⁸, half a step further is 3.3961 × 10³⁸
        assert_eq!(brain[1], bf16::NEG_INFINITY);
        assert_eq!(half, [f16::INFINITY, f16::NEG_INFINITY, f16::MAX, f16::INFINITY]);
    }
}
