//! Random numbers that are the same on every machine.

use crate::id::ix;

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014): a counter through a mixer.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finish(self.0)
    }

    /// A number below `end`; 0 where `end` is.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.next() % u64::from(end.max(1))).unwrap()
    }

    /// A number from `first` to `last`, both included.
    pub(crate) fn within(&mut self, first: u32, last: u32) -> u32 {
        first + self.below(last - first + 1)
    }

    /// `true` in so many of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    /// One of the items; `None` where there is none.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(ix(self.below(u32::try_from(items.len()).unwrap())))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..u32::try_from(items.len()).unwrap()).rev() {
            items.swap(ix(end), ix(self.below(end + 1)));
        }
    }
}

/// Two numbers as one, such that different pairs give different numbers but for one chance in 2^64.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    finish(finish(a.wrapping_add(0x9e37_79b9_7f4a_7c15)).rotate_left(23) ^ b.wrapping_add(1))
}

fn finish(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
