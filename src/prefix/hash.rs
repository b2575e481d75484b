//! Identities that leave the process: 256 bits that name a block's content and all before it.
//!
//! Inside the process nothing rests on a hash; these are for events, tiers and other engines.

use super::{Extra, Scope};
use crate::id::TokenId;

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

/// Makes identities. Two blocks that differ in anything of [`Hashed`] must have different ones.
pub trait BlockHasher: Send + Sync {
    /// The identity of a block.
    fn identity(&self, block: &Hashed<'_>) -> Digest;
}
