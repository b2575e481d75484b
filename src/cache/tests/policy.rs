//! What an eviction policy is told, and what the cache sees to whatever the policy says.

use alloc::string::String;

use super::*;
use crate::evict::Content;
use crate::id::BlockId;
use crate::list::Links;
use crate::prefix::{RangeRetention, Retention};

/// Least recently used, with a record of every call.
#[derive(Clone, Debug, Default)]
struct Recorder {
    lru: Lru,
    calls: Vec<String>,
}

impl Recorder {
    fn note(&mut self, what: &str, block: BlockId) {
        self.calls.push(alloc::format!("{what} {}", block.get()));
    }
}

impl Evict for Recorder {
    fn start(&mut self, num_blocks: u32) -> Result<(), ConfigError> {
        self.calls.push(alloc::format!("start {num_blocks}"));
        self.lru.start(num_blocks)
    }

    fn tick(&mut self, now: Now) {
        self.calls.push(alloc::format!("tick {} {}", now.requests, now.time));
    }

    fn stored(&mut self, block: BlockId, content: &Content<'_>) {
        assert_eq!(content.scope.is_some(), content.parent.is_none());
        let parent = content.parent.map_or("-".into(), |parent| alloc::format!("{}", parent.get()));
        self.calls.push(alloc::format!("stored {} {parent} {:?}", block.get(), content.tokens));
    }

    fn reused(&mut self, block: BlockId) {
        self.note("reused", block);
    }

    fn retain(&mut self, block: BlockId, retention: Retention) {
        let Retention { priority, duration } = retention;
        self.calls.push(alloc::format!("retain {} {priority} {duration:?}", block.get()));
    }

    fn idle(&mut self, links: &mut Links, block: BlockId) {
        self.note("idle", block);
        self.lru.idle(links, block);
    }

    fn remove(&mut self, links: &mut Links, block: BlockId) {
        self.note("remove", block);
        self.lru.remove(links, block);
    }

    fn victim(&mut self, links: &Links) -> Option<BlockId> {
        self.lru.victim(links)
    }

    fn evicted(&mut self, block: BlockId) {
        self.note("evicted", block);
    }
}

struct Recorded(KvCache<Recorder>);

impl Recorded {
    fn new(num_blocks: u32) -> Self {
        let config = CacheConfig::new(num_blocks, 4).with_scratch(false);
        let mut recorded = Self(KvCache::with_policy(config, Recorder::default()).unwrap());
        assert_eq!(recorded.calls(), [alloc::format!("start {num_blocks}")]);
        recorded
    }

    fn calls(&mut self) -> Vec<String> {
        core::mem::take(&mut self.0.blocks.pool.policy_mut().calls)
    }

    fn run(&mut self, prompt: &[u32], query: Query<'_>) -> SeqId {
        let created = self.0.create(&Scope::default(), prompt, query).unwrap();
        let rest = &prompt[created.cached_tokens as usize..];
        let id = self.0.plan(&[Row::ids(created.seq, rest)], &mut Step::new()).unwrap();
        self.0.commit_all(id).unwrap();
        self.0.check_integrity().unwrap();
        created.seq
    }
}

#[test]
fn a_policy_is_told_of_content_of_its_use_and_of_its_end() {
    let mut cache = Recorded::new(2);
    let seq = cache.run(&tokens(0..8), Query::default());
    assert_eq!(cache.calls(), ["tick 1 0", "stored 0 - [0, 1, 2, 3]", "stored 1 0 [4, 5, 6, 7]"]);
    cache.0.free(seq, Release::Cache).unwrap();
    assert_eq!(cache.calls(), ["idle 1", "idle 0"], "last block first");
    cache.0.set_time(7);
    let seq = cache.0.create(&Scope::default(), &tokens(0..5), Query::default()).unwrap().seq;
    assert_eq!(cache.calls(), ["tick 1 7", "tick 2 7", "remove 0", "reused 0"]);
    cache.0.plan(&[Row::ids(seq, &[4])], &mut Step::new()).unwrap();
    assert_eq!(cache.calls(), ["remove 1", "evicted 1"]);
}

