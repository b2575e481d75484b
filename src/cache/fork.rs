//! Sequences that branch, shrink and end: fork, select, truncate, free.

use crate::evict::Evict;
use alloc::vec::Vec;

use super::KvCache;
use super::commit::shrink;
use crate::block::BlockAllocator;
use crate::error::{SelectError, SequenceError};
use crate::id::{SeqId, ix};
use crate::sequence::Sequence;

/// What becomes of the content of blocks that nobody holds any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Release {
    /// It stays in the cache until its blocks are needed: a prompt may come again.
    #[default]
    Cache,
    /// What the sequence computed is given up at once, so that the leavings of lost beams do not push out prefixes; but
    /// not a block on which others build, nor what the sequence found.
    Discard,
}

impl<E: Evict> KvCache<E> {
    /// A second sequence with the same committed tokens. It shares all their blocks, the partly filled last one
    /// included; whoever appends to that first, while another holds it, gets a copy. Tokens of open steps,
    /// lookahead and claims are not forked.
    ///
    /// # Errors
    /// [`SequenceError::Unknown`], [`SequenceError::TooManySequences`]; then nothing changed.
    ///
    /// # Complexity
    /// O(blocks).
    ///
    /// # Source
    /// Kwon et al., SOSP 2023, section 4.4.
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, SequenceError> {
        let mut child = [seq];
        self.fork_into(seq, &mut child)?;
        Ok(child[0])
    }

    /// [`fork`](Self::fork) as often as `children` has room, all or nothing.
    ///
    /// # Errors
    /// As [`fork`](Self::fork); then nothing changed, `children` included.
    pub fn fork_into(&mut self, seq: SeqId, children: &mut [SeqId]) -> Result<(), SequenceError> {
        if self.seqs.get(seq).is_none() {
            return Err(SequenceError::Unknown { seq });
        }
        if !self.seqs.has_room(children.len()) {
            return Err(SequenceError::TooManySequences);
        }
        for child in children {
            if let Some(sequence) = self.forked(seq) {
                *child = self.seqs.insert(sequence);
            }
        }
        Ok(())
    }

    fn forked(&mut self, seq: SeqId) -> Option<Sequence> {
        let Self { blocks, seqs, config, .. } = self;
        let block_size = config.block_size;
        // From now on it shares its tail, and is ready for plain appends no more.
        let parent = seqs.get_mut(seq)?;
        let (scope, query) = (parent.scope, parent.query.clone());
        let mut child = seqs.fresh(scope, query);
        let parent = seqs.get(seq)?;
        let committed = parent.committed;
        blocks.index.scopes.share(scope);
        for index in 0..committed.div_ceil(block_size) {
            // An open copy-on-write has put a copy into the table whose content is not committed.
            let displaced = parent.displaced.as_ref().filter(|displaced| displaced.0 == index);
            let Some(block) = displaced.map(|displaced| &displaced.1).or(parent.table.get(index)) else { break };
            child.table.push(blocks.pool.share(block));
        }
        child.tail.extend(parent.tail.iter().take(ix(committed % block_size)));
        (child.committed, child.planned) = (committed, committed);
        child.found = parent.found.min(child.table.len());
        if parent.anonymous_from < committed {
            child.anonymous_from = parent.anonymous_from;
        }
        Some(child)
    }

