//! Identities by BLAKE3, of everything that a cache tells apart.
//!
//! Floor 1. What is hashed, under a key of its own, is one message; numbers are little-endian, u64 unless named:
//! ```text
//! first block   0_u8 · len(model) · model · len(adapter) · adapter · adapter_version · len(salt) · salt
//! later block   1_u8 · parent (32 bytes)
//! then          start (u32) · number of tokens · tokens (u32 each)
//!               number of extras · per extra: start (u32) · end (u32) · digest (32 bytes)
//! ```
//! Every part has a length that stands before it or is fixed, so two different inputs are two different messages.

use ::blake3::{Hasher, derive_key};

use super::feed::{Absorb, Feed, len64};
use super::{BlockHasher, Digest, Hashed};
use crate::prefix::{Extra, Scope};

/// Domain of the key: whoever else hashes with BLAKE3 gets other values.
const CONTEXT: &str = "paged-kv 2026-11 identity of a block";

/// BLAKE3 over a message with all that a cache tells apart. The values are this crate's own.
///
/// # Example
/// ```
/// use paged_kv::Scope;
/// use paged_kv::prefix::hash::{BlockHasher, Blake3, Hashed};
///
/// let (open, secret) = (Blake3::new(), Blake3::with_key(b"a secret of the cluster"));
/// let scope = Scope::default();
/// let block = Hashed::new(None, &scope, 0, &[1, 2, 3]);
/// assert_ne!(open.identity(&block), secret.identity(&block));
/// ```
#[derive(Clone)]
pub struct Blake3 {
    key: [u8; 32],
}

impl Blake3 {
    /// With the key that everybody has.
    pub fn new() -> Self {
        Self::with_key(&[])
    }

    /// With a key derived from a secret, of any length: who does not know it can neither compute identities nor guess
    /// prompts from them.
    pub fn with_key(secret: &[u8]) -> Self {
        Self { key: derive_key(CONTEXT, secret) }
    }
}

impl Default for Blake3 {
    fn default() -> Self {
        Self::new()
    }
}

/// Without the key.
impl core::fmt::Debug for Blake3 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Blake3").finish_non_exhaustive()
    }
}

impl BlockHasher for Blake3 {
    fn identity(&self, block: &Hashed<'_>) -> Digest {
        let mut message = Feed::new(Hasher::new_keyed(&self.key));
        match block.parent {
            None => {
                let Scope { model, adapter, adapter_version, salt } = block.scope;
                message.put(&[0]);
                bytes(&mut message, model);
                bytes(&mut message, adapter);
                message.put(&adapter_version.to_le_bytes());
                bytes(&mut message, salt);
            }
            Some(parent) => {
                message.put(&[1]);
                message.put(parent);
            }
        }
        message.put(&block.start.to_le_bytes());
        message.put(&len64(block.tokens.len()).to_le_bytes());
        for token in block.tokens {
            message.put(&token.to_le_bytes());
        }
        message.put(&len64(block.extras.len()).to_le_bytes());
        for Extra { range, digest } in block.extras {
            message.put(&range.start.to_le_bytes());
            message.put(&range.end.to_le_bytes());
            message.put(digest);
        }
        message.finish()
    }
}

fn bytes(message: &mut Feed<Hasher>, bytes: &[u8]) {
    message.put(&len64(bytes.len()).to_le_bytes());
    message.put(bytes);
}

impl Absorb for Hasher {
    fn absorb(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }

    fn digest(self) -> Digest {
        self.finalize().into()
    }
}
