//! One sequence: its table, its lengths, and the tokens of its open tail.
//!
//! Floor 2.
//! ```text
//! position  0 ........ tail_start .. committed ........ planned ..... + lookahead
//!           |  sealed   |      tail, open steps       |   reserved      |
//! tokens                |  kept here, by id if known  |
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::block::BlockRef;
use crate::id::{BlockSize, Slot, TokenId, ix};
use crate::prefix::index::SharedExtras;
use crate::prefix::{OwnedQuery, Query, Retention};
use crate::table::BlockTable;

/// What the cache knows of one sequence. Read it through [`KvCache::sequence`](crate::KvCache::sequence).
// In this order, so that what a plain append touches lies together: 56 bytes, and with the generation of its handle a cache
// line.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
#[repr(C)]
pub struct Sequence {
    /// Tokens from [`tail_start`](Self::tail_start) to `planned`; placeholders where a row was planned by count.
    pub(crate) tail: Vec<TokenId>,
    /// The newest plan that has looked at this sequence.
    pub(crate) mark: u64,
    pub(crate) planned: u32,
    pub(crate) committed: u32,
    pub(crate) open_rows: u32,
    pub(crate) plain: Plain,
    pub(crate) table: BlockTable,
    /// Tokens behind `planned` that the newest plan asked blocks for.
    pub(crate) lookahead: u32,
    /// Position from which on tokens will never be known, so that no block from there on has an identity.
    pub(crate) anonymous_from: u32,
    /// Leading blocks of the table that others computed and this sequence found.
    pub(crate) found: u32,
    /// Open rows whose tokens are not known yet.
    pub(crate) unknown_rows: u32,
    /// The committed tail that an open copy-on-write replaced, and its index in the table.
    pub(crate) displaced: Option<(u32, BlockRef)>,
    pub(crate) claim: Claim,
    pub(crate) scope: u32,
    pub(crate) query: Option<Box<OwnedQuery>>,
    /// The step to release its blocks behind: the newest one that named it, or 0 where blocks are not withheld.
    pub(crate) fence: u64,
}

/// Tokens that a tail's buffer may keep room for; 16 KiB.
const LONGEST_BUFFER: usize = 4_096;

/// A reservation: blocks that admission keeps for a sequence on its way to a length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Claim {
    /// Table length that is claimed, in blocks.
    pub(crate) target: u32,
    /// Blocks still to come, at most what the table lacks of the target.
    pub(crate) blocks: u32,
}

/// The *plain appends* that a sequence is ready for: rows of one certain token that fill no block, in a table that ends
/// there. Most rows are. All that a plan or a commit would find out about one stands here: whoever may change any of it takes
/// this away first, and the commit of a row that is no plain append brings it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plain {
    /// How many of them.
    pub(crate) rows: u32,
    /// Where the next one is written, or [`NO_SLOT`](Self::NO_SLOT).
    pub(crate) slot: Slot,
    /// Length of the table, all of which is as when a step last named the sequence, once the next one is planned.
    pub(crate) blocks: u32,
}

impl Plain {
    /// In a block that is to be taken then. A pool has fewer slots than this number.
    pub(crate) const NO_SLOT: Slot = Slot::new(u32::MAX);

    /// Ready for none.
    pub(crate) const NONE: Self = Self { rows: 0, slot: Slot::new(0), blocks: 0 };
}

impl Sequence {
    /// A sequence without tokens, in buffers that may come from another.
    pub(crate) fn new(
        scope: u32,
        query: Option<Box<OwnedQuery>>,
        (table, mut tail): (BlockTable, Vec<TokenId>),
    ) -> Self {
        debug_assert!(table.is_empty(), "blocks were given back");
        tail.clear();
        Self {
            table,
            committed: 0,
            planned: 0,
            lookahead: 0,
            tail,
            anonymous_from: u32::MAX,
            found: 0,
            open_rows: 0,
            unknown_rows: 0,
            displaced: None,
            claim: Claim::default(),
            scope,
            query,
            fence: 0,
            mark: 0,
            plain: Plain::NONE,
        }
    }

    /// Committed length, in tokens: what has K and V.
    pub fn len(&self) -> u32 {
        self.committed
    }

    /// Whether no token is committed.
    pub fn is_empty(&self) -> bool {
        self.committed == 0
    }

    /// Length once all open steps are committed in full, in tokens.
    pub fn planned_len(&self) -> u32 {
        self.planned
    }

    /// Steps that hold a row of this sequence and are open.
    pub fn open_steps(&self) -> u32 {
        self.open_rows
    }

    /// The block table, planned blocks and lookahead included.
    pub fn table(&self) -> &BlockTable {
        &self.table
    }

    /// Blocks that are reserved for this sequence and not in its table yet.
    pub fn reserved_blocks(&self) -> u32 {
        self.claim.blocks
    }

    pub(crate) fn query(&self) -> Query<'_> {
        self.query.as_deref().map_or(Query::default(), OwnedQuery::as_query)
    }

    /// What is planned from this position on, and all that will build on it, is not to be found by others. A sequence
    /// that ends there builds on nothing of that.
    pub(crate) fn lose_names_from(&mut self, position: u32) {
        if position < self.planned {
            self.anonymous_from = self.anonymous_from.min(position);
        }
    }

    /// After a cut: what will follow does not build on anonymous tokens that are gone.
    pub(crate) fn regain_names(&mut self) {
        if self.anonymous_from >= self.planned {
            self.anonymous_from = u32::MAX;
        }
    }

    /// The extras of a block of the table.
    pub(crate) fn extras_of(&self, index: u32, block_size: u32) -> SharedExtras {
        let range = || index * block_size..(index + 1) * block_size;
        self.query.as_deref().map_or_else(SharedExtras::default, |query| query.shared_extras(range()))
    }

    /// How to keep a block of the table, if something was said.
    pub(crate) fn retention_of(&self, index: u32, block_size: u32) -> Option<Retention> {
        self.query.as_deref()?.retention_of(index * block_size..(index + 1) * block_size)
    }

    /// Position of the first token in `tail`: the start of the block that the committed length ends in.
    #[inline]
    pub(crate) fn tail_start(&self, size: BlockSize) -> u32 {
        self.committed - size.offset(self.committed)
    }

    /// The tokens of a block that lies within `tail`.
    pub(crate) fn block_tokens(&self, index: u32, size: BlockSize) -> &[TokenId] {
        let from = ix(index * size.tokens() - self.tail_start(size));
        self.tail.get(from..from + ix(size.tokens())).unwrap_or(&[])
    }

    /// Advances the committed length, and forgets the tokens of blocks that are sealed by it.
    pub(crate) fn set_committed(&mut self, committed: u32, size: BlockSize) {
        let before = self.tail_start(size);
        self.committed = committed;
        let sealed = ix(self.tail_start(size) - before);
        if sealed > 0 {
            self.tail.drain(..sealed.min(self.tail.len()));
        }
        if self.open_rows == 0 {
            self.shrink_tail(ix(size.tokens()));
        }
    }

    /// A long prompt in one step leaves a long buffer behind, of which a tail wants one block's worth.
    pub(crate) fn shrink_tail(&mut self, tokens: usize) {
        if self.tail.capacity() > LONGEST_BUFFER {
            self.tail.shrink_to(tokens);
        }
    }
}
