//! The prefix index: a tree of blocks, found by comparing tokens.
//!
//! Floor 1. A *node* stands for one full block's content under its parent: (parent, tokens, extras). The children of a
//! node hang on it in a tree that is walked by comparing tokens; only nodes with extras, which are rare, are found through
//! a hash table, whose hash picks candidates while the comparison decides. A node has an *entry*, the block that
//! lookups get, and *twins*, live blocks of the same content that arose beside it (tables are never edited under a
//! sequence). A node outlives its blocks while it has children, so that a child never hangs on a reused number.
//!
//! Which content is *computed* is known per block: blocks of an open step carry its number until it commits.

mod children;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash, Hasher};

use hashbrown::HashTable;

use super::Extra;
use super::scope::Scopes;
use crate::error::ConfigError;
use crate::id::{BlockId, TokenId, ix, len32};
use crate::list::{Links, List, NIL};
use children::Forks;

/// What a block follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Parent {
    Scope(u32),
    Node(u32),
}

#[derive(Clone, Debug)]
struct Node {
    parent: Parent,
    /// The link to its children without extras.
    top: u32,
    /// The entry, or [`NIL`].
    block: u32,
    twins: List,
    children: u32,
    /// Rows of the plan in progress that will bring a block for this node.
    promised: u32,
    /// Rows of the plan in progress that took its entry away and may have to put it back.
    hidden: u32,
    extras: Option<Box<[Extra]>>,
}

impl Node {
    /// Adds a computed block beside the entry. Computed blocks come first: the entry is computed if any block of the
    /// node is, and so is the first twin, so that no content is missed while an open step computes it again.
    fn add_computed(&mut self, block: BlockId, links: &mut Links, computing: &[u64]) {
        if computing.get(ix(self.block)).is_some_and(|&step| step != 0) {
            self.twins.push_front(links, self.block);
            self.block = block.get();
        } else {
            self.twins.push_front(links, block.get());
        }
    }
}

/// How [`hide`](PrefixIndex::hide) changed a node, so that it can be undone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hidden {
    pub(crate) node: u32,
    pub(crate) block: BlockId,
    /// It was the entry, and a twin has taken its place.
    promoted: bool,
    /// It was a twin, in front of this one or at the end.
    next_twin: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct PrefixIndex<S> {
    pub(crate) hasher: S,
    pub(crate) scopes: Scopes,
    block_size: usize,
    /// Nodes with extras.
    table: HashTable<u32>,
    forks: Forks,
    nodes: Vec<Node>,
    /// Tokens of node n: `n × block_size ..`.
    tokens: Vec<TokenId>,
    vacant: Vec<u32>,
    twin_links: Links,
    /// Per block: the open step that computes its content, or 0.
    computing: Vec<u64>,
}

impl<S: BuildHasher> PrefixIndex<S> {
    pub(crate) fn new(num_blocks: u32, block_size: u32, hasher: S) -> Result<Self, ConfigError> {
        let no_memory = ConfigError::OutOfMemory { num_blocks };
        let mut computing = Vec::new();
        computing.try_reserve_exact(ix(num_blocks)).map_err(|_| no_memory)?;
        computing.resize(ix(num_blocks), 0);
        Ok(Self {
            hasher,
            scopes: Scopes::default(),
            block_size: ix(block_size),
            table: HashTable::new(),
            forks: Forks::default(),
            nodes: Vec::new(),
            tokens: Vec::new(),
            vacant: Vec::new(),
            twin_links: Links::new(num_blocks).ok_or(no_memory)?,
            computing,
        })
    }

    fn hash(&self, parent: Parent, tokens: &[TokenId], extras: &[Extra]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        parent.hash(&mut hasher);
        tokens.hash(&mut hasher);
        extras.hash(&mut hasher);
        hasher.finish()
    }

    /// The tokens of a node.
    pub(crate) fn tokens(&self, node: u32) -> &[TokenId] {
        let from = ix(node) * self.block_size;
        self.tokens.get(from..from + self.block_size).unwrap_or(&[])
    }

    /// The block that lookups get for this node.
    pub(crate) fn entry(&self, node: u32) -> Option<BlockId> {
        let block = self.nodes[ix(node)].block;
        (block != NIL).then(|| BlockId::new(block))
    }

    /// Whether the plan in progress brings a block for this node.
    pub(crate) fn is_promised(&self, node: u32) -> bool {
        self.nodes[ix(node)].promised > 0
    }

    pub(crate) fn has_children(&self, node: u32) -> bool {
        self.nodes[ix(node)].children > 0
    }

