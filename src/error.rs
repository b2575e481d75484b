//! What can go wrong, one small `Copy` enum per operation.
//!
//! Floor 0. The law of this crate: *a call that returns an error changed nothing*. The numbers that decided are inside
//! the error, so that a log line needs no second call.

use core::fmt;

use crate::id::{GroupId, SeqId, StepId};

/// Declares error enums whose message stands beside each variant.
macro_rules! errors {
    ($($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$vmeta:meta])* $variant:ident $({ $($(#[$fmeta:meta])* $field:ident: $ty:ty),* $(,)? })? => $text:literal,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vmeta])* $variant $({ $($(#[$fmeta])* $field: $ty),* })?,)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        // Not every message names every number.
                        $($(let _ = $field;)*)?
                        write!(f, $text)
                    })*
                }
            }
        }

        impl core::error::Error for $name {}
    )*};
}

#[cfg(feature = "std")]
pub(crate) use errors;

/// There was no room: how many blocks a call wanted, and what stood against it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortfall {
    /// Blocks that the call had to take from the pool.
    pub needed: u32,
    /// Blocks that it could have taken: free and cached ones, less what others have reserved.
    pub free: u32,
    /// Blocks that come back by themselves at a coming [`retire`](crate::KvCache::retire). A scheduler waits for them
    /// and does not preempt.
    pub pending: u32,
    /// The group whose pool was short.
    pub group: GroupId,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, free, pending, group } = self;
        write!(f, "{needed} blocks needed, {free} free and {pending} pending in group {}", group.get())
    }
}

impl core::error::Error for Shortfall {}

