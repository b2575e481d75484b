//! How far to trust what was learned: the account against LRU.

/// Of all blocks so far, and of all requests, one in so many may be lost against LRU.
const BUDGET: i64 = 384;
/// Requests are weighed in this many parts.
const PARTS: i64 = 64;
/// One in so many blocks of the pool, and some at least, count as missing and asked for to begin with.
const PRIOR: u32 = 40;
const LEAST_PRIOR: u32 = 8;
/// Pools of missing blocks after which half of what the odds rest on is forgotten.
const MEMORY: u64 = 4;

/// Keeps the account of hits against those that LRU would have had, by blocks and by requests, and says when to evict
/// nothing that LRU would keep.
///
/// The *debt* is hits of LRU minus own ones. But a debt is seen late: what is evicted though LRU keeps it costs a hit only
/// when somebody asks for it, and then it is too late for all else that is *missing*. So what is missing counts as owed
/// beforehand, at the *odds* that it will be: those at which it was asked for so far, and certainty to begin with. What is
/// owed and will be must stay within a 384th of all blocks so far. Odds may turn, so hits ahead of LRU, of which up to a
/// pool is put by, cover as many missing blocks, and not more at better odds.
///
/// So against LRU no more than a 384th is lost as long as the odds hold, and when they turn, no more in addition than
/// what is missing then, at most a pool of blocks. What is missing was asked for by then, and the odds know.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trust {
    num_blocks: u32,
    debt: i64,
    request_debt: i64,
    blocks: u64,
    requests: u64,
    /// The request at hand: its debt and its blocks.
    run_debt: i64,
    run_len: i64,
    /// Missing blocks that were asked for, and that could have been: each for one lifetime of LRU, in 1/256.
    asked: u64,
    could: u64,
    bound: bool,
}

impl Trust {
    pub(super) const fn new() -> Self {
        Self {
            num_blocks: 0,
            debt: 0,
            request_debt: 0,
            blocks: 0,
            requests: 0,
            run_debt: 0,
            run_len: 0,
            asked: 0,
            could: 0,
            bound: false,
        }
    }

    pub(super) fn start(&mut self, num_blocks: u32) {
        self.num_blocks = num_blocks;
    }

    /// Whether to evict nothing that LRU would keep.
    #[inline]
    pub(super) const fn is_bound(&self) -> bool {
        self.bound
    }

    /// A sequence begins to give its blocks back.
    pub(super) fn request(&mut self) {
        if self.run_len > 0 {
            self.request_debt += self.run_debt * PARTS / self.run_len;
            self.requests += 1;
        }
        (self.run_debt, self.run_len) = (0, 0);
    }

    /// It gives back a block that LRU would have found, and that was found.
    #[inline]
    pub(super) fn block(&mut self, lru: bool, own: bool) {
        self.blocks += 1;
        self.run_len += 1;
        let debt = i64::from(lru) - i64::from(own);
        self.debt += debt;
        self.run_debt += debt;
        if lru && !own {
            self.asked += 1;
        }
    }

    /// So many blocks were missing for a share, in 1/256, of the time for which LRU keeps a block.
    pub(super) fn missed(&mut self, missing: u32, share: u32) {
        self.could += u64::from(missing) * u64::from(share);
        if self.could > u64::from(self.num_blocks) * MEMORY * 256 {
            self.could /= 2;
            self.asked /= 2;
        }
    }

