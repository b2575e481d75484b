//! One suite for every policy: what [`Evict`] promises, under random chains, against a plain model.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::{Adaptive, Content, Evict, Lfu, Lru, Now, Priority, Retention, S3Fifo};
use crate::id::{BlockId, TokenId, ix};
use crate::list::Links;
use crate::prefix::Scope;

/// A policy with its links, called by block numbers: for tests with expectations made by hand.
pub(super) struct Bench<E> {
    pub(super) policy: E,
    links: Links,
    now: Now,
    candidate: Vec<bool>,
}

impl<E: Evict> Bench<E> {
    pub(super) fn new(mut policy: E, num_blocks: u32) -> Self {
        policy.start(num_blocks).unwrap();
        Self {
            policy,
            links: Links::new(num_blocks).unwrap(),
            now: Now::default(),
            candidate: vec![false; ix(num_blocks)],
        }
    }

    /// The caller's clock.
    pub(super) fn time(&mut self, time: u64) {
        self.now.time = time;
        self.policy.tick(self.now);
    }

    /// A request begins.
    pub(super) fn request(&mut self) {
        self.now.requests += 1;
        self.policy.tick(self.now);
    }

    pub(super) fn store(&mut self, block: u32, parent: Option<u32>, tokens: &[TokenId]) {
        let scope = Scope::default();
        let parent = parent.map(BlockId::new);
        self.policy.stored(
            BlockId::new(block),
            &Content { scope: parent.is_none().then_some(&scope), parent, tokens, extras: &[] },
        );
    }

    pub(super) fn retain(&mut self, block: u32, retention: Retention) {
        self.policy.retain(BlockId::new(block), retention);
    }

    /// These lose their last reference, in this order.
    pub(super) fn idle(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.policy.idle(&mut self.links, BlockId::new(block));
            self.candidate[ix(block)] = true;
        }
    }

    /// The block is found again, idle or not.
    pub(super) fn revive(&mut self, block: u32) {
        self.policy.reused(BlockId::new(block));
        if self.candidate[ix(block)] {
            self.remove(block);
        }
    }

    pub(super) fn remove(&mut self, block: u32) {
        self.policy.remove(&mut self.links, BlockId::new(block));
        self.candidate[ix(block)] = false;
    }

    pub(super) fn victim(&mut self) -> Option<u32> {
        self.policy.victim(&self.links).map(BlockId::get)
    }

    pub(super) fn evict_block(&mut self, block: u32) {
        self.remove(block);
        self.policy.evicted(BlockId::new(block));
    }

    pub(super) fn evict(&mut self) -> Option<u32> {
        let block = self.victim()?;
        self.evict_block(block);
        Some(block)
    }

    /// Evicts everything.
    pub(super) fn drain(&mut self) -> Vec<u32> {
        core::iter::from_fn(|| self.evict()).collect()
    }
}

/// Stores first blocks of one token each, the block's number.
pub(super) fn store<E: Evict>(bench: &mut Bench<E>, blocks: &[u32]) {
    for &block in blocks {
        bench.store(block, None, &[block]);
    }
}

/// What a call was, so that another instance can be asked the same.
#[derive(Clone, Debug)]
enum Call {
    Tick { request: bool, time: u64 },
    Stored { block: u32, parent: Option<u32>, tokens: [TokenId; 2] },
    Revive(u32),
    Retain(u32, Retention),
    Idle(u32),
    GivenUp(u32),
    Victim { answer: Option<u32> },
    Evict(u32),
}

/// Makes the call, and gives the victim.
fn make<E: Evict>(bench: &mut Bench<E>, call: &Call) -> Option<u32> {
    match *call {
        Call::Tick { request, time } => {
            bench.now.time += time;
            if request { bench.request() } else { bench.time(bench.now.time) }
        }
        Call::Stored { block, parent, tokens } => bench.store(block, parent, &tokens),
        Call::Revive(block) => bench.revive(block),
        Call::Retain(block, retention) => bench.retain(block, retention),
        Call::Idle(block) => bench.idle(&[block]),
        Call::GivenUp(block) => bench.remove(block),
        Call::Victim { .. } => return bench.victim(),
        Call::Evict(block) => bench.evict_block(block),
    }
    None
}

/// What the cache would know of a block.
#[derive(Clone, Debug, Default)]
struct Slot {
    holders: u32,
    content: bool,
    parent: Option<u32>,
    children: Vec<u32>,
    token: TokenId,
}

impl Slot {
    fn is_candidate(&self) -> bool {
        self.content && self.holders == 0
    }
}

