//! Small pieces on their way into a hash function.
//!
//! Floor 1. A block's encoding is some fifty pieces of one to five bytes; a hash function's own bookkeeping per call
//! costs more than the copy into this buffer.

use super::Digest;

/// A hash function that takes bytes in order.
pub(super) trait Absorb {
    fn absorb(&mut self, bytes: &[u8]);
    fn digest(self) -> Digest;
}

/// Gathers pieces and hands them on in long ones.
pub(super) struct Feed<H> {
    hasher: H,
    buffer: [u8; 256],
    filled: usize,
}

impl<H: Absorb> Feed<H> {
    pub(super) const fn new(hasher: H) -> Self {
        Self { hasher, buffer: [0; 256], filled: 0 }
    }

    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if let Some(free) = self.buffer.get_mut(self.filled..self.filled + bytes.len()) {
            free.copy_from_slice(bytes);
            self.filled += bytes.len();
        } else {
            self.spill(bytes);
        }
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        self.hasher.absorb(&self.buffer[..self.filled]);
        self.filled = 0;
        if bytes.len() > self.buffer.len() {
            self.hasher.absorb(bytes);
        } else {
            self.put(bytes);
        }
    }

    pub(super) fn finish(mut self) -> Digest {
        self.hasher.absorb(&self.buffer[..self.filled]);
        self.hasher.digest()
    }
}

/// A length as both encodings write it.
pub(super) fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
