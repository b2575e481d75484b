//! What may be found: a plain list of what was computed and named, which knows nothing of blocks, nodes or evictions.
//!
//! A hit must be on this list, whatever is in the cache. What was invalidated is not: content of a whole scope, since
//! every stamp begins with its scope's *epoch*, which an invalidation advances; content behind one block, since its
//! entries go.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;

use super::model::{Stamp, root};
use super::rng::mix;
use crate::id::ix;
use crate::prefix::Scope;

/// The list.
#[derive(Clone, Default, Debug)]
pub(crate) struct Known {
    /// By the last stamp of a full block, the stamps of all positions up to it.
    paths: BTreeMap<Stamp, Rc<[Stamp]>>,
    all: u64,
    scopes: Vec<(Rc<Scope>, u64)>,
}

impl Known {
    /// The stamp before the first token of what is computed under a scope from now on.
    pub(crate) fn root(&self, scope: &Scope) -> Stamp {
        let epoch = self.scopes.iter().find(|(other, _)| **other == *scope).map_or(0, |(_, epoch)| *epoch);
        mix(root(scope), mix(self.all, epoch))
    }

    /// Full blocks from this one on, of a sequence with these stamps, were computed.
    pub(crate) fn compute(&mut self, stamps: &[Stamp], first: u32, size: u32) {
        let ends = (first + 1..).map(|blocks| ix(blocks * size));
        for path in ends.map_while(|end| stamps.get(..end)) {
            self.paths.entry(path[path.len() - 1]).or_insert_with(|| Rc::from(path));
        }
    }

    /// Whether a full block that ends with this stamp was computed.
    pub(crate) fn has_block(&self, last: Stamp) -> bool {
        self.paths.contains_key(&last)
    }

    /// Whether a full block was computed that has this stamp at this position of the sequence.
    pub(crate) fn has(&self, position: u32, stamp: Stamp) -> bool {
        self.paths.values().any(|path| path.get(ix(position)) == Some(&stamp))
    }

    pub(crate) fn forget_all(&mut self) {
        self.paths.clear();
        self.all += 1;
    }

    pub(crate) fn forget_scope(&mut self, scope: &Rc<Scope>) {
        match self.scopes.iter_mut().find(|(other, _)| other == scope) {
            Some((_, epoch)) => *epoch += 1,
            None => self.scopes.push((Rc::clone(scope), 1)),
        }
    }

    /// The block that ends behind this position with this stamp, and all that builds on it.
    pub(crate) fn forget_block(&mut self, position: u32, stamp: Stamp) {
        self.paths.retain(|_, path| path.get(ix(position)) != Some(&stamp));
    }
}
