//! Eight `f32` at a time: the seam between the attention kernel and the processor.
//!
//! Storage wing. The kernel is written once, generic over [`Isa`]; a thin module per instruction set supplies the
//! operations. An `Isa` value is a *token*: it can only be made where its instructions were detected, so that its
//! methods are safe and the kernel needs no `unsafe`.
//!
//! Every operation is defined lane by lane (or, for [`Isa::sums`], as a fixed tree), so that for one instruction set
//! the bits of a result do not depend on how the kernel tiles its loops.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

use half::{bf16, f16};

/// Lanes of a vector.
pub(super) const LANES: usize = 8;

/// Eight `f32`, on their own 32 bytes so that a load never straddles two cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(super) struct Lane(pub(super) [f32; LANES]);

impl Lane {
    pub(super) const ZERO: Self = Self([0.0; LANES]);
}

/// Vector operations of one instruction set; see the [module](self).
pub(super) trait Isa: Copy {
    /// Eight `f32`.
    type V: Copy;

    /// Whether `f32::mul_add` is one instruction here. Where it is not it would be a library call per lane.
    const FMA: bool;

    /// Runs `work` compiled for this instruction set.
    fn enter<W: Work>(self, work: W);

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; LANES]) -> Self::V;
    fn load_f16(self, x: &[f16; LANES]) -> Self::V;
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V;
    fn store(self, x: Self::V, to: &mut [f32; LANES]);

    /// a × b + c, rounded once where [`FMA`](Self::FMA), else twice.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;

    /// The sum of the lanes of each vector: `((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7))`.
    fn sums(self, x: [Self::V; 4]) -> [f32; 4];

    /// Asks for the cache line of this element ahead of its use. A hint: no effect on results.
    fn prefetch<T>(self, from: &T);

    /// [`fma`](Self::fma) for one number, in code that the compiler vectorises itself.
    #[inline(always)]
    fn fma1(self, a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }
}

/// A piece of work that is compiled once per instruction set.
pub(super) trait Work {
    /// To be marked `#[inline(always)]`, with all that it calls: only so does the code take on the instruction set of
    /// the caller.
    fn run<I: Isa>(self, isa: I);
}

/// The best instruction set of this machine, found once per storage.
#[derive(Clone, Copy, Debug)]
pub(super) enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    Portable(portable::Portable),
}

impl Level {
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(token) = avx2::Avx2::detect() {
            return Self::Avx2(token);
        }
        Self::portable()
    }

    /// What any machine can run.
    pub(super) const fn portable() -> Self {
        Self::Portable(portable::Portable)
    }

    pub(super) fn run<W: Work>(self, work: W) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(token) => token.enter(work),
            Self::Portable(token) => token.enter(work),
        }
    }
}
