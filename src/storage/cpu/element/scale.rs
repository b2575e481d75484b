//! The scale of the integers of a head.
//!
//! The scale is the head's largest magnitude divided by 127, in `f32`; an element is the number divided by the scale, in
//! `f32`, rounded to the nearest, ties to even. So a number is off by at most half a scale, 1 / 254 of the largest.
//! (A scale below 2⁻¹²⁶, a subnormal number, is off by itself.) Infinities count as the largest number of `f32`, and no
//! scale is so large that 127 of it were more than that. Where a number of the head is NaN the scale is, and with it the
//! whole head.

use super::Data;
use super::convert::PIECE;
use crate::storage::cpu::isa::{Isa, Work};

/// The largest scale: 127 of the next one, which the largest number divided by 127 is rounded to, are infinite.
const MOST: f32 = (f32::MAX / 127.0).next_down();

/// Finds the scale of the elements from `at` on, `len` of them.
pub(in super::super) struct Largest<'a> {
    pub(in super::super) from: Data<'a>,
    pub(in super::super) at: usize,
    pub(in super::super) len: usize,
    pub(in super::super) scale: &'a mut f32,
}

impl Work for Largest<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // Magnitudes are ordered as their bits are, and NaN beyond them all.
        let (mut largest, mut wide) = (0, [0.0_f32; PIECE]);
        for at in (0..self.len).step_by(PIECE) {
            let wide = &mut wide[..PIECE.min(self.len - at)];
            self.from.widen(isa, self.at + at, wide);
            largest = wide.iter().fold(largest, |largest: u32, x| largest.max(x.to_bits() & 0x7fff_ffff));
        }
        let largest = f32::from_bits(largest);
        *self.scale = if largest.is_nan() { largest } else { (largest / 127.0).min(MOST) };
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::storage::cpu::element::{Stored, narrow_row, widen_row};
    use crate::storage::cpu::isa::Level;

    fn scale(level: Level, numbers: &[f32]) -> f32 {
        let mut scale = 0.0;
        level.run(Largest { from: Data::F32(numbers), at: 0, len: numbers.len(), scale: &mut scale });
        scale
    }

    struct ThereAndBack<'a>(&'a [f32], f32, &'a mut Vec<f32>);

    impl Work for ThereAndBack<'_> {
        fn run<I: Isa>(self, isa: I) {
            let mut elems = alloc::vec![0_i8; self.0.len()];
            narrow_row(isa, self.0, self.1, &mut elems);
            self.2.resize(self.0.len(), 0.0);
            widen_row(isa, &elems, self.2);
            self.2.iter_mut().for_each(|x| *x *= self.1);
        }
    }

    /// What a head is after it was written and read.
    fn kept(level: Level, numbers: &[f32]) -> Vec<f32> {
        let mut kept = Vec::new();
        level.run(ThereAndBack(numbers, scale(level, numbers), &mut kept));
        kept
    }

    /// Half a step, and two roundings of `f32`: those of the division and of the product.
    #[test]
    fn a_number_is_off_by_half_a_step_at_most() {
        for level in Level::all() {
            for (len, size) in [(1, 1.0), (7, 1e-30), (16, 3.0), (129, 0.01), (300, 1e30)] {
                let numbers: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * size * 0.013).collect();
                let largest = numbers.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                for (x, kept) in numbers.iter().zip(kept(level, &numbers)) {
                    let off = (f64::from(*x) - f64::from(kept)).abs();
                    assert!(off <= f64::from(largest) * (0.5 / 127.0 + 3.0 * 2.0_f64.powi(-24)), "{x} is {kept}");
                }
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_the_largest_is_127() {
        for level in Level::all() {
            // The scale is 127 / 127 = 1.
            let numbers = [127.0, -127.0, 0.5, 1.5, -2.5, 126.5, 3.49, -3.51, 0.0];
            assert_eq!(kept(level, &numbers), [127.0, -127.0, 0.0, 2.0, -2.0, 126.0, 3.0, -4.0, 0.0]);
        }
    }

    #[test]
    fn what_is_not_a_number_takes_its_head_along_and_infinity_does_not() {
        for level in Level::all() {
            assert!(kept(level, &[1.0, f32::NAN, 2.0]).iter().all(|x| x.is_nan()));
            let mut long = [1.0; 200];
            long[199] = -f32::NAN;
            assert!(kept(level, &long).iter().all(|x| x.is_nan()));
            let kept = kept(level, &[f32::INFINITY, f32::NEG_INFINITY, 1.0, f32::MAX / 4.0]);
            assert_eq!((kept[0], kept[1], kept[2]), (-kept[1], -kept[0], 0.0));
            // A quarter of 127 is 31.75, next to 32.
            assert!(
                kept[0].is_finite()
                    && kept[0] / f32::MAX > 0.999_999
                    && (kept[3] / f32::MAX - 32.0 / 127.0).abs() < 1e-6
            );
        }
    }

    #[test]
    fn the_largest_numbers_stay_finite() {
        for level in Level::all() {
            for largest in [f32::MAX, f32::MAX.next_down(), f32::MAX * 0.999_999, f32::MAX * 0.99] {
                let kept = kept(level, &[largest, -largest]);
                assert!(kept[0] == -kept[1] && (kept[0] / largest - 1.0).abs() < 1e-6, "{largest:e}: {kept:?}");
            }
        }
    }

    #[test]
    fn zeros_and_numbers_below_any_step_are_zero() {
        for level in Level::all() {
            assert_eq!(kept(level, &[0.0, -0.0]), [0.0, 0.0]);
            // 2⁻¹⁴⁹ / 127 is 0.
            let least = f32::from_bits(1);
            assert_eq!((scale(level, &[least]), kept(level, &[least])), (0.0, alloc::vec![0.0]));
        }
    }

    #[test]
    fn a_scale_is_kept_to_the_bit() {
        let mut elems = [7_i8; 5];
        for scale in [1.5, -0.0, f32::NAN, f32::MAX, 1e-40] {
            i8::set_scale(scale, &mut elems);
            assert_eq!((i8::scale(&elems).to_bits(), elems[4]), (scale.to_bits(), 7));
        }
    }
}
