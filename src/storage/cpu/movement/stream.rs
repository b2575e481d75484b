//! Copies past the caches.
//!
//! A store to a line that is not in the cache reads it from memory first, only to write over it. A non-temporal store
//! does not, so that a large copy moves two thirds of the bytes. In return the line is in no cache afterwards, and until
//! a fence the store is ordered with nothing: [`streaming`] is the only way in, and fences on the way out.
#![allow(unsafe_code)]

use core::marker::PhantomData;

/// The right to copy, past the caches or not, until [`streaming`] returns. It does not leave its thread.
pub(super) struct Mover {
    past_caches: bool,
    #[cfg(target_arch = "x86_64")]
    width: x86_64::Width,
    thread: PhantomData<*const ()>,
}

/// Runs `work` with a [`Mover`]; whatever it wrote is visible to all when this returns.
pub(super) fn streaming(past_caches: bool, work: impl FnOnce(&Mover)) {
    /// Fences also where `work` panics.
    struct Fence(bool);
    impl Drop for Fence {
        fn drop(&mut self) {
            if self.0 {
                fence();
            }
        }
    }
    let past_caches = past_caches && cfg!(target_arch = "x86_64");
    let _fence = Fence(past_caches);
    work(&Mover {
        past_caches,
        #[cfg(target_arch = "x86_64")]
        width: x86_64::Width::detect(),
        thread: PhantomData,
    });
}

impl Mover {
    pub(super) const fn past_caches(&self) -> bool {
        self.past_caches
    }

    /// Copies a slice to another of the same length. `follows` is a hint: as many bytes that lie after `from` are read
    /// soon too.
    ///
    /// # Safety
    /// Until the [`streaming`] of this mover has returned, what `to` names is neither read nor written again.
    #[inline]
    pub(super) unsafe fn copy(&self, from: &[u8], to: &mut [u8], follows: usize) {
        assert_eq!(from.len(), to.len(), "a copy has two ends of one length");
        #[cfg(target_arch = "x86_64")]
        if self.past_caches {
            // SAFETY: the fence comes with the end of `streaming`, before which the caller's contract keeps `to` alone.
            return unsafe { x86_64::copy(self.width, from, to, follows) };
        }
        let _ = follows;
        to.copy_from_slice(from);
    }
}

