//! The command line: read by clap, then checked as a whole.
//!
//! [`Options`] holds only what can be run; whoever has one need not look again.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Parser, ValueEnum};
use command_line::usage_line;

use crate::prompts::{self, PromptsError};

/// Why a command line cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// clap refused it; the first line of what it said.
    #[error("{0}")]
    Usage(String),
    /// A number that is too small or too large.
    #[error("--{option} {value} is out of range: it must be {rule}")]
    OutOfRange {
        /// The option, without dashes.
        option: &'static str,
        /// What was given.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// A prompt without text.
    #[error("prompt {index} is empty")]
    EmptyPrompt {
        /// Its number, from 1.
        index: usize,
    },
    /// The built-in requests are chats.
    #[error("--raw needs a --prompt or a --prompts-file: the built-in requests are chats")]
    RawWithoutPrompts,
    /// The file of prompts cannot be used.
    #[error(transparent)]
    Prompts(#[from] PromptsError),
}

/// What [`Options::parse`] found.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Something to run.
    Run(Box<Options>),
    /// Help or version was asked for: the text to print.
    Show(String),
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvDtype {
    /// 32-bit floating point.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit integers with a scale for each token and head.
    Int8,
    /// 8-bit floating point E4M3.
    Fp8,
}

/// How cache memory is given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// In blocks, as tokens come.
    Paged,
    /// The longest stretch that a request may need, at once, from the same bytes.
    Contiguous,
}

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decoding {
    /// The most likely token, `n` times the same.
    Greedy,
    /// A draw from the most likely tokens.
    Sample {
        /// Divides the logits; greater than 0.
        temperature: f64,
        /// Share of probability that the candidates hold together; in (0, 1].
        top_p: f64,
        /// Sample i of a request draws from seed + i.
        seed: u64,
    },
    /// Beam search.
    Beam {
        /// Hypotheses kept at each step.
        width: u32,
    },
}

/// One request as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The text; never empty.
    pub text: String,
    /// The system prompt of a chat, where one is given.
    pub system: Option<String>,
}

/// A command line that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The model; `None` for the one that is fetched.
    pub model: Option<PathBuf>,
    /// How weights are kept.
    pub weights: crate::model::WeightFormat,
    /// The prompts in order, the built-in ones where none was given; never empty.
    pub prompts: Vec<Prompt>,
    /// Prompts are put into the model's chat template.
    pub chat: bool,
    /// Most tokens that a request generates.
    pub max_tokens: u32,
    /// Samples of each prompt.
    pub n: u32,
    /// How the next token is chosen.
    pub decoding: Decoding,
    /// Blocks of the cache; `None` for as many as the requests in flight may need.
    pub num_blocks: Option<u32>,
    /// Tokens in a block.
    pub block_size: u32,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Most sequences in flight; `None` for 8, or as many as one request needs.
    pub max_batch: Option<u32>,
    /// How cache memory is given out.
    pub policy: Policy,
    /// One JSON object on standard output, and nothing else there.
    pub json: bool,
}

/// Serves a language model on the CPU from a paged cache.
#[derive(Debug, Parser)]
#[command(name = "serve", version, about, allow_negative_numbers = true, group = ArgGroup::new("form").args(["chat", "raw"]))]
struct Arguments {
    /// A GGUF of the Llama architecture [default: SmolLM2-135M-Instruct, fetched once]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// How weights are kept: dequantised to f32, or as stored
    #[arg(long, value_enum, default_value_t = Weights::F32)]
    weights: Weights,

    /// A prompt; may be given several times
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// More prompts: one a line, or JSON lines {"prompt": TEXT, "system": TEXT} where the first line starts with {
    #[arg(long, value_name = "FILE")]
    prompts_file: Option<PathBuf>,
    /// The system prompt of chats [default: the template's own]
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Put prompts into the model's chat template (the default)
    #[arg(long)]
    chat: bool,
    /// Take prompts as they are; special tokens in them are recognised
    #[arg(long)]
    raw: bool,