#[test]
fn content_of_an_open_step_is_not_stored_yet_and_of_an_aborted_one_never() {
    let mut cache = Recorded::new(4);
    let seq = cache.0.create(&Scope::default(), &tokens(0..4), Query::default()).unwrap().seq;
    let id = cache.0.plan(&[Row::ids(seq, &tokens(0..4))], &mut Step::new()).unwrap();
    cache.0.abort(id).unwrap();
    cache.0.free(seq, Release::Cache).unwrap();
    assert_eq!(cache.calls(), ["tick 1 0"], "a block without content is no candidate either");
}

#[test]
fn of_several_wishes_for_a_block_the_highest_priority_reaches_the_policy() {
    // Positions 0 to 3 have two wishes, 4 to 7 one that begins at 5, 8 to 11 none; the rest is generated.
    let wish = |range, priority, duration| RangeRetention::new(range, Retention { priority, duration });
    let wishes = [wish(12..u32::MAX, 1, None), wish(0..4, 20, None), wish(2..3, 90, Some(30)), wish(5..6, 50, None)];
    let query = Query::default().with_retention(&wishes);
    let retained = |calls: Vec<String>| calls.into_iter().filter(|call| call.starts_with("retain")).collect::<Vec<_>>();
    let mut cache = Recorded::new(8);
    let seq = cache.run(&tokens(0..14), query);
    assert_eq!(retained(cache.calls()), ["retain 0 90 Some(30)", "retain 1 50 None"]);
    // The block of the answer, when it is full.
    let id = cache.0.plan(&[Row::ids(seq, &[14, 15])], &mut Step::new()).unwrap();
    assert!(retained(cache.calls()).is_empty());
    cache.0.commit_all(id).unwrap();
    assert_eq!(retained(cache.calls()), ["retain 3 1 None"]);
    // Who finds content says anew how to keep it, and so does who pins it; who says nothing changes nothing.
    let other = [wish(0..8, 99, None)];
    let found = cache.0.create(&Scope::default(), &tokens(0..9), Query::default().with_retention(&other)).unwrap();
    assert_eq!(found.cached_tokens, 8);
    assert_eq!(retained(cache.calls()), ["retain 0 99 None", "retain 1 99 None"]);
    cache.0.pin(&Scope::default(), &tokens(0..4), Query::default().with_retention(&wishes)).unwrap();
    assert_eq!(retained(cache.calls()), ["retain 0 90 Some(30)"]);
    cache.0.create(&Scope::default(), &tokens(0..9), Query::default()).unwrap();
    assert!(retained(cache.calls()).is_empty());
}

#[test]
fn a_wish_for_what_nobody_can_find_reaches_no_policy() {
    let wishes = [RangeRetention::new(0..u32::MAX, Retention { priority: 100, duration: None })];
    let mut cache = Recorded::new(4);
    let seq = cache.run(&tokens(0..9), Query::default().with_retention(&wishes).with_private(true));
    cache.0.free(seq, Release::Cache).unwrap();
    assert_eq!(cache.calls(), ["tick 1 0"]);
    let wrong = [RangeRetention::new(4..4, Retention::default())];
    let query = Query::default().with_retention(&wrong);
    let refused = cache.0.create(&Scope::default(), &[1], query);
    assert_eq!(refused, Err(CreateError::BadRange { start: 4, end: 4 }));
}

/// A policy that always names the same block, or none.
#[derive(Clone, Debug)]
struct Stubborn(Option<u32>);

impl Evict for Stubborn {
    fn start(&mut self, _num_blocks: u32) -> Result<(), ConfigError> {
        Ok(())
    }

    fn idle(&mut self, _links: &mut Links, _block: BlockId) {}

    fn remove(&mut self, _links: &mut Links, _block: BlockId) {}

    fn victim(&mut self, _links: &Links) -> Option<BlockId> {
        self.0.map(BlockId::new)
    }
}

