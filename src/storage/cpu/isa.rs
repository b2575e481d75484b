//! Several `f32` at a time: the seam between the attention kernel and the processor.
//!
//! Storage wing. The kernel is written once, generic over [`Isa`]; a thin module per instruction set supplies the
//! operations. An `Isa` value is a *token*: it can only be made where its instructions were detected, so that its
//! methods are safe.
//!
//! Every operation is defined lane by lane (or, for [`Isa::sums`], as a fixed tree), so that for one instruction set
//! the bits of a result do not depend on how the kernel tiles its loops.

/// What every instruction set does with the arrays that its vectors are loaded from.
macro_rules! arrays {
    ($lanes:expr) => {
        type Lanes<E: Stored> = [E; $lanes];
        const LANES: usize = $lanes;

        #[inline(always)]
        fn padded<E: Stored>(self, rest: &[E]) -> [E; $lanes] {
            let mut full = [E::ZERO; $lanes];
            for (full, &elem) in full.iter_mut().zip(rest) {
                *full = elem;
            }
            full
        }

        #[inline(always)]
        fn vectors<E: Stored>(self, row: &[E]) -> &[[E; $lanes]] {
            row.as_chunks().0
        }

        #[inline(always)]
        fn vectors_mut<E: Stored>(self, row: &mut [E]) -> &mut [[E; $lanes]] {
            row.as_chunks_mut().0
        }
    };
}

/// A transposition through memory.
macro_rules! transpose {
    ($lanes:expr) => {
        #[inline(always)]
        fn transpose(self, mut row: impl FnMut(usize) -> Self::V, mut column: impl FnMut(usize, Self::V)) {
            let mut rows = [[0.0; $lanes]; $lanes];
            for (lane, to) in rows.iter_mut().enumerate() {
                self.store(row(lane), to);
            }
            for (place, &lane) in Self::TREE.iter().enumerate() {
                column(place, self.load(&rows.map(|row| row[lane])));
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use half::{bf16, f16};

use super::element::{E4m3, Stored};
use crate::storage::StorageError;

/// Names one instruction set for all storages of the process, instead of the best of the machine: see [`Level::chosen`].
const CHOICE: &str = "PAGED_KV_ISA";

/// Vector operations of one instruction set; see the [module](self).
pub(super) trait Isa: Copy {
    /// [`LANES`](Self::LANES) numbers of type `f32`.
    type V: Copy;

    /// An array of [`LANES`](Self::LANES) elements in memory.
    type Lanes<E: Stored>: Copy + AsRef<[E]> + AsMut<[E]>;

    /// Numbers in a vector: 8 or 16.
    const LANES: usize;

    /// Accumulators that a loop of the kernel keeps in registers, beside what it loads: 8 or 16.
    const ACCUMULATORS: usize;

    /// The lanes in the order in which [`sums`](Self::sums) adds neighbours, then sums of neighbours, up to one.
    const TREE: &'static [usize];

    /// Whether `f32::mul_add` is one instruction here. Where it is not it would be a library call per lane.
    const FMA: bool;

    /// Runs `work` compiled for this instruction set.
    fn enter<W: Work>(self, work: W);

    /// The first elements of a vector from `rest`, and zeros where it ends.
    fn padded<E: Stored>(self, rest: &[E]) -> Self::Lanes<E>;

    /// The full vectors of a row.
    fn vectors<E: Stored>(self, row: &[E]) -> &[Self::Lanes<E>];

    /// The full vectors of a row, to be written.
    fn vectors_mut<E: Stored>(self, row: &mut [E]) -> &mut [Self::Lanes<E>];

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &Self::Lanes<f32>) -> Self::V;
    fn load_f16(self, x: &Self::Lanes<f16>) -> Self::V;
    fn load_bf16(self, x: &Self::Lanes<bf16>) -> Self::V;
    fn load_i8(self, x: &Self::Lanes<i8>) -> Self::V;
    fn load_e4m3(self, x: &Self::Lanes<E4m3>) -> Self::V;
    fn store(self, x: Self::V, to: &mut Self::Lanes<f32>);

    /// To the nearest, ties to even. A NaN is quieted and keeps its sign and the upper bits of its payload.
    fn store_f16(self, x: Self::V, to: &mut Self::Lanes<f16>);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;

    /// a where a < b, else b: NaN in `a` gives `b`, and in `b` NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;

    /// a where a > b, else b: NaN in `a` gives `b`, and in `b` NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;

    /// x where not a < b, so also where `a` is NaN; else 0.
    fn unless_less(self, x: Self::V, a: Self::V, b: Self::V) -> Self::V;

    /// 2ⁿ for −126 ≤ n ≤ 127 in the low bits of each lane, two's complement; the bits above are shifted out.
    fn power_of_two(self, n: Self::V) -> Self::V;

    /// The largest lane, of numbers that are none of them NaN.
    fn top(self, x: Self::V) -> f32;

    /// a × b + c, rounded once where [`FMA`](Self::FMA), else twice.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;

    /// The sum of the lanes of each vector, by a tree that is the same whatever N and the place in `x`.
    fn sums<const N: usize>(self, x: [Self::V; N]) -> [f32; N];

    /// Of [`LANES`](Self::LANES) vectors, which `row` gives, those of their lanes: `column` gets each of them with its place
    /// in the [`TREE`](Self::TREE).
    fn transpose(self, row: impl FnMut(usize) -> Self::V, column: impl FnMut(usize, Self::V));

    /// Asks for the cache line of this address ahead of its use. A hint: no effect on results, any address will do.
    fn prefetch<T>(self, at: *const T);

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

/// An instruction set of this machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    Portable(portable::Portable),
}

impl Level {
    /// All that this machine can run, the best one first.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let best = [avx512::Avx512::detect().map(Self::Avx512), avx2::Avx2::detect().map(Self::Avx2)];
        #[cfg(target_arch = "aarch64")]
        let best = [neon::Neon::detect().map(Self::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let best: [Option<Self>; 0] = [];
        best.into_iter().flatten().chain([Self::Portable(portable::Portable)])
    }

    /// The best one, or the one that the environment variable `PAGED_KV_ISA` names.
    pub(super) fn chosen() -> Result<Self, StorageError> {
        match std::env::var_os(CHOICE).filter(|name| !name.is_empty()) {
            Some(name) => name.to_str().and_then(Self::named).ok_or(StorageError::NoSuchIsa),
            // There is always the portable one.
            None => Self::all().next().ok_or(StorageError::NoSuchIsa),
        }
    }

    /// One that this machine can run, by its name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().find(|level| level.name() == name)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            Self::Portable(_) => "portable",
        }
    }

    pub(super) fn run<W: Work>(self, work: W) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(token) => token.enter(work),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(token) => token.enter(work),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(token) => token.enter(work),
            Self::Portable(token) => token.enter(work),
        }
    }
}

