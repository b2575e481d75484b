//! A slice that several threads write at once, each its own part.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

/// A unique borrow of a slice, to be given out in parts that do not overlap.
pub(super) struct Shared<'a, T> {
    first: *mut T,
    len: usize,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a unique borrow of a slice, which may be sent where its elements may.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: all that can be done with a shared one, `claim` and `read`, is unsafe and demands that what is written is
// nobody else's; what is given out is `&[T]` and `&mut [T]`, which other threads may have by the bounds.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) const fn new(data: &'a mut [T]) -> Self {
        Self { first: data.as_mut_ptr(), len: data.len(), data: PhantomData }
    }

    /// Part of the slice, to be read.
    ///
    /// # Safety
    /// No claim that is alive together with the result overlaps it.
    #[inline]
    pub(super) unsafe fn read(&self, range: Range<usize>) -> &[T] {
        let at = self.check(&range);
        // SAFETY: the range was checked to lie in the slice, which is borrowed for longer than the result; nobody
        // writes it meanwhile by the caller's contract.
        unsafe { core::slice::from_raw_parts(at, range.len()) }
    }

    /// Part of the slice, to be written by whoever holds the result.
    ///
    /// # Safety
    /// Nothing else that was claimed or read and is alive together with the result overlaps it.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the contract keeps parts apart")]
    pub(super) unsafe fn claim(&self, range: Range<usize>) -> &mut [T] {
        let at = self.check(&range);
        // SAFETY: the range was checked to lie in the slice, which is borrowed uniquely for longer than the result;
        // nobody else has it meanwhile by the caller's contract.
        unsafe { core::slice::from_raw_parts_mut(at, range.len()) }
    }

    /// The first element of a range that lies in the slice.
    #[inline]
    fn check(&self, range: &Range<usize>) -> *mut T {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        self.first.wrapping_add(range.start)
    }
}
