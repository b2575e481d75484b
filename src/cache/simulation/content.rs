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

/// What an invalidation of a block takes.
#[derive(Default)]
struct Spoilt {
    /// Itself, and all blocks that lose their names.
    blocks: BTreeSet<BlockId>,
    /// Content that goes with all that builds on it: the position behind it, and its last stamp.
    contents: Vec<(u32, Stamp)>,
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
        let named = |world: &Self| world.blocks().filter(|&block| world.content_of(block).is_some()).count();
        let before = named(self);
        let mut spoilt = Spoilt::default();
        let digest;
        let what = match what {
            Invalid::All => Invalidate::All,
            Invalid::Scope(scope) => Invalidate::Scope(scope),
            Invalid::Identity(block) => {
                let stamp = block.and_then(|block| self.content_of(block));
                digest = digest_of(stamp.unwrap_or(0));
                if let Some(block) = block.filter(|_| self.hashed && stamp.is_some()) {
                    spoilt = self.spoilt_by(block);
                }
                Invalidate::Identity(&digest)
            }
            Invalid::Block(block) => {
                spoilt = self.spoilt_by(*block);
                Invalidate::Block(*block)
            }
        };
        let by_block = matches!(what, Invalidate::Identity(_) | Invalidate::Block(_));
        if !by_block {
            let scope_of = |block| Some(self.scope_of(self.cache.blocks.node_of(block)?));
            let goes = |block: &BlockId| match what {
                Invalidate::Scope(scope) => scope_of(*block).is_some_and(|other| other == *scope),
                _ => scope_of(*block).is_some(),
            };
            spoilt.blocks = self.blocks().filter(goes).collect();
        }
        let gone: Vec<_> = spoilt.blocks.iter().filter(|&&block| self.content_of(block).is_some()).copied().collect();
        let count = both!(self, |cache| cache.invalidate(what));
        assert_eq!(ix(count), gone.len(), "an invalidation miscounts");
        assert_eq!(named(self), before - gone.len(), "an invalidation takes other names");
        assert!(gone.iter().all(|&block| self.content_of(block).is_none()), "a name survives");
        self.seen.invalidated += u64::from(count);
        match what {
            Invalidate::All => self.known.forget_all(),
            Invalidate::Scope(scope) => self.known.forget_scope(&Rc::new(scope.clone())),
            _ => return self.taint(&spoilt) || count > 0,
        }
        for seq in &mut self.seqs {
            let meant = !matches!(what, Invalidate::Scope(scope) if *seq.scope != *scope);
            if meant && !seq.stamps.is_empty() {
                seq.nameless_from = 0;
            }
        }
        true
    }

    /// What goes with a block: all that has its content or builds on it, and the same of each copy of it that an open
    /// step computes, or of what it computes where a part of it gave way.
    fn spoilt_by(&self, bad: BlockId) -> Spoilt {
        let mut spoilt = Spoilt::default();
        let mut next = alloc::vec![bad];
        while let Some(block) = next.pop() {
            spoilt.blocks.insert(block);
            if let Some(node) = self.cache.blocks.node_of(block) {
                let (end, stamps) = self.stamps_of(node, &|scope| self.known.root(scope));
                let last = stamps[stamps.len() - 1];
                spoilt.blocks.extend(self.blocks().filter(|&other| self.builds_on(other, end, last)));
                spoilt.contents.push((end, last));
            }
            for seq in &self.seqs {
                let displaced = self.displacing(seq.id).and_then(|(row, _)| row.displaced);
                let Some((place, _)) = displaced.filter(|(_, block)| spoilt.blocks.contains(block)) else { continue };
                let instead = self.table(seq.id)[ix(place)];
                let named = self.cache.blocks.node_of(instead).is_some();
                if named && self.is_coming(instead, place) && !spoilt.blocks.contains(&instead) {
                    next.push(instead);
                }
            }
        }
        spoilt
    }

    /// Whether an open step writes a block, which stands at this place of a table.
    fn is_coming(&self, block: BlockId, place: u32) -> bool {
        let size = self.block_size();
        self.open.iter().any(|open| {
            let mut rows = open.step.rows().iter().enumerate();
            rows.any(|(index, row)| {
                let writes = row.start < (place + 1) * size && row.seq_len() > place * size;
                writes && open.step.tables().table(index)[ix(place)] == block
            })
        })
    }

    /// Nobody finds what was invalidated, and who holds some of it, or may come back to it, has no names from there on.
    /// Returns whether there is such a sequence.
    fn taint(&mut self, spoilt: &Spoilt) -> bool {
        let size = self.block_size();
        for &(end, last) in &spoilt.contents {
            self.known.forget_block(end - 1, last);
            let rows = self.open.iter_mut().flat_map(|open| &mut open.rows);
            for row in rows.filter(|row| row.stamps.get(ix(end - 1)) == Some(&last)) {
                row.nameless_from = row.nameless_from.min(end - size);
            }
        }
        let mut any = false;
        for index in 0..self.seqs.len() {
            let seq = self.seqs[index].id;
            let table = (0..).zip(self.table(seq));
            let displaced = self.displacing(seq).and_then(|(row, _)| row.displaced);
            let spoilt = table.chain(displaced).filter(|(_, block)| spoilt.blocks.contains(block));
            let Some(from) = spoilt.map(|(place, _)| place * size).min() else { continue };
            // A block of the lookahead holds nothing yet.
            let seq = &mut self.seqs[index];
            if from < seq.planned() {
                seq.nameless_from = seq.nameless_from.min(from);
                any = true;
            }
        }
        any
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
