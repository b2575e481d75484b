//! Content that must not be found any more: by block, by identity, by scope, or all of it.

use alloc::vec::Vec;

use super::KvCache;
use crate::evict::Evict;
use crate::id::BlockId;
use crate::prefix::Scope;
use crate::prefix::change::Event;
use crate::prefix::hash::Digest;
use crate::prefix::index::Parent;

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
    /// O(blocks that lose their name + sequences, for a block or identity times their blocks); by identity also
    /// O(content of the cache), with one call of the hasher for each block whose identity was not asked for before.
    pub fn invalidate(&mut self, what: Invalidate<'_>) -> u32 {
        let count = match what {
            Invalidate::All => self.invalidate_all(),
            Invalidate::Scope(scope) => self.invalidate_scope(scope),
            Invalidate::Identity(identity) => match self.node_of_identity(identity) {
                Some(node) => self.invalidate_node(node),
                None => 0,
            },
            Invalidate::Block(block) => match self.blocks.node_of(block) {
                Some(node) => self.invalidate_node(node),
                None => 0,
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
            count += self.clear_scope(scope);
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
        self.clear_scope(scope)
    }

    fn clear_scope(&mut self, scope: u32) -> u32 {
        let mut count = 0;
        while let Some(node) = self.blocks.index.first_under(scope) {
            count += self.blocks.clear(node);
        }
        count
    }

    fn invalidate_node(&mut self, node: u32) -> u32 {
        // Who holds a block of this node has its content, whole or in part, in front of all that it computes. Blocks
        // further down are held only together with it.
        let block_size = self.config.block_size;
        let index = self.depth(node);
        let Self { seqs, blocks, .. } = self;
        for (_, sequence) in seqs.iter_mut() {
            let displaced = sequence.displaced.as_ref().filter(|displaced| displaced.0 == index);
            let held = displaced.map(|displaced| &displaced.1).into_iter().chain(sequence.table.get(index));
            if held.into_iter().any(|block| blocks.node_of(block.id()) == Some(node)) {
                sequence.lose_names_from(index * block_size);
            }
        }
        self.blocks.clear(node)
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
