//! The read-only passes: memory in, one sum out, nothing in between that could be slower than memory.
//!
//! No prefetch hints: that would take `unsafe`, and reading at several places at once does the same.

use rayon::prelude::*;

/// How a pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Every byte, one place after the other: what hardware prefetchers are made for. A line goes into eight 64-bit
    /// sums, which compilers keep in vector registers.
    Bytes,
    /// The first word of every cache line, at four places in turns. As much memory is read; and with one load for a
    /// line, as a kernel on 64-byte vectors has, where a program for any x86-64 needs four to read all of it, more
    /// lines are on their way at a time. On scattered blocks that made a pass 1.3 times as fast.
    Lines,
}

/// All forms, of which the better is the roof.
pub const FORMS: [Form; 2] = [Form::Bytes, Form::Lines];

/// Bytes of a cache line, of most machines.
const LINE_BYTES: usize = 64;
const WORDS: usize = LINE_BYTES / 8;
/// Places that [`Form::Lines`] reads at in turns.
const PLACES: usize = 4;

/// Bytes of a share: large enough that neither its ends nor handing it to a thread count.
const SHARE_BYTES: usize = 4 << 20;

impl Form {
    /// Reads whole slices on the threads of the current pool, in big shares that neighbours take from each other at the
    /// end; the wrapping sum of the 64-bit words that were looked at.
    pub fn sequential(self, slices: &[&[u8]]) -> u64 {
        let shares: Vec<&[u8]> = slices.iter().flat_map(|slice| slice.chunks(SHARE_BYTES)).collect();
        let share = |share: &&[u8]| match self {
            Self::Bytes => bytes(share),
            Self::Lines => {
                let part = share.len() / (PLACES * LINE_BYTES) * LINE_BYTES;
                let (body, rest) = share.split_at(PLACES * part);
                let places = core::array::from_fn(|place| &body[place * part..][..part]);
                lines::<PLACES>(places).wrapping_add(lines([rest]))
            }
        };
        shares.par_iter().map(share).reduce(|| 0, u64::wrapping_add)
    }

    /// Reads lists of runs, each list on one thread of the current pool and in its order; the wrapping sum of the
    /// 64-bit words that were looked at.
    pub fn scattered<'a, L>(self, lists: usize, list: impl Fn(usize) -> L + Sync) -> u64
    where
        L: Iterator<Item = &'a [u8]>,
    {
        let read = |index| match self {
            Self::Bytes => list(index).map(bytes).fold(0, u64::wrapping_add),
            Self::Lines => in_turns(list(index)),
        };
        (0..lists).into_par_iter().with_max_len(1).map(read).reduce(|| 0, u64::wrapping_add)
    }
}

/// [`lines`] of some runs, four at once as long as there are four.
fn in_turns<'a>(mut runs: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut total = 0_u64;
    while let Some(first) = runs.next() {
        total = total.wrapping_add(match [runs.next(), runs.next(), runs.next()] {
            [Some(second), Some(third), Some(fourth)] => lines([first, second, third, fourth]),
            last => last.into_iter().flatten().fold(lines([first]), |total, run| total.wrapping_add(lines([run]))),
        });
    }
    total
}

/// The wrapping sum of all words of a slice.
fn bytes(slice: &[u8]) -> u64 {
    let mut sums = [0_u64; WORDS];
    let lines = slice.chunks_exact(LINE_BYTES);
    let rest = lines.remainder().chunks(8).map(word);
    for line in lines {
        for (sum, bytes) in sums.iter_mut().zip(line.chunks_exact(8)) {
            *sum = sum.wrapping_add(word(bytes));
        }
    }
    sums.into_iter().chain(rest).fold(0, u64::wrapping_add)
}

/// The wrapping sum of the first word of every line of some slices, a line of each in turns.
fn lines<const PLACES: usize>(slices: [&[u8]; PLACES]) -> u64 {
    let mut sums = [0_u64; PLACES];
    let shortest = slices.iter().map(|slice| slice.len()).min().unwrap_or(0);
    let common = shortest / LINE_BYTES * LINE_BYTES;
    let mut places = slices.map(|slice| slice[..common].chunks_exact(LINE_BYTES));
    for _ in 0..common / LINE_BYTES {
        for (place, sum) in places.iter_mut().zip(&mut sums) {
            *sum = sum.wrapping_add(place.next().map_or(0, |line| word(&line[..8])));
        }
    }
    let rests = slices.into_iter().flat_map(|slice| slice[common..].chunks(LINE_BYTES));
    let rests = rests.map(|line| word(&line[..line.len().min(8)]));
    sums.into_iter().chain(rests).fold(0, u64::wrapping_add)
}

/// Up to eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or_else(
        |_| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        },
        u64::from_le_bytes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum, word by word, of all words or of the first of each line.
    fn naive(form: Form, bytes: &[u8]) -> u64 {
        let step = if form == Form::Bytes { 1 } else { WORDS };
        bytes.chunks(8).step_by(step).map(word).fold(0, u64::wrapping_add)
    }

    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|i| u8::try_from(i * i % 251).unwrap()).collect()
    }

    #[test]
    fn every_word_or_line_of_every_slice_is_summed_once() {
        assert_eq!(word(&[1, 2]), 0x0201);
        // Shorter than a line, whole lines, more than a share, and lengths that are no multiple of anything.
        for len in [0, 5, 64, 1000, 4096, SHARE_BYTES + 12_345] {
            let (a, b) = (noise(len), noise(len / 2));
            for form in FORMS {
                let expected = naive(form, &a).wrapping_add(naive(form, &b));
                assert_eq!(form.sequential(&[&a, &b]), expected, "{form:?} {len}");
            }
        }
    }

    #[test]
    fn every_run_of_every_list_is_summed_once() {
        for (runs, len) in [(0, 64), (1, 64), (4, 4096), (5, 192), (11, 64)] {
            let bytes = noise(3 * runs * len);
            let list = |list: usize| bytes[list * runs * len..][..runs * len].chunks_exact(len);
            for form in FORMS {
                assert_eq!(form.scattered(3, list), naive(form, &bytes), "{form:?} {runs} of {len}");
            }
        }
    }
}
