//! The allocations of a layout: aligned, zeroed, on huge pages where they are large and the system has some, and refused
//! rather than aborted when they cannot be had.
#![allow(unsafe_code)]

mod huge;

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use half::{bf16, f16};

use super::CpuStats;
use super::element::{E4m3, Stored};
use crate::layout::{DType, KvLayout};
use crate::storage::StorageError;

/// Bytes that every allocation is aligned to: a cache line, and the widest vector.
const ALIGN_BYTES: usize = 64;

/// What large allocations are aligned to, so that they begin with a huge page: the size of one on x86-64, and on aarch64
/// with pages of 4 KiB.
const HUGE_BYTES: usize = 2 << 20;

/// From here on an allocation is a large one. It takes up to one huge page more memory than it has bytes, a third of
/// 6 MiB at worst.
const LARGE_BYTES: usize = 2 * HUGE_BYTES;

/// One allocation: a slice of plain numbers that starts on a cache line, a large one on a huge page.
pub(super) struct Buffer<T> {
    first: NonNull<T>,
    len: usize,
    /// Whether the system took the advice to keep it on huge pages.
    advised: bool,
    /// What the allocator gave, and what it is given back as.
    allocated: NonNull<u8>,
    layout: Layout,
}

impl<T: Stored> Buffer<T> {
    /// `len` zeros, or `None` where they cannot be had.
    ///
    /// The allocator is asked for a line (or a huge page) more than needed and the start moved up, instead of for the
    /// alignment: for an alignment beyond its own it would have to write the zeros itself, where otherwise they come as
    /// fresh pages from the system that take no memory until they are used. For the same reason the advice comes here,
    /// before anything is written.
    fn zeroed(len: u64) -> Option<Self> {
        let len = usize::try_from(len).ok()?;
        let bytes = len.checked_mul(size_of::<T>())?;
        let align = if bytes < LARGE_BYTES { ALIGN_BYTES } else { HUGE_BYTES };
        // Whole lines or huge pages: the last one is this allocation's alone too.
        let padded = bytes.checked_next_multiple_of(align)?;
        let layout = Layout::from_size_align(padded.checked_add(align)?, align_of::<T>()).ok()?;
        // SAFETY: the size of `layout` is at least `align`, not zero.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = allocated.align_offset(align).min(align);
        // SAFETY: `skip` is at most `align`, and the allocation has `align` bytes or more.
        let first = unsafe { allocated.add(skip) };
        let advised = align == HUGE_BYTES && huge::advise(first, padded);
        Some(Self { first: first.cast(), len, advised, allocated, layout })
    }
}

/// The same memory as bytes, in the order of the machine.
pub(super) fn bytes_of<T: Stored>(elems: &[T]) -> &[u8] {
    // SAFETY: the bytes of a slice that is borrowed for as long as the result. A `T` (`Stored` is private: `f32`,
    // `f16`, `bf16`, `E4m3`, `i8`) has no padding, so that each byte is initialised, and a `u8` has no alignment to keep.
    unsafe { core::slice::from_raw_parts(elems.as_ptr().cast(), size_of_val(elems)) }
}

/// The same memory as bytes, to write.
pub(super) fn bytes_of_mut<T: Stored>(elems: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, the borrow being unique; and whatever bytes are written are valid numbers of all types.
    unsafe { core::slice::from_raw_parts_mut(elems.as_mut_ptr().cast(), size_of_val(elems)) }
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
        // SAFETY: `first` is at most an alignment into an allocation of `len` elements and the alignment's bytes, and
        // aligned by it (or, should `align_offset` give up, to `T`'s: by the layout, plus a multiple of it). All bits
        // zero, and whatever a `T` was written as, are valid. The borrow of `self` keeps writers away.
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
    F8E4M3(Vec<Buffer<E4m3>>),
    I8(Vec<Buffer<i8>>),
}

/// Evaluates an expression over the allocations, whatever their element type.
macro_rules! each {
    ($pools:expr, $buffers:ident => $body:expr) => {
        match $pools {
            $crate::storage::cpu::memory::Pools::F32($buffers) => $body,
            $crate::storage::cpu::memory::Pools::F16($buffers) => $body,
            $crate::storage::cpu::memory::Pools::BF16($buffers) => $body,
            $crate::storage::cpu::memory::Pools::F8E4M3($buffers) => $body,
            $crate::storage::cpu::memory::Pools::I8($buffers) => $body,
        }
    };
}
pub(super) use each;

