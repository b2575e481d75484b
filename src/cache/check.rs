//! Whether the cache contradicts itself.

use crate::evict::Evict;
use alloc::vec::Vec;
use core::fmt;

use super::{KvCache, plain};
use crate::block::BlockAllocator;
use crate::id::{BlockId, ix};

/// A contradiction that [`KvCache::check_integrity`] found: a bug of this crate, or a corrupted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntegrityError {
    what: &'static str,
}

impl fmt::Display for IntegrityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl core::error::Error for IntegrityError {}

impl From<&'static str> for IntegrityError {
    fn from(what: &'static str) -> Self {
        Self { what }
    }
}

impl<E: Evict> KvCache<E> {
    /// Recomputes every count and link from the sequences and compares: references, lists, names, claims, lengths.
    /// For tests and for engines in doubt.
    ///
    /// # Errors
    /// The first contradiction.
    ///
    /// # Complexity
    /// O(pool + nodes + sequences × their blocks + n log n of the n open rows); allocates.
    pub fn check_integrity(&self) -> Result<(), IntegrityError> {
        let mut expected = alloc::vec![(0_u32, 0_u32); ix(self.config.num_blocks)];
        let mut scopes = alloc::vec![0_u32; self.blocks.index.scopes.len()];
        let (mut reserved, mut sequences) = (0_u64, 0_u32);
        let mut rows: Vec<_> = self.open.iter().flat_map(|open| &open.rows).collect();
        // Stable: the rows of a sequence stay in the order of their steps.
        rows.sort_by_key(|row| row.seq);
        for (_, pin) in self.pins.iter() {
            scopes[ix(pin.scope)] += 1;
            pin.table.ids().for_each(|block| expected[block.index()].0 += 1);
        }
        for (id, seq) in self.seqs.iter() {
            sequences += 1;
            scopes[ix(seq.scope)] += 1;
            reserved += u64::from(seq.claim.blocks);
            for block in seq.table.ids() {
                expected[block.index()].0 += 1;
            }
            if let Some((index, block)) = &seq.displaced {
                let count = &mut expected[block.id().index()];
                *count = (count.0 + 1, count.1 + 1);
                if *index < seq.committed / self.config.block_size {
                    return Err("a displaced block lies before the committed tail".into());
                }
            }
            let rows = &rows[rows.partition_point(|row| row.seq < id)..];
            let (mut open_rows, mut unknown, mut cows, mut planned) = (0, 0, 0, seq.committed);
            for row in rows.iter().take_while(|row| row.seq == id) {
                open_rows += 1;
                unknown += u32::from(row.by_count);
                cows += u32::from(row.cow);
                if row.start != planned {
                    return Err("open rows do not follow each other".into());
                }
                planned += row.count;
            }
            if (open_rows, unknown, planned) != (seq.open_rows, seq.unknown_rows, seq.planned) {
                return Err("a sequence miscounts its open rows".into());
            }
            if cows != u32::from(seq.displaced.is_some()) {
                return Err("a displaced block without a copy-on-write, or the other way round".into());
            }
            if seq.claim.blocks > seq.claim.target.saturating_sub(seq.table.len()) {
                return Err("a claim is larger than what is lacking".into());
            }
            let tail = u64::from(seq.planned) - u64::from(seq.tail_start(self.blocks.size));
            if seq.tail.len() as u64 != tail {
                return Err("the tail does not hold the tokens behind the sealed blocks".into());
            }
            if seq.plain.rows > 0 && seq.plain != plain::ready(&self.blocks, seq) {
                return Err("a sequence is ready for plain appends that are none".into());
            }
            let wanted = (u64::from(seq.planned) + u64::from(seq.lookahead)).div_ceil(self.config.block_size.into());
            let len = u64::from(seq.table.len());
            if len < wanted || (open_rows == 0 && len > wanted) {
                return Err("a table is not as long as its sequence".into());
            }
        }
        if sequences != self.seqs.len() {
            return Err("the number of sequences is wrong".into());
        }
        if reserved != u64::from(self.reserved) || self.reserved > self.blocks.pool.available() {
            return Err("claims do not add up, or are not covered".into());
        }
        self.blocks.pool.check(|block| expected[block.index()])?;
        let links = &self.blocks.pool.links;
        let nodes = self.blocks.index.check(self.config.num_blocks, links, |block| self.blocks.node_of(block))?;
        for ((in_nodes, in_seqs), scope) in nodes.into_iter().zip(scopes).zip(0_u32..) {
            if in_nodes + in_seqs != self.blocks.index.scopes.uses(scope) {
                return Err("a scope miscounts its users".into());
            }
        }
        for block in (0..self.config.num_blocks).map(BlockId::new) {
            let index = &self.blocks.index;
            let by_open_step = || self.open.iter().any(|open| index.is_computed_by(block, open.id().get()));
            if !index.is_computed(block) && (self.blocks.pool.refs(block) == 0 || !by_open_step()) {
                return Err("a block is being computed by no open step, or for nobody".into());
            }
        }
        Ok(())
    }

    /// Everything that a caller could tell apart, as numbers.
    #[cfg(test)]
    pub(super) fn snapshot(&self) -> Vec<u64>
    where
        E: Clone,
    {
        let mut out = alloc::vec![self.next_step, u64::from(self.reserved)];
        self.blocks.pool.snapshot(&mut out);
        out.extend(self.blocks.pool.order());
        self.blocks.index.snapshot(&self.blocks.pool.links, &mut out);
        self.seqs.snapshot(&mut out);
        self.pins.snapshot(&mut out);
        self.snapshot_open(&mut out);
        for (id, seq) in self.seqs.iter() {
            out.push(id.to_u64());
            out.extend([seq.committed, seq.planned, seq.lookahead, seq.anonymous_from].map(u64::from));
            out.extend([seq.open_rows, seq.unknown_rows, seq.claim.target, seq.claim.blocks].map(u64::from));
            out.extend([seq.fence, u64::from(seq.table.unchanged())]);
            out.extend(seq.table.ids().map(|block| u64::from(block.get())));
            out.extend(seq.tail.iter().map(|&token| u64::from(token)));
            out.extend(
                seq.displaced.iter().map(|(index, block)| u64::from(*index) << 32 | u64::from(block.id().get())),
            );
        }
        let counters = self.counters;
        out.extend([counters.prompt_tokens, counters.found_tokens, counters.part_tokens, counters.skipped_tokens]);
        out.extend([counters.copies, self.blocks.evictions]);
        out
    }
}
