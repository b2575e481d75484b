//! The allocations of a layout: aligned, zeroed, and refused rather than aborted when they cannot be had.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use half::{bf16, f16};

use super::element::Stored;
use super::error::CpuError;
use crate::layout::{DType, KvLayout};

/// Bytes that every allocation is aligned to: a cache line, and the widest vector.
const ALIGN_BYTES: usize = 64;

/// One allocation: a slice of plain numbers that starts on a cache line.
pub(super) struct Buffer<T> {
    first: NonNull<T>,
    len: usize,
    /// What the allocator gave, and what it is given back as.
    allocated: NonNull<u8>,
    layout: Layout,
}

impl<T: Stored> Buffer<T> {
    /// `len` zeros, or `None` where they cannot be had.
    ///
    /// The allocator is asked for a line more than needed and the start moved up, instead of for the alignment: for an
    /// alignment beyond its own it would have to write the zeros itself, where otherwise they come as fresh pages from
    /// the system that take no memory until they are used.
    fn zeroed(len: u64) -> Option<Self> {
        let len = usize::try_from(len).ok()?;
        let bytes = len.checked_mul(size_of::<T>())?.checked_add(ALIGN_BYTES)?;
        let layout = Layout::from_size_align(bytes, align_of::<T>()).ok()?;
        // SAFETY: the size of `layout` is at least `ALIGN_BYTES`, not zero.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = allocated.align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        // SAFETY: `skip` is at most `ALIGN_BYTES`, and the allocation has `ALIGN_BYTES` bytes or more.
        let first = unsafe { allocated.add(skip) }.cast();
        Some(Self { first, len, allocated, layout })
    }

    /// The same memory as bytes, in the order of the machine.
    pub(super) fn bytes(&self) -> &[u8] {
        let elems: &[T] = self;
        // SAFETY: the bytes of a slice that is borrowed for as long as the result. A `T` (`Stored` is sealed: `f32`,
        // `f16`, `bf16`) has no padding, so that each byte is initialised, and a `u8` has no alignment to keep.
        unsafe { core::slice::from_raw_parts(elems.as_ptr().cast(), size_of_val(elems)) }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and given back only here. `T` is plain and needs no drop.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) }
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `first` is at most `ALIGN_BYTES` into an allocation of `len` elements and `ALIGN_BYTES` bytes, and
        // aligned to 64 bytes (or, should `align_offset` give up, to `T`'s: by the layout, plus a multiple of it). All
        // bits zero, and whatever a `T` was written as, are valid. The borrow of `self` keeps writers away.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Buffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as `deref`; the unique borrow of `self` keeps all others away.
        unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

// SAFETY: a buffer owns its memory alone, as a `Box<[T]>` does, and gives it out by its own borrows.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} elements]", self.len)
    }
}

/// The allocations of a layout, in its element type.
#[derive(Debug)]
pub(super) enum Pools {
    F32(Vec<Buffer<f32>>),
    F16(Vec<Buffer<f16>>),
    BF16(Vec<Buffer<bf16>>),
}

/// Evaluates an expression over the allocations, whatever their element type.
macro_rules! each {
    ($pools:expr, $buffers:ident => $body:expr) => {
        match $pools {
            $crate::storage::cpu::memory::Pools::F32($buffers) => $body,
            $crate::storage::cpu::memory::Pools::F16($buffers) => $body,
            $crate::storage::cpu::memory::Pools::BF16($buffers) => $body,
        }
    };
}
pub(super) use each;

impl Pools {
    pub(super) fn zeroed(layout: &KvLayout) -> Result<Self, CpuError> {
        fn all<T: Stored>(layout: &KvLayout) -> Result<Vec<Buffer<T>>, CpuError> {
            let one = |(&elems, index): (&u64, u32)| {
                let bytes = elems.saturating_mul(layout.dtype().bytes());
                Buffer::zeroed(elems).ok_or(CpuError::OutOfMemory { allocation: index, bytes })
            };
            layout.allocations().iter().zip(0_u32..).map(one).collect()
        }
        Ok(match layout.dtype() {
            DType::F32 => Self::F32(all(layout)?),
            DType::F16 => Self::F16(all(layout)?),
            DType::BF16 => Self::BF16(all(layout)?),
        })
    }

    /// The bytes of an allocation, if there is one of this index.
    pub(super) fn bytes(&self, index: usize) -> Option<&[u8]> {
        each!(self, buffers => buffers.get(index).map(Buffer::bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zeroed_and_starts_on_a_cache_line() {
        for len in [0, 1, 7, 1000] {
            let mut buffer = Buffer::<f16>::zeroed(len).unwrap();
            assert_eq!(buffer.as_ptr().align_offset(ALIGN_BYTES), 0);
            assert_eq!(buffer.len(), usize::try_from(len).unwrap());
            assert!(buffer.iter().all(|x| x.to_bits() == 0));
            buffer.fill(f16::ONE);
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        assert!(Buffer::<f32>::zeroed(u64::MAX).is_none());
        assert!(Buffer::<f32>::zeroed(1 << 61).is_none());
        assert!(Buffer::<f32>::zeroed(1 << 50).is_none()); // 4 PiB: more than 47 bits of address space
    }
}
