//! The numbers that name things: blocks, slots, groups, sequences, steps, tokens.
//!
//! Floor 0. Every index is a newtype, so that a block is never taken for a slot. The conversions between widths live
//! here and nowhere else; each is named and either cannot lose a bit or is checked.

use core::fmt;

/// A token's number in the vocabulary of the model.
///
/// An alias and not a newtype: engines hold their prompts as `&[u32]`, and a newtype would force them to copy every
/// prompt (or this crate to cast slices, which needs `unsafe`).
pub type TokenId = u32;

// Every length in this crate is a `u32`; on a target whose `usize` is narrower the conversion below would lose bits.
const _: () = assert!(usize::BITS >= 32, "paged-kv needs a usize of at least 32 bits");

/// A `u32` as an index. Lossless by the assertion above.
#[inline]
pub(crate) const fn ix(value: u32) -> usize {
    value as usize
}

/// The length of a buffer that this crate bounds by construction to `u32`; saturates where the bound were broken.
#[inline]
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// A block of the pool: `0 .. num_blocks`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BlockId(u32);

impl BlockId {
    /// The block with this number.
    #[inline]
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// The number of this block.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of this block as an index.
    #[inline]
    pub const fn index(self) -> usize {
        ix(self.0)
    }

    /// The slot at `offset` (in tokens, below `block_size`) of this block.
    ///
    /// Cannot overflow for the blocks of a pool: [`ConfigError::TooManySlots`](crate::error::ConfigError) bounds
    /// `num_blocks × block_size` by `u32::MAX`.
    #[inline]
    pub const fn slot(self, offset: u32, block_size: u32) -> Slot {
        Slot(self.0.wrapping_mul(block_size).wrapping_add(offset))
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// Tokens of a block, and how to split positions without a division where they are a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockSize {
    tokens: u32,
    /// log2 of it, or 32.
    shift: u32,
}

impl BlockSize {
    pub(crate) const fn new(tokens: u32) -> Self {
        Self { tokens, shift: if tokens.is_power_of_two() { tokens.trailing_zeros() } else { 32 } }
    }

    /// Tokens of a block.
    #[inline]
    pub(crate) const fn tokens(self) -> u32 {
        self.tokens
    }

    /// The block that a position lies in, and its offset there.
    #[inline]
    pub(crate) const fn split(self, position: u32) -> (u32, u32) {
        match position.checked_shr(self.shift) {
            Some(index) => (index, position & (self.tokens - 1)),
            None => (position / self.tokens, position % self.tokens),
        }
    }

    /// The block that a position lies in.
    #[inline]
    pub(crate) const fn index(self, position: u32) -> u32 {
        self.split(position).0
    }

    /// The offset of a position in its block.
    #[inline]
    pub(crate) const fn offset(self, position: u32) -> u32 {
        self.split(position).1
    }

    /// Blocks that so many tokens take.
    #[inline]
    pub(crate) const fn blocks_of(self, tokens: u32) -> u32 {
        let (full, rest) = self.split(tokens);
        if rest > 0 { full + 1 } else { full }
    }
}

/// Where one token's K and V lie: `block × block_size + offset`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Slot(u32);

impl Slot {
    /// The slot with this number.
    #[inline]
    pub const fn new(slot: u32) -> Self {
        Self(slot)
    }

    /// The number of this slot.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of this slot as an index.
    #[inline]
    pub const fn index(self) -> usize {
        ix(self.0)
    }

    /// The block that holds this slot (block 0 where `block_size` is zero, which no cache has).
    #[inline]
    pub const fn block(self, block_size: u32) -> BlockId {
        match self.0.checked_div(block_size) {
            Some(block) => BlockId(block),
            None => BlockId(0),
        }
    }

    /// The place of this slot in its block, in tokens (0 where `block_size` is zero).
    #[inline]
    pub const fn offset(self, block_size: u32) -> u32 {
        match self.0.checked_rem(block_size) {
            Some(offset) => offset,
            None => 0,
        }
    }

    /// The slot behind this one.
    #[inline]
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// A group: the layers that share one block table. The first group is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct GroupId(u16);

impl GroupId {
    /// The group with this number.
    #[inline]
    pub const fn new(group: u16) -> Self {
        Self(group)
    }

    /// The number of this group.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number of this group as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A handle to a sequence of a [`KvCache`](crate::KvCache): an index and the generation of that index.
///
/// A plain `Copy` value that an engine keeps wherever it likes, also as a `u64` across an FFI border. Once the
/// sequence is freed its handle is *stale*: every call answers it with an error, also after the index is used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SeqId {
    /// The handle as one number: generation in the high half, index in the low half.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The handle that [`to_u64`](Self::to_u64) made this number from. Any number is a valid argument; one that was
    /// never a handle is merely stale.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves are taken apart")]
    pub const fn from_u64(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }

    /// The index: unique among living sequences, dense, and reused after a free. Storages that keep one row per
    /// sequence use it as their row number.
    #[inline]
    pub const fn index(self) -> u32 {
        self.index
    }
}

impl fmt::Debug for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq{}.{}", self.index, self.generation)
    }
}

/// A step: one forward pass that was planned. Ids grow by one from 1 and are never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct StepId(u64);

impl StepId {
    /// The step with this number.
    #[inline]
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number of this step.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_block_times_block_size_plus_offset() {
        // Block 7 of 16 tokens starts at slot 112; its fourth token lies at 115.
        let slot = BlockId::new(7).slot(3, 16);
        assert_eq!(slot.get(), 115);
        assert_eq!(slot.block(16), BlockId::new(7));
        assert_eq!(slot.offset(16), 3);
    }

    #[test]
    fn handles_survive_the_way_through_u64() {
        let id = SeqId { index: u32::MAX - 1, generation: 0x8000_0001 };
        assert_eq!(id.to_u64(), 0x8000_0001_ffff_fffe);
        assert_eq!(SeqId::from_u64(id.to_u64()), id);
    }
}
