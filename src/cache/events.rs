//! Identities that leave the process, and who is told of changes.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;

use super::KvCache;
use crate::event::{EventSink, Refused};
use crate::evict::Evict;
use crate::id::BlockId;
use crate::prefix::hash::{BlockHasher, Digest};
use crate::prefix::index::Identities;

/// The sink, if there is one.
#[derive(Default)]
pub(super) struct Sink(Option<Box<dyn EventSink>>);

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sink").field(&self.0.is_some()).finish()
    }
}

/// A simulation's copy of a cache tells nobody.
#[cfg(test)]
impl Clone for Sink {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl<E: Evict> KvCache<E> {
    /// Names content by this hasher from now on: see [`identity`](Self::identity). A sink that was set before is forgotten,
    /// with what it refused.
    pub fn set_hasher(&mut self, hasher: impl BlockHasher + 'static) {
        self.blocks.index.identities = Some(Identities::new(Arc::new(hasher)));
        self.sink = Sink(None);
    }

    /// Tells `sink` of all that can be found now, parents first, and from now on of every change, at the end of the call
    /// that caused it; content goes by the names of `hasher`. A hasher or sink that was set before is replaced.
    ///
    /// # Complexity
    /// Here O(content of the cache); later, for content that is stored, one identity and one copy of its tokens.
    ///
    /// # Example
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use paged_kv::cache::{Release, Row};
    /// use paged_kv::event::{Event, Refused};
    /// use paged_kv::prefix::hash::{BlockHasher, Digest, Hashed};
    /// use paged_kv::{CacheConfig, KvCache, Query, Scope, Step};
    ///
    /// // A stand-in: the features `sha256` and `blake3` have real ones.
    /// struct Sum;
    /// impl BlockHasher for Sum {
    ///     fn identity(&self, block: &Hashed<'_>) -> Digest {
    ///         let mut digest = *block.parent.unwrap_or(&[0; 32]);
    ///         block.tokens.iter().zip(digest.iter_mut()).for_each(|(&token, byte)| *byte ^= token as u8);
    ///         digest
    ///     }
    /// }
    ///
    /// let mut cache = KvCache::new(CacheConfig::new(8, 4))?;
    /// let stored = Arc::new(Mutex::new(Vec::new()));
    /// let told = Arc::clone(&stored);
    /// cache.set_events(Sum, move |event: &Event| {
    ///     if let Event::Stored(stored) = event {
    ///         told.lock().map_err(|_| Refused)?.push(stored.start);
    ///     }
    ///     Ok(())
    /// });
    /// let (mut step, prompt) = (Step::new(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    /// let seq = cache.create(&Scope::default(), &prompt, Query::default())?.seq;
    /// let id = cache.plan(&[Row::ids(seq, &prompt)], &mut step)?;
    /// assert!(stored.lock().unwrap().is_empty()); // nothing is computed yet
    /// cache.commit_all(id)?;
    /// assert_eq!(*stored.lock().unwrap(), [0, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_events(&mut self, hasher: impl BlockHasher + 'static, sink: impl EventSink + 'static) {
        self.set_hasher(hasher);
        self.sink = Sink(Some(Box::new(sink)));
        if let Some(identities) = &mut self.blocks.index.identities {
            identities.events = Some(VecDeque::new());
        }
        self.blocks.index.announce_all();
        self.deliver();
    }

    /// Forgets the sink, with what it refused, and the hasher.
    pub fn clear_events(&mut self) {
        self.sink = Sink(None);
        self.blocks.index.identities = None;
    }

    /// Offers the events that the sink has refused so far.
    ///
    /// # Errors
    /// [`Refused`] where some are left.
    pub fn flush_events(&mut self) -> Result<(), Refused> {
        self.deliver();
        if self.pending_events() == 0 { Ok(()) } else { Err(Refused) }
    }

    /// Events that the sink has refused so far. Nothing bounds them: [`Refused`] says how to.
    pub fn pending_events(&self) -> usize {
        let identities = self.blocks.index.identities.as_ref();
        identities.and_then(|identities| identities.events.as_ref()).map_or(0, VecDeque::len)
    }

    /// The identity of a block's content, if it is a full block that can be found, or will be when a step commits, and a
    /// hasher was set.
    ///
    /// # Complexity
    /// One call of the hasher for each block up to this one whose identity was not asked for before.
    pub fn identity(&mut self, block: BlockId) -> Option<Digest> {
        let node = self.blocks.node_of(block)?;
        self.blocks.index.identity(node)
    }

    /// Tells the sink what it was not told yet. Called last, when all else is done, so that a sink may panic.
    #[inline]
    pub(super) fn deliver(&mut self) {
        if self.sink.0.is_some() {
            self.deliver_queued();
        }
    }

    #[cold]
    fn deliver_queued(&mut self) {
        let Some(sink) = &mut self.sink.0 else { return };
        let identities = self.blocks.index.identities.as_mut();
        let Some(events) = identities.and_then(|identities| identities.events.as_mut()) else { return };
        // An event leaves the queue once it is taken, so that a panic or a refusal loses none.
        while let Some(event) = events.front() {
            if sink.event(event).is_err() {
                return;
            }
            events.pop_front();
        }
    }
}
