//! Rows of elements, to `f32` and back.

use super::{Data, Stored};
use crate::storage::cpu::isa::{Isa, Work};

/// Elements that are converted at a time where they do not go straight to their place.
pub(in super::super) const PIECE: usize = 128;

/// A row as `f32`, exactly; without its scale.
#[inline(always)]
pub(in super::super) fn widen_row<I: Isa, E: Stored>(isa: I, from: &[E], to: &mut [f32]) {
    let full = isa.vectors(from);
    for (to, from) in isa.vectors_mut(to).iter_mut().zip(full) {
        isa.store(E::load(isa, from), to);
    }
    let done = full.len() * I::LANES;
    if done < from.len() {
        let mut last = isa.padded(&[]);
        isa.store(E::load(isa, &isa.padded(&from[done..])), &mut last);
        to[done..from.len()].copy_from_slice(&last.as_ref()[..from.len() - done]);
    }
}

/// A row of `f32`, divided by its scale where the type has one, as [`Stored::store`] says. Where a scale is 0 or NaN the
/// elements are 0.
#[inline(always)]
pub(in super::super) fn narrow_row<I: Isa, E: Stored>(isa: I, from: &[f32], scale: f32, to: &mut [E]) {
    if E::SCALE_ELEMS > 0 && (scale == 0.0 || scale.is_nan()) {
        return to.fill(E::ZERO);
    }
    let full = isa.vectors(from);
    for (to, from) in isa.vectors_mut(to).iter_mut().zip(full) {
        narrow(isa, isa.load(from), scale, to);
    }
    let done = full.len() * I::LANES;
    if done < from.len() {
        let mut last = isa.padded(&[]);
        narrow(isa, isa.load(&isa.padded(&from[done..])), scale, &mut last);
        to[done..from.len()].copy_from_slice(&last.as_ref()[..from.len() - done]);
    }
}

/// A vector, divided by its scale where the type has one.
#[inline(always)]
fn narrow<I: Isa, E: Stored>(isa: I, x: I::V, scale: f32, to: &mut I::Lanes<E>) {
    E::store(isa, if E::SCALE_ELEMS > 0 { isa.div(x, isa.splat(scale)) } else { x }, to);
}

/// Converts the elements from `at` on, as many as `to` has: by way of `f32`, which holds all types exactly.
pub(in super::super) struct Convert<'a, E> {
    pub(in super::super) from: Data<'a>,
    pub(in super::super) at: usize,
    pub(in super::super) scale: f32,
    pub(in super::super) to: &'a mut [E],
}

impl<E: Stored> Work for Convert<'_, E> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { from, at, scale, to } = self;
        if let Data::F32(from) = from {
            return narrow_row(isa, &from[at..][..to.len()], scale, to);
        }
        let mut wide = [0.0; PIECE];
        for (to, at) in to.chunks_mut(PIECE).zip((at..).step_by(PIECE)) {
            let wide = &mut wide[..to.len()];
            from.widen(isa, at, wide);
            narrow_row(isa, wide, scale, to);
        }
    }
}

/// Reads a head: its elements times its scale.
pub(in super::super) struct ReadHead<'a, E> {
    pub(in super::super) from: &'a [E],
    pub(in super::super) scale: f32,
    pub(in super::super) to: &'a mut [f32],
}

impl<E: Stored> Work for ReadHead<'_, E> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        widen_row(isa, self.from, self.to);
        if E::SCALE_ELEMS > 0 {
            self.to.iter_mut().for_each(|x| *x *= self.scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use half::{bf16, f16};

    use super::*;
    use crate::storage::cpu::isa::Level;

    /// Numbers of a type on an instruction set.
    fn narrow<E: Stored>(level: Level, from: &[f32]) -> Vec<E> {
        let mut to = alloc::vec![E::ZERO; from.len()];
        level.run(Convert { from: Data::F32(from), at: 0, scale: 1.0, to: &mut to });
        to
    }

    /// Every upper half, with lower halves around the places where rounding turns, against `half`, which does not
    /// saturate. Rows are no multiple of a vector.
    #[test]
    fn sixteen_bits_round_as_half_does() {
        let lower =
            [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000];
        for level in Level::all() {
            let row = |upper: u32| lower.map(|lower| f32::from_bits(upper << 16 | lower));
            for upper in 0..=u32::from(u16::MAX) {
                let from = row(upper);
                let most = |x: f32, most: f32| if x.is_nan() { x } else { x.clamp(-most, most) };
                let brain = from.map(|x| bf16::from_f32(most(x, bf16::MAX.to_f32())).to_bits());
                assert!(narrow::<bf16>(level, &from).iter().map(|x| x.to_bits()).eq(brain), "{upper:04x}");
                let half = from.map(|x| f16::from_f32(most(x, f16::MAX.to_f32())).to_bits());
                assert!(narrow::<f16>(level, &from).iter().map(|x| x.to_bits()).eq(half), "{upper:04x}");
            }
        }
    }

    /// The rule for NaN, and what is beyond the largest number.
    #[test]
    fn a_nan_stays_one_and_what_is_too_large_is_the_largest() {
        for level in Level::all() {
            // Quiet and signalling, of both signs, with payload in the bits that are kept and in those that are not.
            let from = [0x7fc0_0000, 0x7f80_0001, 0xffa5_a000, 0x7fbf_ffff].map(f32::from_bits);
            let bits: Vec<_> = narrow(level, &from).into_iter().map(bf16::to_bits).collect();
            assert_eq!(bits, [0x7fc0, 0x7fc0, 0xffe5, 0x7fff]);
            // f16 keeps 10 bits of the payload of 23, the uppermost of which is set.
            let bits: Vec<_> = narrow(level, &from).into_iter().map(f16::to_bits).collect();
            assert_eq!(bits, [0x7e00, 0x7e00, 0xff2d, 0x7fff]);

            let large = [3.4e38, -3.4e38, 65_519.996, 65_520.0, f32::INFINITY, f32::NEG_INFINITY];
            // The largest bf16 is 3.3895 × 10³⁸, and half a step further 3.3961 × 10³⁸.
            let [most, least] = [bf16::MAX, bf16::MIN];
            let near = bf16::from_f32(65_536.0);
            assert_eq!(narrow::<bf16>(level, &large), [most, least, near, near, most, least]);
            let [most, least] = [f16::MAX, f16::MIN];
            assert_eq!(narrow::<f16>(level, &large), [most, least, most, most, most, least]);
        }
    }

    #[test]
    fn a_row_is_wide_as_its_elements_are() {
        struct Widen<'a>(&'a [f16], &'a mut [f32]);
        impl Work for Widen<'_> {
            fn run<I: Isa>(self, isa: I) {
                widen_row(isa, self.0, self.1);
            }
        }
        for level in Level::all() {
            for len in [0, 1, 7, 8, 15, 16, 17, 40] {
                let from: Vec<f16> = (0..len).map(|i| f16::from_f32(i as f32 * 0.37 - 3.0)).collect();
                let mut to = alloc::vec![9.0; 41];
                level.run(Widen(&from, &mut to[..len]));
                assert!(to[..len].iter().zip(&from).all(|(to, from)| *to == from.to_f32()));
                assert!(to[len..].iter().all(|x| *x == 9.0));
            }
        }
    }
}
