//! 2^x and tanh at the numbers that `f32` has, on every instruction set of this machine, against f64.
//!
//! What `f64::exp2` and `f64::tanh` give is within 2 of their own ulps (glibc: below 1 and 2), which are 2⁻²⁹ of one of
//! `f32`: as good as exact here, but for the last digits of the figures below.

use alloc::vec::Vec;
use core::marker::PhantomData;

use super::super::isa::{Level, Work};
use super::*;

/// Numbers at a time: a multiple of the lanes of any instruction set.
const POINTS: usize = 1 << 12;

trait Function {
    fn exact(x: f32) -> f64;
    fn on<I: Isa>(isa: I, x: &[f32; POINTS], y: &mut [f32; POINTS]);
}

struct Batch<'a, F>(&'a [f32; POINTS], &'a mut [f32; POINTS], PhantomData<F>);

impl<F: Function> Work for Batch<'_, F> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        F::on(isa, self.0, self.1);
    }
}

/// The distance from the exact result, in units in the last place of an `f32` of that size; ∞ for a NaN that should be a
/// number, or the reverse.
fn ulps(got: f32, exact: f64) -> f64 {
    if got.is_nan() || exact.is_nan() {
        return if got.is_nan() && exact.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let binade = f64::from_bits(exact.to_bits() >> 52 << 52);
    let ulp = (binade.abs() * f64::from(f32::EPSILON)).max(f64::from(f32::from_bits(1)));
    (f64::from(got) - exact).abs() / ulp
}

/// The largest error in ulps on each instruction set at these numbers.
fn worst<F: Function>(numbers: impl IntoIterator<Item = f32>) -> Vec<(Level, f64)> {
    let mut worst: Vec<_> = Level::all().map(|level| (level, 0.0)).collect();
    let (mut x, mut exact, mut y) = ([0.0; POINTS], [F::exact(0.0); POINTS], [0.0; POINTS]);
    let mut numbers = numbers.into_iter().peekable();
    while numbers.peek().is_some() {
        for ((x, exact), number) in x.iter_mut().zip(&mut exact).zip(&mut numbers) {
            (*x, *exact) = (number, F::exact(number));
        }
        for (level, worst) in &mut worst {
            level.run(Batch::<F>(&x, &mut y, PhantomData));
            *worst = y.iter().zip(&exact).map(|(&y, &exact)| ulps(y, exact)).fold(*worst, f64::max);
        }
    }
    worst
}

/// All numbers from `first` to `last`.
fn every(first: f32, last: f32) -> impl Iterator<Item = f32> {
    (first.to_bits()..=last.to_bits()).map(f32::from_bits)
}

/// One in 509 of all numbers without a sign, of ∞ and the NaNs: prime, so that the low bits take all values.
fn some() -> impl Iterator<Item = f32> {
    (0..=i32::MAX.cast_unsigned()).step_by(509).map(f32::from_bits)
}

/// The numbers next to each multiple of a quarter up to 128, 32 to either side: here the whole number changes in [`exp2`],
/// the results become 0, and [`tanh`] changes from one form to the other.
fn borders() -> impl Iterator<Item = f32> {
    let sizes = (1_u16..=512).map(|quarters| f32::from(quarters) / 4.0);
    sizes.flat_map(|size| (size.to_bits() - 32..=size.to_bits() + 32).map(f32::from_bits))
}

/// [`exp2`], and that [`exp2_one`] gives the same bits, none of them above 1.
struct Exp2;

impl Function for Exp2 {
    fn exact(x: f32) -> f64 {
        if x < -126.0 { 0.0 } else { f64::from(x).exp2() }
    }

    #[inline(always)]
    fn on<I: Isa>(isa: I, x: &[f32; POINTS], y: &mut [f32; POINTS]) {
        for (x, y) in isa.vectors(x).iter().zip(isa.vectors_mut(y)) {
            isa.store(exp2(isa, isa.load(x)), y);
        }
        let wrong = |x: f32, y: f32| {
            let one = exp2_one(isa, x);
            (y > 1.0) | ((y.to_bits() != one.to_bits()) & !(y.is_nan() & one.is_nan()))
        };
        // Without a way out of the loop, so that it becomes vector instructions.
        let found = x.iter().zip(&*y).fold(false, |found, (&x, &y)| found | wrong(x, y));
        assert!(!found, "{:?}", x.iter().zip(&*y).find(|&(&x, &y)| wrong(x, y)));
    }
}

fn exp2_is_close(sizes: impl Iterator<Item = f32>) {
    for (level, worst) in worst::<Exp2>(sizes.map(|size| -size)) {
        std::println!("exp2 on {}: within {worst:.4} ulps", level.name());
        assert!(worst < 1.3, "{level:?}: {worst}");
    }
}

#[test]
fn exp2_is_within_1_3_ulps_and_a_single_one_has_the_same_bits() {
    exp2_is_close(some().chain(borders()));
}

/// Nearer to 0 than 2⁻²⁶, 2^x is nearer to 1 than half an ulp: 1, as f × p + 1 is when it is rounded. Beyond 126 all are 0.
#[test]
#[ignore = "276 million numbers: ten seconds"]
fn exp2_is_within_1_3_ulps_everywhere() {
    exp2_is_close(every(f32::EPSILON / 8.0, 128.0));
}

/// Of each x the result, by any lane.
struct Exact<'a>(&'a [(f32, f32)]);

