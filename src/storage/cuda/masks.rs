//! The mask of a step in device memory.
//!
//! Masks are a matter of the step, and all layers have the same: it is sent when a call brings another one than the device
//! has, which is at the first layer, and compared at the others.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;

use cudarc::driver::CudaContext;

use super::limits::CudaLimits;
use super::memory::DeviceMemory;
use super::slab::Slab;
use super::stream::Turn;
use crate::storage::{QueryMask, StorageError};

/// Words of 32 bits of the largest mask.
pub(super) fn mask_words(limits: &CudaLimits) -> u64 {
    (u64::from(limits.max_tokens) * u64::from(limits.max_mask_words)).saturating_mul(2)
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Masks {
    max_words_per_token: u32,
    /// What the device has, or will have when the stream is there.
    current: Vec<u64>,
    slab: Slab,
    device: DeviceMemory,
}

impl Masks {
    pub(super) fn new(context: &Arc<CudaContext>, limits: &CudaLimits) -> Result<Self, StorageError> {
        let words = mask_words(limits);
        let bytes = words.saturating_mul(4);
        let refusal = StorageError::NoBuffers { bytes };
        let device = DeviceMemory::zeroed(context, bytes, refusal)?;
        let len = usize::try_from(words).map_err(|_| refusal)?;
        let mut current = Vec::new();
        current.try_reserve_exact(len / 2).map_err(|_| refusal)?;
        let slab = Slab::new(context, words)?;
        Ok(Self { max_words_per_token: limits.max_mask_words, current, slab, device })
    }

    /// Where the device has this mask, `[tokens, words_per_token]` as was checked, or will have it when the stream is
    /// there.
    pub(super) fn send(&mut self, turn: &Turn<'_>, mask: QueryMask<'_>) -> Result<u64, StorageError> {
        let (given, max) = (u64::from(mask.words_per_token), u64::from(self.max_words_per_token));
        if given > max {
            return Err(StorageError::Limit { what: "words of a mask per query token", given, max });
        }
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::MaskNotSent) && !self.current.is_empty() {
            return Ok(self.device.first());
        }
        if self.current == mask.words {
            return Ok(self.device.first());
        }
        if turn.is_capturing()? {
            return Err(StorageError::Capturing);
        }
        for (to, word) in self.slab.words()?.chunks_exact_mut(2).zip(mask.words) {
            let bytes = word.to_le_bytes();
            let half = |at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            to.copy_from_slice(&[half(0), half(4)]);
        }
        // What the device has is unknown until the copy is enqueued.
        self.current.clear();
        // SAFETY: `device` is as long as the slab, which has room for the words of as many tokens as a step may have.
        unsafe { self.slab.send(turn, mask.words.len() * 2, self.device.first()) }?;
        self.current.extend_from_slice(mask.words);
        Ok(self.device.first())
    }
}
