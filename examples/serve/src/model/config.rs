//! The shape of a Llama-architecture model, read from metadata and checked.
//!
//! A key or a tensor that this forward pass does not know is refused by name. A model that runs with one of its
//! factors ignored gives fluent and wrong text, which is worse than none.

use super::gguf::{Gguf, GgufError, required};

/// Why a readable GGUF is not a model that can be run here.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file itself is at fault.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A number is outside what any model can have.
    #[error("the key `{key}` is {value}: {rule}")]
    OutOfRange {
        /// The metadata key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it must satisfy.
        rule: String,
    },
    /// The model uses something that is not implemented.
    #[error("not supported: {0}")]
    Unsupported(String),
}

/// Dimensions and constants of a Llama-architecture model. Counts are of elements, heads, layers and tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Number of transformer layers.
    pub num_layers: u32,
    /// Longest context the model was made for, in tokens.
    pub context_len: u32,
    /// Width of the residual stream, in elements.
    pub dim: usize,
    /// Width of the feed-forward layer, in elements.
    pub ffn_dim: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head, in elements; a multiple of 8.
    pub head_dim: usize,
    /// Number of rows of the embedding.
    pub vocab_len: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Added to the mean square before the root.
    pub rms_eps: f32,
    /// The output projection is the embedding: the file has no `output.weight`.
    pub tied_output: bool,
}

/// The `llama.*` keys that are read, or that change nothing. Any other is refused.
const KNOWN_KEYS: [&str; 20] = [
    "llama.attention.causal",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.attention.sliding_window",
    "llama.attention.value_length",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.expert_count",
    "llama.expert_used_count",
    "llama.feed_forward_length",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scale_linear",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.type",
    "llama.tensor_data_layout",
    "llama.vocab_size",
];