    /// The open step that computes a block's content, or 0.
    pub(crate) fn computing(&self, block: BlockId) -> u64 {
        self.computing[block.index()]
    }

    /// Called when the step that computes a block of `node` commits.
    pub(crate) fn set_computed(&mut self, node: u32, block: BlockId) {
        self.computing[block.index()] = 0;
        let node = &mut self.nodes[ix(node)];
        if node.block != block.get() {
            node.twins.remove(&mut self.twin_links, block.get());
            node.add_computed(block, &mut self.twin_links, &self.computing);
        }
    }

    /// The link to a parent's children without extras.
    fn top(&self, parent: Parent) -> u32 {
        match parent {
            Parent::Scope(scope) => self.scopes.top(scope),
            Parent::Node(node) => self.nodes[ix(node)].top,
        }
    }

    fn set_top(&mut self, parent: Parent, top: u32) {
        match parent {
            Parent::Scope(scope) => self.scopes.set_top(scope, top),
            Parent::Node(node) => self.nodes[ix(node)].top = top,
        }
    }

    /// The node of this content.
    #[inline]
    pub(crate) fn find(&self, parent: Parent, tokens: &[TokenId], extras: &[Extra]) -> Option<u32> {
        if !extras.is_empty() {
            return self.find_with_extras(parent, tokens, extras);
        }
        let id = self.forks.nearest(self.top(parent), tokens);
        (id != NIL && same_tokens(self.tokens(id), tokens)).then_some(id)
    }

    fn find_with_extras(&self, parent: Parent, tokens: &[TokenId], extras: &[Extra]) -> Option<u32> {
        let same = |&id: &u32| {
            let node = &self.nodes[ix(id)];
            node.parent == parent && same_tokens(self.tokens(id), tokens) && node.extras.as_deref() == Some(extras)
        };
        self.table.find(self.hash(parent, tokens, extras), same).copied()
    }

    /// The node of this content, made where there is none, with the promise of a block for it: to be followed by
    /// [`fill`](Self::fill), or undone by [`unpromise`](Self::unpromise) in reverse order.
    pub(crate) fn promise(&mut self, parent: Parent, tokens: &[TokenId], extras: &[Extra]) -> u32 {
        if let Some(id) = self.find(parent, tokens, extras) {
            self.nodes[ix(id)].promised += 1;
            return id;
        }
        let extras = (!extras.is_empty()).then(|| extras.into());
        let node =
            Node { parent, top: NIL, block: NIL, twins: List::new(), children: 0, promised: 1, hidden: 0, extras };
        let id = match self.vacant.pop() {
            Some(id) => {
                let from = ix(id) * self.block_size;
                self.tokens[from..from + self.block_size].copy_from_slice(tokens);
                self.nodes[ix(id)] = node;
                id
            }
            None => {
                self.tokens.extend_from_slice(tokens);
                self.nodes.push(node);
                len32(self.nodes.len() - 1)
            }
        };
        self.hang(id);
        id
    }

    /// Hangs a new node on its parent.
    fn hang(&mut self, id: u32) {
        let parent = self.nodes[ix(id)].parent;
        match parent {
            Parent::Scope(scope) => self.scopes.share(scope),
            Parent::Node(parent) => self.nodes[ix(parent)].children += 1,
        }
        if let Some(extras) = self.nodes[ix(id)].extras.as_deref() {
            let hash = self.hash(parent, self.tokens(id), extras);
            let mut table = core::mem::take(&mut self.table);
            table.insert_unique(hash, id, |&id| {
                let node = &self.nodes[ix(id)];
                self.hash(node.parent, self.tokens(id), node.extras.as_deref().unwrap_or(&[]))
            });
            self.table = table;
            return;
        }
        self.forks.grow(id);
        let (size, mut top) = (self.block_size, self.top(parent));
        let all = &self.tokens;
        self.forks.add(&mut top, id, |id| all.get(ix(id) * size..(ix(id) + 1) * size).unwrap_or(&[]));
        self.set_top(parent, top);
    }

    /// Takes a node off its parent, and returns that.
    fn unhang(&mut self, id: u32) -> Parent {
        let parent = self.nodes[ix(id)].parent;
        if let Some(extras) = self.nodes[ix(id)].extras.take() {
            let hash = self.hash(parent, self.tokens(id), &extras);
            if let Ok(found) = self.table.find_entry(hash, |&other| other == id) {
                found.remove();
            }
            return parent;
        }
        let (from, mut top) = (ix(id) * self.block_size, self.top(parent));
        let tokens = self.tokens.get(from..from + self.block_size).unwrap_or(&[]);
        self.forks.remove(&mut top, id, tokens);
        self.set_top(parent, top);
        parent
    }

