//! The tree of nodes: what lies below one, which child comes nearest, and all of it in order.
//!
//! Floor 1.

use alloc::vec::Vec;

use super::{Key, Parent, PrefixIndex};
use crate::id::{BlockId, ix, len32};
use crate::list::{Links, NIL};

/// Children that a search for a part looks at, where their extras differ or they are not computed; else it is one.
const MOST_PARTS: u32 = 64;

impl PrefixIndex {
    /// Of the children whose content is computed, the one that agrees longest with what follows, which begins at
    /// position `start`, and for how many tokens. `None` if none agrees for a token. Of children that agree in tokens and
    /// not in extras there may be thousands, as many as images are asked about: the search gives up on further ones.
    ///
    /// # Complexity
    /// O(depth), with at most [`MOST_PARTS`] children looked at.
    pub(crate) fn best_part(&self, parent: Parent, key: &Key<'_>, start: u32) -> Option<(u32, u32)> {
        let (mut best, mut left) = (None, MOST_PARTS);
        self.forks.nearest_first(self.top(parent), key, |id| {
            let own = self.key(id);
            let tokens = len32(own.tokens.iter().zip(key.tokens).take_while(|(a, b)| a == b).count());
            let longest = best.map_or(0, |(_, len)| len);
            // The others agree for no more tokens than this one.
            if tokens <= longest {
                return true;
            }
            if self.computed_entry(id).is_some() {
                let len = own.agreement(key, start);
                if len > longest {
                    best = Some((id, len));
                }
            }
            left -= 1;
            left == 0
        });
        best
    }

    /// The last of a node's descendants, along first children, whose block may be evicted. A child whose block may goes
    /// before one that has no block, below which there may be none.
    ///
    /// # Complexity
    /// O(depth below × siblings that may not).
    pub(crate) fn last_below(&self, node: u32, may: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let (mut at, mut last) = (node, None);
        loop {
            let mut below = None;
            self.forks.each(self.nodes[ix(at)].top, |child| {
                let block = self.entry(child);
                match block.filter(|&block| may(block)) {
                    Some(block) => below = Some((child, Some(block))),
                    None if block.is_none() && below.is_none() && self.has_children(child) => {
                        below = Some((child, last))
                    }
                    None => return false,
                }
                block.is_some()
            });
            let Some((child, block)) = below else { return last };
            (at, last) = (child, block);
        }
    }

    /// Removes a node with all that hangs below it, children first; `blocks` gets every block that had a name.
    ///
    /// # Complexity
    /// O(nodes removed × depth of the forks).
    pub(crate) fn clear(&mut self, node: u32, links: &mut Links, blocks: &mut Vec<BlockId>) {
        let mut at = node;
        loop {
            while let Some(child) = self.first_child(Parent::Node(at)) {
                at = child;
            }
            while let Some(block) = self.entry(at) {
                self.unlink(at, block, links);
                blocks.push(block);
            }
            match self.remove(at) {
                Parent::Node(parent) if at != node => at = parent,
                Parent::Node(parent) => return self.drop_if_empty(parent),
                Parent::Scope(_) => return,
            }
        }
    }

    /// The first node that follows a parent.
    pub(crate) fn first_child(&self, parent: Parent) -> Option<u32> {
        let first = self.forks.first(self.top(parent));
        (first != NIL).then_some(first)
    }

    /// All nodes, parents first, in the order of scopes and contents.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u32)) {
        let mut open = Vec::new();
        for scope in (0..len32(self.scopes.len())).rev() {
            self.push_children(self.scopes.top(scope), &mut open);
        }
        while let Some(node) = open.pop() {
            visit(node);
            self.push_children(self.nodes[ix(node)].top, &mut open);
        }
    }

    fn push_children(&self, top: u32, open: &mut Vec<u32>) {
        let from = open.len();
        self.forks.each(top, |child| {
            open.push(child);
            false
        });
        open[from..].reverse();
    }
}