/// An instruction set: what each operation does, against plain arithmetic. Instantiated for all that run here.
#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    /// Every operation on numbers that show which lane they came from.
    struct Operations;

    impl Work for Operations {
        fn run<I: Isa>(self, isa: I) {
            let number = |i: usize, step: f32| f32::from(u8::try_from(i).unwrap()) * step - 3.0;
            let [x, y]: [Vec<f32>; 2] = [0.25, -1.5].map(|step| (0..I::LANES).map(|i| number(i, step)).collect());
            let [a, b] = [&x, &y].map(|numbers| isa.load(&isa.padded(numbers)));
            let read = |v: I::V| -> Vec<f32> {
                // A dot product with a unit vector reads a lane.
                (0..I::LANES)
                    .map(|lane| {
                        let unit: Vec<f32> = (0..I::LANES).map(|i| if i == lane { 1.0 } else { 0.0 }).collect();
                        isa.sums([isa.mul(v, isa.load(&isa.padded(&unit)))])[0]
                    })
                    .collect()
            };
            assert_eq!(read(a), x);
            assert_eq!(read(isa.splat(2.5)), vec![2.5; I::LANES]);
            assert_eq!(read(isa.mul(a, b)), x.iter().zip(&y).map(|(x, y)| x * y).collect::<Vec<_>>());
            // Exact in `f32`: one rounding or two makes no difference.
            let sums: Vec<_> = x.iter().zip(&y).map(|(x, y)| x * y + x).collect();
            assert_eq!(read(isa.fma(a, b, a)), sums);
            assert_eq!(read(isa.add(a, b)), x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<_>>());
            assert_eq!(read(isa.sub(a, b)), x.iter().zip(&y).map(|(x, y)| x - y).collect::<Vec<_>>());
            assert_eq!(read(isa.max(a, b)), x.iter().zip(&y).map(|(x, y)| x.max(*y)).collect::<Vec<_>>());
            assert_eq!(read(isa.min(a, b)), x.iter().zip(&y).map(|(x, y)| x.min(*y)).collect::<Vec<_>>());
            assert_eq!(read(isa.div(a, b)), x.iter().zip(&y).map(|(x, y)| x / y).collect::<Vec<_>>());
            let nan = isa.splat(f32::NAN);
            assert_eq!((read(isa.max(nan, b)), read(isa.min(nan, b))), (y.clone(), y.clone()));
            assert!(isa.sums([isa.max(a, nan), isa.min(a, nan)]).iter().all(|sum| sum.is_nan()));
            let left: Vec<_> = x.iter().zip(&y).map(|(x, y)| if x < y { 0.0 } else { 7.0 }).collect();
            assert_eq!(read(isa.unless_less(isa.splat(7.0), a, b)), left);
            assert_eq!(read(isa.unless_less(isa.splat(7.0), nan, b)), vec![7.0; I::LANES]);
            for n in [-126_i16, -1, 0, 1, 100, 127] {
                let bits = f32::from_bits(i32::from(n).cast_unsigned());
                assert_eq!(read(isa.power_of_two(isa.splat(bits)))[0], f32::from(n).exp2());
            }
            assert_eq!(isa.top(a), x.iter().copied().fold(f32::MIN, f32::max));
            let mut stored = isa.padded(&[0.0_f32]);
            isa.store(b, &mut stored);
            assert_eq!(read(isa.load(&stored)), y);
            let half: Vec<_> = x.iter().map(|x| f16::from_f32(*x)).collect();
            assert_eq!(read(isa.load_f16(&isa.padded(&half))), x);
            let brain: Vec<_> = y.iter().map(|y| bf16::from_f32(*y)).collect();
            assert_eq!(read(isa.load_bf16(&isa.padded(&brain))), y);
            let mut stored = isa.padded(&[]);
            isa.store_f16(a, &mut stored);
            assert_eq!(stored.as_ref(), half);
            let small: Vec<i8> = (0..I::LANES).map(|i| [-128, -127, -1, 0, 1, 127, 5][i % 7]).collect();
            let wide: Vec<f32> = small.iter().map(|x| f32::from(*x)).collect();
            assert_eq!(read(isa.load_i8(&isa.padded(&small))), wide);
            for first in (0..=255).step_by(I::LANES) {
                let codes: Vec<E4m3> = (0..I::LANES).map(|i| E4m3((first + i).min(255).try_into().unwrap())).collect();
                let mut wide = isa.padded(&[0.0]);
                isa.store(isa.load_e4m3(&isa.padded(&codes)), &mut wide);
                for (code, wide) in codes.iter().zip(wide.as_ref()) {
                    let right = code.to_f32();
                    assert!(right.to_bits() == wide.to_bits() || (right.is_nan() && wide.is_nan()), "{code:?}: {wide}");
                }
            }
            // What is beyond the end of a row is zero.
            assert_eq!(read(isa.load(&isa.padded(&x[..3])))[..4], [x[0], x[1], x[2], 0.0]);
            let [sum_x, sum_y] = [&x, &y].map(|numbers| numbers.iter().sum::<f32>());
            assert_eq!(isa.sums([a, b, a]), [sum_x, sum_y, sum_x]);
            assert_eq!(isa.sums([b; 8]), [sum_y; 8]);
            assert_eq!(isa.sums([a; 16]), [sum_x; 16]);
            // The tree does not depend on the place: numbers whose sum depends on the order.
            let rough: Vec<f32> = (0..I::LANES).map(|i| 1.0 / number(i, 0.7)).collect();
            let c = isa.load(&isa.padded(&rough));
            let [alone] = isa.sums([c]);
            let mut many = [a; 16];
            for place in 0..16 {
                many[place] = c;
                assert_eq!(isa.sums(many)[place].to_bits(), alone.to_bits());
            }
            // Across vectors it is the same tree, over the lanes that a transposition gives in its order.
            let rows: Vec<Vec<f32>> =
                (0..I::LANES).map(|row| rough.iter().map(|x| x * (1.0 + number(row, 0.3))).collect()).collect();
            let mut columns = Vec::new();
            isa.transpose(|row| isa.load(&isa.padded(&rows[row])), |place, column| columns.push((place, column)));
            for (index, &(place, column)) in columns.iter().enumerate() {
                assert_eq!(place, index);
                let lane = I::TREE[place];
                assert_eq!(read(column), rows.iter().map(|row| row[lane]).collect::<Vec<_>>());
            }
            let mut level: Vec<I::V> = columns.into_iter().map(|(_, column)| column).collect();
            while level.len() > 1 {
                level = level.chunks(2).map(|two| isa.add(two[0], two[1])).collect();
            }
            let bits = |x: f32| x.to_bits();
            let sums = rows.iter().map(|row| isa.sums([isa.load(&isa.padded(row))])[0]).map(bits).collect::<Vec<_>>();
            let mut across = [0.0; 16];
            isa.store(level[0], &mut isa.vectors_mut(&mut across)[0]);
            assert_eq!(across.map(bits)[..I::LANES], sums);
            isa.prefetch(core::ptr::null::<f32>());
        }
    }

    #[test]
    fn every_instruction_set_computes_the_same() {
        for level in Level::all() {
            std::println!("{}", level.name());
            level.run(Operations);
        }
    }

    #[test]
    fn an_instruction_set_is_found_by_its_name_and_no_other() {
        for level in Level::all() {
            assert_eq!(Level::named(level.name()).map(Level::name), Some(level.name()));
        }
        assert!(Level::named("avx").is_none());
        assert!(Level::named("").is_none());
    }
}
