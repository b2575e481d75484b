//! AVX-512 (F, BW, DQ, VL): x86-64 server processors since 2017, and Zen 4.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use half::{bf16, f16};

use super::{Isa, Work};
use crate::storage::cpu::element::{E4m3, Stored};

const LANES: usize = 16;

/// Proof that the machine has AVX-512 F, BW, DQ and VL beside AVX2, FMA and F16C: only [`detect`](Self::detect) makes
/// it, as the field is private.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let has = std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl")
            && std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// An intrinsic that needs AVX-512 or less and has no other precondition.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: the only precondition is that the machine has the instruction. This is expanded in methods of
        // `Avx512` and in `sums16`, which they alone call; a value of that type exists only where `detect` found all
        // that `enter` enables.
        unsafe { $call }
    };
}

impl Isa for Avx512 {
    type V = __m512;
    arrays!(LANES);
    const ACCUMULATORS: usize = 16;
    const TREE: &'static [usize] = &[0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15];
    const FMA: bool = true;

    #[inline]
    fn enter<W: Work>(self, work: W) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn inner<W: Work>(token: Avx512, work: W) {
            work.run(token);
        }
        op!(inner(self, work));
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: `x` is 64 readable bytes; the unaligned load asks for no more. The instruction: see `op`.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> __m512 {
        // SAFETY: `x` is 32 readable bytes (`f16` is a transparent `u16`); the unaligned load asks for no more.
        let bits = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
        op!(_mm512_cvtph_ps(bits))
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; LANES]) -> __m512 {
        // SAFETY: `x` is 32 readable bytes (`bf16` is a transparent `u16`); the unaligned load asks for no more.
        let bits = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
        let wide = op!(_mm512_cvtepu16_epi32(bits));
        let wide = op!(_mm512_slli_epi32::<16>(wide));
        op!(_mm512_castsi512_ps(wide))
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> __m512 {
        // SAFETY: `x` is 16 readable bytes; the unaligned load asks for no more.
        let bytes = unsafe { _mm_loadu_si128(x.as_ptr().cast()) };
        op!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
    }

    #[inline(always)]
    fn load_e4m3(self, x: &[E4m3; LANES]) -> __m512 {
        // SAFETY: `x` is 16 readable bytes (`E4m3` is a transparent `u8`); the unaligned load asks for no more.
        let bytes = unsafe { _mm_loadu_si128(x.as_ptr().cast()) };
        // As f16 the sign, a zero, and the other seven bits are 2⁻⁸ of the number: the biases are 15 and 7.
        let bits = op!(_mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(bytes)));
        let bits = op!(_mm256_and_si256(bits, _mm256_set1_epi16(0xbf80_u16.cast_signed())));
        let ones = op!(_mm256_set1_epi16(0x3f80));
        let nan = op!(_mm256_cmpeq_epi16_mask(_mm256_and_si256(bits, ones), ones));
        let bits = op!(_mm256_mask_mov_epi16(bits, nan, _mm256_set1_epi16(0x7e00)));
        op!(_mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(256.0)))
    }

    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32; LANES]) {
        // SAFETY: `to` is 64 writable bytes; the unaligned store asks for no more. The instruction: see `op`.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn store_f16(self, x: __m512, to: &mut [f16; LANES]) {
        let bits = op!(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        // SAFETY: `to` is 32 writable bytes; the unaligned store asks for no more. The instruction: see `op`.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bits) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_div_ps(a, b))
    }

    // The instruction gives its second operand where either is NaN.
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_min_ps(a, b))
    }

    // As above.
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn unless_less(self, x: Self::V, a: Self::V, b: Self::V) -> Self::V {
        let keep = op!(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b));
        op!(_mm512_maskz_mov_ps(keep, x))
    }

    #[inline(always)]
    fn power_of_two(self, n: Self::V) -> Self::V {
        let exponent = op!(_mm512_add_epi32(_mm512_castps_si512(n), _mm512_set1_epi32(127)));
        op!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent)))
    }

    #[inline(always)]
    fn top(self, x: Self::V) -> f32 {
        op!(_mm512_reduce_max_ps(x))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn sums<const N: usize>(self, x: [__m512; N]) -> [f32; N] {
        let mut out = [0.0; N];
        for (first, out) in (0..N).step_by(LANES).zip(out.chunks_mut(LANES)) {
            let sums = sums16(core::array::from_fn(|i| if first + i < N { x[first + i] } else { self.splat(0.0) }));
            let mut all = [0.0; LANES];
            self.store(sums, &mut all);
            out.copy_from_slice(&all[..out.len()]);
        }
        out
    }

    #[inline(always)]
    fn transpose(self, mut row: impl FnMut(usize) -> __m512, mut column: impl FnMut(usize, __m512)) {
        let mut rows = [self.splat(0.0); LANES];
        // A loop and not `array::from_fn`, which need not be inlined, and would be compiled without the instructions.
        for (lane, to) in rows.iter_mut().enumerate() {
            *to = row(lane);
        }
        let columns = transpose16(rows);
        for (place, &lane) in Self::TREE.iter().enumerate() {
            column(place, columns[lane]);
        }
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

/// The sums of sixteen vectors as one vector. Lanes a quarter apart are added first, then neighbours: for each vector
/// `((x0 + x1) + (x2 + x3)) + …`, each xi the sum of its lanes i, i + 4, i + 8 and i + 12.
///
/// It is a transposition by halves, with an addition wherever two vectors meet: 15 additions instead of 16 × 4.
#[inline(always)]
fn sums16(x: [__m512; LANES]) -> __m512 {
    let mut quads = [x[0]; 4];
    for (i, quad) in quads.iter_mut().enumerate() {
        let [a, b, c, d] = [x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]];
        // Within each of the four 128-bit parts: lanes [a0 b0 a1 b1] + [a2 b2 a3 b3] = [a0+a2 b0+b2 a1+a3 b1+b3].
        let ab = op!(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        let cd = op!(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
        let [ab, cd] = [ab, cd].map(|v| op!(_mm512_castps_pd(v)));
        // [a02 b02 c02 d02] + [a13 b13 c13 d13]: per part the sums of its four lanes, of a, b, c and d.
        let low = op!(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)));
        let high = op!(_mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
        *quad = op!(_mm512_add_ps(low, high));
    }
    // Parts 0 and 2 of two vectors plus their parts 1 and 3; twice.
    let fold = |p: __m512, q: __m512| {
        let even = op!(_mm512_shuffle_f32x4::<0x88>(p, q));
        let odd = op!(_mm512_shuffle_f32x4::<0xdd>(p, q));
        op!(_mm512_add_ps(even, odd))
    };
    let (low, high) = (fold(quads[0], quads[1]), fold(quads[2], quads[3]));
    fold(low, high)
}

/// Vector i of lanes i: by rounds of neighbours, pairs, quads and halves of 128 bits each.
#[inline(always)]
fn transpose16(x: [__m512; LANES]) -> [__m512; LANES] {
    let mut y = x;
    for i in 0..8 {
        // Within each of the four 128-bit parts: [a0 b0 a1 b1] and [a2 b2 a3 b3].
        y[2 * i] = op!(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]));
        y[2 * i + 1] = op!(_mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
    let mut z = y;
    for i in 0..4 {
        for half in 0..2 {
            let ab = op!(_mm512_castps_pd(y[4 * i + half]));
            let cd = op!(_mm512_castps_pd(y[4 * i + half + 2]));
            // Lane j of each part, of a, b, c and d.
            z[4 * i + 2 * half] = op!(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)));
            z[4 * i + 2 * half + 1] = op!(_mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
        }
    }
    let mut out = z;
    for j in 0..4 {
        // Vector 4 i + j has, in its part p, lane 4 p + j of the rows from 4 i on.
        let [a, b, c, d] = [z[j], z[4 + j], z[8 + j], z[12 + j]];
        let even = [op!(_mm512_shuffle_f32x4::<0x88>(a, b)), op!(_mm512_shuffle_f32x4::<0x88>(c, d))];
        let odd = [op!(_mm512_shuffle_f32x4::<0xdd>(a, b)), op!(_mm512_shuffle_f32x4::<0xdd>(c, d))];
        // Parts [a0 a2 b0 b2] and [c0 c2 d0 d2].
        out[j] = op!(_mm512_shuffle_f32x4::<0x88>(even[0], even[1]));
        out[8 + j] = op!(_mm512_shuffle_f32x4::<0xdd>(even[0], even[1]));
        out[4 + j] = op!(_mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]));
        out[12 + j] = op!(_mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]));
    }
    out
}
