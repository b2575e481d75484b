//! AVX2 with FMA and F16C: x86-64 processors since 2013.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use half::{bf16, f16};

use super::{Isa, Work};
use crate::storage::cpu::element::{E4m3, Stored};

const LANES: usize = 8;

/// Proof that the machine has AVX2, FMA and F16C: only [`detect`](Self::detect) makes it, as the field is private.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        let has = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// An intrinsic that needs AVX2, FMA or F16C and has no other precondition.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: the only precondition is that the machine has the instruction. This is expanded in methods of `Avx2`
        // and in `sums4`, which they alone call; a value of that type exists only where `detect` found AVX2, FMA and F16C.
        unsafe { $call }
    };
}

impl Isa for Avx2 {
    type V = __m256;
    arrays!(LANES);
    transpose!(LANES);
    const ACCUMULATORS: usize = 8;
    const TREE: &'static [usize] = &[0, 1, 2, 3, 4, 5, 6, 7];
    const FMA: bool = true;

    #[inline]
    fn enter<W: Work>(self, work: W) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn inner<W: Work>(token: Avx2, work: W) {
            work.run(token);
        }
        op!(inner(self, work));
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        op!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        // SAFETY: `x` is 32 readable bytes; the unaligned load asks for no more. The instruction: see `op`.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes (`f16` is a transparent `u16`); the unaligned load asks for no more.
        let bits = unsafe { _mm_loadu_si128(x.as_ptr().cast()) };
        op!(_mm256_cvtph_ps(bits))
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes (`bf16` is a transparent `u16`); the unaligned load asks for no more.
        let bits = unsafe { _mm_loadu_si128(x.as_ptr().cast()) };
        let wide = op!(_mm256_cvtepu16_epi32(bits));
        let wide = op!(_mm256_slli_epi32::<16>(wide));
        op!(_mm256_castsi256_ps(wide))
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::V {
        // SAFETY: `x` is 8 readable bytes; the load asks for no more, at any alignment.
        let bytes = unsafe { _mm_loadl_epi64(x.as_ptr().cast()) };
        op!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)))
    }

    #[inline(always)]
    fn load_e4m3(self, x: &[E4m3; LANES]) -> Self::V {
        // SAFETY: `x` is 8 readable bytes (`E4m3` is a transparent `u8`); the load asks for no more, at any alignment.
        let bytes = unsafe { _mm_loadl_epi64(x.as_ptr().cast()) };
        // As f16 the sign, a zero, and the other seven bits are 2⁻⁸ of the number: the biases are 15 and 7.
        let bits = op!(_mm_slli_epi16::<7>(_mm_cvtepi8_epi16(bytes)));
        let bits = op!(_mm_and_si128(bits, _mm_set1_epi16(0xbf80_u16.cast_signed())));
        let ones = op!(_mm_set1_epi16(0x3f80));
        let nan = op!(_mm_cmpeq_epi16(_mm_and_si128(bits, ones), ones));
        let bits = op!(_mm_or_si128(bits, _mm_and_si128(nan, _mm_set1_epi16(0x7c00))));
        op!(_mm256_mul_ps(_mm256_cvtph_ps(bits), _mm256_set1_ps(256.0)))
    }

    #[inline(always)]
    fn store(self, x: Self::V, to: &mut [f32; LANES]) {
        // SAFETY: `to` is 32 writable bytes; the unaligned store asks for no more. The instruction: see `op`.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn store_f16(self, x: Self::V, to: &mut [f16; LANES]) {
        let bits = op!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        // SAFETY: `to` is 16 writable bytes; the unaligned store asks for no more. The instruction: see `op`.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), bits) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_div_ps(a, b))
    }

    // The instruction gives its second operand where either is NaN.
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_min_ps(a, b))
    }

    // As above.
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn unless_less(self, x: Self::V, a: Self::V, b: Self::V) -> Self::V {
        let keep = op!(_mm256_cmp_ps::<_CMP_NLT_UQ>(a, b));
        op!(_mm256_and_ps(keep, x))
    }

    #[inline(always)]
    fn power_of_two(self, n: Self::V) -> Self::V {
        let exponent = op!(_mm256_add_epi32(_mm256_castps_si256(n), _mm256_set1_epi32(127)));
        op!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
    }

    #[inline(always)]
    fn top(self, x: Self::V) -> f32 {
        let halves = op!(_mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)));
        let pairs = op!(_mm_max_ps(halves, _mm_movehl_ps(halves, halves)));
        op!(_mm_cvtss_f32(_mm_max_ss(pairs, _mm_movehdup_ps(pairs))))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        op!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn sums<const N: usize>(self, x: [Self::V; N]) -> [f32; N] {
        let mut out = [0.0; N];
        for (first, out) in (0..N).step_by(4).zip(out.chunks_mut(4)) {
            let sums = sums4(core::array::from_fn(|i| if first + i < N { x[first + i] } else { self.splat(0.0) }));
            out.copy_from_slice(&sums[..out.len()]);
        }
        out
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        if size_of::<T>() == 1 {
            // What is asked for in one go, a phase of 64 heads, is small enough for the first-level cache.
            // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        } else {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
    }
}

/// The sum of the lanes of each vector: `((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7))`.
#[inline(always)]
fn sums4(x: [__m256; 4]) -> [f32; 4] {
    // `hadd` adds neighbours within 128-bit halves: after two rounds, lane i of the lower half is
    // (x0 + x1) + (x2 + x3) of vector i, and of the upper half (x4 + x5) + (x6 + x7).
    let low = op!(_mm256_hadd_ps(x[0], x[1]));
    let high = op!(_mm256_hadd_ps(x[2], x[3]));
    let halves = op!(_mm256_hadd_ps(low, high));
    let lower = op!(_mm256_castps256_ps128(halves));
    let upper = op!(_mm256_extractf128_ps::<1>(halves));
    let sums = op!(_mm_add_ps(lower, upper));
    let mut out = [0.0; 4];
    // SAFETY: `out` is 16 writable bytes; the unaligned store asks for no more. SSE is part of x86-64.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}
