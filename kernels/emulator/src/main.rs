//! `cuda-emulator COMMAND ARGUMENTS...` runs a command that finds the stand-in driver as its `libcuda.so`.

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: cuda-emulator COMMAND ARGUMENTS...");
        return ExitCode::from(2);
    };
    let mut command = Command::new(&program);
    command.args(arguments);
    let folder = cuda_emulator::library().parent().expect("the library lies in a folder");
    command.env("LD_LIBRARY_PATH", before(folder.into(), "LD_LIBRARY_PATH"));
    if let Some(runtime) = cuda_emulator::sanitizer_runtime() {
        command.env("LD_PRELOAD", before(runtime.into(), "LD_PRELOAD"));
        // What a test program leaves at its end is not the kernels' business.
        command.env("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1");
    }
    match command.status() {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(error) => {
            eprintln!("cuda-emulator: {}: {error}", program.display());
            ExitCode::from(127)
        }
    }
}

/// A list separated by colons, with `first` before what the variable holds.
fn before(first: OsString, variable: &str) -> OsString {
    let mut list = first;
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}
