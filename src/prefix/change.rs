//! Changes of what can be found, as data.
//!
//! Floor 1. The index makes them; the `event` module delivers them.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::hash::Digest;
use super::{Extra, Scope};
use crate::id::{BlockId, TokenId};

/// A change of what can be found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A block's content can be found from now on.
    Stored(Stored),
    /// No block has content of this identity any more that can be found.
    Removed {
        /// The identity.
        identity: Digest,
    },
    /// Nothing can be found any more.
    Cleared,
}

/// Content that can be found: the first of its identity, where a hasher
/// [leaves out where extras end](super::hash::BlockHasher::leaves_out_ends) and gives one to several.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stored {
    /// Its identity.
    pub identity: Digest,
    /// The identity of what precedes it; `None` for a first block.
    pub parent: Option<Digest>,
    /// Its scope.
    pub scope: Arc<Scope>,
    /// Position of its first token.
    pub start: u32,
    /// Its tokens, as many as a block has.
    pub tokens: Box<[TokenId]>,
    /// The extras that overlap it, by position in the sequence.
    pub extras: Box<[Extra]>,
    /// The block that holds it.
    pub block: BlockId,
}

impl Stored {
    /// An event by hand, as tests of sinks want it.
    pub fn new(
        identity: Digest,
        parent: Option<Digest>,
        scope: Arc<Scope>,
        start: u32,
        tokens: Box<[TokenId]>,
    ) -> Self {
        Self { identity, parent, scope, start, tokens, extras: Box::default(), block: BlockId::new(0) }
    }

    /// The same with extras.
    pub fn with_extras(self, extras: Box<[Extra]>) -> Self {
        Self { extras, ..self }
    }

    /// The same in another block.
    pub fn in_block(self, block: BlockId) -> Self {
        Self { block, ..self }
    }
}