#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: no precondition; SSE is part of x86-64.
    unsafe { core::arch::x86_64::_mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
fn fence() {}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::x86_64::{
        __m128i, __m256i, __m512i, _MM_HINT_T1, _mm_loadu_si128, _mm_prefetch, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    const LINE: usize = 64;

    /// Bytes of the narrowest store past the caches.
    const VECTOR: usize = 16;

    /// How far ahead its source is asked for, in bytes: a page, as the processor's own prefetcher stops at the end of
    /// each. Into the second cache: the first is too small to hold it so early. With one line of AVX-512 per store, 64
    /// KiB at scattered places are copied as fast as 4 MiB in one go; without either, a quarter slower.
    const AHEAD: usize = 4096;

    /// The widest vectors of this machine.
    #[derive(Clone, Copy)]
    pub(super) enum Width {
        Avx512,
        Avx,
        Sse2,
    }

    impl Width {
        pub(super) fn detect() -> Self {
            if std::arch::is_x86_feature_detected!("avx512f") {
                Self::Avx512
            } else if std::arch::is_x86_feature_detected!("avx") {
                Self::Avx
            } else {
                Self::Sse2
            }
        }
    }

    /// Copies a slice, all but the ends that fill no aligned vector past the caches.
    ///
    /// # Safety
    /// The machine has the vectors. What is at `to` is not touched again before this thread has made a store fence.
    #[inline]
    pub(super) unsafe fn copy(width: Width, from: &[u8], to: &mut [u8], follows: usize) {
        let head = to.as_ptr().align_offset(VECTOR).min(to.len());
        let ((from_head, from), (to_head, to)) = (from.split_at(head), to.split_at_mut(head));
        to_head.copy_from_slice(from_head);
        let edge = (to.as_ptr().align_offset(LINE).min(to.len())) / VECTOR * VECTOR;
        let ((from_edge, from), (to_edge, to)) = (from.split_at(edge), to.split_at_mut(edge));
        // SAFETY: `to` is aligned to a vector after the head; SSE2 is part of x86-64.
        unsafe { vectors(from_edge, to_edge) };
        let full = to.len() / LINE * LINE;
        let ahead = from.len() + follows;
        let ((from, from_rest), (to, to_rest)) = (from.split_at(full), to.split_at_mut(full));
        match width {
            // SAFETY: the machine has AVX-512F by the contract. `to` is empty or, after the edge, aligned to a line.
            Width::Avx512 => unsafe { avx512(from, to, ahead) },
            // SAFETY: the same with AVX.
            Width::Avx => unsafe { avx(from, to, ahead) },
            // SAFETY: the same with SSE2.
            Width::Sse2 => unsafe { sse2(from, to, ahead) },
        }
        let whole = to_rest.len() / VECTOR * VECTOR;
        let ((from, from_tail), (to, to_tail)) = (from_rest.split_at(whole), to_rest.split_at_mut(whole));
        // SAFETY: whole lines and vectors lie before `to` from an aligned address on, or it is empty.
        unsafe { vectors(from, to) };
        to_tail.copy_from_slice(from_tail);
    }

    /// # Safety
    /// As [`copy`]; `to` is empty or aligned to a vector.
    #[inline(always)]
    unsafe fn vectors(from: &[u8], to: &mut [u8]) {
        for (from, to) in from.chunks_exact(VECTOR).zip(to.chunks_exact_mut(VECTOR)) {
            // SAFETY: a vector is readable, and the load takes any alignment.
            let vector = unsafe { _mm_loadu_si128(from.as_ptr().cast::<__m128i>()) };
            // SAFETY: a vector is writable, at an aligned address; the rest is the caller's contract.
            unsafe { _mm_stream_si128(to.as_mut_ptr().cast::<__m128i>(), vector) };
        }
    }

    /// Copies whole lines.
    macro_rules! lines {
        ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident) => {
            /// Copies whole lines. Up to `ahead` bytes from the start of `from` on are asked for ahead.
            ///
            /// # Safety
            /// As [`copy`]; `to` is empty or aligned to a line.
            #[target_feature(enable = $feature)]
            unsafe fn $name(from: &[u8], to: &mut [u8], ahead: usize) {
                const N: usize = LINE / size_of::<$vector>();
                let lines = from.chunks_exact(LINE).zip(to.chunks_exact_mut(LINE));
                for ((from, to), at) in lines.zip((AHEAD..).step_by(LINE)) {
                    if at < ahead {
                        // A hint, which never faults, whatever the address.
                        _mm_prefetch::<_MM_HINT_T1>(from.as_ptr().wrapping_add(AHEAD).cast());
                    }
                    let vectors: [$vector; N] = core::array::from_fn(|i| {
                        // SAFETY: the line has `N` vectors, and the load takes any alignment.
                        unsafe { $load(from.as_ptr().cast::<$vector>().wrapping_add(i)) }
                    });
                    for (i, vector) in vectors.into_iter().enumerate() {
                        // SAFETY: the line has `N` vectors, at aligned addresses; the rest is the caller's contract.
                        unsafe { $store(to.as_mut_ptr().cast::<$vector>().wrapping_add(i), vector) };
                    }
                }
            }
        };
    }

    lines!(sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
    lines!(avx, "avx", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
    lines!(avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);

    /// The widths that this machine has.
    #[cfg(test)]
    pub(super) fn widths() -> impl Iterator<Item = Width> {
        let avx = std::arch::is_x86_feature_detected!("avx").then_some(Width::Avx);
        let avx512 = std::arch::is_x86_feature_detected!("avx512f").then_some(Width::Avx512);
        [Some(Width::Sse2), avx, avx512].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// All small lengths and all alignments of both ends, to the byte and not a byte further.
    fn check(copy: impl Fn(&[u8], &mut [u8])) {
        let from: Vec<u8> = (0..200).chain(0..200).collect();
        for len in (0..80).chain([127, 128, 129, 191, 192, 255, 256, 300]) {
            for (skip_from, skip_to) in (0..65).flat_map(|a| [(a, 0), (a, 1), (0, a), (3, a), (a, a)]) {
                let mut to = alloc::vec![255; 400];
                copy(&from[skip_from..][..len], &mut to[skip_to..][..len]);
                assert_eq!(to[skip_to..][..len], from[skip_from..][..len]);
                let (before, after) = (&to[..skip_to], &to[skip_to + len..]);
                assert!(before.iter().chain(after).all(|x| *x == 255), "{len}, {skip_from}, {skip_to}");
            }
        }
    }

    #[test]
    fn a_copy_past_the_caches_is_a_copy() {
        for past_caches in [false, true] {
            check(|from, to| {
                streaming(past_caches, |mover| {
                    // SAFETY: read after `streaming` alone.
                    unsafe { mover.copy(from, to, 5000) };
                });
            });
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_copy_of_any_width_is_a_copy() {
        for width in x86_64::widths() {
            check(|from, to| {
                // SAFETY: the machine has the width, and a fence comes before anything else.
                unsafe { x86_64::copy(width, from, to, 0) };
                fence();
            });
        }
    }
}
