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
    lines: usize,
    /// Lines that were not asked for yet.
    remaining: usize,
    /// The line to ask for next.
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
        let remaining = rows.len() * lines;
        let mut coming = Self { rows, lines, remaining, at: core::ptr::null(), left: 0, next: 0, stride };
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
        self.remaining.div_ceil(times.max(1))
    }

    /// Takes over to ask for the next lines, or for those that are left, in the course of so many steps: says how many
    /// to [ask](Self::ask) for in each, and asks for the rest at once.
    #[inline(always)]
    pub(super) fn spread<I: Isa>(&mut self, isa: I, lines: usize, steps: usize) -> usize {
        let lines = lines.min(self.remaining);
        self.remaining -= lines;
        // A division takes as long as a dozen vectors: mostly it can be done without.
        let each = if lines < steps { 0 } else { lines.checked_div(steps).unwrap_or(0) };
        self.ask(isa, lines - each * steps);
        each
    }

    /// Asks for lines that [`spread`](Self::spread) told of.
    #[inline(always)]
    pub(super) fn ask<I: Isa>(&mut self, isa: I, lines: usize) {
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
            while coming.remaining > 0 {
                self.asked.push((coming.at.addr() - self.elems.as_ptr().addr()) / 4);
                coming.spread(isa, 1, 0);
            }
            // No more than there are.
            assert_eq!((coming.spread(isa, 1000, 3), coming.remaining), (0, 0));
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

    /// What is asked for at once, and then in each of the steps.
    struct Spread<'t>(&'t [f32]);

    impl Work for Spread<'_> {
        fn run<I: Isa>(self, isa: I) {
            // 16 rows of 3 lines: of so many lines over so many steps, those in each, and those that are left for later.
            for (lines, steps, each, left) in
                [(7, 3, 2, 41), (2, 3, 0, 46), (100, 5, 9, 0), (4, 0, 0, 44), (0, 8, 0, 48)]
            {
                let mut rows = Rows::new(40);
                rows.add(self.0, 40, 16);
                let mut coming = Coming::new(rows.view());
                let first = coming.at;
                assert_eq!((coming.spread(isa, lines, steps), coming.remaining), (each, left), "{lines} / {steps}");
                // The first line is asked for at once where not all of them are shared out.
                assert_eq!(coming.at == first, lines.min(48) == each * steps, "{lines} / {steps}");
            }
        }
    }

    #[test]
    fn lines_are_spread_over_steps_and_the_rest_asked_for_at_once() {
        let elems = alloc::vec![0.0_f32; 640];
        Level::all().for_each(|level| level.run(Spread(&elems)));
    }
}
