//! The step that a storage was prepared for: checked once, kept in buffers that are used again.

use alloc::vec::Vec;

use super::cascade::{Cascade, Role};
use super::kernel::Query;
use crate::id::{BlockId, GroupId, Slot, ix};
use crate::layout::KvLayout;
use crate::step::{BlockCopy, Step};
use crate::storage::StorageError;
use crate::storage::check::Check;

/// Query tokens of a tile, at most: enough that a long prompt splits into work for every thread, and that a tile reads
/// its context once for all of them.
const TILE_TOKENS: u32 = 32;

/// Tokens below which K and V are written one by one, whatever is known about their slots.
const SOME_TOKENS: usize = 32;

/// Some query tokens of one row: the unit of work of attention, together with some KV heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryTile {
    /// Position in the sequence of the row's first query token.
    pub(super) row_start: u32,
    /// Query tokens of the row.
    pub(super) row_tokens: u32,
    /// The first query token of the tile, among those of the row.
    pub(super) skipped: u32,
    /// The same among the query tokens of the step.
    pub(super) first_token: u32,
    /// Query tokens of the tile.
    pub(super) len: u32,
    /// Where the row's blocks begin, in the blocks of all rows.
    pub(super) table: usize,
    /// Blocks up to the row's last query.
    pub(super) blocks: usize,
    /// What of its row is walked together with other rows.
    pub(super) role: Role,
}

impl QueryTile {
    /// The query tokens of the tile.
    pub(super) fn queries(&self) -> impl Iterator<Item = Query> + use<> {
        let (first_token, first) = (self.first_token, self.row_start + self.skipped);
        (0..self.len).map(move |at| Query { token: first_token + at, position: first + at })
    }
}

/// Query tokens whose slots follow each other in one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRun {
    /// The first of them among the query tokens of the step.
    pub(super) first_token: usize,
    pub(super) tokens: usize,
    pub(super) block: usize,
    /// The first one's place in the block.
    pub(super) offset: usize,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Prepared {
    ready: bool,
    copies_pending: bool,
    copies: Vec<BlockCopy>,
    slots: Vec<Slot>,
    slot_runs: Vec<SlotRun>,
    /// Whether all slots are known to differ. Tables of the caller's may overlap.
    slots_differ: bool,
    blocks: Vec<BlockId>,
    tiles: Vec<QueryTile>,
    queries: Vec<Query>,
    cascade: Cascade,
    /// Pairs of a query and a key that it sees: what attention costs, per query head and element.
    pairs: u64,
    check: Check,
    /// Memory for a check: block, offset and length of runs of slots.
    places: Vec<(usize, usize, usize)>,
}

impl Prepared {
    /// Takes over a step; where it is refused, nothing changes.
    pub(super) fn set(
        &mut self,
        layout: &KvLayout,
        group: GroupId,
        step: &Step,
        padded_rows: u32,
    ) -> Result<(), StorageError> {
        let tables = self.check.step(layout, group, step, padded_rows, false)?;
        self.copies.clear();
        self.copies.extend_from_slice(tables.copies());
        self.slots.clear();
        self.slots.extend_from_slice(tables.slots());
        self.find_runs(layout.block_size());
        self.blocks.clear();
        self.tiles.clear();
        self.queries.clear();
        self.pairs = 0;
        for (row, index) in step.rows().iter().zip(0..) {
            let table = self.blocks.len();
            // Blocks for tokens to come are left out: nothing here may look at them.
            let blocks = ix(row.seq_len().div_ceil(layout.block_size()));
            self.blocks.extend_from_slice(&tables.table(index)[..blocks]);
            for from in (0..row.len).step_by(ix(TILE_TOKENS)) {
                let len = TILE_TOKENS.min(row.len - from);
                let (first_token, skipped) = (row.first_token + from, from);
                let (row_start, row_tokens) = (row.start, row.len);
                let role = Role::default();
                let tile = QueryTile { row_start, row_tokens, skipped, first_token, len, table, blocks, role };
                self.tiles.push(tile);
                self.queries.extend(tile.queries());
                // The first query of the tile sees start + 1 keys, each further one more.
                let [start, len] = [row.start + from, len].map(u64::from);
                self.pairs = self.pairs.saturating_add(len * (start + 1) + len * (len - 1) / 2);
            }
        }
        self.cascade.find(&mut self.tiles, &self.blocks, ix(layout.block_size()));
        self.copies_pending = !self.copies.is_empty();
        self.ready = true;
        Ok(())
    }

    /// Finds the runs of slots and, for steps of some size, whether slots repeat.
    fn find_runs(&mut self, block_size: u32) {
        self.slot_runs.clear();
        for (slot, token) in self.slots.iter().zip(0..) {
            let (block, offset) = (slot.block(block_size).index(), ix(slot.offset(block_size)));
            match self.slot_runs.last_mut() {
                Some(run) if run.block == block && run.offset + run.tokens == offset => run.tokens += 1,
                _ => self.slot_runs.push(SlotRun { first_token: token, tokens: 1, block, offset }),
            }
        }
        // For a few tokens nobody asks.
        self.slots_differ = self.slots.len() >= SOME_TOKENS && {
            self.places.clear();
            self.places.extend(self.slot_runs.iter().map(|run| (run.block, run.offset, run.tokens)));
            self.places.sort_unstable();
            self.places.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1)
        };
    }

    /// The copies that still have to run: once.
    pub(super) fn take_copies(&mut self) -> Result<&[BlockCopy], StorageError> {
        if !self.ready {
            return Err(StorageError::NotPrepared);
        }
        let pending = core::mem::take(&mut self.copies_pending);
        Ok(if pending { &self.copies } else { &[] })
    }

    /// That a step is there and its copies have run.
    pub(super) fn check_ready(&self) -> Result<(), StorageError> {
        match (self.ready, self.copies_pending) {
            (false, _) => Err(StorageError::NotPrepared),
            (true, true) => Err(StorageError::CopiesPending { copies: self.copies.len() }),
            (true, false) => Ok(()),
        }
    }

    /// Where K and V of the query tokens go.
    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The same, as runs within blocks.
    pub(super) fn slot_runs(&self) -> &[SlotRun] {
        &self.slot_runs
    }

    /// Whether the slots are known to differ.
    pub(super) const fn slots_differ(&self) -> bool {
        self.slots_differ
    }

    pub(super) fn tiles(&self) -> &[QueryTile] {
        &self.tiles
    }

    /// The query tokens of the step.
    pub(super) fn queries(&self) -> &[Query] {
        &self.queries
    }

    /// What rows share.
    pub(super) fn cascade(&self) -> &Cascade {
        &self.cascade
    }

    /// The blocks of all rows, each up to its last query's.
    pub(super) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Query tokens of the longest row.
    pub(super) fn row_tokens(&self) -> usize {
        self.tiles.iter().map(|tile| ix(tile.row_tokens)).max().unwrap_or(0)
    }

    pub(super) fn pairs(&self) -> u64 {
        self.pairs
    }
}