#[test]
fn no_policy_gets_a_held_or_pinned_block_evicted_or_a_parent_before_its_child() {
    // Blocks 0, 1 and 2 are a chain that is idle, 3 is held, 4 is pinned. A policy that is wrong, or names the head of the
    // chain, gets its end evicted.
    for named in [None, Some(0), Some(3), Some(4), Some(99)] {
        let config = CacheConfig::new(5, 4).with_scratch(false);
        let mut cache = KvCache::with_policy(config, Stubborn(named)).unwrap();
        let sequence = |cache: &mut KvCache<Stubborn>, prompt: &[u32]| {
            let seq = cache.create(&Scope::default(), prompt, Query::default()).unwrap().seq;
            let id = cache.plan(&[Row::ids(seq, prompt)], &mut Step::new()).unwrap();
            cache.commit_all(id).unwrap();
            seq
        };
        let chain = sequence(&mut cache, &tokens(0..12));
        let held = sequence(&mut cache, &tokens(20..24));
        let pinned = sequence(&mut cache, &tokens(30..34));
        cache.pin(&Scope::default(), &tokens(30..34), Query::default()).unwrap();
        for seq in [chain, pinned] {
            cache.free(seq, Release::Cache).unwrap();
        }
        let new = cache.create_blank(&Scope::default()).unwrap();
        for expected in [8, 4, 0] {
            let id = cache.plan(&[Row::count(new, 4)], &mut Step::new()).unwrap();
            cache.commit_all(id).unwrap();
            cache.check_integrity().unwrap();
            assert_eq!(found(&cache, &tokens(0..13)), expected, "{named:?} is named");
        }
        assert!(cache.plan(&[Row::count(new, 4)], &mut Step::new()).is_err());
        assert_eq!((found(&cache, &tokens(20..25)), found(&cache, &tokens(30..35))), (4, 4));
        assert_eq!(cache.sequence(held).unwrap().len(), 4);
    }
}

#[test]
fn a_policy_in_a_box_is_a_policy() {
    let policy: alloc::boxed::Box<dyn Evict> = alloc::boxed::Box::new(Lru::new());
    let mut cache = KvCache::with_policy(CacheConfig::new(4, 4), policy).unwrap();
    let seq = cache.create(&Scope::default(), &tokens(0..5), Query::default()).unwrap().seq;
    let id = cache.plan(&[Row::ids(seq, &tokens(0..5))], &mut Step::new()).unwrap();
    cache.commit_all(id).unwrap();
    cache.free(seq, Release::Cache).unwrap();
    assert_eq!(found(&cache, &tokens(0..5)), 4);
}

#[test]
fn a_chain_whose_head_is_named_goes_from_its_ends_also_where_it_branches() {
    // Blocks of one token. 10 in front, of the lowest priority; behind these two branches of 20, of the highest: the policy
    // names the heads, 10 times in one plan. The first branch in the order of contents goes, from its end.
    let config = CacheConfig::new(60, 1).with_scratch(false);
    let mut cache = KvCache::with_policy(config, crate::evict::Priority::new()).unwrap();
    let keep = |range, priority| RangeRetention::new(range, Retention { priority, duration: None });
    let retention = [keep(0..10, 0), keep(10..40, 90)];
    let mut step = Step::new();
    let branches = [100, 200].map(|from| (0..10).chain(from..from + 20).collect::<Vec<u32>>());
    for prompt in &branches {
        let query = Query::default().with_retention(&retention);
        let created = cache.create(&Scope::default(), prompt, query).unwrap();
        let rest = &prompt[created.cached_tokens as usize..];
        let id = cache.plan(&[Row::ids(created.seq, rest)], &mut step).unwrap();
        cache.commit_all(id).unwrap();
        cache.free(created.seq, Release::Cache).unwrap();
    }
    let mut from = 1_000;
    let mut evict = |cache: &mut KvCache<_>, blocks: u32| {
        let tokens = tokens(from..from + blocks);
        from += blocks;
        let seq = cache.create(&Scope::default(), &tokens, Query::default().with_private(true)).unwrap().seq;
        let id = cache.plan(&[Row::ids(seq, &tokens)], &mut step).unwrap();
        cache.commit_all(id).unwrap();
        cache.check_integrity().unwrap();
        branches.clone().map(|mut prompt| {
            prompt.push(9);
            found(cache, &prompt)
        })
    };
    // Ten are blank.
    assert_eq!(evict(&mut cache, 20), [20, 30]);
    assert_eq!(evict(&mut cache, 15), [10, 25]);
    assert_eq!(evict(&mut cache, 20), [5, 5]);
}
