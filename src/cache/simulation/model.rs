//! What the cache should be: one plain vector per sequence, and slots that are stamped when they are written.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;

use super::rng::mix;
use crate::id::{BlockId, SeqId, Slot, StepId, TokenId, ix};
use crate::prefix::{Extra, Query, RangeRetention, Scope};
use crate::step::{BlockCopy, Step};

/// What a slot holds: the scope, and all tokens and extras up to and including its own, as one number. Two positions
/// have the same stamp exactly if their K and V are the same, so that `t` behind `x` never passes for `t` behind `y`.
pub(crate) type Stamp = u64;

/// What no position ever holds.
pub(crate) const POISON: Stamp = 0;

/// Stands before an extra: no token is as large.
const EXTRA: u64 = 1 << 63;

/// What tells the content of a scope from that of another.
pub(crate) fn root(scope: &Scope) -> Stamp {
    [&scope.model, &scope.adapter, &scope.salt].iter().fold(scope.adapter_version, |stamp, bytes| {
        bytes.iter().fold(mix(stamp, bytes.len() as u64), |stamp, &byte| mix(stamp, u64::from(byte)))
    })
}

/// The stamp of a token, from that of the token before.
pub(crate) fn extend(before: Stamp, position: u32, token: TokenId, extras: &[Extra]) -> Stamp {
    let covering = extras.iter().filter(|extra| extra.range.contains(&position));
    let before = covering.fold(before, |stamp, extra| {
        let range = u64::from(extra.range.start) << 32 | u64::from(extra.range.end);
        extra.digest.iter().step_by(31).fold(mix(mix(stamp, EXTRA), range), |stamp, &byte| mix(stamp, u64::from(byte)))
    });
    mix(before, u64::from(token))
}

/// The memory of one layer.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    slots: Vec<Stamp>,
    block_size: u32,
}

impl Memory {
    pub(crate) fn new(num_blocks: u32, block_size: u32) -> Self {
        Self { slots: alloc::vec![POISON; ix(num_blocks * block_size)], block_size }
    }

    pub(crate) fn read(&self, block: BlockId, offset: u32) -> Stamp {
        self.slots[block.slot(offset, self.block_size).index()]
    }

    pub(crate) fn write(&mut self, slot: Slot, stamp: Stamp) {
        self.slots[slot.index()] = stamp;
    }

    pub(crate) fn poison(&mut self, block: BlockId) {
        (0..self.block_size).for_each(|offset| self.write(block.slot(offset, self.block_size), POISON));
    }

    pub(crate) fn copy(&mut self, copy: BlockCopy) {
        for offset in 0..self.block_size {
            let stamp = self.read(copy.src, offset);
            self.write(copy.dst.slot(offset, self.block_size), stamp);
        }
    }
}

/// A [`Query`] as data.
#[derive(Clone, Default, Debug)]
pub(crate) struct QuerySpec {
    pub(crate) extras: Vec<Extra>,
    pub(crate) max_hit: Option<u32>,
    pub(crate) no_cut: Vec<Range<u32>>,
    pub(crate) retention: Vec<RangeRetention>,
    pub(crate) private: bool,
}

impl QuerySpec {
    pub(crate) fn query(&self) -> Query<'_> {
        Query {
            extras: &self.extras,
            max_hit: self.max_hit,
            no_cut: &self.no_cut,
            retention: &self.retention,
            private: self.private,
        }
    }

    /// Whether a hit may end here, from the words of the law: never inside an uncuttable range, never too long.
    pub(crate) fn may_end(&self, position: u32) -> bool {
        let inside = |range: &Range<u32>| range.start < position && position < range.end;
        !self.no_cut.iter().any(inside) && self.max_hit.is_none_or(|most| position <= most)
    }

    pub(crate) fn is_valid(&self) -> bool {
        let ascending = |ranges: Vec<Range<u32>>| {
            ranges.iter().all(|range| range.start < range.end)
                && ranges.windows(2).all(|pair| pair[0].start <= pair[1].start && pair[0].end <= pair[1].end)
        };
        ascending(self.extras.iter().map(|extra| extra.range.clone()).collect())
            && ascending(self.no_cut.clone())
            && self.retention.iter().all(|kept| kept.range.start < kept.range.end)
    }
}

