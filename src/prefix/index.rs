//! The prefix index: a tree of blocks, found by comparing tokens.
//!
//! Floor 1. A *node* stands for one full block's content under its parent: (parent, tokens, extras). The children of a
//! node hang on it in a tree that is walked by comparing contents; no hash takes part. A node has an *entry*, the block
//! that lookups get, and *twins*, live blocks of the same content that arose beside it (tables are never edited under a
//! sequence). A node outlives its blocks while it has children, so that a child never hangs on a reused number.
//!
//! Which content is *computed* is known per block: blocks of an open step carry its mark until it commits. Computed
//! blocks come first: the entry is computed if any block of the node is, and so is the first twin, so that no content is
//! missed while an open step computes it again.
//!
//! A block costs 4 bytes here, a node 28 beside its tokens; the twins use the links of the pool, since a block that is a
//! twin is held and on none of the pool's lists.

mod check;
mod children;
mod entries;
mod identities;
#[cfg(test)]
mod tests;
mod tree;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Extra;
use super::scope::Scopes;
use crate::error::ConfigError;
use crate::id::{BlockId, TokenId, ix, len32};
use crate::list::{NIL, Ring};
use children::Forks;

pub(crate) use children::Key;
pub(crate) use entries::OnIdle;
pub(crate) use identities::Identities;

/// What a block follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parent {
    Scope(u32),
    Node(u32),
}

/// A number below 2^31 - 1, or none, and a flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tagged(u32);

impl Tagged {
    const FLAG: u32 = 1 << 31;
    const NONE: Self = Self(!Self::FLAG);

    const fn new(number: u32, flag: bool) -> Self {
        Self(number | if flag { Self::FLAG } else { 0 })
    }

    /// The number, or [`NIL`].
    #[inline]
    const fn number(self) -> u32 {
        match self.0 & !Self::FLAG {
            none if none == Self::NONE.0 => NIL,
            number => number,
        }
    }

    #[inline]
    const fn flag(self) -> bool {
        self.0 & Self::FLAG != 0
    }

    /// Another number, or none for [`NIL`], and the same flag.
    #[inline]
    fn set(&mut self, number: u32) {
        self.0 = self.0 & Self::FLAG | number & !Self::FLAG;
    }

    #[inline]
    fn set_flag(&mut self, flag: bool) {
        self.0 = self.0 & !Self::FLAG | if flag { Self::FLAG } else { 0 };
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// A node, or with the flag a scope.
    parent: Tagged,
    /// The link to its children; of a vacant node, the next vacant one.
    top: u32,
    /// The entry. With the flag, a row of the plan in progress has promised a block for this node.
    entry: Tagged,
    /// The first twin. With the flag, the node has extras.
    twins: Tagged,
}

impl Node {
    #[inline]
    fn parent(&self) -> Parent {
        if self.parent.flag() { Parent::Scope(self.parent.number()) } else { Parent::Node(self.parent.number()) }
    }

    fn ring(&self) -> Ring {
        Ring(self.twins.number())
    }
}

/// The extras of a node: a run of those that came with its prompt, which its blocks may share.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedExtras {
    pub(crate) all: Option<Arc<[Extra]>>,
    pub(crate) run: Range<u32>,
}

impl SharedExtras {
    pub(crate) fn as_slice(&self) -> &[Extra] {
        self.all.as_deref().and_then(|all| all.get(ix(self.run.start)..ix(self.run.end))).unwrap_or(&[])
    }
}

/// Nodes beyond one for each block: a plan makes those of the blocks that it fills before those of the blocks that it
/// evicts go. As many as a step of 65,536 tokens fills blocks of 16.
const SPARE_NODES: usize = 4_096;

/// Nodes for which memory is kept: one for each block, and some to spare.
fn most_nodes(num_blocks: usize) -> usize {
    num_blocks.saturating_add(num_blocks.min(SPARE_NODES))
}

/// How a [`promise`](PrefixIndex::promise) changed the index, so that it can be undone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) node: u32,
    created: bool,
    flagged: bool,
}

/// [`PrefixIndex::states`] of a block that is computed and the only one of its node, or that has no node.
const ALONE: u32 = 0;

/// Of a block that is computed and has twins, or is one.
const COMPANY: u32 = u32::MAX;

/// The mark of blocks that a step computes. Unique among steps that are open together, as long as these are fewer than
/// 2^32 - 2.
#[expect(clippy::cast_possible_truncation, reason = "the remainder is below 2^32 - 2")]
fn mark(step: u64) -> u32 {
    (step % u64::from(COMPANY - 1)) as u32 + 1
}

#[derive(Clone, Debug)]
pub(crate) struct PrefixIndex {
    pub(crate) scopes: Scopes,
    block_size: usize,
    forks: Forks,
    nodes: Vec<Node>,
    /// Tokens of node n: `n × block_size ..`.
    tokens: Vec<TokenId>,
    /// The first vacant node, or [`NIL`].
    vacant: u32,
    /// Extras of the nodes that have some.
    extras: HashMap<u32, SharedExtras, FixedState>,
    /// Per block: [`ALONE`], [`COMPANY`], or the mark of the open step that computes its content.
    states: Vec<u32>,
    /// Identities that leave the process, if anybody asked for them.
    pub(crate) identities: Option<Identities>,
}

