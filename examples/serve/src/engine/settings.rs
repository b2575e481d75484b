//! What an engine is made from, and whether it can ever serve a request.

use paged_kv::layout::{DType, KvShape};

use super::EngineError;
use super::request::Request;
use crate::model::Config;
use crate::options::{Decoding, KvDtype, Options, Policy};

/// Bytes that the cache takes at most where `--num-blocks` is not given.
const DEFAULT_BYTES: u64 = 1 << 30;

/// Query tokens of a step: longer prompts are computed in several steps, beside which the others decode.
const STEP_TOKENS: u32 = 512;

/// Sequences in one step where `--max-batch` is not given and no request needs more.
const DEFAULT_BATCH: u32 = 8;

/// What an engine is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Blocks of the cache.
    pub num_blocks: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Most sequences in flight.
    pub max_batch: u32,
    /// How cache memory is given out.
    pub policy: Policy,
    /// Whether requests find what others have computed. Off only for comparisons; always off under
    /// [`Policy::Contiguous`].
    pub share_prefixes: bool,
    /// Query tokens of a step, about: every sequence that decodes has its token in every step, and prompts take what is
    /// left of this.
    pub step_tokens: u32,
    /// What the prefixes of this model are kept apart by from those of others.
    pub model: String,
}

impl Settings {
    /// The settings that a command line asks for, for these requests.
    ///
    /// Without `--num-blocks` the cache has as many blocks as the largest requests that may be in flight together can
    /// come to hold, but at most a GiB of them, and never fewer than the largest request can hold.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn new(options: &Options, config: &Config, requests: &[Request], model: String) -> Result<Self, EngineError> {
        let widest = requests.iter().map(Request::width).max().unwrap_or(1);
        let mut settings = Self {
            num_blocks: options.num_blocks.unwrap_or(1),
            block_size: options.block_size,
            kv_dtype: options.kv_dtype,
            max_batch: options.max_batch.unwrap_or(DEFAULT_BATCH.max(widest)),
            policy: options.policy,
            share_prefixes: options.policy == Policy::Paged,
            step_tokens: STEP_TOKENS,
            model,
        };
        if options.num_blocks.is_none() {
            settings.num_blocks = settings.default_blocks(config, requests)?;
        }
        settings.check(config, requests)?;
        Ok(settings)
    }

    fn default_blocks(&self, config: &Config, requests: &[Request]) -> Result<u32, EngineError> {
        // Counted without sharing, so that both policies get the same bytes.
        let one = |request: &Request| request.max_len().div_ceil(self.block_size.into());
        let mut sizes: Vec<(u64, u32)> = requests.iter().map(|request| (one(request), request.width())).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut seats = self.max_batch;
        let mut wanted = 0;
        for &(blocks, width) in &sizes {
            let width = width.min(seats);
            seats -= width;
            wanted += blocks * u64::from(width);
        }
        let largest = sizes.iter().map(|&(blocks, width)| blocks * u64::from(width)).max().unwrap_or(1);
        let affordable = self.shape(config)?.blocks_in(DEFAULT_BYTES, self.block_size)?;
        let blocks = wanted.min(affordable).max(largest);
        // More than 32 bits of blocks are refused by the layout or by the memory.
        Ok(u32::try_from(blocks).unwrap_or(u32::MAX))
    }

    /// What a token's keys and values are.
    pub(super) fn shape(&self, config: &Config) -> Result<KvShape, EngineError> {
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let dtype = match self.kv_dtype {
            KvDtype::F32 => DType::F32,
            KvDtype::F16 => DType::F16,
            KvDtype::Bf16 => DType::BF16,
            KvDtype::Int8 => DType::I8,
            KvDtype::Fp8 => DType::F8E4M3,
        };
        Ok(KvShape::new(config.num_layers, narrow(config.num_kv_heads), narrow(config.head_dim), dtype))
    }

    /// Checks that every request can be served to its end, alone if need be: then none waits for ever, and which tokens
    /// it gets does not depend on the size of the cache.
    ///
    /// # Errors
    /// [`EngineError`] names the first request that cannot, with the numbers.
    pub fn check(&self, config: &Config, requests: &[Request]) -> Result<(), EngineError> {
        for (request, number) in requests.iter().zip(1..) {
            let (prompt, max_tokens) = (request.prompt.len(), request.max_tokens);
            if prompt == 0 {
                return Err(EngineError::EmptyPrompt { number });
            }
            let context_len = config.context_len;
            if prompt as u64 + u64::from(max_tokens) > u64::from(context_len) {
                return Err(EngineError::TooLong { number, prompt, max_tokens, context_len });
            }
            let (width, max_batch) = (request.width(), self.max_batch);
            if width > max_batch {
                return Err(EngineError::TooWide { number, width, max_batch });
            }
            if self.policy == Policy::Contiguous && matches!(request.decoding, Decoding::Beam { width: 2.. }) {
                return Err(EngineError::ContiguousBeams);
            }
            let (blocks, num_blocks, block_size) = (self.most_blocks(request), self.num_blocks, self.block_size);
            if blocks > u64::from(num_blocks) {
                return Err(EngineError::NeverFits {
                    number,
                    prompt,
                    max_tokens,
                    width,
                    blocks,
                    block_size,
                    num_blocks,
                });
            }
        }
        Ok(())
    }

    /// Blocks that a request holds at most, when all of its sequences reach their full length. They share the blocks
    /// that the prompt fills; under the contiguous policy they share nothing and take their turns.
    fn most_blocks(&self, request: &Request) -> u64 {
        let block_size = u64::from(self.block_size);
        let all = request.max_len().div_ceil(block_size);
        if self.policy == Policy::Contiguous || request.max_tokens == 1 {
            return all;
        }
        let shared = request.prompt.len() as u64 / block_size;
        shared + u64::from(request.width()) * (all - shared)
    }
}