/// One sequence.
#[derive(Clone, Debug)]
pub(crate) struct ModelSeq {
    pub(crate) id: SeqId,
    pub(crate) scope: Rc<Scope>,
    pub(crate) query: Rc<QuerySpec>,
    /// What its caller means to plan; for the choice of operations only.
    pub(crate) prompt: Rc<[TokenId]>,
    /// Of every planned position.
    pub(crate) stamps: Vec<Stamp>,
    pub(crate) committed: u32,
    pub(crate) lookahead: u32,
    pub(crate) open_rows: u32,
    /// Blocks from this position on have no names: their tokens were never told, or they build on invalid content.
    pub(crate) nameless_from: u32,
    /// The longest table, in blocks, that any state since the oldest open row asked for.
    pub(crate) most_blocks: u32,
}

impl ModelSeq {
    pub(crate) fn new(id: SeqId, scope: Rc<Scope>, query: Rc<QuerySpec>, prompt: Rc<[TokenId]>) -> Self {
        Self {
            id,
            scope,
            query,
            prompt,
            stamps: Vec::new(),
            committed: 0,
            lookahead: 0,
            open_rows: 0,
            nameless_from: u32::MAX,
            most_blocks: 0,
        }
    }

    /// Forgets what was planned from this position on.
    pub(crate) fn truncate(&mut self, len: u32) {
        self.stamps.truncate(ix(len));
        if self.nameless_from >= len {
            self.nameless_from = u32::MAX;
        }
    }

    pub(crate) fn planned(&self) -> u32 {
        u32::try_from(self.stamps.len()).unwrap()
    }

    /// Plans a token; `root` stands before the first.
    pub(crate) fn push(&mut self, token: TokenId, root: Stamp) {
        let before = self.stamps.last().copied().unwrap_or(root);
        self.stamps.push(extend(before, self.planned(), token, &self.query.extras));
    }
}

/// How the cache is told the tokens of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Ids,
    /// By count; the ids are given at commit, or not.
    Later,
    /// By count, and there are no ids.
    Embeddings,
}

/// A row to be planned. `tokens` are what it holds, whether the cache is told or not.
#[derive(Clone, Debug)]
pub(crate) struct RowSpec {
    pub(crate) seq: SeqId,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) kind: Kind,
    pub(crate) drafts: u32,
    pub(crate) lookahead: u32,
}

/// A row of an open step.
#[derive(Clone, Debug)]
pub(crate) struct ModelRow {
    pub(crate) spec: RowSpec,
    pub(crate) start: u32,
    /// Of all positions up to the end of the row, as planned.
    pub(crate) stamps: Rc<[Stamp]>,
    /// How the sequence was before.
    pub(crate) table_before: Rc<[BlockId]>,
    pub(crate) lookahead_before: u32,
    /// Blocks from this position on have no names by the plan: their sequence has none, or they were invalidated since.
    pub(crate) nameless_from: u32,
    /// The tail that a copy has replaced, and its index.
    pub(crate) displaced: Option<(u32, BlockId)>,
}

impl ModelRow {
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.spec.tokens.len()).unwrap()
    }

    pub(crate) fn end(&self) -> u32 {
        self.start + self.count()
    }

    /// Where what it computes for certain ends, and has names before it is committed.
    pub(crate) fn named(&self) -> u32 {
        let certain = if self.spec.kind == Kind::Ids { self.end() - self.spec.drafts } else { 0 };
        certain.min(self.nameless_from)
    }

    /// Whether it computes for certain what has this stamp at this position, and others are told.
    pub(crate) fn computes(&self, position: usize, stamp: Stamp) -> bool {
        (ix(self.start)..ix(self.named())).contains(&position) && self.stamps[position] == stamp
    }
}

/// An open step.
#[derive(Clone, Debug)]
pub(crate) struct ModelStep {
    pub(crate) id: StepId,
    pub(crate) rows: Vec<ModelRow>,
    pub(crate) step: Rc<Step>,
    /// Blocks that it took from the pool; what they held before is gone.
    pub(crate) fresh: Rc<[BlockId]>,
    pub(crate) ran: bool,
}

impl ModelStep {
    /// Every block that it names.
    pub(crate) fn named(&self) -> Vec<BlockId> {
        let tables = self.step.tables();
        let copies = tables.copies().iter().flat_map(|copy| [copy.src, copy.dst]);
        (0..self.rows.len()).flat_map(|row| tables.table(row)).copied().chain(copies).collect()
    }
}
