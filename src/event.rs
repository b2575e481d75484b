//! What became findable, and what no more: for routers and tiers outside of the process.
//!
//! Floor 1. A cache that was given a sink tells it of every change of what can be found, at the end of the call that
//! caused it, when the call has done all its work. Exact, ordered, complete: content is announced once, when its first
//! copy is there and what it builds on can be found; its parent was announced before it; it is withdrawn when its last
//! copy is gone, behind all that builds on it. Contents are told apart by their identities here: those that a hasher gives
//! one to, as `Sha256Cbor` does where nothing but the end of an extra differs, are announced with the first of them and
//! withdrawn with the last. With `Sha256Cbor::with_ends` and with `Blake3` every content has its own.

#[cfg(feature = "events")]
mod encode;
#[cfg(feature = "events")]
mod publish;

use core::fmt;

#[cfg(feature = "events")]
pub use encode::{EventEncoder, EventForm, HashForm};
#[cfg(feature = "events")]
pub use publish::{BadRequest, Frames, Publisher};

pub use crate::prefix::change::{Event, Stored};

/// A sink has no room for an event now. The cache keeps it, and all behind it, and offers it again at the end of the
/// next call that may change what can be found (a plan, a commit, an abort, a cut, an end, an invalidation), or at a
/// [`flush_events`](crate::KvCache::flush_events).
///
/// Nothing bounds what it keeps. Whoever must, looks at [`pending_events`](crate::KvCache::pending_events) after a step, and
/// beyond a limit tells the receivers that [nothing can be found](Event::Cleared) and sets the sink anew with
/// [`set_events`](crate::KvCache::set_events): that drops what was kept, and announces what can be found by now, once.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sink has no room for an event")
    }
}

impl core::error::Error for Refused {}

/// Who is told, of identities: contents that share one count as one, see the [module](self). Any `FnMut(&Event) -> Result<(), Refused> + Send + Sync` is one.
///
/// It is called inside of a call of the cache, with whatever lock that is under: it should take note and return, and
/// cannot call the cache. A sink that panics unwinds through the call that caused the event; that call has done its work, the
/// cache is whole, and offers the event again. What such a call would have returned is lost: a plan's id is among the
/// [`open_steps`](crate::KvCache::open_steps).
pub trait EventSink: Send + Sync {
    /// Takes note of an event.
    ///
    /// # Errors
    /// [`Refused`]: offer it again later.
    fn event(&mut self, event: &Event) -> Result<(), Refused>;
}

impl<F: FnMut(&Event) -> Result<(), Refused> + Send + Sync> EventSink for F {
    fn event(&mut self, event: &Event) -> Result<(), Refused> {
        self(event)
    }
}