    /// Undoes [`promise`](Self::promise).
    pub(crate) fn unpromise(&mut self, node: u32) {
        self.nodes[ix(node)].promised -= 1;
        self.drop_if_empty(node);
    }

    /// Keeps a promise: `block` has the content of `node` once `step` commits (0: it has it now). It becomes the
    /// entry, or a twin of the entry.
    pub(crate) fn fill(&mut self, node: u32, block: BlockId, step: u64) {
        self.computing[block.index()] = step;
        let node = &mut self.nodes[ix(node)];
        node.promised -= 1;
        if node.block == NIL {
            node.block = block.get();
        } else if step == 0 {
            node.add_computed(block, &mut self.twin_links, &self.computing);
        } else {
            node.twins.push_back(&mut self.twin_links, block.get());
        }
    }

    /// Takes a block out of its node. A twin becomes the entry in its place.
    pub(crate) fn vacate(&mut self, node: u32, block: BlockId) {
        self.unlink(node, block);
        self.computing[block.index()] = 0;
        self.drop_if_empty(node);
    }

    /// Takes a block out of its node; `true` where a twin took its place.
    fn unlink(&mut self, id: u32, block: BlockId) -> bool {
        let node = &mut self.nodes[ix(id)];
        if node.block != block.get() {
            node.twins.remove(&mut self.twin_links, block.get());
            return false;
        }
        node.block = node.twins.head();
        if node.block == NIL {
            return false;
        }
        node.twins.remove(&mut self.twin_links, node.block);
        true
    }

    /// Takes a block that is about to be written out of its node; to be followed by
    /// [`finish_hide`](Self::finish_hide), or undone by [`unhide`](Self::unhide), newest first.
    pub(crate) fn hide(&mut self, id: u32, block: BlockId) -> Hidden {
        let node = &mut self.nodes[ix(id)];
        node.hidden += 1;
        let next_twin = (node.block != block.get()).then(|| List::after(&self.twin_links, block.get()));
        let promoted = self.unlink(id, block);
        Hidden { node: id, block, promoted, next_twin }
    }

    /// Undoes [`hide`](Self::hide).
    pub(crate) fn unhide(&mut self, hidden: Hidden) {
        let node = &mut self.nodes[ix(hidden.node)];
        node.hidden -= 1;
        if let Some(next) = hidden.next_twin {
            return node.twins.insert_before(&mut self.twin_links, hidden.block.get(), next);
        }
        if hidden.promoted {
            node.twins.push_front(&mut self.twin_links, node.block);
        }
        node.block = hidden.block.get();
    }

    /// Completes [`hide`](Self::hide): the block has no content any more.
    pub(crate) fn finish_hide(&mut self, hidden: Hidden) {
        self.nodes[ix(hidden.node)].hidden -= 1;
        self.computing[hidden.block.index()] = 0;
        self.drop_if_empty(hidden.node);
    }

    /// For a block that becomes idle: whether it may keep its identity, so that one idle block at most stands for a
    /// node, and with the time of its last use.
    pub(crate) fn on_idle(&mut self, node: u32, block: BlockId, is_idle: impl FnOnce(BlockId) -> bool) -> OnIdle {
        if self.computing(block) != 0 {
            // Nobody has computed this content, and nobody is left who relies on it.
            self.vacate(node, block);
            return OnIdle::Forget;
        }
        let entry = BlockId::new(self.nodes[ix(node)].block);
        if entry == block {
            let twin = self.nodes[ix(node)].twins.head();
            if twin == NIL || self.computing[ix(twin)] != 0 {
                return OnIdle::Keep;
            }
            self.vacate(node, block);
            return OnIdle::Forget;
        }
        if is_idle(entry) {
            self.nodes[ix(node)].twins.remove(&mut self.twin_links, block.get());
            self.nodes[ix(node)].block = block.get();
            return OnIdle::Replace(entry);
        }
        self.vacate(node, block);
        OnIdle::Forget
    }

    /// Drops a node that has nothing left, and then its parent if that was all it had.
    fn drop_if_empty(&mut self, mut id: u32) {
        loop {
            let node = &mut self.nodes[ix(id)];
            if node.block != NIL || node.children > 0 || node.promised > 0 || node.hidden > 0 {
                return;
            }
            debug_assert_eq!(node.twins.len(), 0, "a twin would be the entry");
            let parent = self.unhang(id);
            self.vacant.push(id);
            match parent {
                Parent::Scope(scope) => return self.scopes.release(scope, &self.hasher),
                Parent::Node(parent) => {
                    self.nodes[ix(parent)].children -= 1;
                    id = parent;
                }
            }
        }
    }

