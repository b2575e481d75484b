//! A cache that several threads share.
//!
//! Floor 4, feature `parking_lot`. The cache itself has no lock: it is one `&mut self` core. This is the same core
//! behind one mutex, generic over [`lock_api::RawMutex`], so that an engine can bring its own. One lock
//! per call, or one [`lock`](SharedKvCache::lock) around several: a scheduler plans under one guard.

use alloc::sync::Arc;
use core::fmt;

use lock_api::{Mutex, MutexGuard, RawMutex};

use crate::cache::{KvCache, Release};
use crate::error::CreateError;
use crate::evict::{Evict, Lru};
use crate::id::{SeqId, TokenId};
use crate::prefix::{Query, Scope};

/// A handle to a shared cache; clones share it.
///
/// # Example
/// ```
/// use paged_kv::sync::SharedKvCache;
/// use paged_kv::{CacheConfig, KvCache, Query, Scope};
///
/// let cache: SharedKvCache = SharedKvCache::new(KvCache::new(CacheConfig::new(64, 16))?);
/// let request = std::thread::spawn({
///     let cache = cache.clone();
///     move || cache.create(&Scope::default(), &[1, 2, 3], Query::default())
/// });
/// let sequence = request.join().unwrap()?;
/// assert_eq!(cache.lock().stats().sequences, 1);
/// drop(sequence); // a request that is cancelled with `?` leaves nothing behind
/// assert_eq!(cache.lock().stats().sequences, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedKvCache<R = parking_lot::RawMutex, E = Lru> {
    cache: Arc<Mutex<R, KvCache<E>>>,
}

impl<R: RawMutex, E: Evict> SharedKvCache<R, E> {
    /// Shares a cache.
    pub fn new(cache: KvCache<E>) -> Self {
        Self { cache: Arc::new(Mutex::new(cache)) }
    }

    /// The cache, for as long as the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, R, KvCache<E>> {
        self.cache.lock()
    }

    /// The cache, if nobody else has it now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, R, KvCache<E>>> {
        self.cache.try_lock()
    }

    /// [`KvCache::create`], with an owner: the sequence is freed when the owner is dropped.
    ///
    /// # Errors
    /// As [`KvCache::create`].
    pub fn create(
        &self,
        scope: &Scope,
        tokens: &[TokenId],
        query: Query<'_>,
    ) -> Result<OwnedSequence<R, E>, CreateError> {
        let created = self.lock().create(scope, tokens, query)?;
        Ok(OwnedSequence { cache: self.clone(), seq: created.seq, cached_tokens: created.cached_tokens })
    }
}

impl<R, E> Clone for SharedKvCache<R, E> {
    fn clone(&self) -> Self {
        Self { cache: Arc::clone(&self.cache) }
    }
}

impl<R: RawMutex, E> fmt::Debug for SharedKvCache<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKvCache").field("locked", &self.cache.is_locked()).finish_non_exhaustive()
    }
}

/// The owner of a sequence of a shared cache. Dropping it takes the lock and frees the sequence: do not drop it while
/// this thread holds the guard.
#[must_use = "dropping the owner frees the sequence"]
pub struct OwnedSequence<R: RawMutex = parking_lot::RawMutex, E: Evict = Lru> {
    cache: SharedKvCache<R, E>,
    seq: SeqId,
    cached_tokens: u32,
}

impl<R: RawMutex, E: Evict> OwnedSequence<R, E> {
    /// The handle.
    pub fn id(&self) -> SeqId {
        self.seq
    }

    /// Leading tokens of the prompt whose K and V were in the cache at creation.
    pub fn cached_tokens(&self) -> u32 {
        self.cached_tokens
    }
}

impl<R: RawMutex, E: Evict> Drop for OwnedSequence<R, E> {
    fn drop(&mut self) {
        // Somebody else may have freed it through its handle: then there is nothing left to do.
        let _ = self.cache.lock().free(self.seq, Release::Cache);
    }
}

impl<R: RawMutex, E: Evict> fmt::Debug for OwnedSequence<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedSequence").field(&self.seq).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{CacheConfig, Row};
    use crate::step::Step;

    #[test]
    fn threads_share_one_cache_and_leave_nothing_behind() {
        let cache: SharedKvCache =
            SharedKvCache::new(KvCache::new(CacheConfig::new(64, 4).with_scratch(false)).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let cache = cache.clone();
                scope.spawn(move || {
                    let mut step = Step::new();
                    for round in 0..200 {
                        let prompt: alloc::vec::Vec<u32> = (0..10).map(|at| at * (thread + round % 3)).collect();
                        let owner = cache.create(&Scope::default(), &prompt, Query::default()).unwrap();
                        let rest = &prompt[crate::id::ix(owner.cached_tokens())..];
                        let mut guard = cache.lock();
                        let id = guard.plan(&[Row::ids(owner.id(), rest)], &mut step).unwrap();
                        guard.commit_all(id).unwrap();
                        drop(guard);
                    }
                });
            }
        });
        let cache = cache.lock();
        cache.check_integrity().unwrap();
        assert_eq!((cache.stats().held, cache.stats().sequences), (0, 0));
    }

    #[test]
    fn freeing_through_the_handle_first_is_harmless() {
        let cache: SharedKvCache = SharedKvCache::new(KvCache::new(CacheConfig::new(8, 4)).unwrap());
        let owner = cache.create(&Scope::default(), &[1], Query::default()).unwrap();
        cache.lock().free(owner.id(), Release::Discard).unwrap();
        drop(owner);
        cache.lock().check_integrity().unwrap();
    }
}
