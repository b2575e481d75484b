//! The command line: read by clap, then checked as a whole.
//!
//! [`Options`] holds only what can be run; whoever has one need not look again.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use command_line::{repeated, usage_line};
use paged_kv::layout::DType;

use crate::DTYPES;
use crate::load;

/// Why a command line cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// clap refused it; the first paragraph of what it said.
    #[error("{0}")]
    Usage(String),
    /// A number that is too small or too large, or none.
    #[error("--{option} {value}: it must be {rule}")]
    OutOfRange {
        /// The option, without dashes.
        option: &'static str,
        /// What was given.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// An element type that is not measured.
    #[error("--dtype {name} is unknown: there are {known}, and all")]
    UnknownDType {
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Something to run.
    Run(Box<Options>),
    /// Help or version was asked for: the text to print.
    Show(String),
}

/// A batch of contexts of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Sequences.
    pub batch: u32,
    /// Tokens of each, the one that is decoded included.
    pub context: u32,
}

impl core::fmt::Display for Shape {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}x{}", self.batch, self.context)
    }
}

impl FromStr for Shape {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let part = |part: &str, most| part.parse().ok().filter(|part| (1..=most).contains(part));
        let shape = text.split_once('x').and_then(|(batch, context)| {
            let shape = Self { batch: part(batch, 4096)?, context: part(context, 1 << 20)? };
            (u64::from(shape.batch) * u64::from(shape.context) <= 1 << 26).then_some(shape)
        });
        let rule = "BATCHxCONTEXT, at most 4096 of at most 1048576 tokens, 67108864 together";
        shape.ok_or_else(|| OptionsError::OutOfRange { option: "shapes", value: text.to_owned(), rule })
    }
}

/// A command line that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Measured rounds, after one that is not.
    pub rounds: u32,
    /// Element types of K and V by name, each once; never empty.
    pub dtypes: Vec<(&'static str, DType)>,
    /// Shapes, each once; never empty.
    pub shapes: Vec<Shape>,
    /// Numbers of threads, each once; never empty.
    pub threads: Vec<usize>,
    /// MiB of K and V that the passes rotate over, at least one layer.
    pub pool_mib: u32,
    /// What tables, contents and the order of passes follow from.
    pub seed: u64,
    /// One JSON object on standard output, and nothing else there.
    pub json: bool,
    /// Where the picture goes.
    pub plot: Option<PathBuf>,
}

/// Decode on the CPU beside read-only passes over the same memory, interleaved: GB/s and ratios.
///
/// 32 query heads, 8 KV heads, all of 128 elements, and blocks of 16 tokens in random order.
#[derive(Debug, Parser)]
#[command(name = "roof", version, about, allow_negative_numbers = true)]
struct Arguments {
    /// Measured rounds, after one that is not
    #[arg(long, value_name = "N", default_value_t = 31)]
    rounds: u32,
    /// Element types of K and V: f32, f16, bf16, int8 (with scales), fp8 (E4M3), or all
    #[arg(long, value_name = "NAME[,NAME...]", value_delimiter = ',', default_value = "all")]
    dtype: Vec<String>,
    /// Sequences in a batch, and tokens of each
    #[arg(
        long,
        value_name = "BATCHxCONTEXT[,...]",
        value_delimiter = ',',
        default_value = "1x4096,8x1024,8x4096,32x1024"
    )]
    shapes: Vec<String>,
    /// Numbers of threads; all is as many as the machine has
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',', default_value = "1,all")]
    threads: Vec<String>,
    /// MiB of K and V that the passes rotate over [default: 1024, or half of the memory that is available]
    #[arg(long, value_name = "MIB")]
    pool_mib: Option<u32>,
    /// What tables, contents and the order of the passes follow from
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Draw decode and both roofs into this file
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
        let Arguments { rounds, dtype, shapes, threads, pool_mib, seed, plot, json } = arguments;
        let within = |option, value: u32, most: u32, rule| {
            let fine = (1..=most).contains(&value);
            fine.then_some(value).ok_or(OptionsError::OutOfRange { option, value: value.to_string(), rule })
        };
        let rounds = within("rounds", rounds, 10_000, "from 1 to 10000")?;
        let pool_mib = match pool_mib {
            Some(mib) => within("pool-mib", mib, 1 << 20, "from 1 to 1048576")?,
            None => load::available_mib().map_or(1024, |mib| (mib / 2).clamp(1, 1024)),
        };
        let mut dtypes = Vec::new();
        for name in dtype {
            match DTYPES.into_iter().find(|known| known.0 == name) {
                Some(dtype) => dtypes.push(dtype),
                None if name == "all" => dtypes.extend(DTYPES),
                None => {
                    let known = DTYPES.map(|(name, _)| name).join(", ");
                    return Err(OptionsError::UnknownDType { name, known });
                }
            }
        }
        if let Some((name, _)) = repeated(&dtypes) {
            return Err(OptionsError::Twice { option: "dtype", value: (*name).to_owned() });
        }
        let shapes = shapes.iter().map(|shape| shape.parse()).collect::<Result<Vec<Shape>, _>>()?;
        if let Some(shape) = repeated(&shapes) {
            return Err(OptionsError::Twice { option: "shapes", value: shape.to_string() });
        }
        let mut numbers = Vec::new();
        for text in threads {
            let rule = "from 1 to 1024, or all";
            let parsed = if text == "all" { Some(load::cpus()) } else { text.parse().ok() };
            match parsed.filter(|threads| (1..=1024).contains(threads)) {
                // On a machine of one core, 1 and all are the same, and no mistake.
                Some(threads) if !numbers.contains(&threads) => numbers.push(threads),
                Some(_) => {}
                None => return Err(OptionsError::OutOfRange { option: "threads", value: text, rule }),
            }
        }
        Ok(Self { rounds, dtypes, shapes, threads: numbers, pool_mib, seed, json, plot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        let arguments = ["roof"].iter().chain(arguments);
        match Options::parse(arguments.map(OsString::from)).unwrap() {
            Command::Run(options) => *options,
            Command::Show(text) => panic!("{text}"),
        }
    }

    #[test]
    fn every_dtype_and_shape_is_the_default_on_one_thread_and_on_all() {
        let options = options(&[]);
        assert_eq!(options.dtypes, DTYPES);
        let shapes: Vec<_> = options.shapes.iter().map(|shape| (shape.batch, shape.context)).collect();
        assert_eq!(shapes, [(1, 4096), (8, 1024), (8, 4096), (32, 1024)]);
        assert_eq!(options.threads.first(), Some(&1));
        assert_eq!(options.threads.last(), Some(&load::cpus()));
        assert!(options.rounds >= 15 && (1..=1024).contains(&options.pool_mib));
    }

    #[test]
    fn threads_are_counted_once_each() {
        assert_eq!(options(&["--threads", "3,1,3"]).threads, [3, 1]);
        let all = load::cpus().to_string();
        assert_eq!(options(&["--threads", &format!("all,{all}")]).threads, [load::cpus()]);
    }

    #[test]
    fn dtypes_keep_their_order() {
        let names: Vec<_> = options(&["--dtype", "bf16,f32"]).dtypes.iter().map(|dtype| dtype.0).collect();
        assert_eq!(names, ["bf16", "f32"]);
    }
}
