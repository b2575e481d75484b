//! What the runs found: one JSON object for programs, a table for people.

use comfy_table::{CellAlignment, Table, presets};
use command_line::grouped;
use serde::Serialize;

use crate::counts::Counts;
use crate::policy::Policy;
use crate::trace::{Content, Trace};

/// The object that `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Capacity after capacity, in each the policies, in the order of the command line.
    pub results: Vec<ResultRow>,
    /// What goes over the table and under it.
    #[serde(skip)]
    about: About,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct About {
    requests: usize,
    tokens: u64,
    blocks: u64,
    block_size: u32,
    content: Content,
    skipped: u64,
    mismatched: u64,
}

/// One run: a capacity and a policy. Rates are from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultRow {
    /// Blocks of the cache.
    pub capacity: u32,
    /// The name of the policy.
    pub policy: &'static str,
    /// Of all blocks of prompts, those that were found.
    pub block_hit_rate: f64,
    /// Of all tokens of prompts, those that were found.
    pub token_hit_rate: f64,
    /// The mean over requests of the share of its tokens that was found.
    pub request_hit_rate: f64,
    /// Blocks whose content was lost to another.
    pub evictions: u64,
    /// Requests of the trace.
    pub requests: u64,
    /// Blocks of all prompts.
    pub blocks: u64,
    /// Tokens of all prompts.
    pub tokens: u64,
    /// The mean over requests of the share of its blocks that was found.
    pub request_block_hit_rate: f64,
    /// Blocks that were found.
    pub hit_blocks: u64,
    /// Tokens that were found.
    pub hit_tokens: u64,
    /// Requests of more blocks than the cache has, of which nothing was found.
    pub refused: u64,
    /// Lines of the trace that were skipped.
    pub skipped_lines: u64,
    /// Requests whose length is not that of as many blocks as they have ids.
    pub mismatched_lengths: u64,
}

impl ResultRow {
    /// The row of a run.
    pub fn new(trace: &Trace, capacity: u32, policy: Policy, counts: &Counts) -> Self {
        Self {
            capacity,
            policy: policy.name(),
            block_hit_rate: counts.block_hit_rate(),
            token_hit_rate: counts.token_hit_rate(),
            request_hit_rate: counts.request_hit_rate(),
            evictions: counts.evictions,
            requests: counts.requests,
            blocks: counts.blocks,
            tokens: counts.tokens,
            request_block_hit_rate: counts.request_block_hit_rate(),
            hit_blocks: counts.hit_blocks,
            hit_tokens: counts.hit_tokens,
            refused: counts.refused,
            skipped_lines: trace.skipped(),
            mismatched_lengths: trace.mismatched(),
        }
    }
}

impl Report {
    /// The report of runs over a trace.
    pub fn new(trace: &Trace, results: Vec<ResultRow>) -> Self {
        let about = About {
            requests: trace.len(),
            tokens: trace.requests().map(|request| u64::from(request.tokens)).sum(),
            blocks: trace.blocks(),
            block_size: trace.block_size(),
            content: trace.content(),
            skipped: trace.skipped(),
            mismatched: trace.mismatched(),
        };
        Self { results, about }
    }

    /// The object on one line.
    ///
    /// # Errors
    /// None in practice: a number that is not finite becomes `null`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The table, with what it is about over it and what to know under it.
    pub fn to_text(&self) -> String {
        let About { requests, tokens, blocks, block_size, content, skipped, mismatched } = self.about;
        let mut text = format!(
            "{} requests, {} blocks of {} tokens, {} tokens\n",
            grouped(requests),
            grouped(blocks),
            grouped(block_size),
            grouped(tokens)
        );
        let mut table = Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        table.set_header(["capacity", "policy", "blocks found", "tokens found", "per request", "evictions", "refused"]);
        for row in &self.results {
            table.add_row([
                grouped(row.capacity),
                row.policy.to_owned(),
                percent(row.block_hit_rate),
                percent(row.token_hit_rate),
                percent(row.request_hit_rate),
                grouped(row.evictions),
                grouped(row.refused),
            ]);
        }
        for column in table.column_iter_mut().filter(|column| column.index != 1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        text.push_str(&table.to_string());
        if self.results.iter().any(|row| row.refused > 0) {
            text.push_str(
                "\nRefused: requests of more blocks than the cache has; they count, and nothing of them is found.",
            );
        }
        if skipped > 0 {
            text.push_str(&format!("\nLines that could not be read and were skipped: {}.", grouped(skipped)));
        }
        if content == Content::Ids && mismatched > 0 {
            text.push_str(&format!(
                "\nRequests whose input_length is not that of their ids, at {block_size} tokens each: {}. See --block-size.",
                grouped(mismatched)
            ));
        }
        text
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let text = "{\"hash_ids\":[1,2,3,4],\"input_length\":5}\nx\n";
        let trace = Trace::read(text.as_bytes(), Some(16), true).unwrap();
        let mut counts = Counts::default();
        counts.add((4, 50), (1, 16));
        counts.refuse((1, 14));
        counts.evictions = 12_345;
        let row = ResultRow::new(&trace, 2000, Policy::Lru, &counts);
        Report::new(&trace, vec![row])
    }

    #[test]
    fn json_has_the_documented_names_in_order() {
        let expected = concat!(
            r#"{"results":[{"capacity":2000,"policy":"lru","block_hit_rate":0.2,"token_hit_rate":0.25,"#,
            r#""request_hit_rate":0.16,"evictions":12345,"requests":2,"blocks":5,"tokens":64,"#,
            r#""request_block_hit_rate":0.125,"hit_blocks":1,"hit_tokens":16,"refused":1,"skipped_lines":1,"mismatched_lengths":1}]}"#
        );
        assert_eq!(report().to_json().unwrap(), expected);
    }

    #[test]
    fn the_table_groups_digits_and_says_what_was_left_out() {
        let text = report().to_text();
        for what in
            ["2,000", "lru", "20.00 %", "25.00 %", "16.00 %", "12,345", "Refused:", "skipped: 1", "--block-size"]
        {
            assert!(text.contains(what), "{what}: {text}");
        }
    }
}
