//! The calls on content: pins, invalidations, identities; and what must hold of names after every call.

use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;

use super::calls::Invalid;
use super::events::digest_of;
use super::model::{QuerySpec, Stamp, extend, root};
use super::world::{World, read};
use crate::cache::{Invalidate, PinId};
use crate::error::CreateError;
use crate::id::{BlockId, TokenId, ix, len32};
use crate::prefix::Scope;
use crate::prefix::hash::Digest;
use crate::prefix::index::Parent;

/// What a pin holds.
#[derive(Clone, Debug)]
pub(crate) struct ModelPin {
    pub(crate) id: PinId,
    pub(crate) blocks: Vec<BlockId>,
    stamps: Vec<Stamp>,
}

impl World {
    pub(super) fn pin(&mut self, scope: &Rc<Scope>, prompt: &Rc<[TokenId]>, query: &Rc<QuerySpec>) -> bool {
        let (size, stats) = (self.block_size(), self.cache.stats());
        let valid = query.is_valid() && !prompt.is_empty();
        let expected = if valid { self.expected_blocks(scope, prompt, query) } else { 0 };
        let refs: Vec<_> = self.blocks().map(|block| self.cache.refs(block)).collect();
        let result = both!(self, |cache| cache.pin(scope, prompt, query.query()));
        let pinned = match result {
            Ok(pinned) => pinned,
            Err(error) => {
                let blocks = len32(prompt.len()).div_ceil(size);
                assert!(!valid || blocks > self.cache.capacity(), "a good pin was refused: {error}");
                assert!(valid || !matches!(error, CreateError::TooManySequences));
                return false;
            }
        };
        assert!(pinned.tokens <= expected && pinned.tokens % size == 0 && query.may_end(pinned.tokens));
        if expected / size <= stats.available - stats.reserved {
            assert_eq!(pinned.tokens, expected, "a pin holds less than is there");
        }
        self.seen.pins += u64::from(pinned.tokens > 0);
        let stamps = self.stamps(self.known.root(scope), &prompt[..ix(pinned.tokens)], query);
        self.check_known(&stamps);
        // The blocks that it holds are those that have one more reference, by their content.
        let held: Vec<_> = self.blocks().filter(|&block| self.cache.refs(block) > refs[block.index()]).collect();
        let blocks = stamps.chunks_exact(ix(size)).map(|wanted| {
            let has = |block: &&BlockId| read(&self.memory, &[**block], size, size) == wanted;
            *held.iter().find(has).expect("a pin holds other content")
        });
        let blocks: Vec<_> = blocks.collect();
        assert_eq!(blocks.len(), held.len());
        self.pins.push(ModelPin { id: pinned.pin, blocks, stamps });
        true
    }

    pub(super) fn unpin(&mut self, pin: PinId) -> bool {
        let known = self.pins.iter().any(|other| other.id == pin);
        assert_eq!(both!(self, |cache| cache.unpin(pin)).is_ok(), known);
        self.pins.retain(|other| other.id != pin);
        known
    }

    pub(super) fn check_pin(&self, pin: &ModelPin) {
        let held = read(&self.memory, &pin.blocks, self.block_size(), len32(pin.stamps.len()));
        assert_eq!(held, pin.stamps, "{:?} holds other content", pin.id);
    }

    pub(super) fn identity(&mut self, block: BlockId) -> bool {
        let expected = self.hashed.then(|| self.content_of(block)).flatten().map(digest_of);
        let found = both!(self, |cache| cache.identity(block));
        assert_eq!(found, expected, "{block:?} has another identity");
        true
    }

