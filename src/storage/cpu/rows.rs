//! Rows of elements that lie anywhere in memory, one per position of a chunk: what the kernel reads K and V through.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;

use super::kernel::CHUNK;

/// At most [`CHUNK`] rows of `dim` elements each.
///
/// A table of slices in effect, with the length that they share kept once: the table is written anew for every chunk,
/// and half as long it is written twice as fast.
///
/// Invariant: each of the first `len` pointers begins `dim` elements that are borrowed for `'a`.
#[derive(Debug)]
pub(super) struct Rows<'a, E> {
    first: [NonNull<E>; CHUNK],
    len: usize,
    dim: usize,
    elems: PhantomData<&'a [E]>,
}

impl<'a, E> Rows<'a, E> {
    /// No rows yet.
    pub(super) const fn new(dim: usize) -> Self {
        Self { first: [NonNull::dangling(); CHUNK], len: 0, dim, elems: PhantomData }
    }

    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds `count` rows that begin `stride` apart, from the first of `elems` on.
    ///
    /// # Panics
    /// Where they end after `elems`, or are more than there is room for.
    #[inline(always)]
    pub(super) fn add(&mut self, elems: &'a [E], stride: usize, count: usize) {
        let Some(last) = count.checked_sub(1) else { return };
        let elems = NonNull::from_ref(&elems[..last * stride + self.dim]).cast::<E>();
        for (index, row) in self.first[self.len..self.len + count].iter_mut().enumerate() {
            // SAFETY: `index` is at most `last`, so that the row begins, and ends `dim` further, inside of the slice
            // that was just cut to size. That is the invariant, too.
            *row = unsafe { elems.add(index * stride) };
        }
        self.len += count;
    }

    /// All of them.
    #[inline(always)]
    pub(super) fn view(&self) -> View<'_, 'a, E> {
        View { first: &self.first[..self.len], dim: self.dim, elems: PhantomData }
    }
}

/// Some [`Rows`], in their order.
///
/// Invariant: as that of [`Rows`], for all the pointers.
#[derive(Debug)]
pub(super) struct View<'s, 'a, E> {
    first: &'s [NonNull<E>],
    dim: usize,
    elems: PhantomData<&'a [E]>,
}

impl<E> Clone for View<'_, '_, E> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for View<'_, '_, E> {}

impl<'s, 'a, E> View<'s, 'a, E> {
    #[inline(always)]
    pub(super) const fn len(&self) -> usize {
        self.first.len()
    }

    #[inline(always)]
    pub(super) const fn dim(&self) -> usize {
        self.dim
    }

    /// The elements of a row.
    #[inline(always)]
    pub(super) fn get(&self, row: usize) -> &'a [E] {
        let first = self.first[row];
        // SAFETY: by the invariant these are elements that are borrowed for `'a`.
        unsafe { NonNull::slice_from_raw_parts(first, self.dim).as_ref() }
    }

    /// Where a row begins, for a prefetch. `None` where there is no such row.
    #[inline(always)]
    pub(super) fn address(&self, row: usize) -> Option<*const E> {
        self.first.get(row).map(|first| first.as_ptr().cast_const())
    }

    /// Some that follow each other.
    #[inline(always)]
    pub(super) fn slice(&self, rows: Range<usize>) -> Self {
        Self { first: &self.first[rows], ..*self }
    }

    /// Those that `which` names, into `to`.
    pub(super) fn pick<'t>(&self, which: impl Iterator<Item = usize>, to: &'t mut Rows<'a, E>) -> View<'t, 'a, E> {
        *to = Rows::new(self.dim);
        for (row, place) in which.zip(&mut to.first) {
            *place = self.first[row];
            to.len += 1;
        }
        to.view()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn rows_are_read_where_they_lie() {
        let elems: Vec<u32> = (0..40).collect();
        let mut rows = Rows::new(3);
        rows.add(&elems, 10, 4); // the last one is 30, 31, 32
        rows.add(&elems[37..], 5, 1);
        rows.add(&elems[..0], 5, 0);
        let view = rows.view();
        assert_eq!((view.len(), view.dim()), (5, 3));
        assert_eq!([0, 3, 4].map(|row| view.get(row)), [[0, 1, 2], [30, 31, 32], [37, 38, 39]]);
        assert_eq!(view.slice(1..3).get(1), [20, 21, 22]);
        assert_eq!(view.address(1), Some(&raw const elems[10]));
        assert_eq!(view.address(5), None);
        let mut picked = Rows::new(0);
        let picked = view.pick([4, 1].into_iter(), &mut picked);
        assert_eq!((picked.len(), picked.get(0), picked.get(1)), (2, &elems[37..], &elems[10..13]));
        rows.clear();
        assert_eq!(rows.view().len(), 0);
    }

    #[test]
    #[should_panic(expected = "range end index 43")]
    fn a_row_that_ends_too_late_is_refused() {
        Rows::new(3).add(&[0_u32; 40], 10, 5);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn more_rows_than_positions_of_a_chunk_are_refused() {
        Rows::new(1).add(&[0_u32; 100], 1, CHUNK + 1);
    }
}
