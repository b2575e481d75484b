//! Identities that leave the process, kept per node once somebody asks, and the events that carry them.
//!
//! Floor 1. A node's identity needs its parent's, so that it is computed once and kept until the node goes. Who asks for
//! none pays for none.
//!
//! A node is *announced* while it can be found: while it and all before it are computed. Content may be computed before
//! what it builds on is: a sequence that computes a block again, and finds the next one, may be all that is left of the
//! block in front.
//!
//! A hasher may leave out where extras end. Then nodes that differ in that alone, or stand behind such, have one identity;
//! it is stored with the first that is announced and removed with the last, so these are counted.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use smallvec::SmallVec;

use super::{Parent, PrefixIndex};
use crate::id::{BlockId, ix, len32};
use crate::prefix::change::{Event, Stored};
use crate::prefix::hash::{BlockHasher, Digest, Hashed};

/// What is known of a node beside its content.
#[derive(Clone, Copy, Debug)]
struct Known {
    identity: Digest,
    /// Blocks before it.
    depth: u32,
    scope: u32,
    /// Whether the sink was told, or will be, that it can be found.
    announced: bool,
    /// Whether it or one before it has extras.
    behind_extras: bool,
}

/// The identities of nodes, and events that wait to be delivered.
#[derive(Clone)]
pub(crate) struct Identities {
    hasher: Arc<dyn BlockHasher>,
    known: Vec<Option<Known>>,
    /// How many announced nodes have an identity, of those that may share theirs; `None` where the hasher lets none.
    namesakes: Option<BTreeMap<Digest, u32>>,
    /// Events that are to be delivered, if anybody wants them.
    pub(crate) events: Option<VecDeque<Event>>,
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identities").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl Identities {
    pub(crate) fn new(hasher: Arc<dyn BlockHasher>) -> Self {
        // A tree and no hash table: who sends prompts must not choose how long a look into it takes.
        let namesakes = hasher.leaves_out_ends().then(BTreeMap::new);
        Self { hasher, known: Vec::new(), namesakes, events: None }
    }

    /// A node is announced. Whether no other of its identity is.
    fn enter(&mut self, node: &Known) -> bool {
        let Some(namesakes) = self.namesakes.as_mut().filter(|_| node.behind_extras) else { return true };
        let count = namesakes.entry(node.identity).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// A node is announced no more. Whether no other of its identity is.
    fn leave(&mut self, node: &Known) -> bool {
        let Some(namesakes) = self.namesakes.as_mut().filter(|_| node.behind_extras) else { return true };
        let Some(count) = namesakes.get_mut(&node.identity) else { return true };
        *count -= 1;
        let last = *count == 0;
        if last {
            namesakes.remove(&node.identity);
        }
        last
    }

    /// How many announced nodes have an identity that others of them have too.
    #[cfg(test)]
    pub(crate) fn num_namesakes(&self) -> Option<u32> {
        self.namesakes.as_ref().map(|namesakes| namesakes.values().filter(|&&count| count > 1).sum())
    }

    /// A node is gone, and its number may come again.
    pub(crate) fn forget(&mut self, node: u32) {
        if let Some(known) = self.known.get_mut(ix(node)) {
            *known = None;
        }
    }

    fn known(&self, node: u32) -> Option<&Known> {
        self.known.get(ix(node))?.as_ref()
    }
}

impl PrefixIndex {
    /// The identity of a node's content; `None` without a hasher.
    ///
    /// # Complexity
    /// O(ancestors whose identity nobody asked for yet).
    pub(crate) fn identity(&mut self, node: u32) -> Option<Digest> {
        self.know(node).map(|known| known.identity)
    }

    fn know(&mut self, node: u32) -> Option<Known> {
        let identities = self.identities.as_ref()?;
        if let Some(&known) = identities.known(node) {
            return Some(known);
        }
        let (mut unknown, mut at) = (alloc::vec![node], self.parent(node));
        let mut before = loop {
            match at {
                Parent::Scope(scope) => break (None, 0, scope, false),
                Parent::Node(node) => match identities.known(node) {
                    Some(known) => {
                        break (Some(known.identity), known.depth + 1, known.scope, known.behind_extras);
                    }
                    None => {
                        unknown.push(node);
                        at = self.parent(node);
                    }
                },
            }
        };
        let hasher = Arc::clone(&identities.hasher);
        let mut last = None;
        while let Some(node) = unknown.pop() {
            let (parent, depth, scope, behind_extras) = before;
            let start = depth.saturating_mul(len32(self.block_size));
            let block = Hashed::new(parent.as_ref(), self.scopes.get(scope), start, self.tokens(node));
            let extras = self.extras(node);
            let identity = hasher.identity(&block.with_extras(extras));
            let behind_extras = behind_extras || !extras.is_empty();
            let known = Known { identity, depth, scope, announced: false, behind_extras };
            let all = &mut self.identities.as_mut()?.known;
            if ix(node) >= all.len() {
                all.resize(ix(node) + 1, None);
            }
            all[ix(node)] = Some(known);
            before = (Some(identity), depth + 1, scope, behind_extras);
            last = Some(known);
        }
        last
    }

