//! Eviction policies by name, and the one place that makes a cache of one.

use core::fmt;

use paged_kv::error::ConfigError;
use paged_kv::evict::{Evict, Lru};
use paged_kv::{CacheConfig, KvCache};

use crate::belady::Holding;

/// The cache that a trace is played through.
pub type Cache = KvCache<Box<dyn Evict>>;

/// Which idle block goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Least recently used.
    Lru,
    /// The offline optimum, which knows the rest of the trace: see [`belady`](crate::belady).
    Belady,
    /// The same for a cache whose requests hold all of their blocks, as they do in the real one.
    BeladyHeld,
}

impl Policy {
    /// All of them, in the order in which `all` names them; the bounds last.
    pub const ALL: [Self; 3] = [Self::Lru, Self::BeladyHeld, Self::Belady];

    /// What the command line calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Belady => "belady",
            Self::BeladyHeld => "belady-held",
        }
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Which game it is the offline optimum of, if it is one.
    pub const fn offline(self) -> Option<Holding> {
        match self {
            Self::Belady => Some(Holding::Nothing),
            Self::BeladyHeld => Some(Holding::Request),
            _ => None,
        }
    }

    /// A cache with this policy; `None` for an optimum, which no cache can have.
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn cache(self, config: CacheConfig) -> Result<Option<Cache>, ConfigError> {
        let policy: Box<dyn Evict> = match self {
            Self::Lru => Box::new(Lru::new()),
            Self::Belady | Self::BeladyHeld => return Ok(None),
        };
        KvCache::with_policy(config, policy).map(Some)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