impl Work for Exact<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let mut lanes = [0.0; 16];
        for &(x, y) in self.0 {
            isa.store(exp2(isa, isa.splat(x)), &mut isa.vectors_mut(&mut lanes)[0]);
            for got in [lanes[I::LANES - 1], exp2_one(isa, x)] {
                assert!(got.to_bits() == y.to_bits() || got.is_nan() && y.is_nan(), "{x}: {got} and not {y}");
            }
        }
    }
}

#[test]
fn exp2_is_exact_at_whole_numbers_and_nothing_beyond_them() {
    let mut cases = Vec::from([
        (0.0, 1.0),
        ((-126.0_f32).next_down(), 0.0),
        (f32::MIN, 0.0),
        (f32::NEG_INFINITY, 0.0),
        (f32::NAN, f32::NAN),
        (-f32::NAN, f32::NAN),
    ]);
    // The exponent field of 2⁻ⁿ is 127 − n.
    cases.extend((0_u8..=126).map(|n| (-f32::from(n), f32::from_bits((127 - u32::from(n)) << 23))));
    for level in Level::all() {
        level.run(Exact(&cases));
    }
}

/// [`tanh`], and that it is odd and no more than 1.
struct Tanh;

impl Function for Tanh {
    fn exact(x: f32) -> f64 {
        f64::from(x).tanh()
    }

    #[inline(always)]
    fn on<I: Isa>(isa: I, x: &[f32; POINTS], y: &mut [f32; POINTS]) {
        for (x, y) in x.iter().zip(&mut *y) {
            *y = tanh(isa, *x);
        }
        let wrong = |x: f32, y: f32| (y > 1.0) | ((-y).to_bits() != tanh(isa, -x).to_bits()) & !y.is_nan();
        let found = x.iter().zip(&*y).fold(false, |found, (&x, &y)| found | wrong(x, y));
        assert!(!found, "{:?}", x.iter().zip(&*y).find(|&(&x, &y)| wrong(x, y)));
    }
}

fn tanh_is_close(sizes: impl Iterator<Item = f32>) {
    for (level, worst) in worst::<Tanh>(sizes) {
        std::println!("tanh on {}: within {worst:.4} ulps", level.name());
        assert!(worst < 4.0, "{level:?}: {worst}");
    }
}

#[test]
fn tanh_is_within_4_ulps_and_odd() {
    tanh_is_close(some().chain(borders()).chain([f32::INFINITY]));
}

/// Up to 2⁻¹², tanh x is nearer to x than half an ulp: less by x²/3 < 2⁻²⁵ of it. From 9.02 on, it is nearest to 1.
#[test]
#[ignore = "142 million numbers: ten seconds"]
fn tanh_is_within_4_ulps_everywhere() {
    tanh_is_close(every(f32::EPSILON * 1024.0, 16.0));
}
