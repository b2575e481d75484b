//! Ranks that replay only the calls that succeeded, under another hash seed, get the same ids and the same bytes.

use paged_kv::cache::{Outcome, Release, Row};
use paged_kv::evict::{Evict, Lru};
use paged_kv::{CacheConfig, Extra, KvCache, Query, Scope, SeqId, Step, StepId};

/// Numbers in a fixed order (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 11) % u64::from(end)).expect("below a u32")
    }

    fn tokens(&mut self, most: u32) -> Vec<u32> {
        (0..self.below(most)).map(|_| self.below(2)).collect()
    }
}

struct Ranks {
    planner: KvCache,
    follower: KvCache<Box<dyn Evict>>,
}

impl Ranks {
    /// Makes a call on the planner and, if it succeeds, on the follower.
    fn call<T: PartialEq + std::fmt::Debug, E: std::fmt::Debug>(
        &mut self,
        planner: impl FnOnce(&mut KvCache) -> Result<T, E>,
        follower: impl FnOnce(&mut KvCache<Box<dyn Evict>>) -> Result<T, E>,
    ) -> Option<T> {
        let result = planner(&mut self.planner).ok()?;
        assert_eq!(follower(&mut self.follower).expect("it succeeded on the planner"), result);
        Some(result)
    }
}

/// One call on both ranks.
macro_rules! both {
    ($ranks:ident, $method:ident $args:tt) => {
        $ranks.call(|cache| cache.$method $args, |cache| cache.$method $args)
    };
}

#[test]
fn ranks_that_skip_refused_calls_and_hash_otherwise_plan_equal_steps() {
    let (mut planned, mut refused) = (0, 0);
    for seed in 1..=40 {
        let mut numbers = Numbers(u64::from(seed) << 20 | 0x9e37_79b9);
        let config = CacheConfig::new(5 + seed % 12, 1 + seed % 4).with_withhold(seed % 3 == 0);
        let mut ranks = Ranks {
            planner: KvCache::new(config.with_hash_seed(seed.into())).expect("valid"),
            follower: KvCache::with_policy(config, Box::new(Lru::new()) as Box<dyn Evict>).expect("valid"),
        };
        let (mut seqs, mut open): (Vec<SeqId>, Vec<StepId>) = Default::default();
        for _ in 0..1_500 {
            let at = numbers.below(8) as usize % seqs.len().max(1);
            let seq = seqs.get(at).copied().unwrap_or(SeqId::from_u64(7));
            let step = open.first().copied().unwrap_or(StepId::new(0));
            match numbers.below(10) {
                0 | 1 if seqs.len() < 8 => {
                    let (prompt, start) = (numbers.tokens(16), numbers.below(12));
                    let range = start..start + numbers.below(4);
                    let extras = [Extra { range: range.clone(), digest: [1; 32] }];
                    let query = match numbers.below(3) {
                        0 => Query::default().with_extras(&extras),
                        1 => Query::default().with_no_cut(core::slice::from_ref(&range)),
                        _ => Query::default(),
                    };
                    let scope = Scope::default();
                    let _ = ranks.planner.peek(&scope, &prompt, query);
                    let _ = ranks.planner.fits_prompt(&scope, &prompt, query, 1);
                    seqs.extend(both!(ranks, create(&scope, &prompt, query)).map(|created| created.seq));
                }
                2..=4 => {
                    let tokens = [numbers.tokens(7), numbers.tokens(7)];
                    let first = Row::ids(seq, &tokens[0]).with_lookahead(numbers.below(3));
                    let second = Row::ids(seqs.first().copied().unwrap_or(seq), &tokens[1]);
                    let rows = [first.with_drafts(numbers.below(2)), second];
                    let rows = &rows[..1 + numbers.below(2) as usize];
                    let _ = ranks.planner.fits(rows);
                    let (mut here, mut there) = (Step::new(), Step::new());
                    let id = ranks.call(|cache| cache.plan(rows, &mut here), |cache| cache.plan(rows, &mut there));
                    let (mut bytes, mut others) = (Vec::new(), Vec::new());
                    here.encode(&mut bytes);
                    there.encode(&mut others);
                    assert_eq!(bytes, others, "seed {seed}");
                    *(if id.is_some() { &mut planned } else { &mut refused }) += 1;
                    open.extend(id);
                }
                5 => {
                    let outcomes = [Outcome::Accept(numbers.below(7))];
                    if both!(ranks, commit(step, &outcomes)).or_else(|| both!(ranks, commit_all(step))).is_some() {
                        open.remove(0);
                        both!(ranks, retire(step));
                    }
                }
                6 if numbers.below(3) == 0 => {
                    if both!(ranks, abort(step)).is_some() {
                        open.clear();
                    }
                }
                7 if seqs.len() < 8 => seqs.extend(both!(ranks, fork(seq))),
                8 => {
                    let len = numbers.below(20);
                    let _ = both!(ranks, truncate(seq, len)).or_else(|| both!(ranks, reserve(seq, len)));
                }
                _ => {
                    let release = if numbers.below(2) == 0 { Release::Cache } else { Release::Discard };
                    if numbers.below(2) == 0 && both!(ranks, free(seq, release)).is_some() {
                        seqs.swap_remove(at);
                    }
                }
            }
            assert_eq!(ranks.planner.stats(), ranks.follower.stats(), "seed {seed}");
        }
        ranks.planner.check_integrity().expect("whole");
        ranks.follower.check_integrity().expect("whole");
    }
    assert!(planned > 2_000 && refused > 2_000, "{planned} planned, {refused} refused");
}