/// A cache as plain as can be around a policy. It checks the laws at every victim and writes down every call.
struct World<E> {
    bench: Bench<E>,
    slots: Vec<Slot>,
    sequences: Vec<Vec<u32>>,
    calls: Vec<Call>,
    /// Whether the policy itself names children before parents.
    leaves_first: bool,
    seed: u64,
}

impl<E: Evict> World<E> {
    fn new(policy: E, num_blocks: u32, leaves_first: bool, seed: u64) -> Self {
        let slots = vec![Slot::default(); ix(num_blocks)];
        let bench = Bench::new(policy, num_blocks);
        Self { bench, slots, sequences: Vec::new(), calls: Vec::new(), leaves_first, seed }
    }

    /// Below `bound` (xorshift64*).
    fn below(&mut self, bound: usize) -> usize {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        let word = self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(word).unwrap() % bound
    }

    fn call(&mut self, call: Call) {
        make(&mut self.bench, &call);
        self.calls.push(call);
    }

    fn victim(&mut self) -> Option<u32> {
        let named = self.bench.victim();
        self.calls.push(Call::Victim { answer: named });
        let any = self.slots.iter().any(Slot::is_candidate);
        assert_eq!(named.is_some(), any, "a victim exactly if there is a candidate");
        let mut block = named?;
        assert!(self.slots[ix(block)].is_candidate(), "a victim is a candidate");
        if self.leaves_first {
            assert!(self.slots[ix(block)].children.is_empty(), "a child goes before its parent");
        }
        while let Some(&child) = self.slots[ix(block)].children.last() {
            block = child;
        }
        Some(block)
    }

    fn forget(&mut self, block: u32) {
        let slot = core::mem::take(&mut self.slots[ix(block)]);
        assert!(slot.is_candidate() && slot.children.is_empty());
        if let Some(parent) = slot.parent {
            self.slots[ix(parent)].children.retain(|&child| child != block);
        }
    }

    /// Takes a block: one without content, or the victim.
    fn allocate(&mut self) -> Option<u32> {
        let blank = (0..self.slots.len()).find(|&at| !self.slots[at].content && self.slots[at].holders == 0);
        let block = match blank {
            Some(at) => u32::try_from(at).unwrap(),
            None => {
                let block = self.victim()?;
                self.call(Call::Evict(block));
                self.forget(block);
                block
            }
        };
        self.slots[ix(block)].holders = 1;
        Some(block)
    }

    /// A request: walks down what is cached, a child at random, and stores some blocks behind it.
    fn admit(&mut self) {
        let time = u64::try_from(self.below(3)).unwrap();
        self.call(Call::Tick { request: true, time });
        let mut table: Vec<u32> = Vec::new();
        let mut roots: Vec<u32> = Vec::new();
        for at in 0..self.slots.len() {
            if self.slots[at].content && self.slots[at].parent.is_none() {
                roots.push(u32::try_from(at).unwrap());
            }
        }
        let mut choices = roots;
        while !choices.is_empty() && self.below(6) != 0 {
            let block = choices[self.below(choices.len())];
            table.push(block);
            choices.clone_from(&self.slots[ix(block)].children);
        }
        for &block in &table {
            self.slots[ix(block)].holders += 1;
            self.call(Call::Revive(block));
        }
        let first_new = table.len();
        for _ in 0..self.below(6) {
            let Some(block) = self.allocate() else { break };
            table.push(block);
        }
        for at in first_new..table.len() {
            let (block, parent) = (table[at], at.checked_sub(1).map(|at| table[at]));
            // Few tokens, so that evicted content comes back; but no two children of a parent with the same.
            let token = (0..).find(|&token| !self.known(parent, token)).unwrap();
            let tokens = [token, 1];
            self.call(Call::Stored { block, parent, tokens });
            let slot = &mut self.slots[ix(block)];
            (slot.content, slot.parent, slot.token) = (true, parent, token);
            if let Some(parent) = parent {
                self.slots[ix(parent)].children.push(block);
            }
        }
        if self.below(4) == 0 {
            let priority = u8::try_from(self.below(130)).unwrap();
            let duration = (self.below(2) == 0).then_some(u64::try_from(self.below(9)).unwrap());
            for &block in &table {
                self.call(Call::Retain(block, Retention { priority, duration }));
            }
        }
        self.sequences.push(table);
    }

    fn known(&self, parent: Option<u32>, token: TokenId) -> bool {
        self.slots.iter().any(|slot| slot.content && slot.parent == parent && slot.token == token)
    }

