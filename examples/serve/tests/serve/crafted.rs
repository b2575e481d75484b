//! Small GGUFs made in memory: a whole model that runs, and what is left of it after a change.

use std::fs::File;
use std::path::PathBuf;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use tempfile::TempDir;

/// The metadata and the tensors of a model.
#[derive(Debug, Clone)]
pub(crate) struct Crafted {
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<(String, Vec<usize>)>,
}

pub(crate) fn text(value: &str) -> Value {
    Value::String(value.into())
}

impl Crafted {
    /// Two layers of two query heads and one key head of 8, over the 256 bytes and three special tokens.
    pub(crate) fn new() -> Self {
        // The characters that stand for bytes in byte-level text, in the order of their code points.
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut alphabet: Vec<char> = alphabet.into_iter().collect();
        alphabet.sort_unstable();
        let mut tokens: Vec<Value> = ["<|start|>", "<|end|>", "<tool>"].map(text).into();
        tokens.extend(alphabet.iter().map(|c| text(&c.to_string())));
        tokens.extend([text("he"), text("ll")]);
        let kinds = (0..tokens.len()).map(|id| match id {
            0 | 1 => Value::I32(3),
            2 => Value::I32(4),
            _ => Value::I32(1),
        });
        let (vocab, dim, ffn) = (tokens.len(), 16, 24);
        let metadata = [
            ("general.architecture", text("llama")),
            ("llama.block_count", Value::U32(2)),
            ("llama.context_length", Value::U32(64)),
            ("llama.embedding_length", Value::U32(16)),
            ("llama.feed_forward_length", Value::U32(24)),
            ("llama.attention.head_count", Value::U32(2)),
            ("llama.attention.head_count_kv", Value::U32(1)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("llama.rope.freq_base", Value::F32(10_000.0)),
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("smollm")),
            ("tokenizer.ggml.token_type", Value::Array(kinds.collect())),
            ("tokenizer.ggml.tokens", Value::Array(tokens)),
            ("tokenizer.ggml.merges", Value::Array(["h e", "l l"].map(text).into())),
            ("tokenizer.ggml.bos_token_id", Value::U32(0)),
            ("tokenizer.ggml.eos_token_id", Value::U32(1)),
        ];
        let mut tensors =
            vec![("token_embd.weight".to_owned(), vec![vocab, dim]), ("output_norm.weight".to_owned(), vec![dim])];
        for layer in 0..2 {
            let shapes = [
                ("attn_norm", vec![dim]),
                ("attn_q", vec![16, dim]),
                ("attn_k", vec![8, dim]),
                ("attn_v", vec![8, dim]),
                ("attn_output", vec![dim, 16]),
                ("ffn_norm", vec![dim]),
                ("ffn_gate", vec![ffn, dim]),
                ("ffn_up", vec![ffn, dim]),
                ("ffn_down", vec![dim, ffn]),
            ];
            let named = |(name, shape)| (format!("blk.{layer}.{name}.weight"), shape);
            tensors.extend(shapes.map(named));
        }
        Self { metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(), tensors }
    }

    pub(crate) fn set(mut self, key: &str, value: Value) -> Self {
        self = self.without(key);
        self.metadata.push((key.into(), value));
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Self {
        self.metadata.retain(|(name, _)| name != key);
        self
    }

    /// Adds a tensor, or gives it another shape.
    pub(crate) fn tensor(mut self, name: &str, shape: &[usize]) -> Self {
        self = self.without_tensor(name);
        self.tensors.push((name.into(), shape.to_vec()));
        self
    }

    pub(crate) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|(other, _)| other != name);
        self
    }

    /// Writes the model. Weights are small and regular, and the same in every run.
    pub(crate) fn write(&self) -> Written {
        let weights = self.tensors.iter().enumerate().map(|(index, (_, shape))| {
            let len: usize = shape.iter().product();
            let norm = shape.len() == 1;
            let value = |i: usize| {
                let wave = u16::try_from((i * 37 + index * 101) % 1009).unwrap();
                let wave = (f32::from(wave)).sin();
                if norm { 1.0 + wave / 8.0 } else { wave / 4.0 }
            };
            let values: Vec<f32> = (0..len).map(value).collect();
            let tensor = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu).unwrap();
            QTensor::quantize(&tensor, GgmlDType::F32).unwrap()
        });
        let weights: Vec<QTensor> = weights.collect();
        let names = self.tensors.iter().map(|(name, _)| name.as_str());
        let tensors: Vec<(&str, &QTensor)> = names.zip(&weights).collect();
        let metadata = self.metadata.iter().map(|(key, value)| (key.as_str(), value));
        let metadata: Vec<(&str, &Value)> = metadata.collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crafted.gguf");
        let mut file = File::create(&path).unwrap();
        gguf_file::write(&mut file, &metadata, &tensors).unwrap();
        Written { path, _dir: dir }
    }
}

/// A file that lives as long as this value.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    _dir: TempDir,
}

impl Written {
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crafted.gguf");
        std::fs::write(&path, bytes).unwrap();
        Self { path, _dir: dir }
    }
}
