//! The program: reads the command line, runs it, and says in one line what went wrong.

use std::process::ExitCode;

fn main() -> ExitCode {
    match roof::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, whatever a path holds.
            let text = error.to_string().replace(char::is_control, " ");
            eprintln!("roof: {text}");
            ExitCode::from(2)
        }
    }
}
