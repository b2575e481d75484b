//! What a block's content is called, and how it is found again.
//!
//! Floor 1. The identity of a block is its parent's identity, its tokens, and the extras that overlap it; the parent of
//! a first block is the *scope*. Inside the process a hit is decided by comparing all of these: blocks are found by
//! walking a tree of contents, scopes by a hash and a comparison. Nobody gets somebody else's K and V, even under a hash
//! that always collides. Identities by hash, in [`hash`], are for what leaves the process.

pub(crate) mod change;
pub mod hash;
pub(crate) mod index;
mod scope;
mod wishes;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;

use crate::error::CreateError;
use crate::id::{ix, len32};
use index::SharedExtras;
use wishes::Wishes;

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

/// How a request wants content kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    /// From 0, to be evicted first, to 100. The default is [`Retention::DEFAULT_PRIORITY`].
    pub priority: u8,
    /// For how long, in units of the caller's clock, the priority holds once the block is idle; `None` for ever.
    /// Afterwards the default does.
    pub duration: Option<u64>,
}

impl Retention {
    /// The priority of content for which nothing was said.
    pub const DEFAULT_PRIORITY: u8 = 35;
}

impl Default for Retention {
    fn default() -> Self {
        Self { priority: Self::DEFAULT_PRIORITY, duration: None }
    }
}

/// A [`Retention`] for a range of positions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeRetention {
    /// Positions in the sequence; an end of `u32::MAX` covers what is generated.
    pub range: Range<u32>,
    /// How to keep the blocks that overlap it.
    pub retention: Retention,
}

impl RangeRetention {
    /// Keep these positions so.
    pub const fn new(range: Range<u32>, retention: Retention) -> Self {
        Self { range, retention }
    }
}

/// With as many in one block, of ten words each, the index still counts the bits of its content in a `u32`.
const MOST_EXTRAS: usize = 1 << 22;

