//! Identities that leave the process: 256 bits that name a block's content and all before it.
//!
//! Floor 1. Inside the process nothing rests on a hash; these are for events, tiers and other engines. A chain: the
//! scope goes into the first block, and every later block has it through its parent.
//!
//! | hasher | feature | for |
//! |---|---|---|
//! | `Sha256Cbor` | `sha256` | the values of vLLM's `sha256_cbor`, so that one router reads both |
//! | `Blake3` | `blake3` | everything that a cache tells apart |

#[cfg(feature = "blake3")]
mod blake3;
#[cfg(any(feature = "blake3", feature = "sha256"))]
mod feed;
#[cfg(feature = "sha256")]
mod sha256_cbor;
#[cfg(all(test, any(feature = "blake3", feature = "sha256")))]
mod tests;

#[cfg(feature = "blake3")]
pub use self::blake3::Blake3;
#[cfg(feature = "sha256")]
pub use self::sha256_cbor::Sha256Cbor;

use alloc::boxed::Box;

use super::{Extra, Query, Scope};
use crate::error::CreateError;
use crate::id::{TokenId, ix, len32};

/// The identity of a block's content, parent's included.
pub type Digest = [u8; 32];

/// What of a block goes into its identity.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Hashed<'a> {
    /// The identity of the block before it; `None` for a first block.
    pub parent: Option<&'a Digest>,
    /// The scope.
    pub scope: &'a Scope,
    /// Position of its first token.
    pub start: u32,
    /// Its tokens.
    pub tokens: &'a [TokenId],
    /// The extras that overlap it, by position in the sequence.
    pub extras: &'a [Extra],
}

impl<'a> Hashed<'a> {
    /// A block without extras.
    pub const fn new(parent: Option<&'a Digest>, scope: &'a Scope, start: u32, tokens: &'a [TokenId]) -> Self {
        Self { parent, scope, start, tokens, extras: &[] }
    }

    /// The same with extras.
    pub const fn with_extras(self, extras: &'a [Extra]) -> Self {
        Self { extras, ..self }
    }
}

/// Makes identities. Two blocks that differ in anything of [`Hashed`] must have different ones, but for the ends of extras
/// where it [leaves these out](Self::leaves_out_ends); a parent stands for the scope and the position, which are its own
/// and what follows from it.
///
/// A cache calls it in the middle of its own calls: it must not panic.
pub trait BlockHasher: Send + Sync {
    /// The identity of a block.
    fn identity(&self, block: &Hashed<'_>) -> Digest;

    /// Whether blocks that differ in nothing but where their extras end have one identity all the same, as with
    /// `Sha256Cbor`. A cache then counts what shares an identity, so that a sink is told of it with the first content and
    /// of its end with the last; that is one search among the contents behind extras for each of these that comes or goes.
    fn leaves_out_ends(&self) -> bool {
        false
    }
}

impl<H: BlockHasher + ?Sized> BlockHasher for Box<H> {
    fn identity(&self, block: &Hashed<'_>) -> Digest {
        (**self).identity(block)
    }

    fn leaves_out_ends(&self) -> bool {
        (**self).leaves_out_ends()
    }
}

/// The identities of a prompt's full blocks, first to last: for whoever hashes prompts without a cache, as routers do.
///
/// They are those that a cache of this block size announces when the prompt is computed. `block_size` is in tokens;
/// none is full where it is 0.
///
/// # Errors
/// [`CreateError::BadRange`]: the extras are not in order of position, as [`Query::extras`] wants them.
///
/// # Example
/// ```
/// # #[cfg(feature = "sha256")] {
/// use paged_kv::Scope;
/// use paged_kv::prefix::hash::{Sha256Cbor, identities};
///
/// let (hasher, scope) = (Sha256Cbor::new(), Scope::default());
/// let prompt: Vec<u32> = (0..40).collect();
/// assert_eq!(identities(&hasher, &scope, &prompt, 16, &[])?.len(), 2);
/// # }
/// # Ok::<(), paged_kv::error::CreateError>(())
/// ```
pub fn identities<'a, H: BlockHasher + ?Sized>(
    hasher: &'a H,
    scope: &'a Scope,
    tokens: &'a [TokenId],
    block_size: u32,
    extras: &'a [Extra],
) -> Result<impl ExactSizeIterator<Item = Digest>, CreateError> {
    let query = Query::default().with_extras(extras);
    query.check()?;
    let blocks = tokens.chunks_exact(ix(block_size.max(1))).take(if block_size == 0 { 0 } else { usize::MAX });
    let (mut parent, mut start) = (None, 0_u32);
    Ok(blocks.map(move |tokens| {
        let end = start.saturating_add(len32(tokens.len()));
        let block = Hashed::new(parent.as_ref(), scope, start, tokens).with_extras(query.overlapping(start..end));
        let identity = hasher.identity(&block);
        (parent, start) = (Some(identity), end);
        identity
    }))
}
