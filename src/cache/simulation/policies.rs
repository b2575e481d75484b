//! The policies that a run is made under: those of the crate, and wrong ones, under which all laws must hold too.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::rng::mix;
use crate::error::ConfigError;
use crate::evict::{Adaptive, Content, Evict, Lfu, Lru, Now, Priority, Retention, S3Fifo};
use crate::id::{BlockId, ix, len32};
use crate::list::{Links, List};

/// Makes a policy.
type Make = fn() -> Box<dyn Policy>;

/// All of them; those in the second list keep the contract of [`Evict::victim`] not.
const HONEST: [Make; 7] = [
    || Box::new(Lru::new()),
    || Box::new(Lfu::new()),
    || Box::new(S3Fifo::new()),
    || Box::new(Priority::new()),
    || Box::new(Adaptive::new()),
    || Box::new(NewestFirst::default()),
    || Box::new(Dice::default()),
];
const WRONG: [Make; 2] = [|| Box::new(Mute), || Box::new(Liar::default())];

/// A policy that can be cloned in its box.
pub(crate) trait Policy: Evict {
    fn boxed(&self) -> Box<dyn Policy>;
}

impl<E: Evict + Clone + 'static> Policy for E {
    fn boxed(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// A policy, and a watch over what the cache tells it.
#[derive(Debug)]
pub(crate) struct Watched {
    policy: Box<dyn Policy>,
    /// Which of all it is.
    place: usize,
    honest: bool,
    candidates: Vec<bool>,
    /// Blocks that content was told of, since they were last evicted.
    stored: Vec<bool>,
    removed: Option<BlockId>,
    now: Now,
}

impl Clone for Watched {
    fn clone(&self) -> Self {
        let Self { place, honest, removed, now, .. } = *self;
        let (candidates, stored) = (self.candidates.clone(), self.stored.clone());
        Self { policy: (*self.policy).boxed(), place, honest, candidates, stored, removed, now }
    }
}

impl Watched {
    /// The policy of a seed: in half of them the default, which is the first.
    pub(crate) fn of(seed: u32) -> Self {
        let place = ix(seed / 2) % (HONEST.len() + WRONG.len());
        let place = if seed.is_multiple_of(2) { 0 } else { place };
        let honest = place < HONEST.len();
        let make = HONEST.iter().chain(&WRONG).nth(place).unwrap();
        let (candidates, stored) = (Vec::new(), Vec::new());
        Self { policy: make(), place, honest, candidates, stored, removed: None, now: Now::default() }
    }

    /// A bit for this policy, and those of all.
    pub(crate) fn bit(&self) -> (u32, u32) {
        (1 << self.place, (1 << (HONEST.len() + WRONG.len())) - 1)
    }

    pub(crate) fn is_candidate(&self, block: BlockId) -> bool {
        self.candidates[block.index()]
    }
}

impl Evict for Watched {
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError> {
        assert!(self.candidates.is_empty(), "a policy is started once");
        self.candidates.resize(ix(num_blocks), false);
        self.stored.resize(ix(num_blocks), false);
        self.policy.start(num_blocks)
    }

    fn tick(&mut self, now: Now) {
        assert!(now.time >= self.now.time && now.requests >= self.now.requests, "time runs backwards");
        self.now = now;
        self.policy.tick(now);
    }

    fn stored(&mut self, block: BlockId, content: &Content<'_>) {
        assert!(!self.is_candidate(block), "a block gets content while nobody holds it");
        assert_eq!(content.parent.is_none(), content.scope.is_some(), "a first block has a scope, the others a parent");
        self.stored[block.index()] = true;
        self.policy.stored(block, content);
    }

    fn reused(&mut self, block: BlockId) {
        assert!(!self.is_candidate(block), "a block that is reused is held by then");
        self.policy.reused(block);
    }

    fn retain(&mut self, block: BlockId, retention: Retention) {
        self.policy.retain(block, retention);
    }

    fn idle(&mut self, links: &mut Links, block: BlockId) {
        assert!(!core::mem::replace(&mut self.candidates[block.index()], true), "a block is a candidate twice");
        assert!(self.stored[block.index()], "a candidate has content that the policy was not told of");
        self.policy.idle(links, block);
    }

    fn remove(&mut self, links: &mut Links, block: BlockId) {
        assert!(core::mem::take(&mut self.candidates[block.index()]), "a block is removed that is no candidate");
        self.removed = Some(block);
        self.policy.remove(links, block);
    }

    fn victim(&mut self, links: &Links) -> Option<BlockId> {
        let victim = self.policy.victim(links);
        if self.honest {
            let any = self.candidates.contains(&true);
            assert!(victim.map_or(!any, |block| self.is_candidate(block)), "{victim:?} is no candidate");
        }
        victim
    }

    fn evicted(&mut self, block: BlockId) {
        assert_eq!(self.removed, Some(block), "a block is evicted that was not removed just now");
        self.stored[block.index()] = false;
        self.policy.evicted(block);
    }
}

/// The start of a chain first, and of chains the newest.
#[derive(Clone, Default, Debug)]
pub(crate) struct NewestFirst(List);

impl Evict for NewestFirst {
    fn start(&mut self, _num_blocks: u32) -> Result<(), ConfigError> {
        Ok(())
    }

    fn idle(&mut self, links: &mut Links, block: BlockId) {
        self.0.push_front(links, block.get());
    }

    fn remove(&mut self, links: &mut Links, block: BlockId) {
        self.0.remove(links, block.get());
    }

    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        self.0.front().map(BlockId::new)
    }
}

/// Any candidate.
#[derive(Clone, Default, Debug)]
struct Dice {
    candidates: Vec<BlockId>,
    calls: u64,
}

impl Evict for Dice {
    fn start(&mut self, _num_blocks: u32) -> Result<(), ConfigError> {
        Ok(())
    }

    fn idle(&mut self, _links: &mut Links, block: BlockId) {
        self.candidates.push(block);
        self.calls += 1;
    }

    fn remove(&mut self, _links: &mut Links, block: BlockId) {
        self.candidates.retain(|&other| other != block);
        self.calls += 1;
    }

    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        let len = u64::from(len32(self.candidates.len()));
        let place = mix(self.calls, 0).checked_rem(len)?;
        self.candidates.get(usize::try_from(place).unwrap()).copied()
    }
}

/// Names no victim.
#[derive(Clone, Debug)]
struct Mute;

impl Evict for Mute {
    fn start(&mut self, _num_blocks: u32) -> Result<(), ConfigError> {
        Ok(())
    }

    fn idle(&mut self, _links: &mut Links, _block: BlockId) {}

    fn remove(&mut self, _links: &mut Links, _block: BlockId) {}

    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        None
    }
}

/// Names blocks in turn, also such as are held or do not exist.
#[derive(Clone, Default, Debug)]
struct Liar {
    num_blocks: u32,
    calls: u32,
}

impl Evict for Liar {
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError> {
        self.num_blocks = num_blocks;
        Ok(())
    }

    fn idle(&mut self, _links: &mut Links, _block: BlockId) {
        self.calls += 1;
    }

    fn remove(&mut self, _links: &mut Links, _block: BlockId) {}

    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        Some(BlockId::new(self.calls % (self.num_blocks + 2)))
    }
}
