//! An embeddable paged KV-cache for LLM inference engines.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;
