//! A request, and what came of it.

use crate::options::{Decoding, Options};
use crate::report::FinishReason;

/// A prompt and how it is continued.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt's ids; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens of an output; at least one.
    pub max_tokens: u32,
    /// Samples; one for beam search.
    pub n: u32,
    /// How the next token is chosen.
    pub decoding: Decoding,
}

impl Request {
    /// The requests of a command line, for prompts as ids.
    pub fn from_options(options: &Options, prompt_ids: &[Vec<u32>]) -> Vec<Self> {
        let request = |prompt: &Vec<u32>| Self {
            prompt: prompt.clone(),
            max_tokens: options.max_tokens,
            n: options.n,
            decoding: options.decoding,
        };
        prompt_ids.iter().map(request).collect()
    }

    /// Sequences that it runs at once.
    pub fn width(&self) -> u32 {
        match self.decoding {
            Decoding::Beam { width } => width,
            _ => self.n,
        }
    }

    /// Tokens of a sequence at its longest that have keys and values: nothing attends to the last token that is drawn,
    /// so it needs none.
    pub(super) fn max_len(&self) -> u64 {
        self.prompt.len() as u64 + u64::from(self.max_tokens) - 1
    }
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Response {
    /// Tokens of the prompt that were in the cache when the request was first admitted.
    pub cached_tokens: u64,
    /// By sample, or best first.
    pub outputs: Vec<Generated>,
}

/// The tokens of one sample or hypothesis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The ids, the end token included.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub finish_reason: FinishReason,
}

/// What happens while requests run, in the order in which it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A request runs for the first time.
    Started {
        /// Its index.
        request: usize,
    },
    /// An output has one more token. Hypotheses of a beam search come as a whole, when they are decided.
    Token {
        /// The request's index.
        request: usize,
        /// The sample, or the rank of the hypothesis.
        output: usize,
        /// The token.
        token: u32,
    },
    /// An output is complete.
    Finished {
        /// The request's index.
        request: usize,
        /// The sample, or the rank of the hypothesis.
        output: usize,
    },
}