errors! {
    /// A contradiction in a [`CacheConfig`](crate::CacheConfig).
    pub enum ConfigError {
        /// A block must hold at least one token.
        ZeroBlockSize => "block_size is zero",
        /// A block of so many tokens.
        BlockTooLarge {
            /// As configured, in tokens.
            block_size: u32,
        } => "blocks of {block_size} tokens are larger than 2^20",
        /// Nothing is left once the scratch block is taken.
        NoUsableBlock {
            /// As configured.
            num_blocks: u32,
        } => "{num_blocks} blocks leave none for sequences",
        /// The allocator has no memory for the bookkeeping of so many blocks. Where the system overcommits, it may have it,
        /// and the memory is not there all the same.
        OutOfMemory {
            /// As configured.
            num_blocks: u32,
        } => "no memory to keep account of {num_blocks} blocks",
        /// More than 2^29 blocks, which their names could not be numbered for.
        TooManyBlocks {
            /// As configured.
            num_blocks: u32,
        } => "{num_blocks} blocks are more than 2^29",
        /// Slots are numbered by `u32`.
        TooManySlots {
            /// As configured.
            num_blocks: u32,
            /// As configured, in tokens.
            block_size: u32,
        } => "{num_blocks} blocks of {block_size} tokens have more than 2^32 - 1 slots",
    }

    /// A contradiction in a [`KvLayout`](crate::layout::KvLayout) or a [`KvShape`](crate::layout::KvShape).
    pub enum LayoutError {
        /// A count that must be at least one.
        Zero {
            /// The field that is zero.
            field: &'static str,
        } => "{field} is zero",
        /// A size does not fit into 64 bits.
        Overflow {
            /// The size that overflowed.
            field: &'static str,
        } => "{field} does not fit into 64 bits",
        /// The description of so many layers does not fit into memory.
        OutOfMemory {
            /// Layers asked for.
            num_layers: u32,
        } => "no memory to describe {num_layers} layers",
        /// Heads can be split over ranks or replicated, but not both.
        RanksDoNotDivide {
            /// KV heads of the model.
            kv_heads: u32,
            /// Ranks asked for.
            ranks: u32,
        } => "{kv_heads} KV heads cannot be spread evenly over {ranks} ranks",
        /// A plane reaches beyond the memory of its layer.
        OutOfBounds {
            /// The layer.
            layer: u32,
            /// Elements that the planes of the layer span.
            needed_elems: u64,
            /// Elements that the layer's allocation has.
            given_elems: u64,
        } => "layer {layer} spans {needed_elems} elements of an allocation of {given_elems}",
        /// Strides of a plane are so small that two heads, tokens or blocks share elements.
        Overlap {
            /// The layer.
            layer: u32,
        } => "heads, tokens or blocks of a plane of layer {layer} share elements",
        /// A layer has no planes for the scales that its element type asks for, or has some that it does not.
        Scales {
            /// The layer.
            layer: u32,
            /// Elements that a scale takes; 0 where the element type has none.
            scale_elems: u32,
        } => "the planes of layer {layer} do not go with an element type whose scales take {scale_elems} elements",
    }

    /// [`KvCache::create`](crate::KvCache::create) refused a prompt.
    pub enum CreateError {
        /// A prompt has at least one token; [`create_blank`](crate::KvCache::create_blank) makes a sequence without.
        EmptyPrompt => "the prompt has no tokens",
        /// Lengths are counted in `u32`.
        TooLong {
            /// Tokens of the prompt.
            tokens: usize,
        } => "a prompt of {tokens} tokens is longer than tables can index",
        /// The prompt alone is larger than the pool: it can never be computed.
        NeverFits {
            /// Blocks that the prompt takes.
            blocks: u32,
            /// Blocks that the pool has.
            capacity: u32,
            /// The group whose pool is too small.
            group: GroupId,
        } => "the prompt takes {blocks} blocks and the pool has {capacity}",
        /// A range is empty or turned around, or starts or ends before the one in front of it does.
        BadRange {
            /// First position.
            start: u32,
            /// Position after the last one.
            end: u32,
        } => "the range {start}..{end} is empty or out of order",
        /// A query has at most 2^22 extras.
        TooManyExtras {
            /// Extras of the query.
            extras: usize,
        } => "the query has {extras} extras, more than 2^22",
        /// All handles are in use.
        TooManySequences => "there are 2^32 - 1 sequences",
    }

    /// [`KvCache::plan`](crate::KvCache::plan) refused a batch.
    pub enum PlanError {
        /// The handle is stale, or was never one of this cache.
        UnknownSequence {
            /// The row in the batch.
            row: usize,
            /// Its handle.
            seq: SeqId,
        } => "row {row}: {seq:?} is not a living sequence",
        /// A sequence may stand in a step once.
        RepeatedSequence {
            /// The second row of this sequence.
            row: usize,
            /// Its handle.
            seq: SeqId,
        } => "row {row}: {seq:?} stands in this batch already",
        /// A row computes at least one token.
        EmptyRow {
            /// The row in the batch.
            row: usize,
        } => "row {row} has no tokens",
        /// Drafts are the trailing tokens of a row, after at least one token that is not a draft.
        TooManyDrafts {
            /// The row in the batch.
            row: usize,
            /// Drafts it claims.
            drafts: u32,
            /// Tokens it has.
            tokens: u32,
        } => "row {row}: {drafts} drafts among {tokens} tokens",
        /// The length overflows `u32`.
        TooLong {
            /// The row in the batch.
            row: usize,
        } => "row {row} is longer than tables can index",
        /// The sequence alone is larger than the pool.
        NeverFits {
            /// The row in the batch.
            row: usize,
            /// Blocks that the sequence would hold.
            blocks: u32,
            /// Blocks that the pool has.
            capacity: u32,
            /// The group whose pool is too small.
            group: GroupId,
        } => "row {row}: the sequence would take {blocks} blocks and the pool has {capacity}",
        /// No room now.
        Shortfall {
            /// The numbers.
            shortfall: Shortfall,
        } => "{shortfall}",
    }

    /// [`KvCache::commit`](crate::KvCache::commit) or [`abort`](crate::KvCache::abort) refused a step.
    pub enum StepError {
        /// Not an open step: committed or aborted before, or never planned here.
        NotOpen {
            /// The step.
            step: StepId,
        } => "{step:?} is not open",
        /// Steps commit in the order in which they were planned.
        OutOfOrder {
            /// The step.
            step: StepId,
            /// The open step that must be committed first.
            oldest: StepId,
        } => "{step:?} cannot be committed before {oldest:?}",
        /// One outcome per row.
        OutcomeCount {
            /// Rows of the step.
            rows: usize,
            /// Outcomes given.
            outcomes: usize,
        } => "{outcomes} outcomes for {rows} rows",
        /// A row may roll back its drafts, or what it planned by count; the rest is all or nothing, by `abort`.
        Accepted {
            /// The row.
            row: usize,
            /// Tokens accepted.
            accepted: usize,
            /// The fewest it may accept.
            least: u32,
            /// The most it may accept.
            most: u32,
        } => "row {row}: {accepted} tokens accepted, where {least} to {most} can be",
        /// Ids are given at commit exactly for rows that were planned by count.
        IdsGivenTwice {
            /// The row.
            row: usize,
        } => "row {row} was planned with ids and cannot take others at commit",
        /// A later open step of this sequence builds on the tokens to be rolled back: abort it first.
        LaterStepOpen {
            /// The row.
            row: usize,
            /// The sequence.
            seq: SeqId,
        } => "row {row}: {seq:?} is in a later open step and cannot roll back",
        /// Work is retired once it was committed or aborted.
        StillOpen {
            /// The step.
            step: StepId,
        } => "{step:?} is still open",
    }

    /// A call on one sequence was refused.
    pub enum SequenceError {
        /// The handle is stale, or was never one of this cache.
        Unknown {
            /// The handle.
            seq: SeqId,
        } => "{seq:?} is not a living sequence",
        /// The pin was let go of, or was never one of this cache.
        UnknownPin => "this pin holds nothing any more",
        /// The sequence has an open step.
        Busy {
            /// The handle.
            seq: SeqId,
        } => "{seq:?} has an open step",
        /// A sequence can only be cut where it is.
        BeyondEnd {
            /// The length asked for, in tokens.
            len: u32,
            /// The committed length, in tokens.
            committed: u32,
        } => "cannot truncate {committed} tokens to {len}",
        /// All handles are in use.
        TooManySequences => "there are 2^32 - 1 sequences",
        /// The claim alone is larger than the pool.
        NeverFits {
            /// Blocks that the sequence would hold.
            blocks: u32,
            /// Blocks that the pool has.
            capacity: u32,
            /// The group whose pool is too small.
            group: GroupId,
        } => "the sequence would take {blocks} blocks and the pool has {capacity}",
        /// No room now.
        Shortfall {
            /// The numbers.
            shortfall: Shortfall,
        } => "{shortfall}",
    }

    /// [`KvCache::select`](crate::KvCache::select) refused a beam step.
    pub enum SelectError {
        /// The handle is stale, or was never one of this cache.
        Unknown {
            /// The handle.
            seq: SeqId,
        } => "{seq:?} is not a living sequence",
        /// The sequence has an open step.
        Busy {
            /// The handle.
            seq: SeqId,
        } => "{seq:?} has an open step",
        /// A beam stands among the beams once.
        RepeatedBeam {
            /// The handle.
            seq: SeqId,
        } => "{seq:?} stands among the beams twice",
        /// A parent is the index of a beam.
        NoSuchParent {
            /// The parent asked for.
            parent: usize,
            /// Number of beams.
            beams: usize,
        } => "parent {parent} of {beams} beams",
        /// All handles are in use.
        TooManySequences => "there are 2^32 - 1 sequences",
    }

    /// [`KvCache::view`](crate::KvCache::view) refused a row.
    pub enum ViewError {
        /// The handle is stale, or was never one of this cache.
        UnknownSequence {
            /// The row.
            row: usize,
            /// Its handle.
            seq: SeqId,
        } => "row {row}: {seq:?} is not a living sequence",
        /// A row has at least one token.
        EmptyRow {
            /// The row.
            row: usize,
        } => "row {row} has no tokens",
        /// The positions are not all in the table of the sequence.
        BeyondTable {
            /// The row.
            row: usize,
            /// Position after the last one asked for.
            end: u64,
            /// Positions that the table of the sequence holds.
            held: u64,
        } => "row {row} ends at position {end} and the table holds {held}",
        /// The batch has more tokens than `u32` counts.
        TooLong {
            /// The row.
            row: usize,
        } => "row {row} is longer than tables can index",
    }

    /// The metadata of a step could not be written into the caller's memory.
    pub enum WriteError {
        /// The buffer is too short.
        TooSmall {
            /// Elements needed.
            needed: usize,
            /// Elements given.
            given: usize,
        } => "{needed} elements needed, {given} given",
        /// A table has more blocks than a row of the buffer.
        RowTooWide {
            /// The row.
            row: usize,
            /// Blocks of the row.
            blocks: usize,
            /// Columns of the buffer.
            columns: usize,
        } => "row {row} has {blocks} blocks and the table {columns} columns",
        /// A number does not fit the element type.
        Overflow {
            /// The number.
            value: u64,
        } => "{value} does not fit the element type",
        /// The step holds only what changed of its tables: see [`Step::of_changes`](crate::Step::of_changes).
        NoTables => "the step holds no whole tables",
        /// The rows asked for are not all in the step.
        NoSuchRows {
            /// Row after the last one asked for.
            end: usize,
            /// Rows of the step.
            rows: usize,
        } => "row range ends at {end} and the step has {rows} rows",
        /// Padding aliases row 0, but there is none; or points at the scratch block, but none is reserved; or wants
        /// slot −1 in an unsigned type.
        CannotPad => "the step cannot be padded in this way",
    }

    /// Data that does not make a step: bytes to decode, or tables given by hand.
    pub enum MalformedStep {
        /// The bytes end too early.
        Truncated {
            /// Bytes that were expected.
            needed: usize,
            /// Bytes given.
            given: usize,
        } => "{needed} bytes needed, {given} given",
        /// The first bytes are not those of a step, or of another version of its encoding.
        BadMagic => "these bytes are not an encoded step of this version",
        /// A number contradicts another one.
        Inconsistent {
            /// What is wrong.
            what: &'static str,
        } => "inconsistent step: {what}",
    }
}

impl From<Shortfall> for PlanError {
    fn from(shortfall: Shortfall) -> Self {
        Self::Shortfall { shortfall }
    }
}

impl From<Shortfall> for SequenceError {
    fn from(shortfall: Shortfall) -> Self {
        Self::Shortfall { shortfall }
    }
}
