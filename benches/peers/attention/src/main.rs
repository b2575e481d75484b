//! Attention of `paged-kv` as a server on standard input and output, for `compare.py` to measure beside its peers: see
//! the README of this package.
//!
//! A request is a line of words with a space between, and so is the answer: `ready`, `written`, `ns`, or `error` and why.
//!
//! | request | answer | does |
//! |---|---|---|
//! | `prepare DTYPE BATCH CONTEXT TOKENS LAYERS SEED PATH` | `ready` | fills a storage; tables follow from the seed |
//! | `threads N` | `ready` | that many from now on |
//! | `run N` | `ns T` | attention of the next `N` layers; how long it took |
//! | `output PATH` | `written` | attention of the first layer, into a file |
//!
//! `TOKENS` of each context, the last ones, are queries. Files hold `f32`, little endian, without a gap: queries
//! `[BATCH × TOKENS, 32, 128]`, K and V `[BATCH × CONTEXT, 8, 128]` each; outputs like the queries.

mod request;
mod session;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use request::Request;
use session::Server;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever asked is gone.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers-attention: {error}");
            ExitCode::from(2)
        }
    }
}

fn serve() -> io::Result<()> {
    let mut server = Server::default();
    for line in io::stdin().lock().lines() {
        let answer = line?.parse::<Request>().and_then(|request| server.answer(request));
        let text = answer.unwrap_or_else(|error| format!("error {}", error.replace(char::is_control, " ")));
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()?;
    }
    Ok(())
}
