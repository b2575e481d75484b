//! What a small continuous-batching engine is made of: Llama-architecture GGUFs on the CPU, their keys and values in pages.
//!
//! | module | job |
//! |---|---|
//! | [`options`], [`prompts`] | the command line, checked |
//! | [`loaded`] | a model ready to run, the prompts as ids |
//! | [`download`] | the model that runs when none is named |
//! | [`model`] | weights and the forward pass, without keys, values or attention |
//! | [`tokenizer`] | text to ids and back, chat templates |
//! | [`sampling`] | the next token from logits |
//! | [`report`] | what a run did |

pub mod download;
pub mod error;
pub mod loaded;
pub mod model;
pub mod options;
pub mod prompts;
pub mod report;
pub mod sampling;
pub mod tokenizer;

use std::ffi::OsString;
use std::io::Write;

use error::Error;
use loaded::Loaded;
use options::{Command, Options};

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
    let _loaded = Loaded::open(&options)?;
    Err(Error::NoEngine)
}
