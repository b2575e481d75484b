//! An embeddable paged KV-cache for LLM inference engines.
#![no_std]
#![warn(clippy::std_instead_of_alloc, clippy::std_instead_of_core)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

pub mod block;
pub mod cache;
pub mod error;
pub mod id;
pub mod layout;
#[cfg(test)]
mod planted;
pub mod prefix;
pub mod sequence;
pub mod step;
pub mod storage;
#[cfg(feature = "parking_lot")]
pub mod sync;
pub mod table;

pub use cache::{CacheConfig, KvCache};
pub use id::{BlockId, GroupId, SeqId, Slot, StepId, TokenId};
pub use prefix::{Extra, Query, Scope};
pub use sequence::Sequence;
pub use step::{BlockCopy, Step};
