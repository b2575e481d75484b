//! Whether to trust what was learned, or to be LRU.

/// Requests are weighed in this many parts.
const PARTS: i64 = 64;
/// Blocks that chance alone may cost, at most, where √n is less.
const MOST_NOISE: i64 = 400;
/// Turnovers of the pool to wait before the first further attempt, and at most.
const PATIENCE: u64 = 8;
const MOST_PATIENCE: u64 = 64;

/// Keeps the account of hits against those that LRU would have had, once by blocks and once by requests, and says when
/// to be LRU.
///
/// The *debt* is hits of LRU minus own ones. While it is below a limit, the policy is trusted; above, it is LRU until the
/// debt is half the limit again. The limit is a thousandth of all blocks so far, or √(n × len) of a pool of n and chains of len
/// blocks on average, since a lead is lost by mere chance now and then, and that much of it is noise. By requests it is
/// three quarters of that. Debts below half the limit come about by forgiveness: a block
/// for every 512, and everything after eight turnovers of the pool, sixteen the next time, and so on up to 64. Hits ahead
/// of LRU are put by, up to one pool of them.
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
    lru: bool,
    wait: u64,
    patience: u64,
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
            lru: false,
            wait: 0,
            patience: PATIENCE,
        }
    }

    pub(super) fn start(&mut self, num_blocks: u32) {
        self.num_blocks = num_blocks;
    }

    /// Whether to be LRU.
    #[inline]
    pub(super) const fn is_lru(&self) -> bool {
        self.lru
    }

    /// A sequence begins to give its blocks back.
    pub(super) fn request(&mut self) {
        if self.run_len > 0 {
            self.request_debt += self.run_debt * PARTS / self.run_len;
            self.requests += 1;
            if self.requests % 512 == 0 && self.request_debt > 0 {
                self.request_debt -= PARTS;
            }
        }
        (self.run_debt, self.run_len) = (0, 0);
    }

    /// It gives back a block that LRU would have found, and that was found. Whether the mind was changed.
    #[inline]
    pub(super) fn block(&mut self, lru: bool, own: bool) -> bool {
        self.blocks += 1;
        self.run_len += 1;
        let debt = i64::from(lru) - i64::from(own);
        self.debt += debt;
        self.run_debt += debt;
        if self.blocks % 512 == 0 && self.debt > 0 {
            self.debt -= 1;
        }
        if self.lru {
            self.wait = self.wait.saturating_sub(1);
        }
        // Nothing below changes while everything is even, and it need not be seen at once.
        if self.blocks % 32 == 0 { self.weigh() } else { false }
    }

    fn weigh(&mut self) -> bool {
        let pool = i64::from(self.num_blocks);
        let blocks = i64::try_from(self.blocks).unwrap_or(i64::MAX).max(1);
        let requests = i64::try_from(self.requests).unwrap_or(i64::MAX);
        // Chains come and go as one, so that chance is in chains: √(n / len) of them, of len blocks.
        let len = (blocks / (requests + 1)).clamp(1, 32);
        let noise = (pool * len).isqrt().min(MOST_NOISE.max(pool.isqrt()));
        let limit = (blocks >> 10).max(noise).min(pool / 16).max(8);
        // As many requests of mean length.
        let per_request = |blocks_: i64| blocks_.saturating_mul(PARTS).saturating_mul(requests + 1) / blocks;
        let request_limit = per_request(limit * 3 / 4);
        self.debt = self.debt.max(-pool);
        self.request_debt = self.request_debt.max(-per_request(pool));
        if !self.lru {
            self.lru = self.debt > limit || self.request_debt > request_limit;
            if self.lru {
                self.wait = u64::from(self.num_blocks) * self.patience;
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
            }
            return self.lru;
        }
        if self.wait == 0 {
            self.debt = self.debt.min(limit / 2 - 1);
            self.request_debt = self.request_debt.min(request_limit / 2 - 1);
        }
        self.lru = self.debt >= limit / 2 || self.request_debt >= request_limit / 2;
        !self.lru
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_above_the_limit_makes_it_lru_and_waiting_forgives_it() {
        let mut trust = Trust::new();
        trust.start(1024);
        // Chains of one block: √1024 is 32 blocks, or 24 requests, and every 32 blocks it is looked at.
        let mut block = |lru| {
            trust.request();
            (trust.block(lru, false), trust.is_lru())
        };
        for _ in 0..31 {
            assert_eq!(block(true), (false, false));
        }
        assert_eq!(block(true), (true, true));
        // The wait is 8 turnovers; after the change it takes that many blocks that are even.
        let mut blocks = 0;
        while block(false) == (false, true) {
            blocks += 1;
            assert!(blocks < 8 * 1024 + 32);
        }
        assert!(!trust.is_lru() && blocks > 6 * 1024);
    }

    #[test]
    fn a_lead_is_put_by_up_to_a_pool() {
        let mut trust = Trust::new();
        trust.start(64);
        for _ in 0..10_000 {
            trust.block(false, true);
        }
        // 64 ahead; the limit is pool / 16, raised to 8; every 32 it is looked at.
        for _ in 0..64 {
            trust.block(true, false);
            assert!(!trust.is_lru());
        }
        for _ in 0..64 {
            trust.block(true, false);
        }
        assert!(trust.is_lru());
    }
}
