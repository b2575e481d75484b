//! The program: reads the command line, runs it, and says in one line what went wrong.

use std::process::ExitCode;

fn main() -> ExitCode {
    match serve::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serve: {error}");
            ExitCode::from(2)
        }
    }
}