/// The weights of one layer, without `blk.N.` and `.weight`.
const LAYER_TENSORS: [&str; 9] =
    ["attn_k", "attn_norm", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_gate", "ffn_norm", "ffn_up"];

impl Config {
    /// Reads and checks the metadata and the table of tensors.
    ///
    /// # Errors
    /// [`ConfigError`], which names the key or the tensor at fault.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let architecture = required("general.architecture", gguf.text("general.architecture")?)?;
        if architecture != "llama" {
            return Err(ConfigError::Unsupported(format!("the architecture `{architecture}` (only `llama` is)")));
        }
        refuse_unknown_keys(gguf)?;
        refuse_scaled_rope(gguf)?;

        let num_layers = count(gguf, "llama.block_count", None)?;
        let context_len = count(gguf, "llama.context_length", None)?;
        let dim = size(gguf, "llama.embedding_length", None)?;
        let ffn_dim = size(gguf, "llama.feed_forward_length", None)?;
        let num_heads = size(gguf, "llama.attention.head_count", None)?;
        let num_kv_heads = size(gguf, "llama.attention.head_count_kv", Some(num_heads))?;
        let head_dim = size(gguf, "llama.attention.key_length", Some(dim / num_heads))?;
        let value_dim = size(gguf, "llama.attention.value_length", Some(head_dim))?;
        let rope_dim = size(gguf, "llama.rope.dimension_count", Some(head_dim))?;
        let vocab_len = gguf.tensor_shape("token_embd.weight")?.first().copied();
        let vocab_len = vocab_len.unwrap_or_default();
        let stated_vocab_len = size(gguf, "llama.vocab_size", Some(vocab_len))?;
        let rope_theta = positive(gguf, "llama.rope.freq_base", Some(10_000.0))?;
        let rms_eps = positive(gguf, "llama.attention.layer_norm_rms_epsilon", None)?;

        let wrong = |key, value: usize, rule: String| ConfigError::OutOfRange { key, value: value.to_string(), rule };
        if gguf.u32("llama.attention.key_length")?.is_none() && dim % num_heads != 0 {
            let rule = format!("it must divide llama.embedding_length, {dim}");
            return Err(wrong("llama.attention.head_count", num_heads, rule));
        }
        if num_heads % num_kv_heads != 0 {
            let rule = format!("it must divide llama.attention.head_count, {num_heads}");
            return Err(wrong("llama.attention.head_count_kv", num_kv_heads, rule));
        }
        if head_dim % 8 != 0 {
            return Err(ConfigError::Unsupported(format!("heads of {head_dim} elements (only multiples of 8 are)")));
        }
        if value_dim != head_dim {
            return Err(ConfigError::Unsupported(format!(
                "value heads of {value_dim} elements beside key heads of {head_dim}"
            )));
        }
        if rope_dim != head_dim {
            return Err(ConfigError::Unsupported(format!(
                "rotary embedding of {rope_dim} of {head_dim} elements (`llama.rope.dimension_count`)"
            )));
        }
        if stated_vocab_len != vocab_len {
            let rule = format!("token_embd.weight has {vocab_len} rows");
            return Err(wrong("llama.vocab_size", stated_vocab_len, rule));
        }
        if num_heads.checked_mul(head_dim).is_none() {
            let rule = "heads of that size overflow the address space".into();
            return Err(wrong("llama.attention.head_count", num_heads, rule));
        }
        refuse_unknown_tensors(gguf, num_layers)?;
        // Whatever is sized by the number of layers may rely on it, and the first one that is missing is named.
        for layer in 0..num_layers {
            gguf.tensor_shape(&format!("blk.{layer}.attn_norm.weight"))?;
        }
        Ok(Self {
            num_layers,
            context_len,
            dim,
            ffn_dim,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_len,
            rope_theta,
            rms_eps,
            tied_output: !gguf.has_tensor("output.weight"),
        })
    }

    /// Elements of all query heads of one token.
    pub fn q_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Elements of all key heads of one token, which is also the elements of all its value heads.
    pub fn kv_dim(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
}

/// A number of at least 1.
fn count(gguf: &Gguf, key: &'static str, default: Option<u32>) -> Result<u32, ConfigError> {
    match required(key, gguf.u32(key)?.or(default))? {
        0 => Err(ConfigError::OutOfRange { key, value: "0".into(), rule: "it must be at least 1".into() }),
        value => Ok(value),
    }
}

/// A number of at least 1 that sizes memory.
fn size(gguf: &Gguf, key: &'static str, default: Option<usize>) -> Result<usize, ConfigError> {
    // A default that does not fit u32 came from u32 keys, so it cannot happen; 0 is then refused like any other 0.
    let default = default.map(|n| u32::try_from(n).unwrap_or(0));
    let value = count(gguf, key, default)?;
    usize::try_from(value).map_err(|_| ConfigError::OutOfRange {
        key,
        value: value.to_string(),
        rule: "it does not fit this machine's addresses".into(),
    })
}

fn positive(gguf: &Gguf, key: &'static str, default: Option<f32>) -> Result<f32, ConfigError> {
    let value = required(key, gguf.f32(key)?.or(default))?;
    if value > 0.0 {
        return Ok(value);
    }
    Err(ConfigError::OutOfRange { key, value: value.to_string(), rule: "it must be greater than 0".into() })
}

fn refuse_unknown_keys(gguf: &Gguf) -> Result<(), ConfigError> {
    for key in ["llama.expert_count", "llama.expert_used_count"] {
        if let Some(experts) = gguf.u32(key)?.filter(|&n| n > 0) {
            return Err(ConfigError::Unsupported(format!("a mixture of experts (`{key}` is {experts})")));
        }
    }
    if gguf.bool("llama.attention.causal")? == Some(false) {
        return Err(ConfigError::Unsupported("attention that is not causal (`llama.attention.causal`)".into()));
    }
    let context_len = gguf.u32("llama.context_length")?.unwrap_or(u32::MAX);
    let window = gguf.u32("llama.attention.sliding_window")?;
    if let Some(window) = window.filter(|&n| n > 0 && n < context_len) {
        return Err(ConfigError::Unsupported(format!(
            "a sliding window (`llama.attention.sliding_window` is {window})"
        )));
    }
    for key in gguf.keys("llama.") {
        // What the scaling keys say has been looked at as a whole.
        if !KNOWN_KEYS.contains(&key) && !key.starts_with("llama.rope.scaling.") {
            return Err(ConfigError::Unsupported(format!("the key `{key}`")));
        }
    }
    Ok(())
}

/// Refuses rotary frequencies that are stretched. Without a type the factor counts as linear, so only 1 is plain.
fn refuse_scaled_rope(gguf: &Gguf) -> Result<(), ConfigError> {
    let kind = gguf.text("llama.rope.scaling.type")?;
    if kind == Some("none") {
        return Ok(());
    }
    if let Some(kind) = kind.filter(|&kind| kind != "linear") {
        return Err(ConfigError::Unsupported(format!("rope scaling (`llama.rope.scaling.type` is `{kind}`)")));
    }
    for key in ["llama.rope.scaling.factor", "llama.rope.scale_linear"] {
        if let Some(factor) = gguf.f32(key)?.filter(|&f| f != 1.0 && f != 0.0) {
            return Err(ConfigError::Unsupported(format!("rope scaling (`{key}` is {factor})")));
        }
    }
    for key in gguf.keys("llama.rope.scaling.") {
        let plain = ["llama.rope.scaling.factor", "llama.rope.scaling.type"];
        if !plain.contains(&key) {
            return Err(ConfigError::Unsupported(format!("rope scaling (`{key}`)")));
        }
    }
    Ok(())
}

fn refuse_unknown_tensors(gguf: &Gguf, num_layers: u32) -> Result<(), ConfigError> {
    for name in gguf.tensor_names() {
        if ["token_embd.weight", "output_norm.weight", "output.weight"].contains(&name) {
            continue;
        }
        if is_layer_tensor(name, num_layers) {
            continue;
        }
        let what = if name.contains("rope_freqs") || name.contains("rope_factors") {
            "rope factors"
        } else if name.contains("_exps") || name.contains("_gate_inp") {
            "a mixture of experts"
        } else if name.contains("attn") && name.ends_with(".bias") {
            "an attention bias"
        } else if name.ends_with(".bias") {
            "a bias"
        } else {
            "weights outside the Llama architecture"
        };
        return Err(ConfigError::Unsupported(format!("{what} (the tensor `{name}`)")));
    }
    Ok(())
}

fn is_layer_tensor(name: &str, num_layers: u32) -> bool {
    let parts =
        name.strip_prefix("blk.").and_then(|rest| rest.strip_suffix(".weight")).and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(layer, weight)| {
        layer.parse::<u32>().is_ok_and(|layer| layer < num_layers) && LAYER_TENSORS.contains(&weight)
    })
}
