//! Whether the index contradicts itself.

use alloc::vec::Vec;

use super::{ALONE, COMPANY, Parent, PrefixIndex};
use crate::id::{BlockId, ix};
use crate::list::{Links, NIL, Ring};

impl PrefixIndex {
    /// Checks nodes against blocks: `node_of` gives the node that a block's identity names. Returns per scope how many
    /// nodes use it.
    pub(crate) fn check(
        &self,
        num_blocks: u32,
        links: &Links,
        node_of: impl Fn(BlockId) -> Option<u32>,
    ) -> Result<Vec<u32>, &'static str> {
        let mut live = alloc::vec![true; self.nodes.len()];
        let mut vacant = self.vacant;
        while let Some(node) = self.nodes.get(ix(vacant)) {
            if !core::mem::replace(&mut live[ix(vacant)], false) {
                return Err("a node is vacant twice");
            }
            vacant = node.top;
        }
        let mut scopes = alloc::vec![0_u32; self.scopes.len()];
        let mut owner = alloc::vec![NIL; ix(num_blocks)];
        let (mut count, mut hanging, mut with_extras) = (0, 0, 0);
        for (node, id) in self.nodes.iter().zip(0_u32..).filter(|(_, id)| live[ix(*id)]) {
            count += 1;
            with_extras += usize::from(node.twins.flag());
            if node.entry.flag() {
                return Err("a node waits for a plan that is over");
            }
            match node.parent() {
                Parent::Scope(scope) => scopes[ix(scope)] += 1,
                Parent::Node(parent) if !live[ix(parent)] => return Err("a node hangs on a vacant one"),
                Parent::Node(_) => {}
            }
            let entry = node.entry.number();
            if entry == NIL && (node.top == NIL || node.ring() != Ring::EMPTY) {
                return Err("an empty node was kept, or has twins without an entry");
            }
            let (mut company, mut computed) = (false, true);
            for block in (entry != NIL).then_some(entry).into_iter().chain(node.ring().iter(links)) {
                if core::mem::replace(&mut owner[ix(block)], id) != NIL {
                    return Err("a block belongs to two nodes");
                }
                let before = core::mem::replace(&mut computed, self.is_computed(BlockId::new(block)));
                if computed && !before {
                    return Err("a computed block stands behind one that is not");
                }
                company |= block != entry;
            }
            for block in (entry != NIL).then_some(entry).into_iter().chain(node.ring().iter(links)) {
                if self.states[ix(block)] == if company { ALONE } else { COMPANY } {
                    return Err("a block does not know whether it is alone");
                }
            }
            if self.find(node.parent(), &self.key(id)) != Some(id) {
                return Err("a node is not found by its content");
            }
            hanging += ix(self.forks.check(node.top, |id| self.key(id))?);
        }
        for top in self.scopes.tops() {
            hanging += ix(self.forks.check(top, |id| self.key(id))?);
        }
        if count != hanging || with_extras != self.extras.len() {
            return Err("the trees do not hold the living nodes, or the table not their extras");
        }
        for block in (0..num_blocks).map(BlockId::new) {
            if node_of(block).unwrap_or(NIL) != owner[block.index()] {
                return Err("a block's identity is not the node that it belongs to");
            }
            if owner[block.index()] == NIL && self.states[block.index()] != ALONE {
                return Err("a block without identity is being computed, or has twins");
            }
        }
        Ok(scopes)
    }

    /// Everything that a caller could tell apart, as numbers.
    #[cfg(test)]
    pub(crate) fn snapshot(&self, links: &Links, out: &mut Vec<u64>) {
        self.for_each(|id| {
            let node = &self.nodes[ix(id)];
            out.extend([id, node.parent.0, node.entry.0, node.twins.0].map(u64::from));
            out.extend(self.tokens(id).iter().map(|&token| u64::from(token)));
            out.extend(node.ring().iter(links).map(u64::from));
        });
        out.push(u64::MAX);
        out.extend(self.states.iter().map(|&state| u64::from(state)));
    }
}