    /// A sequence gives its blocks back, last block first.
    fn release(&mut self) {
        if self.sequences.is_empty() {
            return;
        }
        let at = self.below(self.sequences.len());
        for block in self.sequences.swap_remove(at).into_iter().rev() {
            self.slots[ix(block)].holders -= 1;
            if self.slots[ix(block)].holders == 0 {
                self.call(Call::Idle(block));
            }
        }
    }

    /// Gives up a random leaf that is a candidate, without an eviction.
    fn give_up(&mut self) {
        let at = self.below(self.slots.len());
        if self.slots[at].is_candidate() && self.slots[at].children.is_empty() {
            let block = u32::try_from(at).unwrap();
            self.call(Call::GivenUp(block));
            self.forget(block);
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.below(20) {
                0..9 => self.admit(),
                9..18 => self.release(),
                18 => self.give_up(),
                _ => {
                    self.call(Call::Tick { request: false, time: 4 });
                    self.victim();
                }
            }
        }
    }

    /// Evicts everything: every candidate once, and then there is none.
    fn drain(&mut self) {
        while !self.sequences.is_empty() {
            self.release();
        }
        let mut left = self.slots.iter().filter(|slot| slot.is_candidate()).count();
        while let Some(block) = self.victim() {
            self.call(Call::Evict(block));
            self.forget(block);
            left -= 1;
        }
        assert_eq!(left, 0, "every candidate is evicted");
    }
}

/// The laws, for one policy.
fn laws<E: Evict>(new: impl Fn() -> E, leaves_first: bool) {
    for seed in 1..=30 {
        std::println!("seed {seed}");
        let num_blocks = [1, 2, 7, 40, 150][usize::try_from(seed).unwrap() % 5];
        let mut world = World::new(new(), num_blocks, leaves_first, seed);
        for _ in 0..3 {
            world.run(500);
            world.drain();
        }
        // Another instance gives the same answers to the same calls, and allocates nothing.
        let mut bench = Bench::new(new(), num_blocks);
        let allocated = allocation_counter::measure(|| repeat(&mut bench, &world.calls));
        assert_eq!(allocated.count_total, 0);
    }
}

/// Makes calls again, which must be answered as they were.
fn repeat<E: Evict>(bench: &mut Bench<E>, calls: &[Call]) {
    for call in calls {
        let answer = make(bench, call);
        if let Call::Victim { answer: expected } = *call {
            assert_eq!(answer, expected);
        }
    }
}

#[test]
fn a_policy_answers_in_a_box_as_it_does_without() {
    fn boxed<E: Evict + 'static>(new: impl Fn() -> E) {
        let mut world = World::new(new(), 40, false, 1);
        world.run(2_000);
        let inside: Box<dyn Evict> = Box::new(new());
        assert_eq!(inside.wants_content(), new().wants_content());
        repeat(&mut Bench::new(inside, 40), &world.calls);
    }
    // The first wants nothing but what every policy is told, the second content and evictions, the third time and wishes.
    boxed(Lru::new);
    boxed(S3Fifo::new);
    boxed(Priority::new);
}

/// One test per policy.
macro_rules! policies {
    ($($name:ident: $new:expr, leaves_first: $leaves_first:expr;)*) => {$(
        #[test]
        fn $name() {
            laws(|| $new, $leaves_first);
        }
    )*};
}

policies! {
    lru_keeps_the_laws: Lru::new(), leaves_first: true;
    lfu_keeps_the_laws: Lfu::new(), leaves_first: true;
    // These rely on the cache to take a victim's last descendant instead: see the policies.
    s3fifo_keeps_the_laws: S3Fifo::new(), leaves_first: false;
    priority_keeps_the_laws: Priority::new(), leaves_first: false;
    adaptive_keeps_the_laws: Adaptive::new(), leaves_first: false;
}

/// The suite must fail where a policy breaks a law.
#[derive(Debug)]
struct NewestFirst(Lru, Option<BlockId>);

impl Evict for NewestFirst {
    fn start(&mut self, _num_blocks: u32) -> Result<(), crate::error::ConfigError> {
        Ok(())
    }

    fn idle(&mut self, links: &mut Links, block: BlockId) {
        self.1 = Some(block);
        self.0.idle(links, block);
    }

    fn remove(&mut self, links: &mut Links, block: BlockId) {
        self.0.remove(links, block);
    }

    fn victim(&mut self, links: &Links) -> Option<BlockId> {
        self.0.victim(links).and(self.1)
    }
}

#[test]
#[should_panic(expected = "a victim is a candidate")]
fn the_suite_catches_a_policy_that_names_what_is_held() {
    laws(|| NewestFirst(Lru::new(), None), false);
}
