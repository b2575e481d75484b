//! The command line.

use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use paged_kv::event::{EventEncoder, EventForm, HashForm};
use paged_kv::prefix::hash::{Blake3, BlockHasher, Sha256Cbor};

use crate::workload::CHAT;

/// Publishes what a paged KV-cache holds, over ZeroMQ, in vLLM's wire format; replays what a subscriber missed.
///
/// The cache runs a toy workload: chats of three tenants that begin alike, more than it has room for.
#[derive(Parser, Clone, PartialEq, Debug)]
#[command(name = "events", version)]
pub(crate) struct Options {
    /// Where subscribers connect (PUB).
    #[arg(long, default_value = "tcp://127.0.0.1:5557")]
    pub(crate) endpoint: String,
    /// Where requests for a replay arrive (ROUTER).
    #[arg(long, default_value = "tcp://127.0.0.1:5558")]
    pub(crate) replay: String,
    /// First frame of every message.
    #[arg(long, default_value = "kv-events")]
    pub(crate) topic: String,
    /// Batches that are kept for a replay.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) keep: usize,
    /// Chats to run.
    #[arg(long, default_value_t = 500)]
    pub(crate) requests: u32,
    /// Milliseconds from one chat to the next.
    #[arg(long, default_value_t = 20)]
    pub(crate) interval_ms: u64,
    /// Seconds to go on answering after the last chat; for ever if not given.
    #[arg(long)]
    linger: Option<u32>,
    /// Blocks of the cache.
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(32..=1 << 20))]
    pub(crate) num_blocks: u32,
    /// Tokens of a block.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) block_size: u32,
    /// How an event is written.
    #[arg(long, value_enum, default_value_t = Form::Map)]
    form: Form,
    /// How an identity is written.
    #[arg(long, value_enum, default_value_t = Hashes::Bytes)]
    hashes: Hashes,
    /// How a block is named.
    #[arg(long, value_enum, default_value_t = Hasher::Sha256Cbor)]
    hasher: Hasher,
    /// Seed of sha256-cbor: vLLM's default, or the value of PYTHONHASHSEED there.
    #[arg(long, default_value = "vllm-none-hash")]
    seed: String,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Debug)]
enum Form {
    /// Maps, as in vLLM 0.33.
    Map,
    /// Arrays, as before.
    Positional,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Debug)]
enum Hashes {
    /// 32 bytes.
    Bytes,
    /// The low 64 bits as a number.
    Low64,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Debug)]
enum Hasher {
    /// The values that vLLM has under the same name.
    Sha256Cbor,
    /// BLAKE3, values of this crate's own.
    Blake3,
}

/// What a command line asks for.
#[derive(PartialEq, Debug)]
pub(crate) enum Asked {
    /// To run.
    Run(Box<Options>),
    /// For a text, on standard output.
    Text(String),
}

impl Options {
    /// Reads a command line; what is wrong with it is one line.
    pub(crate) fn read(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Asked, String> {
        match Self::try_parse_from(arguments) {
            Ok(options) => options.check().map(|()| Asked::Run(Box::new(options))),
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
                Ok(Asked::Text(error.to_string()))
            }
            Err(error) => {
                // Without hints and usage, which stand behind an empty line.
                let text = error.to_string();
                let lines: Vec<_> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
                Err(lines.join(" ").trim_start_matches("error: ").to_owned())
            }
        }
    }

    /// Whether a chat has room. One block of the cache is for nobody.
    fn check(&self) -> Result<(), String> {
        let Self { num_blocks, block_size, .. } = *self;
        let least = CHAT.div_ceil(block_size) + 1;
        if num_blocks >= least {
            return Ok(());
        }
        Err(format!("--num-blocks {num_blocks} is too few for a chat with --block-size {block_size}: at least {least}"))
    }

    pub(crate) fn linger(&self) -> Option<Duration> {
        self.linger.map(|seconds| Duration::from_secs(seconds.into()))
    }

    pub(crate) fn encoder(&self) -> EventEncoder {
        let form = match self.form {
            Form::Map => EventForm::Map,
            Form::Positional => EventForm::Positional,
        };
        let hashes = match self.hashes {
            Hashes::Bytes => HashForm::Bytes,
            Hashes::Low64 => HashForm::Low64,
        };
        EventEncoder::new().with_form(form).with_hashes(hashes).with_medium(Some("CPU"))
    }

    pub(crate) fn hasher(&self) -> Box<dyn BlockHasher> {
        match self.hasher {
            Hasher::Sha256Cbor => Box::new(Sha256Cbor::with_seed(&self.seed)),
            Hasher::Blake3 => Box::new(Blake3::new()),
        }
    }
}
