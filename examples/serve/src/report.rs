//! What a run did: one JSON object for programs, a table for people.

use comfy_table::{CellAlignment, Table, presets};
use command_line::grouped;
use serde::{Deserialize, Serialize};

use crate::engine::{Generated, Outcome, Request, Response};
use crate::tokenizer::Tokenizer;

/// The object that `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In the order given.
    pub requests: Vec<RequestReport>,
    /// What the cache did.
    pub kv: KvReport,
    /// Generated tokens of all outputs, divided by the seconds from the first step to the last.
    pub tokens_per_second: f64,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestReport {
    /// The ids of the prompt, template and start token included.
    pub prompt_ids: Vec<u32>,
    /// Tokens of the prompt that were found in the cache when the request was first admitted.
    pub cached_tokens: u64,
    /// One for each sample or, best first, each hypothesis.
    pub outputs: Vec<OutputReport>,
}

/// One generated text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputReport {
    /// Generated ids, the end token included.
    pub tokens: Vec<u32>,
    /// Their text, without special tokens.
    pub text: String,
    /// Why it ends.
    pub finish_reason: FinishReason,
}

/// Why a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// It is as long as was asked for, or as the model's context allows.
    Length,
}

/// What the cache did in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KvReport {
    /// Blocks of the cache.
    pub num_blocks: u64,
    /// Tokens in a block.
    pub block_size: u64,
    /// Most blocks that sequences held in one step.
    pub peak_blocks: u64,
    /// Most blocks that several sequences held in one step, each counted once however many share it.
    pub shared_blocks: u64,
    /// Tokens that were found in the cache and not computed: of prompts, and of what was generated before a preemption.
    pub prefix_hit_tokens: u64,
    /// Blocks copied because one of their sharers wrote.
    pub copies: u64,
    /// Times a running request lost its blocks.
    pub preemptions: u64,
    /// Most sequences that held blocks in one step.
    pub max_running: u64,
    /// Forward passes.
    pub steps: u64,
    /// Bytes that are allocated for keys and values: those of `num_blocks` blocks.
    pub paged_bytes: u64,
    /// Bytes that contiguous reservation would have needed for the requests in flight: in the step in which it is most,
    /// for every sequence that a request in flight may come to run (its samples, its hypotheses), the K and V of
    /// prompt + max tokens − 1 tokens, in whole blocks, shared with nobody. (The last token needs none.)
    pub contiguous_bytes: u64,
}

impl Report {
    /// The report of a run.
    pub fn new(requests: &[Request], outcome: Outcome, tokenizer: &Tokenizer) -> Self {
        let output = |generated: Generated| OutputReport {
            text: tokenizer.decode(&generated.tokens),
            tokens: generated.tokens,
            finish_reason: generated.finish_reason,
        };
        let request = |(request, response): (&Request, Response)| RequestReport {
            prompt_ids: request.prompt.clone(),
            cached_tokens: response.cached_tokens,
            outputs: response.outputs.into_iter().map(output).collect(),
        };
        let requests: Vec<RequestReport> = requests.iter().zip(outcome.responses).map(request).collect();
        let outputs = requests.iter().flat_map(|request| &request.outputs);
        let generated: usize = outputs.map(|output| output.tokens.len()).sum();
        let tokens_per_second = per_second(generated, outcome.seconds);
        Self { requests, kv: outcome.kv, tokens_per_second }
    }

    /// The object on one line.
    ///
    /// # Errors
    /// None in practice: a number that is not finite becomes `null`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The table that ends a run.
    pub fn to_table(&self) -> String {
        let kv = &self.kv;
        let block_size = kv.block_size;
        let generated: usize = self.outputs().map(|output| output.tokens.len()).sum();
        let prompt: usize = self.requests.iter().map(|request| request.prompt_ids.len()).sum();
        let block_bytes = kv.paged_bytes / kv.num_blocks.max(1);
        let used_bytes = kv.peak_blocks * block_bytes;
        let times = ratio(kv.contiguous_bytes, used_bytes);
        let rows = [
            ("requests", format!("{} ({} outputs)", self.requests.len(), self.outputs().count())),
            ("prompt tokens", grouped(prompt)),
            ("generated tokens", grouped(generated)),
            ("tokens per second", format!("{:.1}", self.tokens_per_second)),
            ("sequences in flight, at most", grouped(kv.max_running)),
            ("steps", grouped(kv.steps)),
            (
                "blocks used, at most",
                format!("{} of {} (of {block_size} tokens)", grouped(kv.peak_blocks), grouped(kv.num_blocks)),
            ),
            ("blocks shared, at most", grouped(kv.shared_blocks)),
            ("tokens found in the cache", grouped(kv.prefix_hit_tokens)),
            ("blocks copied on write", grouped(kv.copies)),
            ("preemptions", grouped(kv.preemptions)),
            ("bytes of the blocks used", grouped(used_bytes)),
            ("bytes of contiguous reservation", format!("{}{times}", grouped(kv.contiguous_bytes))),
        ];
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY);
        table.add_rows(rows.map(|(name, value)| [name.to_owned(), value]));
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    fn outputs(&self) -> impl Iterator<Item = &OutputReport> {
        self.requests.iter().flat_map(|request| &request.outputs)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^53")]
fn per_second(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// How many times `large` is `small`, in words to append, where both say something.
#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
fn ratio(large: u64, small: u64) -> String {
    if small == 0 || large == 0 {
        return String::new();
    }
    format!(" ({:.1} times as many)", large as f64 / small as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            requests: vec![RequestReport {
                prompt_ids: vec![504, 3575],
                cached_tokens: 1,
                outputs: vec![OutputReport {
                    tokens: vec![7042, 2],
                    text: " Paris".into(),
                    finish_reason: FinishReason::Stop,
                }],
            }],
            kv: KvReport {
                num_blocks: 64,
                block_size: 16,
                peak_blocks: 16,
                paged_bytes: 6_400,
                contiguous_bytes: 4_000,
                ..KvReport::default()
            },
            tokens_per_second: 12.5,
        }
    }

    #[test]
    fn json_has_the_documented_names_in_order_and_reads_back() {
        let json = report().to_json().unwrap();
        let expected = concat!(
            r#"{"requests":[{"prompt_ids":[504,3575],"cached_tokens":1,"outputs":[{"tokens":[7042,2],"text":" Paris","#,
            r#""finish_reason":"stop"}]}],"kv":{"num_blocks":64,"block_size":16,"peak_blocks":16,"shared_blocks":0,"#,
            r#""prefix_hit_tokens":0,"copies":0,"preemptions":0,"max_running":0,"steps":0,"paged_bytes":6400,"#,
            r#""contiguous_bytes":4000},"tokens_per_second":12.5}"#
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report());
    }

    #[test]
    fn table_groups_digits_and_compares_the_bytes() {
        let table = report().to_table();
        // 16 of 64 blocks, of 6,400 bytes.
        assert!(table.contains("1,600"), "{table}");
        assert!(table.contains("4,000 (2.5 times as many)"), "{table}");
    }
}