    pub(super) fn invalidate(&mut self, what: &Invalid) -> bool {
        let size = self.block_size();
        let named = |world: &Self| world.blocks().filter(|&block| world.content_of(block).is_some()).count();
        let before = named(self);
        // Blocks whose names must go, and of a node the position of its last token and its blocks.
        let (mut gone, mut at) = (BTreeSet::new(), None);
        let path_of = |world: &Self, block| {
            let node = world.cache.blocks.node_of(block)?;
            Some(world.stamps_of(node, &|scope| world.known.root(scope)))
        };
        let mut node = |world: &Self, block: BlockId| {
            let Some((end, stamps)) = path_of(world, block) else { return };
            let last = stamps[stamps.len() - 1];
            gone = world.blocks().filter(|&other| world.builds_on(other, end, last)).collect();
            at = Some((end, last));
        };
        let digest;
        let what = match what {
            Invalid::All => Invalidate::All,
            Invalid::Scope(scope) => Invalidate::Scope(scope),
            Invalid::Identity(block) => {
                let stamp = block.and_then(|block| self.content_of(block));
                digest = digest_of(stamp.unwrap_or(0));
                if let Some(block) = block.filter(|_| self.hashed) {
                    node(self, block);
                }
                Invalidate::Identity(&digest)
            }
            Invalid::Block(block) => {
                node(self, *block);
                Invalidate::Block(*block)
            }
        };
        let by_node = matches!(what, Invalidate::Identity(_) | Invalidate::Block(_));
        if !by_node {
            let scope_of = |block| Some(self.scope_of(self.cache.blocks.node_of(block)?));
            let goes = |block: &BlockId| match what {
                Invalidate::Scope(scope) => scope_of(*block).is_some_and(|other| other == *scope),
                _ => scope_of(*block).is_some(),
            };
            gone = self.blocks().filter(goes).collect();
        }
        let count = both!(self, |cache| cache.invalidate(what));
        assert_eq!(ix(count), gone.len(), "an invalidation miscounts");
        assert_eq!(named(self), before - gone.len(), "an invalidation takes other names");
        assert!(gone.iter().all(|&block| self.content_of(block).is_none()), "a name survives");
        self.seen.invalidated += u64::from(count);
        match what {
            Invalidate::All => self.known.forget_all(),
            Invalidate::Scope(scope) => self.known.forget_scope(&Rc::new(scope.clone())),
            _ => {
                if let Some((end, last)) = at {
                    self.known.forget_block(end - 1, last);
                    self.taint(&gone, end - size);
                }
                return count > 0;
            }
        }
        for seq in &mut self.seqs {
            let meant = !matches!(what, Invalidate::Scope(scope) if *seq.scope != *scope);
            if meant && !seq.stamps.is_empty() {
                seq.nameless_from = 0;
            }
        }
        true
    }

    /// Who holds one of these blocks has computed on what was invalidated, which begins at this position.
    fn taint(&mut self, gone: &BTreeSet<BlockId>, from: u32) {
        let holds = |world: &Self, seq| {
            let displaced = world.displacing(seq).and_then(|(row, _)| row.displaced);
            world.table(seq).iter().chain(displaced.iter().map(|(_, block)| block)).any(|block| gone.contains(block))
        };
        let tainted: Vec<_> = self.seqs.iter().map(|seq| seq.id).filter(|&seq| holds(self, seq)).collect();
        for seq in self.seqs.iter_mut().filter(|seq| tainted.contains(&seq.id)) {
            seq.nameless_from = seq.nameless_from.min(from);
        }
        let mut copied = Vec::new();
        for open in &mut self.open {
            for (index, row) in open.rows.iter_mut().enumerate() {
                let tainted = open.step.tables().table(index).iter().any(|block| gone.contains(block));
                if tainted {
                    row.nameless_from = row.nameless_from.min(from);
                }
                // What it copies is in blocks of its own; they, and what later rows build on them, have the names that
                // plans gave them.
                if row.displaced.is_some_and(|(_, block)| gone.contains(&block)) {
                    copied.push(row.spec.seq);
                }
                row.keeps_names |= copied.contains(&row.spec.seq) && !tainted;
            }
        }
    }

    fn scope_of(&self, node: u32) -> Scope {
        match self.cache.blocks.index.parent(node) {
            Parent::Scope(scope) => (**self.cache.blocks.index.scopes.get(scope)).clone(),
            Parent::Node(parent) => self.scope_of(parent),
        }
    }

    /// Whether a block has a name, whose path has this stamp in front of this position.
    fn builds_on(&self, block: BlockId, end: u32, last: Stamp) -> bool {
        let Some(mut node) = self.cache.blocks.node_of(block) else { return false };
        let root = |scope: &Scope| self.known.root(scope);
        loop {
            let (own, stamps) = self.stamps_of(node, &root);
            match self.cache.blocks.index.parent(node) {
                Parent::Node(parent) if own > end => node = parent,
                _ => return own == end && stamps[stamps.len() - 1] == last,
            }
        }
    }

    /// What a block holds that has a name, whenever it was computed: the last stamp of its path.
    pub(crate) fn content_of(&self, block: BlockId) -> Option<Stamp> {
        let node = self.cache.blocks.node_of(block)?;
        self.stamps_of(node, &root).1.last().copied()
    }

