//! An embeddable paged KV-cache for LLM inference engines.
#![no_std]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

pub mod error;
pub mod id;
pub mod layout;
pub mod step;
pub mod storage;

pub use id::{BlockId, GroupId, SeqId, Slot, StepId, TokenId};
pub use step::{BlockCopy, Step};
