//! Content that must not be found any more: by block, by identity, by scope, or all of it.

use alloc::vec::Vec;

use super::KvCache;
use super::blocks::Blocks;
use crate::block::BlockRef;
use crate::evict::Evict;
use crate::id::BlockId;
use crate::prefix::Scope;
use crate::prefix::change::Event;
use crate::prefix::hash::Digest;
use crate::prefix::index::Parent;
use crate::table::BlockTable;

/// What to invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidate<'a> {
    /// Everything: other weights were loaded, say.
    All,
    /// All that was computed under this scope.
    Scope(&'a Scope),
    /// The content of this identity, and all that builds on it. Known only where a hasher was set.
    Identity(&'a Digest),
    /// The content of this block, and all that builds on it: it was damaged, say. What others copied of it before is in
    /// blocks of their own.
    Block(BlockId),
}

impl<E: Evict> KvCache<E> {
    /// Makes content unfindable at once. Sequences and pins keep what they hold and go on as before; but what they
    /// compute from now on is not published, as far as it builds on what was invalidated. Returns how many blocks lost
    /// their content's name.
    ///
    /// # Complexity
    /// O(blocks that lose their name + sequences), for a block without a name times their blocks, and the sequences once
    /// more for each copy that an open step computes; by identity also O(content of the cache), with one call of the
    /// hasher for each block whose identity was not asked for before.
    pub fn invalidate(&mut self, what: Invalidate<'_>) -> u32 {
        let count = match what {
            Invalidate::All => self.invalidate_all(),
            Invalidate::Scope(scope) => self.invalidate_scope(scope),
            Invalidate::Identity(identity) => {
                // A hasher may give two contents one identity: `Sha256Cbor` leaves out where extras end.
                let mut count = 0;
                while let Some(node) = self.node_of_identity(identity) {
                    count += self.invalidate_node(node);
                }
                count
            }
            Invalidate::Block(block) => match self.blocks.node_of(block) {
                Some(node) => self.invalidate_node(node),
                None => self.invalidate_nameless(block),
            },
        };
        self.deliver();
        count
    }

    fn invalidate_all(&mut self) -> u32 {
        // One event says it all.
        let identities = self.blocks.index.identities.as_mut();
        let events = identities.and_then(|identities| identities.events.take());
        let mut count = 0;
        for scope in 0..crate::id::len32(self.blocks.index.scopes.len()) {
            count += self.blocks.clear_below(Parent::Scope(scope));
        }
        for (_, sequence) in self.seqs.iter_mut() {
            #[cfg(test)]
            if crate::planted::is(crate::planted::Bug::InvalidationForgetsTails) {
                break;
            }
            sequence.lose_names_from(0);
        }
        if let Some((identities, events)) = self.blocks.index.identities.as_mut().zip(events) {
            identities.events = Some(events);
            self.blocks.index.queue(Event::Cleared);
        }
        count
    }

    fn invalidate_scope(&mut self, scope: &Scope) -> u32 {
        let Some(scope) = self.blocks.index.scopes.find(scope) else { return 0 };
        for (_, sequence) in self.seqs.iter_mut().filter(|(_, sequence)| sequence.scope == scope) {
            // Their open tails hold tokens that were computed before.
            sequence.lose_names_from(0);
        }
        self.blocks.clear_below(Parent::Scope(scope))
    }

    fn invalidate_node(&mut self, node: u32) -> u32 {
        let mut copies = Vec::new();
        self.clear_node(node, &mut copies) + self.invalidate_copies(copies)
    }

    /// Takes the names off what builds on a node, and adds the copies of it that open steps are computing.
    fn clear_node(&mut self, node: u32, copies: &mut Vec<BlockId>) -> u32 {
        // Who holds a block of this node has its content, whole or in part, in front of all that it computes. Blocks
        // further down are held only together with it.
        let index = self.depth(node);
        let is_bad = |blocks: &Blocks<E>, block| blocks.node_of(block) == Some(node);
        self.keep_nameless(
            |blocks, table| table.get(index).is_some_and(|block| is_bad(blocks, block.id())).then_some(index),
            is_bad,
            copies,
        );
        self.blocks.clear(node)
    }

    /// An open tail, or what is anonymous anyway.
    fn invalidate_nameless(&mut self, bad: BlockId) -> u32 {
        let at =
            |_: &Blocks<E>, table: &BlockTable| table.ids().zip(0..).find(|&(block, _)| block == bad).map(|at| at.1);
        let mut copies = Vec::new();
        self.keep_nameless(at, |_, block| block == bad, &mut copies);
        self.invalidate_copies(copies)
    }

    /// Sees to it that no sequence names what it computes behind bad content: `at` says where it stands in a table, and
    /// `is_bad` whether it is in a block. Adds the copies of it that open steps are computing.
    fn keep_nameless(
        &mut self,
        at: impl Fn(&Blocks<E>, &BlockTable) -> Option<u32>,
        is_bad: impl Fn(&Blocks<E>, BlockId) -> bool,
        copies: &mut Vec<BlockId>,
    ) {
        let block_size = self.config.block_size;
        let Self { seqs, blocks, .. } = self;
        for (_, sequence) in seqs.iter_mut() {
            let displaced = sequence.displaced.as_ref().filter(|displaced| is_bad(blocks, displaced.1.id()));
            let displaced = displaced.map(|displaced| displaced.0);
            let Some(index) = displaced.or_else(|| at(blocks, &sequence.table)) else { continue };
            sequence.lose_names_from(index * block_size);
            // What took its place is a copy of it; or a hit, which is as good as it was if it is computed.
            let copy = sequence.table.get(index).filter(|_| displaced.is_some()).map(BlockRef::id);
            copies.extend(copy.filter(|&block| !blocks.index.is_computed(block) && !is_bad(blocks, block)));
        }
    }

    fn invalidate_copies(&mut self, mut copies: Vec<BlockId>) -> u32 {
        let mut count = 0;
        while let Some(copy) = copies.pop() {
            // It may have lost its name with another: one of the same content, or a copy of that.
            if let Some(node) = self.blocks.node_of(copy) {
                count += self.clear_node(node, &mut copies);
            }
        }
        count
    }

    /// Blocks before those of a node.
    fn depth(&self, node: u32) -> u32 {
        let (mut depth, mut at) = (0, node);
        while let Parent::Node(parent) = self.blocks.index.parent(at) {
            (depth, at) = (depth + 1, parent);
        }
        depth
    }

    fn node_of_identity(&mut self, identity: &Digest) -> Option<u32> {
        let mut nodes = Vec::new();
        self.blocks.index.for_each(|node| nodes.push(node));
        nodes.into_iter().find(|&node| self.blocks.index.identity(node).as_ref() == Some(identity))
    }
}
