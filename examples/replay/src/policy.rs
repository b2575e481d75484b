//! Eviction policies by name, and the one place that makes a cache of one.

use core::fmt;

use paged_kv::error::ConfigError;
use paged_kv::evict::{Adaptive, Evict, Lfu, Lru, Priority, S3Fifo};
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
    /// Least frequently used, with ageing.
    Lfu,
    /// S3-FIFO over chains.
    S3Fifo,
    /// By the wishes of requests; a trace has none, which leaves LRU.
    Priority,
    /// What learns online, and is LRU where that does not pay.
    Adaptive,
    /// The offline optimum, which knows the rest of the trace: see [`belady`](crate::belady).
    Belady,
    /// The same for a cache whose requests hold all of their blocks, as they do in the real one.
    BeladyHeld,
}

impl Policy {
    /// All of them, in the order in which `all` names them; the bounds last.
    pub const ALL: [Self; 7] =
        [Self::Lru, Self::Lfu, Self::S3Fifo, Self::Priority, Self::Adaptive, Self::BeladyHeld, Self::Belady];

    /// What the command line calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::S3Fifo => "s3-fifo",
            Self::Priority => "priority",
            Self::Adaptive => "adaptive",
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
            Self::Lfu => Box::new(Lfu::new()),
            Self::S3Fifo => Box::new(S3Fifo::new()),
            Self::Priority => Box::new(Priority::new()),
            Self::Adaptive => Box::new(Adaptive::new()),
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
