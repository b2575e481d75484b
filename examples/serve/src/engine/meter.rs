//! What the cache does in a run, counted step by step.

use paged_kv::KvCache;
use paged_kv::cache::Stats;

use super::settings::Settings;
use crate::report::KvReport;

/// Counts, and the greatest values so far.
#[derive(Debug)]
pub(super) struct Meter {
    report: KvReport,
    /// Bytes of one block.
    block_bytes: u64,
}

impl Meter {
    /// For a cache whose memory takes `bytes`.
    pub(super) fn new(settings: &Settings, bytes: u64) -> Self {
        let num_blocks = u64::from(settings.num_blocks);
        let report =
            KvReport { num_blocks, block_size: settings.block_size.into(), paged_bytes: bytes, ..KvReport::default() };
        Self { report, block_bytes: bytes / num_blocks.max(1) }
    }

    pub(super) fn preempted(&mut self) {
        self.report.preemptions += 1;
    }

    /// A step is planned, over `jobs`: for each its sequences and the tokens of one at its longest.
    pub(super) fn planned(&mut self, cache: &KvCache, jobs: impl Iterator<Item = (usize, u32)>) {
        let report = &mut self.report;
        report.steps += 1;
        let stats = cache.stats();
        report.peak_blocks = report.peak_blocks.max(stats.held.into());
        report.max_running = report.max_running.max(stats.sequences.into());
        let blocks_of = |tokens: u32| u64::from(tokens.div_ceil(cache.block_size()));
        let reserved: u64 = jobs.map(|(width, longest)| width as u64 * blocks_of(longest)).sum();
        report.contiguous_bytes = report.contiguous_bytes.max(reserved * self.block_bytes);
        report.shared_blocks = report.shared_blocks.max(stats.shared.into());
    }

    pub(super) fn report(&self, stats: &Stats) -> KvReport {
        KvReport { prefix_hit_tokens: stats.hit_tokens, copies: stats.copies, ..self.report }
    }
}
