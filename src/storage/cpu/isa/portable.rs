//! Plain Rust, for any machine. The compiler vectorises it for the baseline of the target.

use core::array;

use half::{bf16, f16};

use super::{Isa, Work};
use crate::storage::cpu::element::{E4m3, Stored};

const LANES: usize = 8;

/// The token of the instruction set that is always there.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Portable;

impl Isa for Portable {
    type V = [f32; LANES];
    arrays!(LANES);
    transpose!(LANES);
    const ACCUMULATORS: usize = 8;
    const TREE: &'static [usize] = &[0, 1, 2, 3, 4, 5, 6, 7];
    // Whether the target has a fused multiply-add at its baseline is known when this is compiled.
    const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    // Not inlined: work that is entered from within other work would be compiled anew in every place.
    #[inline(never)]
    fn enter<W: Work>(self, work: W) {
        work.run(self);
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        *x
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        x.map(f16::to_f32)
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V {
        // Not `to_f32`, which takes a branch to quiet NaNs: they stay NaNs as they are.
        x.map(|x| f32::from_bits(u32::from(x.to_bits()) << 16))
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::V {
        x.map(f32::from)
    }

    #[inline(always)]
    fn load_e4m3(self, x: &[E4m3; LANES]) -> Self::V {
        x.map(E4m3::to_f32)
    }

    #[inline(always)]
    fn store(self, x: Self::V, to: &mut [f32; LANES]) {
        *to = x;
    }

    #[inline(always)]
    fn store_f16(self, x: Self::V, to: &mut [f16; LANES]) {
        *to = x.map(f16::from_f32);
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        array::from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn unless_less(self, x: Self::V, a: Self::V, b: Self::V) -> Self::V {
        array::from_fn(|i| if a[i] < b[i] { 0.0 } else { x[i] })
    }

    #[inline(always)]
    fn power_of_two(self, n: Self::V) -> Self::V {
        n.map(|n| f32::from_bits(n.to_bits().wrapping_add(127) << 23))
    }

    #[inline(always)]
    fn top(self, x: Self::V) -> f32 {
        x.into_iter().fold(x[0], |top, x| if x > top { x } else { top })
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        array::from_fn(|i| self.fma1(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn sums<const N: usize>(self, x: [Self::V; N]) -> [f32; N] {
        x.map(|x| ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])))
    }

    #[inline(always)]
    fn prefetch<T>(self, _: *const T) {}
}
