//! What is counted, for the real cache and for the optimum alike.

/// Counts of one run over a trace.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Counts {
    /// Requests, those of no blocks and those refused included.
    pub requests: u64,
    /// Requests of more blocks than the cache has.
    pub refused: u64,
    /// Blocks of all prompts, the last partly filled one of each included.
    pub blocks: u64,
    /// Tokens of all prompts.
    pub tokens: u64,
    /// Whole blocks that were found.
    pub hit_blocks: u64,
    /// Tokens that were found.
    pub hit_tokens: u64,
    /// Blocks whose content was lost to another.
    pub evictions: u64,
    /// Sum over requests of the share of their tokens that was found, and the requests that have any.
    token_shares: Shares,
    /// The same of their blocks.
    block_shares: Shares,
}

impl Counts {
    /// Counts a request of so many blocks and tokens, of which so many were found.
    pub fn add(&mut self, (blocks, tokens): (u32, u32), (hit_blocks, hit_tokens): (u32, u32)) {
        self.requests += 1;
        self.blocks += u64::from(blocks);
        self.tokens += u64::from(tokens);
        self.hit_blocks += u64::from(hit_blocks);
        self.hit_tokens += u64::from(hit_tokens);
        self.token_shares.add(hit_tokens, tokens);
        self.block_shares.add(hit_blocks, blocks);
    }

    /// Counts a request that is larger than the cache.
    pub fn refuse(&mut self, size: (u32, u32)) {
        self.refused += 1;
        self.add(size, (0, 0));
    }

    /// Of all blocks, the share that was found; 0 of none.
    pub fn block_hit_rate(&self) -> f64 {
        ratio(self.hit_blocks, self.blocks)
    }

    /// Of all tokens, the share that was found; 0 of none.
    pub fn token_hit_rate(&self) -> f64 {
        ratio(self.hit_tokens, self.tokens)
    }

    /// The mean over requests of the share of its tokens that was found, over those that have any; 0 of none.
    pub fn request_hit_rate(&self) -> f64 {
        self.token_shares.mean()
    }

    /// The mean over requests of the share of its blocks that was found, over those that have any; 0 of none.
    pub fn request_block_hit_rate(&self) -> f64 {
        self.block_shares.mean()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Shares {
    requests: u64,
    sum: f64,
}

impl Shares {
    fn add(&mut self, part: u32, whole: u32) {
        if whole > 0 {
            self.requests += 1;
            self.sum += f64::from(part) / f64::from(whole);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^53")]
    fn mean(self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.sum / self.requests as f64 }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^53")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_weigh_blocks_tokens_and_requests_alike_and_empty_requests_have_no_share() {
        let mut counts = Counts::default();
        assert_eq!([counts.block_hit_rate(), counts.token_hit_rate(), counts.request_hit_rate()], [0.0; 3]);
        counts.add((4, 40), (1, 16));
        counts.add((0, 0), (0, 0));
        counts.add((1, 10), (1, 10));
        counts.refuse((5, 50));
        assert_eq!((counts.requests, counts.refused), (4, 1));
        assert_eq!(counts.block_hit_rate(), 2.0 / 10.0);
        assert_eq!(counts.token_hit_rate(), 26.0 / 100.0);
        assert_eq!(counts.request_hit_rate(), (0.4 + 1.0 + 0.0) / 3.0);
        assert_eq!(counts.request_block_hit_rate(), (0.25 + 1.0 + 0.0) / 3.0);
    }
}
