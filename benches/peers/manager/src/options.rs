//! The command line.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::growth::Op;
use crate::ours::Policy;
use crate::workload::Workload;

/// Pools that the workloads fit into, in blocks; the largest has 2^26 slots.
const POOL: std::ops::RangeInclusive<i64> = 1_024..=4_194_304;

/// What to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Print this.
    Show(String),
    /// Measure everybody.
    Compare(Options),
    /// Measure `paged-kv` in pools of several sizes.
    Growth(Options),
    /// Run one operation so many times.
    Count(Count),
}

/// What the control plane of paged-kv costs beside kvbm-logical and libmir-runtime, in thread CPU time.
#[derive(Debug, Parser)]
#[command(name = "peers-manager", args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Options {
    /// Measured rounds, after one that is not
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
    /// 5 rounds
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Blocks of the pool, 16 tokens each
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(POOL))]
    pub(crate) pool: u32,
    /// Only this workload; may be given more than once
    #[arg(long, value_name = "NAME", conflicts_with = "growth")]
    pub(crate) only: Vec<Workload>,
    /// Eviction policies of paged-kv, with commas in between; ratios are to the first
    #[arg(long, value_delimiter = ',', default_value = "lru")]
    pub(crate) policies: Vec<Policy>,
    /// paged-kv alone, in pools of 1,024, 100,000 and 4,194,304 blocks that are full of cached content
    #[arg(long, conflicts_with = "pool")]
    growth: bool,
    /// One JSON object on standard output and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    #[command(subcommand)]
    command: Option<Sub>,
}

#[derive(Debug, Subcommand)]
enum Sub {
    /// Run one operation in the function `counted`, for tools that count instructions; prints how many times
    Count(Count),
}

/// One operation, to be counted.
#[derive(Debug, clap::Args)]
pub(crate) struct Count {
    /// The operation
    pub(crate) op: Op,
    /// Blocks of the pool, all of them full of cached content at first
    #[arg(value_parser = clap::value_parser!(u32).range(POOL))]
    pub(crate) pool: u32,
    /// How often to run the operation
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iterations: u32,
    /// Eviction policy
    #[arg(long, default_value = "lru")]
    pub(crate) policy: Policy,
}

/// Reads a command line; the error is one line.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut options = match Options::try_parse_from(args) {
        Ok(options) => options,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Command::Show(error.to_string()));
        }
        Err(error) => {
            // The first paragraph says what is wrong, in one or more lines; usage follows.
            let text = error.to_string();
            let words = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
            return Err(words.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned());
        }
    };
    if options.quick {
        options.rounds = 5;
    }
    for (at, policy) in options.policies.iter().enumerate() {
        if options.policies.iter().take(at).any(|other| other == policy) {
            return Err(format!("--policies names {} twice", policy.name()));
        }
    }
    Ok(match options.command.take() {
        Some(Sub::Count(count)) => Command::Count(count),
        None if options.growth => Command::Growth(options),
        None => Command::Compare(options),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Command, String> {
        parse(core::iter::once(&"peers-manager").chain(arguments).map(OsString::from))
    }

    #[test]
    fn a_policy_is_named_once() {
        for (names, twice) in [("lru,lru", "lru"), ("adaptive,lru,adaptive", "adaptive")] {
            for growth in [&[][..], &["--growth"]] {
                let error = parsed(&[&["--policies", names], growth].concat()).unwrap_err();
                assert_eq!(error, format!("--policies names {twice} twice"));
            }
        }
        let Ok(Command::Compare(options)) = parsed(&["--policies", "adaptive,lru"]) else { panic!() };
        assert_eq!(options.policies, [Policy::Adaptive, Policy::Lru]);
    }
}