    /// The identities of all that lookups can find: what is computed, and all before it is.
    pub(super) fn identities(&self) -> BTreeSet<Digest> {
        let index = &self.cache.blocks.index;
        let found = |block: &BlockId| {
            let Some(mut node) = self.cache.blocks.node_of(*block) else { return false };
            while index.computed_entry(node).is_some() {
                match index.parent(node) {
                    Parent::Scope(_) => return true,
                    Parent::Node(parent) => node = parent,
                }
            }
            false
        };
        let computed = self.blocks().filter(|&block| index.is_computed(block)).filter(found);
        computed.filter_map(|block| self.content_of(block)).map(digest_of).collect()
    }

    fn stamps(&self, root: Stamp, tokens: &[TokenId], query: &QuerySpec) -> Vec<Stamp> {
        let mut stamp = root;
        let next = |(at, &token)| {
            stamp = extend(stamp, at, token, &query.extras);
            stamp
        };
        (0..).zip(tokens).map(next).collect()
    }

    /// Whether a pin of this prompt holds anything.
    pub(crate) fn any_under(&self, prompt: &[TokenId]) -> bool {
        self.expected_blocks(&Scope::default(), prompt, &QuerySpec::default()) > 0
    }

    /// Every token of a hit was computed by somebody earlier, and not invalidated since.
    pub(super) fn check_known(&self, stamps: &[Stamp]) {
        let size = ix(self.block_size());
        for block in stamps.chunks_exact(size) {
            assert!(self.known.has_block(block[size - 1]), "a block is found that nobody computed");
        }
        if let Some(&last) = stamps.chunks_exact(size).remainder().last() {
            assert!(self.known.has(len32(stamps.len()) - 1, last), "a part is found of what nobody computed");
        }
    }

    /// A prompt finds as many whole blocks as were announced.
    pub(super) fn check_announced(&self, scope: &Scope, prompt: &[TokenId], query: &QuerySpec, found: u32) {
        let Some(listener) = &self.listener else { return };
        let plain = query.no_cut.is_empty() && query.max_hit.is_none() && !query.private;
        if !plain || self.cache.pending_events() > 0 {
            return;
        }
        let size = ix(self.block_size());
        let stamps = self.stamps(root(scope), &prompt[..prompt.len() - 1], query);
        let announced = |block: &&[Stamp]| listener.has(&digest_of(block[size - 1]));
        let blocks = stamps.chunks_exact(size).take_while(announced).count();
        assert_eq!(ix(found) / size, blocks, "a prompt finds other blocks than were announced");
    }

    /// How much of a prompt is there in whole blocks, from its beginning on.
    fn expected_blocks(&self, scope: &Scope, prompt: &[TokenId], query: &QuerySpec) -> u32 {
        if query.private {
            return 0;
        }
        let size = self.block_size();
        let index = &self.cache.blocks.index;
        let all = self.findable();
        let there: BTreeSet<_> = all.iter().filter(|(block, _)| index.is_computed(*block)).map(|(_, it)| it).collect();
        let stamps = self.stamps(self.known.root(scope), prompt, query);
        let found = stamps.chunks_exact(ix(size)).take_while(|block| there.contains(&block.to_vec())).count();
        let ends = (0..=len32(found)).rev().map(|blocks| blocks * size);
        ends.into_iter().find(|&end| query.may_end(end)).unwrap_or(0)
    }

    /// Names, after every call: content is where its parent is, and what a sequence has computed has a name.
    pub(super) fn check_names(&self) {
        let (size, index) = (self.block_size(), &self.cache.blocks.index);
        for block in self.blocks() {
            let Some(node) = self.cache.blocks.node_of(block) else { continue };
            if let Parent::Node(parent) = index.parent(node) {
                assert!(index.entry(parent).is_some(), "{block:?} is kept, and what it builds on is gone");
            }
        }
        for seq in self.seqs.iter().filter(|seq| !seq.query.private) {
            let named = seq.nameless_from.min(seq.committed) / size;
            for (block, index) in self.committed_table(seq).into_iter().zip(0..named) {
                let node = self.cache.blocks.node_of(block);
                let held = || self.cache.sequence(seq.id).unwrap();
                assert!(node.is_some(), "block {index} of {:?} cannot be found: {:?}, size {size}", seq.id, held());
            }
        }
    }
}
