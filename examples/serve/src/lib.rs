//! What a small continuous-batching engine is made of: Llama-architecture GGUFs on the CPU, their keys and values in pages.
//!
//! All keys and values live in a `paged_kv` storage and all attention is its `attend`; the bytes that are allocated for
//! them are those of `--num-blocks` blocks. [`engine`] shows how an engine uses the crate: `engine/kv.rs` is the seam
//! between the forward pass and the storage, `engine.rs` admission, planning and preemption, `engine/job.rs` samples and
//! hypotheses by fork and select.
//!
//! | module | job |
//! |---|---|
//! | [`options`], [`prompts`] | the command line, checked |
//! | [`loaded`] | a model ready to run, the prompts as ids |
//! | [`download`] | the model that runs when none is named |
//! | [`model`] | weights and the forward pass, without keys, values or attention |
//! | [`tokenizer`] | text to ids and back, chat templates |
//! | [`engine`] | requests to tokens: batching, blocks, preemption, samples, beams |
//! | [`sampling`] | the next token from logits |
//! | [`transcript`] | the texts of several requests on one output, while they come |
//! | [`report`] | what a run did |

pub mod download;
pub mod engine;
pub mod error;
pub mod loaded;
pub mod model;
pub mod options;
pub mod prompts;
pub mod report;
pub mod sampling;
pub mod tokenizer;
pub mod transcript;

use std::ffi::OsString;
use std::io::Write;

use engine::Engine;
use error::Error;
use loaded::Loaded;
use options::{Command, Options};
use report::Report;
use transcript::Transcript;

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
    let Loaded { model, tokenizer, requests, kv } = Loaded::open(&options)?;
    let mut engine = Engine::new(&model, kv, tokenizer.ends());
    let mut stdout = std::io::stdout();
    if options.json {
        let outcome = engine.run(&requests, &mut |_| Ok(()))?;
        let json = Report::new(&requests, outcome, &tokenizer).to_json();
        let json = json.map_err(|error| Error::Output(error.into()))?;
        return writeln!(stdout, "{json}").map_err(Error::Output);
    }
    let mut transcript = Transcript::new(&options, &tokenizer, stdout.lock());
    let outcome = engine.run(&requests, &mut |event| transcript.tell(event))?;
    let table = Report::new(&requests, outcome, &tokenizer).to_table();
    writeln!(stdout, "{table}").map_err(Error::Output)
}
