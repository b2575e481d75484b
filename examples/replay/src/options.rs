//! The command line: read by clap, then checked as a whole.
//!
//! [`Options`] holds only what can be run; whoever has one need not look again.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use command_line::{repeated, usage_line};

use crate::policy::Policy;

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
        value: i64,
        /// What it must be.
        rule: &'static str,
    },
    /// A policy that does not exist.
    #[error("--policy {name} is unknown: there are {known}, and all")]
    UnknownPolicy {
        /// What was given.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// The same twice would be the same twice.
    #[error("--{option} names {value} twice")]
    Twice {
        /// The option, without dashes.
        option: &'static str,
        /// What was given.
        value: String,
    },
}

/// What [`Options::parse`] found.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Something to run.
    Run(Box<Options>),
    /// Help or version was asked for: the text to print.
    Show(String),
}

/// A command line that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The trace; `-` for standard input.
    pub trace: PathBuf,
    /// Sizes of the cache in blocks, each once; never empty.
    pub blocks: Vec<u32>,
    /// Policies, each once; never empty.
    pub policies: Vec<Policy>,
    /// Tokens in a block, or of an id; `None` for what is usual for the trace.
    pub block_size: Option<u32>,
    /// One JSON object on standard output, and nothing else there.
    pub json: bool,
    /// Where the picture goes.
    pub plot: Option<PathBuf>,
    /// Skip and count lines that cannot be read.
    pub lenient: bool,
}

/// Replays a trace of requests through the paged cache: hit rates by size of the cache and eviction policy.
#[derive(Debug, Parser)]
#[command(name = "replay", version, about, allow_negative_numbers = true)]
struct Arguments {
    /// JSON lines of block ids (Mooncake's `hash_ids`), or JSON lines or CSV of `tokens`; - for standard input
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Sizes of the cache, in blocks
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',', required = true)]
    blocks: Vec<i64>,
    /// Eviction policies: lru, lfu, s3-fifo, priority, adaptive, belady (the offline optimum), belady-held (of requests
    /// that hold their blocks), or all
    #[arg(long, value_name = "NAME[,NAME...]", value_delimiter = ',', default_value = "all")]
    policy: Vec<String>,
    /// Tokens in a block [default: 512 for a trace of ids, which says so of its ids; 16 for tokens]
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<i64>,
    /// Skip and count lines that cannot be read
    #[arg(long)]
    lenient: bool,
    /// Draw hit rates over sizes into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object and nothing else on standard output
    #[arg(long)]
    json: bool,
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
        // clap reads what is wider, so that it is this that names the range of whatever is out of it.
        let within = |option, value: i64, most: u32, rule| {
            let fine = u32::try_from(value).ok().filter(|value| (1..=most).contains(value));
            fine.ok_or(OptionsError::OutOfRange { option, value, rule })
        };
        let blocks = arguments.blocks.iter().map(|&blocks| within("blocks", blocks, 1 << 30, "from 1 to 1073741824"));
        let blocks = blocks.collect::<Result<Vec<u32>, _>>()?;
        let block_size = arguments.block_size.map(|size| within("block-size", size, 1 << 20, "from 1 to 1048576"));
        let block_size = block_size.transpose()?;
        if let Some(value) = repeated(&blocks) {
            return Err(OptionsError::Twice { option: "blocks", value: value.to_string() });
        }
        let mut policies = Vec::new();
        for name in &arguments.policy {
            match Policy::named(name) {
                Some(policy) => policies.push(policy),
                None if name == "all" => policies.extend(Policy::ALL),
                None => {
                    let known = Policy::ALL.map(Policy::name).join(", ");
                    return Err(OptionsError::UnknownPolicy { name: name.clone(), known });
                }
            }
        }
        if let Some(name) = repeated(&arguments.policy) {
            return Err(OptionsError::Twice { option: "policy", value: name.clone() });
        }
        // Whoever names some beside `all` wants each once, where it is first named.
        let mut once = Vec::new();
        for policy in policies {
            if !once.contains(&policy) {
                once.push(policy);
            }
        }
        let Arguments { trace, json, plot, lenient, .. } = arguments;
        Ok(Self { trace, blocks, policies: once, block_size, json, plot, lenient })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        let arguments = ["replay", "trace"].iter().chain(arguments);
        match Options::parse(arguments.map(OsString::from)).unwrap() {
            Command::Run(options) => *options,
            Command::Show(text) => panic!("{text}"),
        }
    }

    #[test]
    fn all_policies_are_the_default_and_sizes_keep_their_order() {
        let options = options(&["--blocks", "300,20", "--blocks", "1"]);
        assert_eq!(options.blocks, [300, 20, 1]);
        assert_eq!(options.policies, Policy::ALL);
        assert_eq!((options.block_size, options.json, options.lenient), (None, false, false));
    }

    #[test]
    fn names_beside_all_are_its_own_and_come_where_they_are_first_named() {
        let policies = |names| options(&["--blocks", "1", "--policy", names]).policies;
        let [lru, lfu, s3_fifo, priority, adaptive, held, belady] = Policy::ALL;
        assert_eq!(policies("belady,adaptive,all"), [belady, adaptive, lru, lfu, s3_fifo, priority, held]);
        assert_eq!(policies("lfu,all,lru"), [lfu, lru, s3_fifo, priority, adaptive, held, belady]);
        assert_eq!(policies("all,belady,lru"), Policy::ALL);
    }

    #[test]
    fn policies_are_named_once_each() {
        let options = options(&["--blocks", "1", "--policy", "belady,lru"]);
        assert_eq!(options.policies, [Policy::Belady, Policy::Lru]);
        for policy in Policy::ALL {
            assert_eq!(Policy::named(policy.name()), Some(policy));
        }
    }
}
