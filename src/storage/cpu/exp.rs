//! 2^x for the softmax and tanh for the soft cap, on many numbers at once.

use super::isa::Isa;

/// Coefficients of f¹ to f⁶ in 2^f ≈ 1 + c1 f + … + c6 f⁶ for |f| ≤ ½: minimax in relative error by the Remez
/// exchange, with the constant held at 1 so that 2⁰ is exactly 1. Largest relative error 2.6 × 10⁻⁹, a twentieth of
/// the unit roundoff of `f32` (2⁻²⁴ = 6.0 × 10⁻⁸).
const C: [f32; 6] = [0.693_147_24, 0.240_226_52, 0.055_503_104, 0.009_617_693, 0.001_340_664_3, 0.000_155_946_78];

/// Adding and taking away 1.5 × 2²³ rounds to the nearest whole number, which then stands in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// 2^x for x ≤ 0; exactly 0 below −126 (where results would be subnormal), exactly 1 at 0, NaN for NaN.
///
/// Within 1.3 ulps, a relative error below 1.6 × 10⁻⁷ (1.02 ulps where [`Isa::FMA`]): one rounding each for f × p + 1 and
/// the last steps of the polynomial, which enter scaled by |f × p| ≤ 0.41. Never above 1. From one number to the next it
/// may fall by an ulp.
#[inline(always)]
pub(super) fn exp2<I: Isa>(isa: I, x: I::V) -> I::V {
    let round = isa.splat(ROUND);
    let shifted = isa.add(x, round);
    // |x − whole| ≤ ½, exactly: both are multiples of the last place of x.
    let f = isa.sub(x, isa.sub(shifted, round));
    let mut p = isa.splat(C[5]);
    for c in [C[4], C[3], C[2], C[1], C[0], 1.0] {
        p = isa.fma(p, f, isa.splat(c));
    }
    // The mantissa of `shifted` ends in the whole number. NaN is not less than −126, and comes through.
    isa.unless_less(isa.mul(p, isa.power_of_two(shifted)), x, isa.splat(-126.0))
}

/// [`exp2`] of a single number, to the same bits. Written again rather than taken from a lane: a loop over it becomes
/// vector instructions, as in [`tanh`].
#[inline(always)]
pub(super) fn exp2_one<I: Isa>(isa: I, x: f32) -> f32 {
    let shifted = x + ROUND;
    let f = x - (shifted - ROUND);
    let mut p = C[5];
    for c in [C[4], C[3], C[2], C[1], C[0], 1.0] {
        p = isa.fma1(p, f, c);
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -126.0 { 0.0 } else { p * power }
}

/// tanh x, odd, within −1 ..= 1; NaN for NaN. Within 4 ulps, a relative error below 5 × 10⁻⁷.
///
/// From ¼ on (1 − e) / (1 + e) with e = exp(−2 |x|) ≤ 0.61, so that at most a factor of 3 is lost in 1 − e. Below, where
/// more would be lost, the Taylor series to x⁹, whose next term is 2 × 10⁻⁹ at ¼. Without branches, so that a loop over it
/// becomes vector instructions.
#[inline(always)]
pub(super) fn tanh<I: Isa>(isa: I, x: f32) -> f32 {
    let size = x.abs();
    let e = exp2_one(isa, size * (-2.0 * core::f32::consts::LOG2_E));
    let far = (1.0 - e) / (1.0 + e);
    let square = x * x;
    let mut p = 62.0 / 2835.0;
    p = isa.fma1(p, square, -17.0 / 315.0);
    p = isa.fma1(p, square, 2.0 / 15.0);
    p = isa.fma1(p, square, -1.0 / 3.0);
    let near = isa.fma1(p * square, size, size);
    (if size < 0.25 { near } else { far }).copysign(x)
}

#[cfg(test)]
mod tests;