    /// Looks at the account; so many blocks are missing. Whether the mind was changed.
    pub(super) fn weigh(&mut self, missing: u32) -> bool {
        let pool = i64::from(self.num_blocks);
        let blocks = i64::try_from(self.blocks).unwrap_or(i64::MAX).max(1);
        let requests = i64::try_from(self.requests).unwrap_or(i64::MAX);
        self.debt = self.debt.max(-pool);
        self.request_debt = self.request_debt.max(-pool.saturating_mul(PARTS).saturating_mul(requests) / blocks);

        let spare = u64::try_from(blocks / BUDGET - self.debt.max(0)).ok();
        let covered = u32::try_from(-self.debt).unwrap_or(0);
        let prior = u64::from((self.num_blocks / PRIOR).max(LEAST_PRIOR));
        let (could, asked) = (self.could / 256, self.asked);
        let was = self.bound;
        self.bound = self.request_debt > requests.saturating_mul(PARTS) / BUDGET
            || spare.is_none_or(|spare| {
                // Below 2^32 and 2^35 each but for the budget, of which a pool is as good as more.
                let spare = spare.min(u64::from(self.num_blocks));
                u64::from(missing.saturating_sub(covered)) * (asked.min(could) + prior) > spare * (could + prior)
            });
        self.bound != was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trust in a pool of 1,024 blocks, with as many requests of one block that were even.
    fn after(requests: u64) -> Trust {
        let mut trust = Trust::new();
        trust.start(1024);
        for _ in 0..requests {
            trust.request();
            trust.block(true, true);
        }
        trust
    }

    fn bound(trust: &mut Trust, missing: u32) -> bool {
        trust.weigh(missing);
        trust.is_bound()
    }

    #[test]
    fn what_is_missing_is_owed_until_the_odds_are_known() {
        // 38,400 / 384 is 100.
        let mut trust = after(38_400);
        assert!(!bound(&mut trust, 100) && bound(&mut trust, 101));
        // 100 blocks were missing for as long as LRU keeps a block, and nobody asked: the odds are 25 in 125, of the prior.
        trust.missed(100, 256);
        assert!(!bound(&mut trust, 500) && bound(&mut trust, 501));
        // Somebody did, for 50 of them: 75 in 125, and half of the budget is spent.
        for _ in 0..50 {
            trust.block(true, false);
        }
        assert!(!bound(&mut trust, 83) && bound(&mut trust, 84));
    }

    #[test]
    fn odds_rest_on_four_pools_of_missing_blocks_and_half_of_more_is_forgotten() {
        // 512 missing blocks were asked for, and as many found ahead of LRU: of 39,424 blocks 102 may be lost.
        let mut trust = after(38_400);
        for _ in 0..512 {
            trust.block(true, false);
            trust.block(false, true);
        }
        trust.missed(4096, 128);
        trust.missed(2048, 256);
        // 512 of 4,096, and 25 in favour: 102 × 4,121 / 537.
        assert!(!bound(&mut trust, 782) && bound(&mut trust, 783));
        // 256 of 2,048: 102 × 2,073 / 281.
        trust.missed(1, 256);
        assert!(!bound(&mut trust, 752) && bound(&mut trust, 753));
    }

    #[test]
    fn a_debt_beyond_the_budget_binds_until_there_were_as_many_blocks() {
        let mut trust = after(384);
        trust.request();
        trust.block(true, false);
        trust.request();
        assert!(!bound(&mut trust, 0));
        trust.block(true, false);
        trust.request();
        assert!(bound(&mut trust, 0));
        for _ in 0..384 {
            trust.block(true, true);
            trust.request();
        }
        assert!(!bound(&mut trust, 0) && bound(&mut trust, 1));
    }

    #[test]
    fn a_lead_covers_as_many_blocks_and_a_pool_of_it_is_put_by() {
        let mut trust = after(0);
        for _ in 0..10 {
            trust.request();
            trust.block(false, true);
        }
        assert!(!bound(&mut trust, 10) && bound(&mut trust, 11));
        for _ in 0..5000 {
            trust.request();
            trust.block(false, true);
        }
        assert!(!bound(&mut trust, 1024));
        // The lead is gone, and 15 more: 6,049 / 384.
        for lost in 0..1024 + 15 {
            assert!(!bound(&mut trust, 0), "{lost}");
            trust.block(true, false);
        }
        assert!(!bound(&mut trust, 0));
        trust.block(true, false);
        assert!(bound(&mut trust, 0));
    }

    #[test]
    fn requests_have_an_account_of_their_own() {
        // Long requests lead by what the short ones lose.
        let mut trust = after(384);
        for _ in 0..2 {
            trust.request();
            for _ in 0..100 {
                trust.block(false, true);
            }
            for _ in 0..4 {
                trust.request();
                trust.block(true, false);
            }
        }
        trust.request();
        assert!(trust.debt < 0 && bound(&mut trust, 0));
    }

    #[test]
    fn a_lead_in_requests_is_put_by_as_far_as_a_pool_of_blocks_goes() {
        let mut trust = after(0);
        for _ in 0..4000 {
            trust.request();
            trust.block(false, true);
        }
        // Requests of one block, so a pool of them is 1,024 requests.
        assert!(!bound(&mut trust, 0));
        trust.request();
        (0..2000).for_each(|_| trust.block(false, true));
        // One request more is ahead, and of 5,039 13 may be lost; blocks are ahead in any case.
        for _ in 0..1025 + 13 {
            trust.request();
            trust.block(true, false);
        }
        trust.request();
        assert!(!bound(&mut trust, 0));
        trust.block(true, false);
        trust.request();
        assert!(trust.debt < 0 && bound(&mut trust, 0));
    }

    #[test]
    fn a_look_at_the_account_says_whether_the_mind_was_changed() {
        let mut trust = after(384);
        assert_eq!([1, 1, 2, 2, 1].map(|missing| trust.weigh(missing)), [false, false, true, false, true]);
    }
}