    /// Checks nodes against blocks: `node_of` gives the node that a block's identity names. Returns per scope how many
    /// nodes use it.
    pub(crate) fn check(
        &self,
        num_blocks: u32,
        node_of: impl Fn(BlockId) -> Option<u32>,
    ) -> Result<Vec<u32>, &'static str> {
        let mut live = alloc::vec![true; self.nodes.len()];
        for &id in &self.vacant {
            if !core::mem::replace(&mut live[ix(id)], false) {
                return Err("a node is vacant twice");
            }
        }
        let mut children = alloc::vec![0_u32; self.nodes.len()];
        let mut scopes = alloc::vec![0_u32; self.scopes.len()];
        let mut owner = alloc::vec![NIL; ix(num_blocks)];
        let mut count = 0;
        for (node, id) in self.nodes.iter().zip(0_u32..).filter(|(_, id)| live[ix(*id)]) {
            count += 1;
            if node.promised > 0 || node.hidden > 0 {
                return Err("a node waits for a plan that is over");
            }
            match node.parent {
                Parent::Scope(scope) => scopes[ix(scope)] += 1,
                Parent::Node(parent) if !live[ix(parent)] => return Err("a node hangs on a vacant one"),
                Parent::Node(parent) => children[ix(parent)] += 1,
            }
            let blocks = node.twins.iter(&self.twin_links).chain((node.block != NIL).then_some(node.block));
            for block in blocks {
                if core::mem::replace(&mut owner[ix(block)], id) != NIL {
                    return Err("a block belongs to two nodes");
                }
            }
            let extras = node.extras.as_deref().unwrap_or(&[]);
            if self.find(node.parent, self.tokens(id), extras) != Some(id) {
                return Err("a node is not found by its content");
            }
        }
        let mut hanging = self.table.len();
        let tops = self.nodes.iter().zip(&live).filter(|(_, live)| **live).map(|(node, _)| node.top);
        for top in tops.chain(self.scopes.tops()) {
            hanging += ix(self.forks.check(top, |id| self.tokens(id))?);
        }
        if count != hanging {
            return Err("the trees and the table do not hold the living nodes");
        }
        for (node, id) in self.nodes.iter().zip(0_u32..).filter(|(_, id)| live[ix(*id)]) {
            if node.children != children[ix(id)] {
                return Err("a node miscounts its children");
            }
            if node.children == 0 && node.block == NIL {
                return Err("an empty node was kept");
            }
        }
        for block in (0..num_blocks).map(BlockId::new) {
            if node_of(block).unwrap_or(NIL) != owner[block.index()] {
                return Err("a block's identity is not the node that it belongs to");
            }
            if owner[block.index()] == NIL && self.computing(block) != 0 {
                return Err("a block without identity is being computed");
            }
        }
        Ok(scopes)
    }

    /// What a node stands for: its parent, its tokens and its extras.
    #[cfg(test)]
    pub(crate) fn content(&self, node: u32) -> (Parent, &[TokenId], &[Extra]) {
        let found = &self.nodes[ix(node)];
        (found.parent, self.tokens(node), found.extras.as_deref().unwrap_or(&[]))
    }

    /// Everything that a caller could tell apart, as numbers; not the hashes, on which nothing depends.
    #[cfg(test)]
    pub(crate) fn snapshot(&self, out: &mut Vec<u64>) {
        let mut vacant = alloc::vec![false; self.nodes.len()];
        self.vacant.iter().for_each(|&id| vacant[ix(id)] = true);
        for (node, id) in self.nodes.iter().zip(0_u32..).filter(|(_, id)| !vacant[ix(*id)]) {
            let (kind, parent) = match node.parent {
                Parent::Scope(scope) => (0, scope),
                Parent::Node(node) => (1, node),
            };
            out.extend([u64::from(id), u64::from(node.block), u64::from(node.children), kind, u64::from(parent)]);
            out.extend(self.tokens(id).iter().map(|&token| u64::from(token)));
            out.extend(node.twins.iter(&self.twin_links).map(u64::from));
        }
        out.push(u64::MAX);
        out.extend(&self.computing);
    }
}

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

/// The comparison that every hit rests on.
fn same_tokens(held: &[TokenId], wanted: &[TokenId]) -> bool {
    #[cfg(test)]
    if crate::planted::is(crate::planted::Bug::IdentityIgnoresLastToken) {
        return held.len() == wanted.len() && held.split_last().map(|x| x.1) == wanted.split_last().map(|x| x.1);
    }
    held == wanted
}
