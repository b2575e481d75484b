//! OCP 8-bit floating point E4M3 (Open Compute Project, "OCP 8-bit Floating Point Specification", revision 1.0).

use super::{Stored, saturate, store_lanes};
use crate::storage::cpu::isa::Isa;

/// A sign, four bits of exponent (bias 7), three of mantissa; subnormals; no infinities; NaN where all but the sign are
/// ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(in super::super) struct E4m3(pub(in super::super) u8);

/// All but the sign.
const MAGNITUDE: u8 = 0x7f;

/// The largest number: 1.75 × 2⁸.
const MOST: f32 = 448.0;

/// The smallest number that is not a subnormal: 2⁻⁶.
const NORMAL: f32 = 1.0 / 64.0;

impl E4m3 {
    /// Exactly.
    pub(in super::super) const fn to_f32(self) -> f32 {
        TABLE[self.0 as usize]
    }

    /// To the nearest, ties to even, of −448 ..= 448 or NaN.
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let (sign, magnitude) = (bits.to_be_bytes()[0] & !MAGNITUDE, f32::from_bits(bits & 0x7fff_ffff));
        // Twenty bits of mantissa go, with half of the last kept one added before; the exponent's bias was 127.
        let rounded = (bits & 0x7fff_ffff).wrapping_add(0x7_ffff + (bits >> 20 & 1)) >> 20;
        let [normal, ..] = rounded.wrapping_sub((127 - 7) << 3).to_le_bytes();
        // A subnormal is a multiple of 2⁻⁹, and so is the last bit of a number around 2¹⁴: adding rounds to it.
        let shifter = (1_u32 << 14) as f32;
        let [subnormal, ..] = (magnitude + shifter).to_bits().wrapping_sub(shifter.to_bits()).to_le_bytes();
        let number = if magnitude < NORMAL { subnormal } else { normal };
        Self(sign | if x.is_nan() { MAGNITUDE } else { number & MAGNITUDE })
    }
}

/// What every code stands for.
static TABLE: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0_u8;
    loop {
        let (exponent, mantissa) = ((code >> 3) as u32 & 15, (code & 7) as f32 / 8.0);
        // 2^(exponent − 7) × (1 + mantissa / 8); without the 1, and of the same power as the next, below.
        let power = f32::from_bits((if exponent == 0 { 1 } else { exponent } + 127 - 7) << 23);
        let size = power * if exponent == 0 { mantissa } else { 1.0 + mantissa };
        let size = if code & MAGNITUDE == MAGNITUDE { f32::NAN } else { size };
        table[code as usize] = if code <= MAGNITUDE { size } else { -size };
        if code == u8::MAX {
            break table;
        }
        code += 1;
    }
};

impl Stored for E4m3 {
    const ZERO: Self = Self(0);

    #[inline(always)]
    fn load<I: Isa>(isa: I, from: &I::Lanes<Self>) -> I::V {
        isa.load_e4m3(from)
    }

    #[inline(always)]
    fn store<I: Isa>(isa: I, x: I::V, to: &mut I::Lanes<Self>) {
        store_lanes(isa, saturate(isa, x, MOST), to, Self::from_f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::cpu::element::{narrow_row, widen_row};
    use crate::storage::cpu::isa::{Level, Work};

    /// The examples of the specification's table 1.
    #[test]
    fn the_codes_are_those_of_the_specification() {
        let number = |code| E4m3(code).to_f32();
        assert_eq!(number(0x7e), 448.0); // S.1111.110, the largest: 1.75 × 2⁸
        assert_eq!(number(0x08), 2.0_f32.powi(-6)); // S.0001.000, the smallest that is not subnormal
        assert_eq!(number(0x07), 0.875 * 2.0_f32.powi(-6)); // S.0000.111, the largest subnormal
        assert_eq!(number(0x01), 2.0_f32.powi(-9)); // S.0000.001, the smallest
        assert_eq!(number(0xb8), -1.0); // 1.0111.000
        assert_eq!((number(0).to_bits(), number(0x80).to_bits()), (0, 0x8000_0000));
        assert!(number(0x7f).is_nan() && number(0xff).is_nan());
        assert_eq!(TABLE.iter().filter(|x| x.is_finite()).count(), 254);
    }

    /// Every code there and back, and what lies between two neighbours, their middle included, at either.
    struct Rounds;

    impl Work for Rounds {
        fn run<I: Isa>(self, isa: I) {
            let one = |x: f32| {
                // Past a whole vector, so that both ways are taken.
                let mut codes = [E4m3(1); 17];
                narrow_row(isa, &[x; 17], 1.0, &mut codes);
                assert!(codes.iter().all(|code| *code == codes[0]));
                let mut wide = [0.5; 17];
                widen_row(isa, &codes, &mut wide);
                assert!(wide.iter().all(|x| x.to_bits() == codes[0].to_f32().to_bits() || x.is_nan()));
                assert_eq!(wide[0].is_nan(), wide[16].is_nan());
                (codes[0], wide[0])
            };
            for code in 0..=255 {
                let (back, wide) = one(E4m3(code).to_f32());
                assert!(back.0 == code && (wide.is_nan() || wide == E4m3(code).to_f32()), "{code:02x}");
                assert_eq!(wide.is_nan(), code & 0x7f == 0x7f);
            }
            for code in 0..0x7e_u8 {
                let [low, high] = [code, code + 1].map(|code| E4m3(code).to_f32());
                let middle = (low + high) / 2.0; // exact: a bit more of mantissa
                let even = if code % 2 == 0 { low } else { high };
                for (x, nearest) in [(middle, even), (middle.next_down(), low), (middle.next_up(), high)] {
                    assert_eq!((one(x).1, one(-x).1), (nearest, -nearest), "{x}");
                }
            }
            for large in [448.1, 463.9, 464.0, 479.0, 1e4, f32::MAX, f32::INFINITY] {
                assert_eq!((one(large).1, one(-large).1), (448.0, -448.0));
            }
            let nans = [0x7f80_0001, 0xff80_0001, 0x7fc0_0000].map(|bits| one(f32::from_bits(bits)).0.0);
            assert_eq!(nans, [0x7f, 0xff, 0x7f]);
            assert_eq!([1e-30, 2.0_f32.powi(-10)].map(|x| one(x).0.0), [0, 0]);
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_code() {
        Level::all().for_each(|level| level.run(Rounds));
    }
}
