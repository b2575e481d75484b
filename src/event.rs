//! What became findable, and what no more: for routers and tiers outside of the process.
//!
//! Floor 1. A cache that was given a sink tells it of every change of what can be found, at the end of the call that
//! caused it, when the call has done all its work. Exact, ordered, complete: content is announced once, when its first
//! copy is there; its parent was announced before it; it is withdrawn when its last copy is gone.

#[cfg(feature = "events")]
mod encode;
#[cfg(feature = "events")]
mod publish;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

#[cfg(feature = "events")]
pub use encode::{EventEncoder, EventForm, HashForm};
#[cfg(feature = "events")]
pub use publish::{BadRequest, Frames, Publisher};

use crate::id::{BlockId, TokenId};
use crate::prefix::hash::Digest;
use crate::prefix::{Extra, Scope};

/// A change of what can be found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A block's content can be found from now on.
    Stored(Stored),
    /// No block has this content any more.
    Removed {
        /// The content's identity.
        identity: Digest,
    },
    /// Nothing can be found any more.
    Cleared,
}

/// Content that can be found.
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

/// A sink has no room for an event now. The cache keeps it, and all behind it, and offers it again at the end of the
/// next call.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sink has no room for an event")
    }
}

impl core::error::Error for Refused {}

/// Who is told. Any `FnMut(&Event) -> Result<(), Refused> + Send` is one.
///
/// A sink that panics unwinds through the call that caused the event; the cache is whole, and offers the event again.
pub trait EventSink: Send {
    /// Takes note of an event.
    ///
    /// # Errors
    /// [`Refused`]: offer it again later.
    fn event(&mut self, event: &Event) -> Result<(), Refused>;
}

impl<F: FnMut(&Event) -> Result<(), Refused> + Send> EventSink for F {
    fn event(&mut self, event: &Event) -> Result<(), Refused> {
        self(event)
    }
}