    /// Most tokens to generate for a request
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    max_tokens: i64,
    /// Samples of each prompt, which share its blocks; sample i draws from seed + i
    #[arg(long, value_name = "SAMPLES", default_value_t = 1, conflicts_with = "beam")]
    n: i64,
    /// Beam search with this many hypotheses
    #[arg(long, value_name = "WIDTH", conflicts_with_all = ["temperature", "top_p", "seed", "greedy"])]
    beam: Option<i64>,
    /// Divides the logits before sampling; 0 is greedy [default: 0.2]
    #[arg(long, value_name = "NUMBER")]
    temperature: Option<f64>,
    /// Draw from the likeliest tokens that hold this share of probability [default: 0.9]
    #[arg(long, value_name = "NUMBER")]
    top_p: Option<f64>,
    /// Seed of the random draws
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Always take the likeliest token
    #[arg(long, conflicts_with_all = ["temperature", "top_p"])]
    greedy: bool,

    /// Blocks of the cache [default: what a full batch may need, at most 1 GiB unless one request needs more]
    #[arg(long, value_name = "BLOCKS")]
    num_blocks: Option<i64>,
    /// Tokens in a block
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    block_size: i64,
    /// How keys and values are stored
    #[arg(long, value_enum, default_value_t = KvDtype::F32)]
    kv_dtype: KvDtype,
    /// Most sequences in flight [default: 8, or as many as one request needs]
    #[arg(long, value_name = "SEQUENCES")]
    max_batch: Option<i64>,
    /// How cache memory is given out: in blocks, or the longest stretch at once
    #[arg(long, value_enum, default_value_t = Policy::Paged)]
    policy: Policy,

    /// Print one JSON object and nothing else on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weights {
    F32,
    Quantised,
}

impl Options {
    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    /// [`OptionsError`], one line long.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, OptionsError> {
        let arguments = match Arguments::try_parse_from(arguments) {
            Ok(arguments) => arguments,
            Err(error) if !error.use_stderr() => return Ok(Command::Show(error.to_string())),
            Err(error) => return Err(OptionsError::Usage(usage_line(&error.to_string()))),
        };
        Self::check(arguments).map(|options| Command::Run(Box::new(options)))
    }

    fn check(arguments: Arguments) -> Result<Self, OptionsError> {
        let a = &arguments;
        let within = |option, value, most, rule| {
            number_up_to(most, value).ok_or_else(|| OptionsError::OutOfRange { option, value: value.to_string(), rule })
        };
        // The bounds keep what is computed from these numbers far from the ends of 32 bits; the model's context and
        // the memory set tighter ones, which are only known later.
        let max_tokens = within("max-tokens", a.max_tokens, 1 << 20, "from 1 to 1048576")?;
        let n = within("n", a.n, 1024, "from 1 to 1024")?;
        let block_size = within("block-size", a.block_size, 4096, "from 1 to 4096")?;
        let batch = |value| within("max-batch", value, 4096, "from 1 to 4096");
        let max_batch = a.max_batch.map(batch).transpose()?;
        let blocks = |value| within("num-blocks", value, 1 << 28, "from 1 to 268435456");
        let num_blocks = a.num_blocks.map(blocks).transpose()?;
        let decoding = decoding(a)?;
        let system = a.system.clone();
        let as_prompt = |text: &String| Prompt { text: text.clone(), system: system.clone() };
        let mut prompts: Vec<Prompt> = a.prompt.iter().map(as_prompt).collect();
        if let Some(path) = &a.prompts_file {
            prompts.extend(prompts::read(path, system.as_deref(), !a.raw)?);
        }
        if let Some(index) = prompts.iter().position(|prompt| prompt.text.is_empty()) {
            return Err(OptionsError::EmptyPrompt { index: index + 1 });
        }
        if prompts.is_empty() && a.raw {
            return Err(OptionsError::RawWithoutPrompts);
        }
        if prompts.is_empty() {
            prompts = prompts::built_in(system.as_deref());
        }
        Ok(Self {
            weights: match a.weights {
                Weights::F32 => crate::model::WeightFormat::F32,
                Weights::Quantised => crate::model::WeightFormat::Quantised,
            },
            prompts,
            chat: !a.raw,
            max_tokens,
            n,
            decoding,
            num_blocks,
            block_size,
            kv_dtype: a.kv_dtype,
            max_batch,
            policy: a.policy,
            json: a.json,
            model: arguments.model,
        })
    }
}

