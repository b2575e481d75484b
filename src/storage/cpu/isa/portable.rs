//! Plain Rust, for any machine. The compiler vectorises it for the baseline of the target.

use core::array;

use half::{bf16, f16};

use super::{Isa, LANES, Work};

/// The token of the instruction set that is always there.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Portable;

impl Isa for Portable {
    type V = [f32; LANES];
    // Whether the target has a fused multiply-add at its baseline is known when this is compiled.
    const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    #[inline(always)]
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
    fn store(self, x: Self::V, to: &mut [f32; LANES]) {
        *to = x;
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        array::from_fn(|i| self.fma1(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn sums(self, x: [Self::V; 4]) -> [f32; 4] {
        x.map(|x| ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])))
    }

    #[inline(always)]
    fn prefetch<T>(self, _: &T) {}
}