    /// One step of a beam search, all or nothing: afterwards `beams[i]` continues what was `beams[parents[i]]`. A
    /// parent that is chosen once keeps its handle, one that is chosen more often is forked, and the losers are freed
    /// with [`Release::Discard`]. There may be more or fewer beams than before.
    ///
    /// # Errors
    /// [`SelectError`]; then nothing changed, `beams` included. No beam may have an open step.
    ///
    /// # Complexity
    /// O(blocks of the forked and freed beams).
    ///
    /// # Example
    /// ```
    /// use paged_kv::{CacheConfig, KvCache, Query, Scope, Step, cache::Row};
    ///
    /// let mut cache = KvCache::new(CacheConfig::new(64, 16))?;
    /// let (mut step, scope) = (Step::new(), Scope::default());
    /// let root = cache.create(&scope, &[1, 2, 3], Query::default())?.seq;
    /// let id = cache.plan(&[Row::ids(root, &[1, 2, 3])], &mut step)?;
    /// cache.commit_all(id)?;
    ///
    /// let mut beams = vec![root];
    /// cache.select(&mut beams, &[0, 0, 0])?; // three beams from one
    /// assert_eq!(beams[0], root);
    /// let old = beams.clone();
    /// cache.select(&mut beams, &[2, 2, 0])?; // beam 2 twice, beam 1 lost
    /// assert_eq!((beams[0], beams[2]), (old[2], old[0]));
    /// assert!(cache.sequence(old[1]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn select(&mut self, beams: &mut Vec<SeqId>, parents: &[usize]) -> Result<(), SelectError> {
        self.plans += 1;
        let mark = self.plans;
        for &seq in beams.iter() {
            let sequence = self.seqs.get_mut(seq).ok_or(SelectError::Unknown { seq })?;
            if sequence.open_rows > 0 {
                return Err(SelectError::Busy { seq });
            }
            if sequence.mark == mark {
                return Err(SelectError::RepeatedBeam { seq });
            }
            sequence.mark = mark;
        }
        if let Some(&parent) = parents.iter().find(|&&parent| parent >= beams.len()) {
            return Err(SelectError::NoSuchParent { parent, beams: beams.len() });
        }
        if !self.seqs.has_room(parents.len()) {
            return Err(SelectError::TooManySequences);
        }
        let mut chosen = alloc::vec![false; beams.len()];
        let mut next = Vec::with_capacity(parents.len());
        for &parent in parents {
            let seq = beams[parent];
            if core::mem::replace(&mut chosen[parent], true) {
                if let Some(sequence) = self.forked(seq) {
                    next.push(self.seqs.insert(sequence));
                }
            } else {
                next.push(seq);
            }
        }
        for (&seq, _) in beams.iter().zip(&chosen).filter(|(_, chosen)| !**chosen) {
            self.remove(seq, Release::Discard);
        }
        *beams = next;
        self.deliver();
        Ok(())
    }

    /// Cuts a sequence to its first `len` tokens. Lookahead blocks go too.
    ///
    /// # Errors
    /// [`SequenceError`], and nothing changed: a stale handle, an open step of this sequence, a length beyond its end.
    ///
    /// # Complexity
    /// O(blocks given back + block size).
    pub fn truncate(&mut self, seq: SeqId, len: u32) -> Result<(), SequenceError> {
        let Self { blocks, seqs, config, reserved, .. } = self;
        let block_size = config.block_size;
        let sequence = seqs.get_mut(seq).ok_or(SequenceError::Unknown { seq })?;
        if sequence.open_rows > 0 {
            return Err(SequenceError::Busy { seq });
        }
        if len > sequence.committed {
            return Err(SequenceError::BeyondEnd { len, committed: sequence.committed });
        }
        if len < sequence.tail_start(blocks.size) {
            // The tail moves into a sealed block: its tokens are those of the block's node, where it has one.
            sequence.tail.clear();
            let cut = (!len.is_multiple_of(block_size)).then(|| sequence.table.get(len / block_size)).flatten();
            if let Some(block) = cut {
                let node = blocks.node_of(block.id());
                match node.map(|node| blocks.index.tokens(node)) {
                    Some(tokens) => {
                        sequence.tail.extend(tokens.iter().take(ix(len % block_size)));
                        if blocks.pool.is_spendable(block.id()) {
                            // It becomes a tail again, to be written in place.
                            blocks.unpublish(block.id());
                        }
                    }
                    None => {
                        sequence.tail.resize(ix(len % block_size), 0);
                        sequence.anonymous_from = sequence.anonymous_from.min(len - len % block_size);
                    }
                }
            }
        } else {
            sequence.tail.truncate(ix(len - sequence.tail_start(blocks.size)));
        }
        (sequence.committed, sequence.planned, sequence.lookahead) = (len, len, 0);
        sequence.regain_names();
        let fence = sequence.fence;
        sequence.found = sequence.found.min(len / block_size);
        let freed = shrink(blocks, sequence, len.div_ceil(block_size), fence);
        sequence.regain_claim(freed, reserved);
        self.deliver();
        Ok(())
    }

    /// Ends a sequence, also while steps of it are open: its handle is stale at once, and those steps skip its rows
    /// when they commit.
    ///
    /// # Errors
    /// [`SequenceError::Unknown`] for a stale handle: freeing twice is an error and nothing else.
    ///
    /// # Complexity
    /// O(blocks).
    pub fn free(&mut self, seq: SeqId, release: Release) -> Result<(), SequenceError> {
        if !self.remove(seq, release) {
            return Err(SequenceError::Unknown { seq });
        }
        self.deliver();
        Ok(())
    }

    fn remove(&mut self, seq: SeqId, release: Release) -> bool {
        let Some(mut sequence) = self.seqs.remove(seq) else { return false };
        let fence = sequence.fence;
        self.reserved -= sequence.claim.blocks;
        if let Some((_, block)) = sequence.displaced.take() {
            self.blocks.pool.end_displaced(block.id());
            self.blocks.release(block, fence);
        }
        match release {
            Release::Cache => {
                shrink(&mut self.blocks, &mut sequence, 0, fence);
            }
            Release::Discard => {
                let tail = sequence.committed % self.config.block_size != 0;
                let tail = tail.then(|| sequence.committed / self.config.block_size);
                while let Some(block) = sequence.table.pop() {
                    // What others computed is not the sequence's to give up: the blocks it found, and a tail with a name,
                    // which is one that it found in part.
                    let index = sequence.table.len();
                    if index < sequence.found || tail == Some(index) {
                        self.blocks.release(block, fence);
                    } else {
                        self.blocks.discard(block, fence);
                    }
                }
            }
        }
        self.blocks.index.scopes.release(sequence.scope);
        self.seqs.recycle(sequence);
        true
    }

    /// References to the blocks of a sequence's table, first block first: what sharing looks like. Planned blocks and
    /// lookahead are included.
    ///
    /// # Errors
    /// [`SequenceError::Unknown`] for a stale handle.
    pub fn shares(&self, seq: SeqId) -> Result<impl Iterator<Item = u32> + '_, SequenceError> {
        let sequence = self.sequence(seq)?;
        Ok(sequence.table.ids().map(|block| self.blocks.pool.refs(block)))
    }
}