/// A number from 1 to `most`. clap reads what is wider, so that one message names the range of whatever is out of it.
fn number_up_to(most: u32, value: i64) -> Option<u32> {
    u32::try_from(value).ok().filter(|value| (1..=most).contains(value))
}

fn decoding(a: &Arguments) -> Result<Decoding, OptionsError> {
    let refuse = |option, value, rule| Err(OptionsError::OutOfRange { option, value, rule });
    if let Some(width) = a.beam {
        return match number_up_to(64, width) {
            Some(width) => Ok(Decoding::Beam { width }),
            None => refuse("beam", width.to_string(), "from 1 to 64"),
        };
    }
    // The model card of the default model recommends these two.
    let temperature = a.temperature.unwrap_or(0.2);
    let top_p = a.top_p.unwrap_or(0.9);
    if !(0.0..=1e6).contains(&temperature) {
        return refuse("temperature", temperature.to_string(), "from 0 to 1000000");
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return refuse("top-p", top_p.to_string(), "greater than 0 and at most 1");
    }
    if a.greedy || temperature == 0.0 {
        return Ok(Decoding::Greedy);
    }
    Ok(Decoding::Sample { temperature, top_p, seed: a.seed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        let arguments = core::iter::once(&"serve").chain(arguments);
        match Options::parse(arguments.map(OsString::from)).unwrap() {
            Command::Run(options) => *options,
            Command::Show(text) => panic!("{text}"),
        }
    }

    #[test]
    fn no_arguments_run_the_built_in_chats_under_one_system_prompt() {
        let options = options(&[]);
        assert!(options.chat && options.prompts.len() > 1 && options.model.is_none());
        assert!(options.prompts.iter().all(|p| p.system == options.prompts[0].system));
        let decoding = Decoding::Sample { temperature: 0.2, top_p: 0.9, seed: 0 };
        assert_eq!(options.decoding, decoding);
        assert_eq!((options.block_size, options.num_blocks), (16, None));
    }

    #[test]
    fn temperature_zero_is_greedy_and_beam_is_its_own_way() {
        assert_eq!(options(&["--temperature", "0"]).decoding, Decoding::Greedy);
        assert_eq!(options(&["--greedy", "--seed", "3"]).decoding, Decoding::Greedy);
        assert_eq!(options(&["--beam", "3"]).decoding, Decoding::Beam { width: 3 });
    }

    #[test]
    fn prompts_keep_their_order_and_may_start_with_a_dash() {
        let options = options(&["--prompt=-1 and", "--prompt", "two", "--system", "s"]);
        let texts: Vec<&str> = options.prompts.iter().map(|p| p.text.as_str()).collect();
        assert_eq!(texts, ["-1 and", "two"]);
        assert_eq!(options.prompts[1].system.as_deref(), Some("s"));
    }

    #[test]
    fn numbers_below_a_range_are_told_the_same_range_as_those_above() {
        for (option, most) in [
            ("max-tokens", 1 << 20),
            ("n", 1024),
            ("block-size", 4096),
            ("max-batch", 4096),
            ("num-blocks", 1 << 28),
            ("beam", 64),
        ] {
            for value in [-5_i64, 0, most + 1, 1 << 32] {
                let arguments = ["serve".into(), format!("--{option}"), value.to_string()];
                let error = Options::parse(arguments.map(OsString::from)).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!("--{option} {value} is out of range: it must be from 1 to {most}")
                );
            }
        }
    }
}