/// What a prompt brings beside its tokens. The default brings nothing and shares all it can.
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct Query<'a> {
    /// Extras, in order of position: starts ascend, and ends do. At most 2^22.
    pub extras: &'a [Extra],
    /// The longest hit that is wanted, in tokens; `None` for no limit.
    pub max_hit: Option<u32>,
    /// Ranges that no hit may end inside of (images under bidirectional attention), in order of position.
    pub no_cut: &'a [Range<u32>],
    /// How to keep content, for policies that listen; of several ranges that overlap a block the highest priority
    /// counts, in any order; of equal ones the last.
    pub retention: &'a [RangeRetention],
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

    /// The same, with wishes about what to keep.
    pub const fn with_retention(self, retention: &'a [RangeRetention]) -> Self {
        Self { retention, ..self }
    }

    /// The same, without sharing.
    pub const fn with_private(self, private: bool) -> Self {
        Self { private, ..self }
    }

    /// The ranges ascend and are not empty, so that those that overlap a block are one run.
    pub(crate) fn check(&self) -> Result<(), CreateError> {
        if self.extras.len() > MOST_EXTRAS {
            return Err(CreateError::TooManyExtras { extras: self.extras.len() });
        }
        ascending(self.extras.iter().map(|extra| &extra.range))?;
        ascending(self.no_cut.iter())?;
        match self.retention.iter().find(|kept| kept.range.start >= kept.range.end) {
            Some(kept) => Err(CreateError::BadRange { start: kept.range.start, end: kept.range.end }),
            None => Ok(()),
        }
    }

    /// A copy to keep with the sequence, or `None` where it would say nothing.
    pub(crate) fn to_owned(self) -> Option<Box<OwnedQuery>> {
        let lists = self.extras.len() + self.no_cut.len() + self.retention.len();
        if lists == 0 && self.max_hit.is_none() && !self.private {
            return None;
        }
        Some(Box::new(OwnedQuery {
            extras: self.extras.into(),
            max_hit: self.max_hit,
            no_cut: self.no_cut.into(),
            wishes: Wishes::new(self.retention),
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
        let run = overlapping(self.extras, &range);
        self.extras.get(ix(run.start)..ix(run.end)).unwrap_or(&[])
    }
}

/// Which extras overlap a range of positions.
fn overlapping(extras: &[Extra], range: &Range<u32>) -> Range<u32> {
    let from = extras.partition_point(|extra| extra.range.end <= range.start);
    let to = extras.partition_point(|extra| extra.range.start < range.end);
    len32(from)..len32(to.max(from))
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
    extras: Arc<[Extra]>,
    max_hit: Option<u32>,
    no_cut: Box<[Range<u32>]>,
    wishes: Wishes,
    private: bool,
}

impl OwnedQuery {
    /// The query but for what it says about keeping, which [`retention_of`](Self::retention_of) knows.
    pub(crate) fn as_query(&self) -> Query<'_> {
        let Self { extras, max_hit, no_cut, wishes: _, private } = self;
        Query { extras, max_hit: *max_hit, no_cut, retention: &[], private: *private }
    }

    /// How to keep the block of these positions, if something was said.
    pub(crate) fn retention_of(&self, range: Range<u32>) -> Option<Retention> {
        self.wishes.of(range)
    }

    /// The extras that overlap a range of positions, to be kept with a block: with all others of the query where they are
    /// a quarter of them at least, else by themselves, so that a block that outlives the others does not keep theirs.
    pub(crate) fn shared_extras(&self, range: Range<u32>) -> SharedExtras {
        let run = overlapping(&self.extras, &range);
        match self.extras.get(ix(run.start)..ix(run.end)).unwrap_or(&[]) {
            [] => SharedExtras::default(),
            few if few.len() < self.extras.len() / 4 => {
                SharedExtras { all: Some(few.into()), run: 0..len32(few.len()) }
            }
            _ => SharedExtras { all: Some(Arc::clone(&self.extras)), run },
        }
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
    fn a_block_keeps_all_extras_of_its_prompt_if_a_quarter_of_them_are_its_own() {
        let extras: [_; 8] = core::array::from_fn(|at| extra(len32(at)..len32(at) + 1));
        let query = Query::default().with_extras(&extras).to_owned().unwrap();
        for (range, kept, run) in [(0..2, 8, 0..2), (5..8, 8, 5..8), (3..4, 1, 0..1), (7..9, 1, 0..1)] {
            let shared = query.shared_extras(range.clone());
            assert_eq!((shared.all.as_ref().unwrap().len(), &shared.run), (kept, &run), "{range:?}");
            assert_eq!(shared.as_slice(), query.as_query().overlapping(range));
        }
        assert!(query.shared_extras(8..12).all.is_none(), "a block without extras keeps none");
    }

    #[test]
    fn a_hit_ends_at_the_border_of_an_uncuttable_range_but_not_inside() {
        let no_cut = [4..8, 8..12];
        let query = Query::default().with_no_cut(&no_cut).with_max_hit(12);
        let ends: alloc::vec::Vec<u32> = (0..16).filter(|&end| query.may_end(end)).collect();
        assert_eq!(ends, [0, 1, 2, 3, 4, 8, 12]);
    }

    #[test]
    fn more_extras_than_the_index_can_tell_apart_are_refused() {
        let mut extras = alloc::vec![extra(0..1); MOST_EXTRAS];
        assert!(Query::default().with_extras(&extras).check().is_ok());
        extras.push(extra(0..1));
        let refused = Err(CreateError::TooManyExtras { extras: MOST_EXTRAS + 1 });
        assert_eq!(Query::default().with_extras(&extras).check(), refused);
    }

    #[test]
    fn ranges_that_are_empty_or_out_of_order_are_refused() {
        for ranges in [[4..4, 5..6], [4..8, 2..9], [4..8, 5..7]] {
            assert!(Query::default().with_no_cut(&ranges).check().is_err(), "{ranges:?}");
        }
        assert!(Query::default().with_extras(&[extra(4..8), extra(4..8)]).check().is_ok());
    }
}
