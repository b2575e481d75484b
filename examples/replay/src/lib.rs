//! Replays a trace of requests through the paged cache: what share of the prompts is found, by size of the cache and
//! eviction policy, beside the most that any policy could have found.
//!
//! # The game
//! Requests come one after another, and each is over before the next begins: create, plan, commit, free. A request takes
//! the longest cached prefix of its prompt, then blocks for the rest, all of which it holds together, so that nothing of
//! its own is evicted for it. Afterwards its full blocks stay until their memory is needed. Generated tokens are not
//! part of it: traces do not say which they were. A prompt of more blocks than the cache has is *refused*: nothing of it
//! is found, it leaves nothing, and it counts.
//!
//! | counted | |
//! |---|---|
//! | block | of all blocks of prompts, the last partly filled one of each included, those that were found |
//! | token | of all tokens of prompts, those that were found |
//! | request | the mean over requests of the share of its tokens that was found; an empty request has no share |
//!
//! A trace of *ids* (Mooncake's) names the content of each block; any of them can be found, the last included. A trace of
//! *tokens* is cut into blocks by the cache, with the cache's own rule that at least one token is left to compute.
//!
//! | module | job |
//! |---|---|
//! | [`options`] | the command line, checked |
//! | [`trace`] | JSON lines or CSV to requests |
//! | [`policy`] | names to caches |
//! | [`play`] | a trace through the real cache |
//! | [`belady`] | the offline optimum of the same game |
//! | [`counts`] | what is counted, in one place for both |
//! | [`report`], [`plot`] | JSON, a table, a picture |

pub mod belady;
pub mod counts;
pub mod error;
pub mod options;
pub mod play;
pub mod plot;
pub mod policy;
pub mod report;
pub mod trace;

use std::ffi::OsString;
use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use belady::Chains;
use counts::Counts;
use error::Error;
use options::{Command, Options};
use plot::PlotError;
use policy::Policy;
use report::{Report, ResultRow};
use trace::Trace;

/// Runs a command line, the program's name first.
///
/// # Errors
/// [`Error`], to be shown on one line.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Error> {
    let options = match Options::parse(arguments)? {
        Command::Run(options) => options,
        Command::Show(text) => {
            return std::io::stdout().write_all(text.as_bytes()).map_err(Error::Output);
        }
    };
    // Before the long part, so that a path that cannot be written to is said at once.
    let plot = options.plot.as_deref().map(|path| plot::file(path, &options.trace)).transpose()?;
    let trace = Trace::open(&options.trace, options.block_size, options.lenient)
        .map_err(|source| Error::Trace { path: options.trace.clone(), source })?;
    let report = Report::new(&trace, replay(&trace, &options.blocks, &options.policies)?);
    if let Some(plot) = plot {
        plot.write(&plot::svg(&report)?).map_err(PlotError::from)?;
    }
    let text =
        if options.json { report.to_json().map_err(|error| Error::Output(error.into()))? } else { report.to_text() };
    writeln!(std::io::stdout(), "{text}").map_err(Error::Output)
}

/// Replays a trace with every capacity and policy, on all cores. The rows come in the order of the arguments, capacity
/// after capacity.
///
/// # Errors
/// [`Error::Cache`], where a cache cannot be made.
pub fn replay(trace: &Trace, capacities: &[u32], policies: &[Policy]) -> Result<Vec<ResultRow>, Error> {
    let chains = policies.iter().any(|policy| policy.offline().is_some()).then(|| Chains::of(trace));
    let runs: Vec<(u32, Policy)> =
        capacities.iter().flat_map(|&capacity| policies.iter().map(move |&policy| (capacity, policy))).collect();
    let bar = bar(runs.len() * trace.len());
    let play = |&(capacity, policy): &(u32, Policy)| -> Result<ResultRow, Error> {
        let counts: Counts = match (policy.offline(), &chains) {
            (Some(holding), Some(chains)) => belady::optimum(trace, chains, capacity, holding, &bar),
            _ => play::through_cache(trace, policy, capacity, &bar).map_err(|source| Error::Cache {
                capacity,
                policy,
                source,
            })?,
        };
        Ok(ResultRow::new(trace, capacity, policy, &counts))
    };
    let rows = runs.par_iter().map(play).collect();
    bar.finish_and_clear();
    rows
}

/// A bar on standard error, which hides itself where that is no terminal.
fn bar(requests: usize) -> ProgressBar {
    let template = "{bar:40} {human_pos} of {human_len} requests, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(u64::try_from(requests).unwrap_or(u64::MAX)).with_style(style)
}
