//! A model of the events: replayed, they give exactly what can be found.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Mutex;

use super::model::{Stamp, extend, root};
use super::policies::Watched;
use super::rng::Rng;
use super::world::World;
use crate::cache::KvCache;
use crate::event::Refused;
use crate::prefix::change::{Event, Stored};
use crate::prefix::hash::{BlockHasher, Digest, Hashed};

/// How often, of a hundred times, a sink refuses or panics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SinkSpec {
    pub(crate) refuses: u32,
    pub(crate) panics: u32,
    pub(crate) seed: u64,
}

/// What a sink panics with.
struct SinkPanic;

/// Names content by the stamp of its last token, so that an identity can be told from tokens alone.
pub(crate) struct ByStamp;

impl BlockHasher for ByStamp {
    fn identity(&self, block: &Hashed<'_>) -> Digest {
        let before = block.parent.map_or_else(|| root(block.scope), stamp_of);
        assert_eq!(block.parent.is_none(), block.start == 0, "a first block has no parent");
        let positions = (block.start..).zip(block.tokens);
        digest_of(positions.fold(before, |stamp, (at, &token)| extend(stamp, at, token, block.extras)))
    }
}

pub(crate) fn digest_of(stamp: Stamp) -> Digest {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&stamp.to_le_bytes());
    digest
}

fn stamp_of(digest: &Digest) -> Stamp {
    Stamp::from_le_bytes(*digest.first_chunk().unwrap())
}

/// What a sink took.
type Taken = Arc<Mutex<Vec<Event>>>;

/// Who listens to a cache.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Content that was announced, and what precedes it.
    announced: BTreeMap<Digest, Option<Digest>>,
    /// What came since the cache and its replica last were level.
    heard: Vec<Event>,
    spec: SinkSpec,
    /// Without one, events are taken out of the cache's queue.
    taken: Option<[Taken; 2]>,
}

/// A clone of a cache has no sink.
impl Clone for Listener {
    fn clone(&self) -> Self {
        Self { announced: self.announced.clone(), heard: self.heard.clone(), spec: self.spec, taken: None }
    }
}

impl Listener {
    /// Whether this content was announced and not withdrawn.
    pub(super) fn has(&self, identity: &Digest) -> bool {
        self.announced.contains_key(identity)
    }
}

fn replay(announced: &mut BTreeMap<Digest, Option<Digest>>, event: &Event) {
    match event {
        Event::Stored(stored) => {
            let Stored { identity, parent, scope, start, tokens, extras, .. } = stored;
            let hashed = Hashed::new(parent.as_ref(), scope, *start, tokens).with_extras(extras);
            assert_eq!(*identity, ByStamp.identity(&hashed), "an event does not name what it carries");
            let parented = parent.is_none_or(|parent| announced.contains_key(&parent));
            assert!(parented, "a child comes before its parent: {stored:?}");
            assert!(announced.insert(*identity, *parent).is_none(), "content is announced twice");
        }
        Event::Removed { identity } => {
            assert!(announced.remove(identity).is_some(), "content is withdrawn that was not announced");
            let orphan = announced.values().any(|parent| parent.as_ref() == Some(identity));
            assert!(!orphan, "content is withdrawn before what builds on it");
        }
        Event::Cleared => announced.clear(),
    }
}

/// The result of a call; `None` where the sink has panicked.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(payload) if payload.is::<SinkPanic>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// The answer to a call: that of the cache, or, where its sink has panicked, that of the replica.
pub(super) fn answer<T: PartialEq + Debug>(own: Option<T>, replicated: Option<T>) -> T {
    match (own, replicated) {
        (Some(own), Some(replicated)) => {
            assert_eq!(own, replicated, "a replica answers differently");
            own
        }
        (own, replicated) => own.or(replicated).expect("without a replica no sink panics"),
    }
}

fn listen(cache: &mut KvCache<Watched>, spec: SinkSpec) -> Taken {
    let taken = Taken::default();
    let (sink, mut rng) = (Arc::clone(&taken), Rng::new(spec.seed));
    let call = || {
        cache.set_events(ByStamp, move |event: &Event| {
            if rng.chance(spec.refuses) {
                return Err(Refused);
            }
            if rng.chance(spec.panics) {
                resume_unwind(alloc::boxed::Box::new(SinkPanic));
            }
            sink.lock().unwrap().push(event.clone());
            Ok(())
        });
    };
    caught(call);
    taken
}

impl World {
    /// Sets a sink, or a hasher alone.
    pub(super) fn listen(&mut self, spec: Option<SinkSpec>) -> bool {
        self.hashed = true;
        self.listener = None;
        let Some(spec) = spec else {
            both!(self, |cache| cache.set_hasher(ByStamp));
            return true;
        };
        let patient = SinkSpec { refuses: 0, panics: 0, ..spec };
        let taken = self.replica.as_deref_mut().map(|replica| listen(replica, patient));
        let taken = taken.map(|other| [listen(&mut self.cache, spec), other]);
        if taken.is_none() {
            // A world without a replica may be cloned, with what the sink has refused and without the sink.
            self.cache.set_events(ByStamp, |_: &Event| Err(Refused));
        }
        self.listener = Some(Listener { announced: BTreeMap::new(), heard: Vec::new(), spec, taken });
        true
    }

    pub(super) fn unlisten(&mut self) -> bool {
        both!(self, |cache| cache.clear_events());
        (self.listener, self.hashed) = (None, false);
        true
    }

    pub(super) fn flush(&mut self) -> bool {
        let cache = &mut self.cache;
        if let Some(result) = caught(|| cache.flush_events()) {
            assert_eq!(result.is_ok(), cache.pending_events() == 0);
        }
        true
    }

    /// After every call.
    pub(super) fn check_events(&mut self) {
        let found = self.identities();
        let cache = &mut self.cache;
        let Some(listener) = &mut self.listener else {
            assert_eq!(cache.pending_events(), 0, "nobody listens");
            return;
        };
        let queue = |cache: &mut KvCache<Watched>| {
            let identities = cache.blocks.index.identities.as_mut().unwrap();
            core::mem::take(identities.events.as_mut().unwrap())
        };
        let new: Vec<_> = match &listener.taken {
            Some([own, _]) => core::mem::take(&mut *own.lock().unwrap()),
            None => queue(cache).into(),
        };
        new.iter().for_each(|event| replay(&mut listener.announced, event));
        self.seen.events += new.len() as u64;
        let pending = cache.pending_events();
        let mut announced = listener.announced.clone();
        if pending > 0 {
            self.seen.refused_events += 1;
            let patient = listener.spec.refuses + listener.spec.panics == 0;
            assert!(!patient || listener.taken.is_none(), "a sink that takes all was not told all");
            let identities = cache.blocks.index.identities.as_ref().unwrap();
            identities.events.iter().flatten().for_each(|event| replay(&mut announced, event));
        }
        let announced: BTreeSet<Digest> = announced.into_keys().collect();
        assert_eq!(announced, found, "what is announced is not what can be found");
        if let Some([_, other]) = &listener.taken {
            listener.heard.extend(new);
            if pending == 0 {
                let heard = core::mem::take(&mut listener.heard);
                assert_eq!(heard, core::mem::take(&mut *other.lock().unwrap()), "a replica tells something else");
            }
        }
    }
}
