//! NEON: every 64-bit ARM processor. Two registers of four numbers make a vector of eight.
#![allow(unsafe_code)]

use core::arch::aarch64::*;
use core::arch::asm;

use half::{bf16, f16};

use super::{Isa, Work};
use crate::storage::cpu::element::{E4m3, Stored};

const LANES: usize = 8;

/// Proof that the machine has NEON: only [`detect`](Self::detect) makes it, as the field is private.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

/// An intrinsic that needs NEON and has no other precondition.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: the only precondition is that the machine has the instruction. This is expanded in methods of `Neon`
        // alone; a value of that type exists only where `detect` found it.
        unsafe { $call }
    };
}

/// Four elements of sixteen bits as they stand in memory.
#[inline(always)]
fn bits4<T>(x: &[T; LANES], first: usize) -> uint16x4_t {
    const { assert!(size_of::<T>() == 2) };
    let four = &x[first..first + 4];
    // SAFETY: `four` is 8 readable bytes, by the size asserted above; the load asks for no alignment beyond that of its
    // elements, which are `u16` in all but name. NEON: see `op`, as only methods of `Neon` call this.
    unsafe { vld1_u16(four.as_ptr().cast()) }
}

/// Eight bytes, extended by their signs.
#[inline(always)]
fn signed8<T>(x: &[T; LANES]) -> int16x8_t {
    const { assert!(size_of::<T>() == 1) };
    // SAFETY: `x` is 8 readable bytes, by the size asserted above; the load asks for no alignment. NEON: see `op`, as
    // only methods of `Neon` call this.
    let bytes = unsafe { vld1_s8(x.as_ptr().cast()) };
    op!(vmovl_s8(bytes))
}

/// Four numbers of f16, exactly.
#[inline(always)]
fn widen_f16(bits: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: one instruction of the base set, from a register to a register. It may set the sticky flag of invalid
    // operations, for a signalling NaN, and is not said to preserve flags. (The intrinsic for it needs the type of half
    // floats, which is not stable.)
    unsafe {
        asm!("fcvtl {wide:v}.4s, {bits:v}.4h", wide = lateout(vreg) wide, bits = in(vreg) bits,
            options(pure, nomem, nostack));
    }
    wide
}

impl Isa for Neon {
    type V = [float32x4_t; 2];
    arrays!(LANES);
    transpose!(LANES);
    const ACCUMULATORS: usize = 8;
    const TREE: &'static [usize] = &[0, 4, 1, 5, 2, 6, 3, 7];
    const FMA: bool = true;

    #[inline]
    fn enter<W: Work>(self, work: W) {
        #[target_feature(enable = "neon")]
        unsafe fn inner<W: Work>(token: Neon, work: W) {
            work.run(token);
        }
        op!(inner(self, work));
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [op!(vdupq_n_f32(x)); 2]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        [0, 4].map(|first| {
            let four = &x[first..first + 4];
            // SAFETY: `four` is 16 readable bytes, and the load asks for the alignment of `f32`. NEON: see `op`.
            unsafe { vld1q_f32(four.as_ptr()) }
        })
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        [0, 4].map(|first| widen_f16(bits4(x, first)))
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V {
        [0, 4].map(|first| {
            let wide = op!(vshll_n_u16::<16>(bits4(x, first)));
            op!(vreinterpretq_f32_u32(wide))
        })
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::V {
        let words = signed8(x);
        [op!(vget_low_s16(words)), op!(vget_high_s16(words))].map(|half| op!(vcvtq_f32_s32(vmovl_s16(half))))
    }

    #[inline(always)]
    fn load_e4m3(self, x: &[E4m3; LANES]) -> Self::V {
        // As f16 the sign, a zero, and the other seven bits are 2⁻⁸ of the number: the biases are 15 and 7.
        let bits = op!(vreinterpretq_u16_s16(vshlq_n_s16::<7>(signed8(x))));
        let bits = op!(vandq_u16(bits, vdupq_n_u16(0xbf80)));
        let ones = op!(vdupq_n_u16(0x3f80));
        let nan = op!(vceqq_u16(vandq_u16(bits, ones), ones));
        let bits = op!(vorrq_u16(bits, vandq_u16(nan, vdupq_n_u16(0x7c00))));
        [op!(vget_low_u16(bits)), op!(vget_high_u16(bits))].map(|half| op!(vmulq_n_f32(widen_f16(half), 256.0)))
    }

    #[inline(always)]
    fn store(self, x: Self::V, to: &mut [f32; LANES]) {
        for (four, x) in to.chunks_exact_mut(4).zip(x) {
            // SAFETY: `four` is 16 writable bytes, and the store asks for the alignment of `f32`. NEON: see `op`.
            unsafe { vst1q_f32(four.as_mut_ptr(), x) }
        }
    }

    #[inline(always)]
    fn store_f16(self, x: Self::V, to: &mut [f16; LANES]) {
        for (four, x) in to.chunks_exact_mut(4).zip(x) {
            let bits: uint16x4_t;
            // SAFETY: one instruction of the base set, from a register to a register, as `widen_f16`. It rounds to the
            // nearest, ties to even, in the mode that Rust programs run in.
            unsafe {
                asm!("fcvtn {bits:v}.4h, {x:v}.4s", bits = lateout(vreg) bits, x = in(vreg) x,
                    options(pure, nomem, nostack));
            }
            // SAFETY: `four` is 8 writable bytes, and the store asks for the alignment of `u16`. NEON: see `op`.
            unsafe { vst1_u16(four.as_mut_ptr().cast(), bits) }
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        [op!(vaddq_f32(a[0], b[0])), op!(vaddq_f32(a[1], b[1]))]
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        [op!(vsubq_f32(a[0], b[0])), op!(vsubq_f32(a[1], b[1]))]
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        [op!(vdivq_f32(a[0], b[0])), op!(vdivq_f32(a[1], b[1]))]
    }

    // Not `vminq_f32`, which gives NaN where either is.
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        [0, 1].map(|i| op!(vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i])))
    }

    // Not `vmaxq_f32`, which gives NaN where either is.
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        [0, 1].map(|i| op!(vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i])))
    }

    #[inline(always)]
    fn unless_less(self, x: Self::V, a: Self::V, b: Self::V) -> Self::V {
        [0, 1].map(|i| {
            let less = op!(vcltq_f32(a[i], b[i]));
            op!(vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x[i]), less)))
        })
    }

    #[inline(always)]
    fn power_of_two(self, n: Self::V) -> Self::V {
        n.map(|n| {
            let exponent = op!(vaddq_s32(vreinterpretq_s32_f32(n), vdupq_n_s32(127)));
            op!(vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        })
    }

    #[inline(always)]
    fn top(self, x: Self::V) -> f32 {
        op!(vmaxvq_f32(vmaxq_f32(x[0], x[1])))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        [op!(vmulq_f32(a[0], b[0])), op!(vmulq_f32(a[1], b[1]))]
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        [op!(vfmaq_f32(c[0], a[0], b[0])), op!(vfmaq_f32(c[1], a[1], b[1]))]
    }

    /// `((x0 + x4) + (x1 + x5)) + ((x2 + x6) + (x3 + x7))` of each vector.
    #[inline(always)]
    fn sums<const N: usize>(self, x: [Self::V; N]) -> [f32; N] {
        x.map(|[low, high]| op!(vaddvq_f32(vaddq_f32(low, high))))
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch never faults, whatever the address, and changes nothing but the cache.
        unsafe { asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags)) }
    }
}
