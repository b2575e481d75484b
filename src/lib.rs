//! A paged KV-cache for LLM inference engines: PagedAttention (Kwon et al., SOSP 2023) as a library.
//!
//! # The idea
//! A transformer keeps K and V of every token it has seen. Reserved in one stretch per request, most of that memory
//! stays empty or is lost between stretches. Cut into *blocks* of a few tokens, it is used to the last block: a
//! sequence holds the blocks it fills, its *block table* says where each lies, and the attention kernel reads through
//! the table. Blocks are counted, so that sequences share them: forks of one prompt, prompts with one beginning. A
//! block that is shared is copied before it is written (*copy-on-write*). A block that nobody holds keeps its content
//! until it is needed, so that the next prompt with that beginning finds it.
//!
//! # Two planes
//! * The **control plane** says *where*: [`KvCache`] and what is under it. `no_std`, no lock, no clock, no randomness, no
//!   `unsafe`; the same calls give the same ids everywhere. It owns no tensor memory.
//! * The **data plane** holds K and V and attends over them: a [`KvStorage`](storage::KvStorage). It knows blocks and
//!   slots, and no sequences.
//!
//! They meet in the [`Step`], plain data: copies to run, slots to write, tables to read.
//!
//! # A step
//! ```text
//! plan(rows, &mut step)   all or nothing; or a Shortfall, with numbers
//! run                     storage.prepare · copy_blocks · per layer: write_kv, attend
//! commit(id, outcomes)    lengths become real, full blocks can be found
//! abort(id)               it never happened
//! ```
//! ```
//! use paged_kv::cache::{Release, Row};
//! use paged_kv::{CacheConfig, KvCache, Query, Scope, Step};
//!
//! let mut cache = KvCache::new(CacheConfig::new(64, 16))?;
//! let mut step = Step::new();
//! let prompt: Vec<u32> = (0..40).collect();
//!
//! let first = cache.create(&Scope::default(), &prompt, Query::default())?;
//! let id = cache.plan(&[Row::ids(first.seq, &prompt)], &mut step)?;
//! // Here the engine runs the step: 40 tokens, to these slots, reading these blocks.
//! assert_eq!((step.tables().slots().len(), step.tables().table(0).len()), (40, 3));
//! cache.commit_all(id)?;
//!
//! // A second request with the same prompt starts with two full blocks and computes 8 tokens.
//! let second = cache.create(&Scope::default(), &prompt, Query::default())?;
//! assert_eq!(second.cached_tokens, 32);
//! cache.free(first.seq, Release::Cache)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! The README has the loop with memory and attention; the examples are numbered.
//!
//! # Where things are
//! | module | what |
//! |---|---|
//! | [`cache`] | [`KvCache`], rows, outcomes |
//! | [`step`] | [`Step`], its writers and its encoding |
//! | [`storage`] | the trait of the data plane, the CPU storage, and that of NVIDIA GPUs (feature `cuda`) |
//! | [`layout`] | geometry and sizing |
//! | [`prefix`] | scopes, extras, queries |
//! | [`evict`] | which idle block goes first: the trait, and policies |
//! | [`event`] | what became findable, for routers; identities are in [`prefix::hash`] |
//! | [`block`], [`table`], [`sequence`] | the parts, for engines that want those only |
//! | [`list`] | lists of blocks without allocation, for policies |
//! | `sync` | the cache behind a mutex (feature `parking_lot`) |
//! | [`error`], [`id`] | errors with numbers in them, ids that do not mix |
//!
//! # Words
//! *slot*: block × block size + offset · *tail*: a sequence's one open block · *sealed*: full and immutable · *cached*:
//! idle, contents kept · *hit*: what of a prompt was found · *part*: leading tokens of a block that a hit ends in ·
//! *twins*: blocks of equal content · *pin*: a prefix held without a sequence · *evict*: a cached block loses its content
//! to an allocation · *invalidate*: content can be found no more · *lookahead*: blocks for tokens that a later launch
//! writes without planning · *shortfall*: what is missing.
//!
//! # Features
//! `std` (default): the CPU storage. `rayon` (default): its threads. `cuda`: the storage of NVIDIA GPUs, which needs their
//! driver at run time and nothing to build. `parking_lot`: the `sync` module.
//! `sha256`, `blake3`: identities of blocks for other processes, in [`prefix::hash`]. `events`: the encoding of [`event`]s
//! as vLLM publishes them. These three need no `std`. No feature changes a result.
//!
//! # When not to use this crate
//! For one sequence at a time with memory to spare, a contiguous tensor per layer is simpler. For kernels that read only
//! dense planes, see [`layout::KvLayout`].
#![no_std]
#![warn(clippy::std_instead_of_alloc, clippy::std_instead_of_core)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

pub mod block;
pub mod cache;
pub mod error;
pub mod event;
pub mod evict;
pub mod id;
pub mod layout;
pub mod list;
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

/// The README's code is compiled and run like any other documentation.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
