//! Memory that is asked for ahead of its use.
//!
//! A processor has few requests in flight, so that lines are asked for one by one between the arithmetic: a burst would
//! stop it. They are asked for in the order of memory, so that its own prefetcher takes up the stream, which has more
//! requests in flight than a program can have; and it follows several streams at once. So rows are taken from four
//! places in turn: usually those of four blocks. In one run of decode in 16 bits, in GB/s where a sequential read had 16:
//! one stream 12 to 13, two 13.6, four 14.7 to 15.3, eight 13.5 to 14.5, sixteen 12.3.

use crate::storage::cpu::isa::Isa;
use crate::storage::cpu::rows::View;

/// What one request is for.
const LINE_BYTES: usize = 64;

/// Places that rows are taken from in turn.
const STREAMS: usize = 4;

/// Rows that will be read soon, asked for line by line.
pub(super) struct Coming<'s, 'a, E> {
    rows: View<'s, 'a, E>,
    /// Lines of a row.
    pub(super) lines: usize,
    /// Lines that were asked for.
    asked: usize,
    /// The line to ask for next. When all have been asked for it goes on behind the last row, where it does no harm.
    at: *const E,
    /// Lines of its row from there on.
    left: usize,
    /// The row after it.
    next: usize,
    /// From the rows of one place to those of the next.
    stride: usize,
}

impl<'s, 'a, E> Coming<'s, 'a, E> {
    const LINE_ELEMS: usize = LINE_BYTES / size_of::<E>();

    #[inline(always)]
    pub(super) fn new(rows: View<'s, 'a, E>) -> Self {
        let lines = rows.dim().div_ceil(Self::LINE_ELEMS);
        let stride = rows.len().div_ceil(STREAMS);
        let mut coming = Self { rows, lines, asked: 0, at: core::ptr::null(), left: 0, next: 0, stride };
        coming.begin_row();
        coming
    }

    #[inline(always)]
    fn begin_row(&mut self) {
        let Some(at) = self.rows.address(self.next) else {
            self.left = usize::MAX;
            return;
        };
        (self.at, self.left) = (at, self.lines);
        self.next += self.stride;
        if self.next >= self.rows.len() {
            // Back to the first place, and on by a row; after its last row, to none.
            self.next = self.next % self.stride + 1;
            if self.next == self.stride {
                self.next = self.rows.len();
            }
        }
    }

    /// How many lines to ask for each time, to have asked for all after so many times.
    #[inline(always)]
    pub(super) fn pace(&self, times: usize) -> usize {
        (self.rows.len() * self.lines).div_ceil(times.max(1))
    }

    /// Lines that were not asked for yet.
    #[inline(always)]
    pub(super) fn remaining(&self) -> usize {
        (self.rows.len() * self.lines).saturating_sub(self.asked)
    }

    #[inline(always)]
    pub(super) fn ask<I: Isa>(&mut self, isa: I, lines: usize) {
        self.asked += lines;
        for _ in 0..lines {
            isa.prefetch(self.at);
            self.at = self.at.wrapping_add(Self::LINE_ELEMS);
            self.left -= 1;
            if self.left == 0 {
                self.begin_row();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::storage::cpu::isa::{Level, Work};
    use crate::storage::cpu::rows::Rows;

    /// Asks for all lines, at the pace that is due, and notes where they are.
    struct Ask<'t> {
        elems: &'t [f32],
        dim: usize,
        rows: usize,
        asked: &'t mut Vec<usize>,
    }

    impl Work for Ask<'_> {
        fn run<I: Isa>(self, isa: I) {
            let mut rows = Rows::new(self.dim);
            rows.add(self.elems, self.dim, self.rows);
            let mut coming = Coming::new(rows.view());
            while coming.remaining() > 0 {
                self.asked.push((coming.at.addr() - self.elems.as_ptr().addr()) / 4);
                coming.ask(isa, 1);
            }
            // And on, without an end.
            coming.ask(isa, 1000);
            assert_eq!(coming.remaining(), 0);
        }
    }

    #[test]
    fn every_line_is_asked_for_once_and_places_take_turns() {
        let elems = alloc::vec![0.0; 64 * 40];
        for (rows, dim) in [(0, 16), (1, 16), (2, 40), (3, 8), (4, 32), (5, 17), (15, 16), (50, 40), (64, 40)] {
            let lines = usize::div_ceil(dim, 16);
            let mut asked = Vec::new();
            for level in Level::all().take(1) {
                level.run(Ask { elems: &elems, dim, rows, asked: &mut asked });
            }
            if rows == 64 {
                // Rows 0, 16, 32, 48 and then 1, three lines each.
                let first = [0, 640, 1280, 1920, 40].map(|at| [at, at + 16, at + 32]).concat();
                assert_eq!(asked[..15], first);
            }
            asked.sort_unstable();
            let all: Vec<_> = (0..rows).flat_map(|row| (0..lines).map(move |line| row * dim + line * 16)).collect();
            assert_eq!(asked, all, "{rows} rows of {dim}");
        }
    }

    #[test]
    fn the_pace_asks_for_all_in_time() {
        let elems = alloc::vec![0.0_f32; 640];
        let mut rows = Rows::new(40);
        rows.add(&elems, 40, 16); // 16 rows of 3 lines
        let coming = Coming::new(rows.view());
        assert_eq!([1, 2, 47, 48, 100].map(|times| coming.pace(times)), [48, 24, 2, 1, 1]);
        assert_eq!(coming.pace(0), 48);
    }
}
