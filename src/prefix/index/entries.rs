//! The blocks of a node: its entry, which lookups get, and its twins.
//!
//! Floor 1. Computed blocks come first: the entry is computed if any block of the node is, and so is the first twin.

use super::{ALONE, COMPANY, Parent, PrefixIndex, mark};
use crate::id::{BlockId, ix};
use crate::list::{Links, NIL, Ring};

/// What becomes of a block that loses its last reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnIdle {
    /// It stays the entry of its node.
    Keep,
    /// It lost its identity.
    Forget,
    /// It is the entry in the place of this idle block, which lost its identity.
    Replace(BlockId),
}

impl PrefixIndex {
    /// Keeps a promise: `block` has the content of `node` once `step` commits (0: it has it now). It becomes the
    /// entry, or a twin of the entry.
    #[inline]
    pub(crate) fn fill(&mut self, node: u32, block: BlockId, step: u64, links: &mut Links) {
        self.nodes[ix(node)].entry.set_flag(false);
        let Some(entry) = self.entry(node) else {
            self.states[block.index()] = if step == 0 { ALONE } else { mark(step) };
            self.nodes[ix(node)].entry.set(block.get());
            if step == 0 {
                self.announce(node, block);
            }
            return;
        };
        if step == 0 {
            return self.add_computed(node, block, links);
        }
        self.states[block.index()] = mark(step);
        if self.states[entry.index()] == ALONE {
            self.states[entry.index()] = COMPANY;
        }
        let mut ring = self.nodes[ix(node)].ring();
        ring.push_back(links, block.get());
        self.nodes[ix(node)].twins.set(ring.0);
    }

    /// Adds a computed block beside the entry.
    fn add_computed(&mut self, id: u32, block: BlockId, links: &mut Links) {
        let entry = self.nodes[ix(id)].entry.number();
        let first = !self.is_computed(BlockId::new(entry));
        self.states[block.index()] = COMPANY;
        if self.states[ix(entry)] == ALONE {
            self.states[ix(entry)] = COMPANY;
        }
        let node = &mut self.nodes[ix(id)];
        let mut ring = node.ring();
        if first {
            ring.push_front(links, entry);
            node.entry.set(block.get());
        } else {
            ring.push_front(links, block.get());
        }
        node.twins.set(ring.0);
        #[cfg(test)]
        let first = first || crate::planted::is(crate::planted::Bug::TwinAnnounced);
        if first {
            self.announce(id, block);
        }
    }

    /// Called when the step that computes a block of `node` commits.
    #[inline]
    pub(crate) fn set_computed(&mut self, id: u32, block: BlockId, links: &mut Links) {
        let node = &mut self.nodes[ix(id)];
        if node.entry.number() == block.get() {
            self.states[block.index()] = if node.twins.number() == NIL { ALONE } else { COMPANY };
            return self.announce(id, block);
        }
        let mut ring = node.ring();
        ring.remove(links, block.get());
        node.twins.set(ring.0);
        self.add_computed(id, block, links);
    }

    /// Takes a block out of its node. A twin becomes the entry in its place.
    #[inline]
    pub(crate) fn vacate(&mut self, node: u32, block: BlockId, links: &mut Links) {
        if self.is_alone(block) {
            self.nodes[ix(node)].entry.set(NIL);
            self.withdraw(node);
        } else {
            self.unlink(node, block, links);
        }
        self.drop_if_empty(node);
    }

    pub(super) fn unlink(&mut self, id: u32, block: BlockId, links: &mut Links) {
        let was_computed = self.computed_entry(id).is_some();
        self.states[block.index()] = ALONE;
        let node = &mut self.nodes[ix(id)];
        let mut ring = node.ring();
        if node.entry.number() != block.get() {
            ring.remove(links, block.get());
        } else {
            node.entry.set(ring.0);
            if ring != Ring::EMPTY {
                ring.remove(links, ring.0);
            }
        }
        node.twins.set(ring.0);
        let entry = node.entry.number();
        if ring == Ring::EMPTY && entry != NIL && self.states[ix(entry)] == COMPANY {
            self.states[ix(entry)] = ALONE;
        }
        if was_computed && self.computed_entry(id).is_none() {
            self.withdraw(id);
        }
    }

    /// For a block that becomes idle and is not [alone](Self::is_alone): whether it may keep its node, so that one idle
    /// block at most stands for a node, and with the time of its last use.
    pub(crate) fn on_idle(
        &mut self,
        node: u32,
        block: BlockId,
        links: &mut Links,
        is_idle: impl FnOnce(BlockId) -> bool,
    ) -> OnIdle {
        if !self.is_computed(block) {
            // Nobody has computed this content, and nobody is left who relies on it.
            self.vacate(node, block, links);
            return OnIdle::Forget;
        }
        let (entry, twin) = (self.nodes[ix(node)].entry.number(), self.nodes[ix(node)].twins.number());
        if entry == block.get() {
            if twin == NIL || !self.is_computed(BlockId::new(twin)) {
                return OnIdle::Keep;
            }
            self.vacate(node, block, links);
            return OnIdle::Forget;
        }
        let entry = BlockId::new(entry);
        if !is_idle(entry) {
            self.vacate(node, block, links);
            return OnIdle::Forget;
        }
        let mut ring = self.nodes[ix(node)].ring();
        ring.remove(links, block.get());
        self.nodes[ix(node)].twins.set(ring.0);
        self.nodes[ix(node)].entry.set(block.get());
        self.states[entry.index()] = ALONE;
        if ring == Ring::EMPTY {
            self.states[block.index()] = ALONE;
        }
        OnIdle::Replace(entry)
    }

    /// Drops a node that has nothing left, and then its parent if that was all it had.
    #[inline]
    pub(super) fn drop_if_empty(&mut self, mut id: u32) {
        loop {
            let node = &self.nodes[ix(id)];
            if node.entry.number() != NIL || node.entry.flag() || node.top != NIL {
                return;
            }
            debug_assert_eq!(node.ring(), Ring::EMPTY, "a twin would be the entry");
            match self.remove(id) {
                Parent::Scope(_) => return,
                Parent::Node(parent) => id = parent,
            }
        }
    }

    /// Whether a node has no other block than this one.
    #[inline]
    pub(crate) fn is_only(&self, node: u32, block: BlockId) -> bool {
        let node = &self.nodes[ix(node)];
        node.entry.number() == block.get() && node.twins.number() == NIL
    }
}
