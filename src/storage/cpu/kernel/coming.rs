//! Memory that is asked for ahead of its use.
//!
//! A processor has few requests in flight, so that lines are asked for one by one between the arithmetic: a burst would
//! stop it. And they are asked for in the order of memory: so its own prefetcher takes up the stream, which has more
//! requests in flight than a program can have. With every other line left to the processor, decode lost a quarter.

use crate::storage::cpu::isa::Isa;
use crate::storage::cpu::rows::View;

/// What one request is for.
const LINE_BYTES: usize = 64;

/// Rows that will be read soon, asked for line by line.
pub(super) struct Coming<'s, 'a, E> {
    rows: View<'s, 'a, E>,
    /// Lines of a row.
    pub(super) lines: usize,
    /// The line to ask for next. When all have been asked for it goes on behind the last row, where it does no harm.
    at: *const E,
    /// Lines of its row from there on.
    left: usize,
    /// The row after it.
    next: usize,
}

impl<'s, 'a, E> Coming<'s, 'a, E> {
    const LINE_ELEMS: usize = LINE_BYTES / size_of::<E>();

    #[inline(always)]
    pub(super) fn new(rows: View<'s, 'a, E>) -> Self {
        let lines = rows.dim().div_ceil(Self::LINE_ELEMS);
        let mut coming = Self { rows, lines, at: core::ptr::null(), left: 0, next: 0 };
        coming.begin_row();
        coming
    }

    #[inline(always)]
    fn begin_row(&mut self) {
        match self.rows.address(self.next) {
            Some(at) => (self.at, self.left) = (at, self.lines),
            None => self.left = usize::MAX,
        }
        self.next += 1;
    }

    /// How many lines to ask for each time, to have asked for all after so many times.
    #[inline(always)]
    pub(super) fn pace(&self, times: usize) -> usize {
        (self.rows.len() * self.lines).div_ceil(times.max(1))
    }

    /// Lines that were not asked for yet.
    #[inline(always)]
    pub(super) fn remaining(&self) -> usize {
        match self.rows.len().checked_sub(self.next) {
            Some(rows) => rows * self.lines + self.left,
            None => 0,
        }
    }

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