impl PrefixIndex {
    pub(crate) fn new(num_blocks: u32, block_size: u32, hash_seed: u64) -> Result<Self, ConfigError> {
        let no_memory = ConfigError::OutOfMemory { num_blocks };
        let (mut states, mut nodes, mut tokens, mut forks) = (Vec::new(), Vec::new(), Vec::new(), Forks::default());
        states.try_reserve_exact(ix(num_blocks)).map_err(|_| no_memory)?;
        states.resize(ix(num_blocks), ALONE);
        // A node for each block is what a full cache has; more come only while a plan is being made.
        let most = most_nodes(ix(num_blocks));
        nodes.try_reserve_exact(most).map_err(|_| no_memory)?;
        let slots = most.checked_mul(ix(block_size)).ok_or(no_memory)?;
        tokens.try_reserve_exact(slots).map_err(|_| no_memory)?;
        forks.reserve(most).ok_or(no_memory)?;
        Ok(Self {
            scopes: Scopes::new(hash_seed),
            block_size: ix(block_size),
            forks,
            nodes,
            tokens,
            vacant: NIL,
            extras: HashMap::default(),
            states,
            identities: None,
        })
    }

    /// The tokens of a node.
    #[inline]
    pub(crate) fn tokens(&self, node: u32) -> &[TokenId] {
        tokens_of(&self.tokens, self.block_size, node)
    }

    /// The extras of a node.
    #[inline]
    pub(crate) fn extras(&self, node: u32) -> &[Extra] {
        extras_of(&self.nodes, &self.extras, node)
    }

