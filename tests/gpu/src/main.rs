//! What the CUDA storage reaches on this machine's GPU, beside a pass that only reads: decode, prompts, copies and swaps.
//! One table, or JSON. See `tests/gpu/README.md`.
#![allow(unsafe_code, reason = "kernels are launched, and memory is named by its address")]

mod bench;
mod device;
mod error;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use error::Error;

/// What there is to be said.
#[derive(Debug, Parser)]
#[command(about)]
struct Options {
    /// Writes the figures to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seconds after which no shape is begun any more; those left are said.
    #[arg(long, value_name = "N", default_value_t = 150)]
    seconds: u64,
    /// GiB of device memory that the pools lie in; by default three quarters of what is free.
    #[arg(long, value_name = "GIB")]
    pool_gib: Option<f64>,
    /// A few tiny shapes: to see that the program runs.
    #[arg(long)]
    tiny: bool,
}

fn run() -> Result<(), Error> {
    let options = Options::try_parse().map_err(|error| {
        if error.use_stderr() { Error::Usage(command_line::usage_line(&error.to_string())) } else { error.exit() }
    })?;
    let device = device::Device::open(options.pool_gib)?;
    let report = bench::all(&device, options.tiny, Duration::from_secs(options.seconds))?;
    println!("{report}");
    if let Some(path) = options.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text + "\n").map_err(|source| Error::Write { path, source })?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, whatever a path holds.
            eprintln!("gpu: {}", error.to_string().replace(char::is_control, " "));
            ExitCode::from(2)
        }
    }
}
