//! What the control plane of `paged-kv` costs beside `kvbm-logical` and `libmir-runtime`: see the README of this
//! package for what is measured, and how fair it is.

mod clock;
mod growth;
mod kvbm;
mod libmir;
mod manager;
mod options;
mod ours;
mod report;
mod tokens;
mod workload;

use std::io::{self, Write};
use std::process::ExitCode;

use options::Command;

fn main() -> ExitCode {
    match run().and_then(|text| print(text.trim_end())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers-manager: {}", error.replace(char::is_control, " "));
            ExitCode::from(2)
        }
    }
}

/// Does what the command line says; returns what to print, or one line that says what was wrong.
fn run() -> Result<String, String> {
    match options::parse(std::env::args_os())? {
        Command::Show(text) => Ok(text),
        Command::Compare(options) => workload::compare(&options),
        Command::Growth(options) => growth::table(&options),
        Command::Count(count) => growth::count(&count),
    }
}

fn print(text: &str) -> Result<(), String> {
    match writeln!(io::stdout(), "{text}") {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| error.to_string()),
    }
}
