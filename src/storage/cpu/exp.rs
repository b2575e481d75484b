//! 2^x for the softmax, on many numbers at once.

use super::isa::Isa;

/// Coefficients of f¹ to f⁶ in 2^f ≈ 1 + c1 f + … + c6 f⁶ for |f| ≤ ½: minimax in relative error by the Remez
/// exchange, with the constant held at 1 so that 2⁰ is exactly 1. Largest relative error 2.6 × 10⁻⁹, a twentieth of
/// the unit roundoff of `f32` (2⁻²⁴ = 6.0 × 10⁻⁸).
const C: [f32; 6] = [0.693_147_24, 0.240_226_52, 0.055_503_104, 0.009_617_693, 0.001_340_664_3, 0.000_155_946_78];

/// Adding and taking away 1.5 × 2²³ rounds to the nearest whole number, which then stands in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// 2^x for x ≤ 0; exactly 0 below −126 (where results would be subnormal), exactly 1 at 0, NaN for NaN.
///
/// Relative error below 2 × 10⁻⁷: one rounding each for f × p + 1 and the last steps of the polynomial, which enter
/// scaled by |f × p| ≤ 0.41. Written without branches so that a loop over it becomes vector instructions.
#[inline(always)]
pub(super) fn exp2<I: Isa>(isa: I, x: f32) -> f32 {
    let shifted = x + ROUND;
    // |x − whole| ≤ ½, exactly: both are multiples of the last place of x.
    let f = x - (shifted - ROUND);
    let mut p = C[5];
    p = isa.fma1(p, f, C[4]);
    p = isa.fma1(p, f, C[3]);
    p = isa.fma1(p, f, C[2]);
    p = isa.fma1(p, f, C[1]);
    p = isa.fma1(p, f, C[0]);
    p = isa.fma1(p, f, 1.0);
    // The mantissa of `shifted` ends in the whole number, two's complement; 127 more and moved into the exponent field
    // it is the power of two. What stood above it is shifted out.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    // The comparison is false for NaN, which therefore comes through.
    if x < -126.0 { 0.0 } else { p * power }
}

#[cfg(test)]
mod tests {
    use super::super::isa::{Level, Work};
    use super::*;

    /// The largest relative error against f64 over a range of x, and whether the special values hold.
    struct Probe<'a>(&'a mut f64);

    impl Work for Probe<'_> {
        fn run<I: Isa>(self, isa: I) {
            assert_eq!(exp2(isa, 0.0), 1.0);
            assert_eq!(exp2(isa, -1.0), 0.5);
            assert_eq!(exp2(isa, -126.0), f32::MIN_POSITIVE);
            assert_eq!(exp2(isa, -126.000_01), 0.0);
            assert_eq!(exp2(isa, f32::MIN), 0.0);
            assert_eq!(exp2(isa, f32::NEG_INFINITY), 0.0);
            assert!(exp2(isa, f32::NAN).is_nan());
            // 2 million points, denser towards zero, where the weights of a softmax are largest.
            for i in 0..2_000_000_u32 {
                let t = f64::from(i) / 2e6;
                #[expect(clippy::cast_possible_truncation, reason = "a test point")]
                let x = (-126.0 * t * t) as f32;
                let exact = f64::from(x).exp2();
                *self.0 = self.0.max((f64::from(exp2(isa, x)) / exact - 1.0).abs());
            }
        }
    }

    #[test]
    fn exp2_is_within_two_parts_in_ten_million() {
        for level in [Level::detect(), Level::portable()] {
            let mut error = 0.0;
            level.run(Probe(&mut error));
            assert!(error < 2e-7, "{level:?}: {error:e}");
        }
    }
}