    /// Content can be found from now on.
    #[inline]
    pub(super) fn announce(&mut self, node: u32, block: BlockId) {
        if self.identities.is_some() {
            self.queue_stored(node, block);
        }
    }

    /// Announces a node whose parent is, and what below it waits for that.
    #[cold]
    fn queue_stored(&mut self, node: u32, block: BlockId) {
        let mut open = alloc::vec![(node, block)];
        while let Some((node, block)) = open.pop() {
            if self.store(node, block) {
                let children = self.children(node).into_iter();
                open.extend(children.filter_map(|child| Some((child, self.computed_entry(child)?))));
            }
        }
    }

    fn children(&self, node: u32) -> SmallVec<[u32; 4]> {
        let mut children = SmallVec::new();
        self.forks.each(self.nodes[ix(node)].top, |child| {
            children.push(child);
            false
        });
        children
    }

    /// Whether a node was announced, and now is not, or the other way round.
    fn set_announced(&mut self, node: u32, announced: bool) -> bool {
        let known = self.identities.as_mut().and_then(|identities| identities.known.get_mut(ix(node)));
        let known = known.and_then(Option::as_mut);
        known.is_some_and(|known| core::mem::replace(&mut known.announced, announced) != announced)
    }

    fn is_announced(&self, node: u32) -> bool {
        let known = self.identities.as_ref().and_then(|identities| identities.known(node));
        known.is_some_and(|known| known.announced)
    }

    /// Announces a node whose parent is. Whether that is new, so that its children may be.
    fn store(&mut self, node: u32, block: BlockId) -> bool {
        if self.identities.as_ref().is_none_or(|identities| identities.events.is_none()) {
            return false;
        }
        let parent = match self.parent(node) {
            Parent::Scope(_) => None,
            Parent::Node(parent) if !self.is_announced(parent) => return false,
            Parent::Node(parent) => self.identity(parent),
        };
        let Some(known) = self.know(node) else { return false };
        let again = !self.set_announced(node, true);
        #[cfg(test)]
        let again = again && !crate::planted::is(crate::planted::Bug::TwinAnnounced);
        if again {
            return false;
        }
        if self.identities.as_mut().is_some_and(|identities| !identities.enter(&known)) {
            return true;
        }
        let start = known.depth.saturating_mul(len32(self.block_size));
        let scope = Arc::clone(self.scopes.get(known.scope));
        let stored = Stored::new(known.identity, parent, scope, start, self.tokens(node).into());
        self.queue(Event::Stored(stored.with_extras(self.extras(node).into()).in_block(block)));
        true
    }

    /// A node's content can be found no more.
    #[inline]
    pub(super) fn withdraw(&mut self, node: u32) {
        if self.identities.is_some() {
            self.queue_removed(node);
        }
    }

    /// Withdraws a node, and first all that builds on it.
    #[cold]
    fn queue_removed(&mut self, node: u32) {
        if !self.is_announced(node) {
            return;
        }
        let mut all = alloc::vec![node];
        let mut at = 0;
        while let Some(&node) = all.get(at) {
            let children = self.children(node).into_iter();
            all.extend(children.filter(|&child| self.is_announced(child)));
            at += 1;
        }
        while let Some(node) = all.pop() {
            self.set_announced(node, false);
            let Some(known) = self.know(node) else { continue };
            if self.identities.as_mut().is_some_and(|identities| identities.leave(&known)) {
                self.queue(Event::Removed { identity: known.identity });
            }
        }
    }

    pub(crate) fn queue(&mut self, event: Event) {
        if let Some(events) = self.identities.as_mut().and_then(|identities| identities.events.as_mut()) {
            events.push_back(event);
        }
    }

    /// Announces all that can be found now, parents first.
    pub(crate) fn announce_all(&mut self) {
        let mut nodes = Vec::new();
        self.for_each(|node| nodes.extend(self.computed_entry(node).map(|block| (node, block))));
        for (node, block) in nodes {
            self.announce(node, block);
        }
    }
}