    fn key(&self, node: u32) -> Key<'_> {
        Key { tokens: self.tokens(node), extras: self.extras(node) }
    }

    pub(crate) fn parent(&self, node: u32) -> Parent {
        self.nodes[ix(node)].parent()
    }

    /// The block that lookups get for this node.
    #[inline]
    pub(crate) fn entry(&self, node: u32) -> Option<BlockId> {
        let block = self.nodes[ix(node)].entry.number();
        (block != NIL).then(|| BlockId::new(block))
    }

    /// The block that lookups get for this node, if its content is computed.
    #[inline]
    pub(crate) fn computed_entry(&self, node: u32) -> Option<BlockId> {
        self.entry(node).filter(|&block| self.is_computed(block))
    }

    /// Whether the plan in progress brings a block for this node.
    #[inline]
    pub(crate) fn is_promised(&self, node: u32) -> bool {
        self.nodes[ix(node)].entry.flag()
    }

    #[inline]
    pub(crate) fn has_children(&self, node: u32) -> bool {
        self.nodes[ix(node)].top != NIL
    }

    /// Whether a block that has a node has its content already.
    #[inline]
    pub(crate) fn is_computed(&self, block: BlockId) -> bool {
        matches!(self.states[block.index()], ALONE | COMPANY)
    }

    /// Whether this step computes the block's content.
    #[inline]
    pub(crate) fn is_computed_by(&self, block: BlockId, step: u64) -> bool {
        self.states[block.index()] == mark(step)
    }

    /// Whether the block is computed and has no twins: then it keeps its node when it becomes idle.
    #[inline]
    pub(crate) fn is_alone(&self, block: BlockId) -> bool {
        self.states[block.index()] == ALONE
    }

    /// The link to a parent's children.
    #[inline]
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
    pub(crate) fn find(&self, parent: Parent, key: &Key<'_>) -> Option<u32> {
        let id = self.forks.nearest(self.top(parent), key);
        if id == NIL || !same_tokens(self.tokens(id), key.tokens) {
            return None;
        }
        let plain = key.extras.is_empty() && !self.nodes[ix(id)].twins.flag();
        (plain || self.extras(id) == key.extras).then_some(id)
    }

    /// The node of this content, made where there is none, with the promise of a block for it: to be followed by
    /// [`fill`](Self::fill), or undone by [`unpromise`](Self::unpromise) in reverse order.
    pub(crate) fn promise(&mut self, parent: Parent, tokens: &[TokenId], extras: SharedExtras) -> Promise {
        if let Some(node) = self.find(parent, &Key { tokens, extras: extras.as_slice() }) {
            let flagged = !self.is_promised(node);
            self.nodes[ix(node)].entry.set_flag(true);
            return Promise { node, created: false, flagged };
        }
        let has_extras = extras.all.is_some();
        let parent_link = match parent {
            Parent::Scope(scope) => Tagged::new(scope, true),
            Parent::Node(node) => Tagged::new(node, false),
        };
        let mut node = Node { parent: parent_link, top: NIL, entry: Tagged::NONE, twins: Tagged::NONE };
        node.entry.set_flag(true);
        node.twins.set_flag(has_extras);
        let id = match self.nodes.get_mut(ix(self.vacant)) {
            Some(place) => {
                let id = core::mem::replace(&mut self.vacant, place.top);
                *place = node;
                let from = ix(id) * self.block_size;
                if let Some(place) = self.tokens.get_mut(from..from + self.block_size) {
                    place.copy_from_slice(tokens);
                }
                id
            }
            None => {
                if self.nodes.len() == self.nodes.capacity() {
                    // A plan of more blocks than there are nodes to spare: growth by doubling would keep far too much.
                    let more = SPARE_NODES.min(self.states.len()).max(self.nodes.len() / 8);
                    self.nodes.reserve_exact(more);
                    self.tokens.reserve_exact(more * self.block_size);
                    self.forks.reserve_more(more);
                }
                self.tokens.extend_from_slice(tokens);
                self.nodes.push(node);
                len32(self.nodes.len() - 1)
            }
        };
        if has_extras {
            self.extras.insert(id, extras);
        }
        if let Parent::Scope(scope) = parent {
            self.scopes.share(scope);
        }
        self.forks.grow(id);
        let mut top = self.top(parent);
        let (nodes, all, extras, size) = (&self.nodes, &self.tokens, &self.extras, self.block_size);
        let key = |id| Key { tokens: tokens_of(all, size, id), extras: extras_of(nodes, extras, id) };
        self.forks.add(&mut top, id, key);
        self.set_top(parent, top);
        Promise { node: id, created: true, flagged: true }
    }

    /// Takes a node without blocks and children off its parent, and returns that.
    #[inline]
    fn remove(&mut self, id: u32) -> Parent {
        let parent = self.nodes[ix(id)].parent();
        let mut top = self.top(parent);
        if top == id {
            top = NIL;
        } else {
            let key = Key {
                tokens: tokens_of(&self.tokens, self.block_size, id),
                extras: extras_of(&self.nodes, &self.extras, id),
            };
            self.forks.remove(&mut top, id, &key);
        }
        self.set_top(parent, top);
        if self.nodes[ix(id)].twins.flag() {
            self.extras.remove(&id);
        }
        if let Some(identities) = &mut self.identities {
            identities.forget(id);
        }
        self.nodes[ix(id)] = Node { parent: Tagged::NONE, top: self.vacant, entry: Tagged::NONE, twins: Tagged::NONE };
        self.vacant = id;
        if let Parent::Scope(scope) = parent {
            self.scopes.release(scope);
        }
        parent
    }

    /// Undoes [`promise`](Self::promise), newest first.
    pub(crate) fn unpromise(&mut self, promise: Promise) {
        if promise.created {
            self.remove(promise.node);
            self.drop_last(promise.node);
        } else if promise.flagged {
            self.nodes[ix(promise.node)].entry.set_flag(false);
        }
    }

    /// Gives up the place of a vacant node, if it is the last one and there are more than memory is kept for.
    fn drop_last(&mut self, id: u32) {
        if ix(id) + 1 == self.nodes.len() && ix(id) >= most_nodes(self.states.len()) {
            self.vacant = self.nodes[ix(id)].top;
            self.nodes.pop();
            self.tokens.truncate(ix(id) * self.block_size);
            self.forks.truncate(id);
        }
    }

    /// Gives memory back that a plan took which asked for much more than there is.
    pub(crate) fn trim(&mut self) {
        if self.nodes.capacity() > most_nodes(self.states.len()) {
            // All that memory is kept for was in use, and its places stay.
            self.nodes.shrink_to_fit();
            self.tokens.shrink_to_fit();
            self.forks.shrink_to_fit();
        }
    }
}

fn tokens_of(all: &[TokenId], size: usize, node: u32) -> &[TokenId] {
    all.get(ix(node) * size..(ix(node) + 1) * size).unwrap_or(&[])
}

fn extras_of<'a>(nodes: &[Node], extras: &'a HashMap<u32, SharedExtras, FixedState>, node: u32) -> &'a [Extra] {
    if !nodes[ix(node)].twins.flag() {
        return &[];
    }
    extras.get(&node).map_or(&[], SharedExtras::as_slice)
}

/// The comparison that every hit rests on.
#[inline]
fn same_tokens(held: &[TokenId], wanted: &[TokenId]) -> bool {
    #[cfg(test)]
    if crate::planted::is(crate::planted::Bug::IdentityIgnoresLastToken) {
        return held.split_last().map(|x| x.1) == wanted.split_last().map(|x| x.1);
    }
    // Eight tokens at a time, which the compiler compares at once: a call of `memcmp` costs more than a block of 16 does.
    let (a, b) = (held.chunks_exact(8), wanted.chunks_exact(8));
    let rest = (a.remainder(), b.remainder());
    let differ = |(a, b): (&[TokenId], &[TokenId])| a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b)) != 0;
    held.len() == wanted.len() && !a.zip(b).any(differ) && (rest.0.is_empty() || rest.0 == rest.1)
}