impl Pools {
    pub(super) fn zeroed(layout: &KvLayout) -> Result<Self, StorageError> {
        fn all<T: Stored>(layout: &KvLayout) -> Result<Vec<Buffer<T>>, StorageError> {
            let one = |(&elems, index): (&u64, u32)| {
                let bytes = elems.saturating_mul(layout.dtype().bytes());
                Buffer::zeroed(elems).ok_or(StorageError::OutOfMemory { allocation: index, bytes })
            };
            layout.allocations().iter().zip(0_u32..).map(one).collect()
        }
        Ok(match layout.dtype() {
            DType::F32 => Self::F32(all(layout)?),
            DType::F16 => Self::F16(all(layout)?),
            DType::BF16 => Self::BF16(all(layout)?),
            DType::F8E4M3 => Self::F8E4M3(all(layout)?),
            DType::I8 => Self::I8(all(layout)?),
        })
    }

    /// See [`CpuStorage::stats`](super::CpuStorage::stats).
    pub(super) fn stats(&self, isa: &'static str) -> CpuStats {
        fn of<T: Stored>(isa: &'static str, buffers: &[Buffer<T>]) -> CpuStats {
            let bytes = |buffer: &Buffer<T>| size_of_val::<[T]>(buffer) as u64;
            CpuStats {
                isa,
                bytes: buffers.iter().map(bytes).sum(),
                huge_advised_bytes: buffers.iter().filter(|buffer| buffer.advised).map(bytes).sum(),
                huge_bytes: huge::measure(buffers.iter().map(|buffer| bytes_of(buffer).as_ptr_range())),
            }
        }
        each!(self, buffers => of(isa, buffers))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        each!(self, buffers => buffers.len())
    }

    /// Bytes of an element.
    pub(super) const fn elem_bytes(&self) -> usize {
        match self {
            Self::F32(_) => 4,
            Self::F16(_) | Self::BF16(_) => 2,
            Self::F8E4M3(_) | Self::I8(_) => 1,
        }
    }

    /// The bytes of an allocation.
    pub(super) fn bytes(&self, index: usize) -> &[u8] {
        each!(self, buffers => bytes_of(&buffers[index]))
    }

    /// The bytes of an allocation, to write.
    pub(super) fn bytes_mut(&mut self, index: usize) -> &mut [u8] {
        each!(self, buffers => bytes_of_mut(&mut buffers[index]))
    }

    /// The bytes of every allocation, to write.
    pub(super) fn all_bytes_mut(&mut self) -> Vec<&mut [u8]> {
        each!(self, buffers => buffers.iter_mut().map(|buffer| bytes_of_mut(buffer)).collect())
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

    /// Page by page it may be there or not, but where it is large its start is that of a huge page, and it is as zero,
    /// as long and as writable as any.
    #[test]
    fn a_large_buffer_starts_on_a_huge_page() {
        for bytes in [LARGE_BYTES - 2, LARGE_BYTES, LARGE_BYTES + 2, 5 * HUGE_BYTES] {
            let mut buffer = Buffer::<bf16>::zeroed(bytes as u64 / 2).unwrap();
            let large = bytes >= LARGE_BYTES;
            assert!(!large || buffer.as_ptr().align_offset(HUGE_BYTES) == 0);
            assert!(large || !buffer.advised);
            assert_eq!(bytes_of(&buffer).len(), bytes);
            assert!(bytes_of(&buffer).iter().all(|x| *x == 0));
            buffer.fill(bf16::ONE);
            assert!(buffer.iter().all(|x| *x == bf16::ONE));
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        assert!(Buffer::<f32>::zeroed(u64::MAX).is_none());
        assert!(Buffer::<f32>::zeroed(1 << 61).is_none());
        assert!(Buffer::<f32>::zeroed(1 << 50).is_none()); // 4 PiB: more than 47 bits of address space
    }
}
