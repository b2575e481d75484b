//! A Llama-architecture model: weights and the forward pass, without keys, values or attention.
//!
//! [`Model::forward`] computes everything around attention and calls [`LayerAttention::attend`] in the middle of each
//! layer. What stores keys and values, and how, is not this module's business.

use std::path::Path;

use candle_core::{Device, Tensor};
use rayon::prelude::*;

pub mod config;
pub mod forward;
pub mod gguf;
mod weights;

pub use config::{Config, ConfigError};
pub use forward::{AttentionError, Batch, LayerAttention, Logits};
pub use gguf::{Gguf, GgufError};
pub use weights::WeightFormat;

use weights::{LayerWeights, Linear, read_vector};

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file is not a GGUF that can be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file is not a model that can be run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A batch that contradicts itself.
    #[error("a batch of {tokens} tokens has {positions} positions and asks for logits up to row {last_row:?}")]
    Batch {
        /// Number of tokens; must not be 0.
        tokens: usize,
        /// Number of positions; must be the number of tokens.
        positions: usize,
        /// The greatest row asked for; must be below the number of tokens.
        last_row: Option<usize>,
    },
    /// A token id that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab_len}")]
    Token {
        /// The token id.
        token: u32,
        /// Entries of the vocabulary.
        vocab_len: usize,
    },
    /// A position that the model was not made for.
    #[error("position {position} is outside the model's context of {context_len} tokens")]
    Position {
        /// The position.
        position: u32,
        /// The model's longest context.
        context_len: u32,
    },
    /// The storage of keys and values reported an error.
    #[error("attention failed: {0}")]
    Attention(AttentionError),
    /// candle reported an error.
    #[error("computation failed: {0}")]
    Compute(String),
}

/// A loaded model.
#[derive(Debug)]
pub struct Model {
    config: Config,
    /// `[vocab_len, dim]`, f32 in both formats: one row is read for each token.
    embedding: Tensor,
    layers: Vec<LayerWeights>,
    output_norm: Vec<f32>,
    output: Linear,
    /// `theta^(-2i / head_dim)` for each pair i of a head.
    inverse_frequencies: Vec<f64>,
}

impl Model {
    /// Opens and loads a file.
    ///
    /// # Errors
    /// [`ModelError`], for any file that is not a whole, supported model.
    pub fn open(path: &Path, format: WeightFormat) -> Result<Self, ModelError> {
        Self::load(&Gguf::open(path)?, format)
    }

    /// Loads the weights of an open file.
    ///
    /// # Errors
    /// [`ModelError`], for any file that is not a whole, supported model.
    pub fn load(gguf: &Gguf, format: WeightFormat) -> Result<Self, ModelError> {
        let config = Config::from_gguf(gguf)?;
        let Config { dim, vocab_len, head_dim, .. } = config;
        let embedding = gguf.tensor("token_embd.weight", &[vocab_len, dim])?;
        let output_name = if config.tied_output { "token_embd.weight" } else { "output.weight" };
        let embedding = embedding.dequantize(&Device::Cpu)?;
        let output = match format {
            WeightFormat::F32 if config.tied_output => Linear::tied(&embedding)?,
            _ => Linear::read(gguf, format, dim, &[(output_name.into(), vocab_len)])?,
        };
        let layers: Result<Vec<_>, _> = (0..config.num_layers)
            .into_par_iter()
            .map(|layer| LayerWeights::read(gguf, &config, format, layer))
            .collect();
        let pairs = head_dim / 2;
        let exponent = |pair| -forward::to_f64(2 * pair) / forward::to_f64(head_dim);
        let theta = f64::from(config.rope_theta);
        Ok(Self {
            embedding,
            layers: layers?,
            output_norm: read_vector(gguf, "output_norm.weight", dim)?,
            output,
            inverse_frequencies: (0..pairs).map(|pair| theta.powf(exponent(pair))).collect(),
            config,
        })
    }

    /// The model's dimensions.
    pub fn config(&self) -> &Config {
        &self.config
    }
}
