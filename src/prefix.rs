//! What a block's content is called, and how it is found again.
//!
//! Floor 1. The identity of a block is its parent's identity, its tokens, and the extras that overlap it; the parent of
//! a first block is the *scope*. Inside the process a hit is decided by comparing all of these, never by a hash alone:
//! a collision is a miss, and nobody gets somebody else's K and V, even under a hasher that always collides.

pub mod hash;
pub(crate) mod index;
mod scope;

use alloc::boxed::Box;
use core::ops::Range;

use crate::error::CreateError;

pub use scope::Scope;

/// Something besides tokens that the content of blocks depends on: the digest of an image, say, over the range of
/// placeholder tokens that stand for it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Extra {
    /// Positions in the sequence.
    pub range: Range<u32>,
    /// What tells one content from another: a digest of 256 bits, or any bytes that are as good.
    pub digest: [u8; 32],
}

impl Extra {
    /// An extra over these positions.
    pub const fn new(range: Range<u32>, digest: [u8; 32]) -> Self {
        Self { range, digest }
    }
}

/// What a prompt brings beside its tokens. The default brings nothing and shares all it can.
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct Query<'a> {
    /// Extras, in order of position: starts ascend, and ends do.
    pub extras: &'a [Extra],
    /// The longest hit that is wanted, in tokens; `None` for no limit.
    pub max_hit: Option<u32>,
    /// Ranges that no hit may end inside of (images under bidirectional attention), in order of position.
    pub no_cut: &'a [Range<u32>],
    /// Neither find anything nor be found.
    pub private: bool,
}

impl<'a> Query<'a> {
    /// The default with these extras.
    pub const fn with_extras(self, extras: &'a [Extra]) -> Self {
        Self { extras, ..self }
    }

    /// The same, with hits of at most `tokens`.
    pub const fn with_max_hit(self, tokens: u32) -> Self {
        Self { max_hit: Some(tokens), ..self }
    }

    /// The same, with ranges that no hit may end inside of.
    pub const fn with_no_cut(self, no_cut: &'a [Range<u32>]) -> Self {
        Self { no_cut, ..self }
    }

    /// The same, without sharing.
    pub const fn with_private(self, private: bool) -> Self {
        Self { private, ..self }
    }

    /// The ranges ascend and are not empty, so that those that overlap a block are one run.
    pub(crate) fn check(&self) -> Result<(), CreateError> {
        ascending(self.extras.iter().map(|extra| &extra.range))?;
        ascending(self.no_cut.iter())
    }

    /// A copy to keep with the sequence, or `None` where it would say nothing.
    pub(crate) fn to_owned(self) -> Option<Box<OwnedQuery>> {
        if self.extras.is_empty() && self.no_cut.is_empty() && self.max_hit.is_none() && !self.private {
            return None;
        }
        Some(Box::new(OwnedQuery {
            extras: self.extras.into(),
            max_hit: self.max_hit,
            no_cut: self.no_cut.into(),
            private: self.private,
        }))
    }

    /// Whether a hit may end at this position.
    pub(crate) fn may_end(&self, position: u32) -> bool {
        let within = self.no_cut.partition_point(|range| range.end <= position);
        let cut = self.no_cut.get(within).is_some_and(|range| range.start < position);
        !cut && self.max_hit.is_none_or(|most| position <= most)
    }

    /// The extras that overlap a range of positions.
    pub(crate) fn overlapping(&self, range: Range<u32>) -> &'a [Extra] {
        let from = self.extras.partition_point(|extra| extra.range.end <= range.start);
        let to = self.extras.partition_point(|extra| extra.range.start < range.end);
        self.extras.get(from..to).unwrap_or(&[])
    }
}

fn ascending<'a>(ranges: impl Iterator<Item = &'a Range<u32>>) -> Result<(), CreateError> {
    let mut last = 0..0;
    for range in ranges {
        if range.start >= range.end || range.start < last.start || range.end < last.end {
            return Err(CreateError::BadRange { start: range.start, end: range.end });
        }
        last = range.clone();
    }
    Ok(())
}

/// A [`Query`] that a sequence keeps for its later blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OwnedQuery {
    extras: Box<[Extra]>,
    max_hit: Option<u32>,
    no_cut: Box<[Range<u32>]>,
    private: bool,
}

impl OwnedQuery {
    pub(crate) fn as_query(&self) -> Query<'_> {
        Query { extras: &self.extras, max_hit: self.max_hit, no_cut: &self.no_cut, private: self.private }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(range: Range<u32>) -> Extra {
        Extra { range, digest: [0; 32] }
    }

    #[test]
    fn extras_that_overlap_a_block_are_found_at_its_borders() {
        let extras = [extra(2..4), extra(3..8), extra(8..9)];
        let query = Query::default().with_extras(&extras);
        assert_eq!(query.overlapping(0..2), &[]);
        assert_eq!(query.overlapping(0..4), &extras[..2]);
        assert_eq!(query.overlapping(4..8), &extras[1..2]);
        assert_eq!(query.overlapping(8..12), &extras[2..]);
    }

    #[test]
    fn a_hit_ends_at_the_border_of_an_uncuttable_range_but_not_inside() {
        let no_cut = [4..8, 8..12];
        let query = Query::default().with_no_cut(&no_cut).with_max_hit(12);
        let ends: alloc::vec::Vec<u32> = (0..16).filter(|&end| query.may_end(end)).collect();
        assert_eq!(ends, [0, 1, 2, 3, 4, 8, 12]);
    }

    #[test]
    fn ranges_that_are_empty_or_out_of_order_are_refused() {
        for ranges in [[4..4, 5..6], [4..8, 2..9], [4..8, 5..7]] {
            assert!(Query::default().with_no_cut(&ranges).check().is_err(), "{ranges:?}");
        }
        assert!(Query::default().with_extras(&[extra(4..8), extra(4..8)]).check().is_ok());
    }
}
