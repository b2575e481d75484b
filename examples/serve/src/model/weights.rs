//! The weights in memory: dequantised to f32, or as they are stored.

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{CpuStorage, Device, Module, Storage, Tensor};

use super::ModelError;
use super::config::Config;
use super::gguf::{Gguf, first_line};

/// How weights are kept and multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// Dequantised at load, multiplied in f32. Greedy tokens equal a float64 reference on the golden prompts.
    F32,
    /// As stored, multiplied by candle's quantised kernels, which round activations to 8 bits: about a fifth of the
    /// memory, and other tokens than the reference's.
    Quantised,
}

/// One or several weight matrices that share their input: q, k and v of a layer, or gate and up.
///
/// In f32 they are stacked at load, so that a layer costs four matmuls and not seven.
#[derive(Debug)]
pub(crate) struct Linear {
    kind: Kind,
    inputs: usize,
    outputs: usize,
}

#[derive(Debug)]
enum Kind {
    /// `[inputs, outputs]`, a transposed view of the rows that were read: gemm reads it through its strides and copies
    /// nothing. Transposing at load instead made decoding of the default model slower, 13.4 against 16.6 tokens per
    /// second on two cores.
    Dense(Tensor),
    /// One for each matrix: they may be quantised differently.
    Quantised(Vec<QMatMul>),
}

impl Linear {
    /// Reads matrices `names`, each of `[outputs, inputs]`.
    pub(crate) fn read(
        gguf: &Gguf,
        format: WeightFormat,
        inputs: usize,
        matrices: &[(String, usize)],
    ) -> Result<Self, ModelError> {
        let stored: Result<Vec<QTensor>, _> =
            matrices.iter().map(|(name, outputs)| gguf.tensor(name, &[*outputs, inputs])).collect();
        let outputs = matrices.iter().map(|(_, outputs)| outputs).sum();
        let kind = match format {
            WeightFormat::F32 => {
                let parts: Result<Vec<Tensor>, _> = stored?.iter().map(|part| part.dequantize(&Device::Cpu)).collect();
                let rows = match parts?.as_slice() {
                    [one] => one.clone(),
                    several => Tensor::cat(several, 0)?,
                };
                Kind::Dense(rows.t()?)
            }
            WeightFormat::Quantised => {
                let parts: Result<Vec<QMatMul>, _> = stored?.into_iter().map(QMatMul::from_qtensor).collect();
                Kind::Quantised(parts?)
            }
        };
        Ok(Self { kind, inputs, outputs })
    }

    /// The output projection of a model that has none of its own: the embedding itself, without a copy.
    pub(crate) fn tied(embedding: &Tensor) -> Result<Self, ModelError> {
        let (outputs, inputs) = embedding.dims2()?;
        Ok(Self { kind: Kind::Dense(embedding.t()?), inputs, outputs })
    }

    /// Multiplies rows `x: [rows, inputs]` and hands `[rows, outputs]` to `then`.
    ///
    /// One row is multiplied as two equal ones. gemm has a kernel of its own for a single row, which adds in another
    /// order; from two rows on each output is the same sum whatever the number of rows, so that a sequence gets the
    /// same bits alone and in a batch. With the weights coming from memory the second row costs nothing.
    pub(crate) fn apply<T>(&self, mut x: Vec<f32>, then: impl FnOnce(&[f32]) -> T) -> Result<T, ModelError> {
        let mut rows = x.len() / self.inputs;
        let wanted = rows * self.outputs;
        if rows == 1 {
            x.extend_from_within(..);
            rows = 2;
        }
        let x = Tensor::from_vec(x, (rows, self.inputs), &Device::Cpu)?;
        let y = match &self.kind {
            Kind::Dense(weights) => x.matmul(weights)?,
            Kind::Quantised(parts) => match parts.as_slice() {
                [one] => one.forward(&x)?,
                several => {
                    let parts: Result<Vec<Tensor>, _> = several.iter().map(|part| part.forward(&x)).collect();
                    Tensor::cat(&parts?, 1)?
                }
            },
        };
        read_slice(&y, |y| then(&y[..wanted]))
    }
}

/// Reads a contiguous f32 tensor in place.
pub(crate) fn read_slice<T>(tensor: &Tensor, then: impl FnOnce(&[f32]) -> T) -> Result<T, ModelError> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) => Ok(then(&values[start..end])),
        _ => Err(ModelError::Compute("a tensor is not contiguous f32 in host memory".into())),
    }
}

/// The weights of one layer.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attn_norm: Vec<f32>,
    pub(crate) qkv: Linear,
    pub(crate) attn_output: Linear,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) gate_up: Linear,
    pub(crate) down: Linear,
}

impl LayerWeights {
    pub(crate) fn read(gguf: &Gguf, config: &Config, format: WeightFormat, layer: u32) -> Result<Self, ModelError> {
        let Config { dim, ffn_dim, .. } = *config;
        let name = |weight: &str| format!("blk.{layer}.{weight}.weight");
        let linear = |inputs, matrices: &[(String, usize)]| Linear::read(gguf, format, inputs, matrices);
        Ok(Self {
            attn_norm: read_vector(gguf, &name("attn_norm"), dim)?,
            qkv: linear(
                dim,
                &[
                    (name("attn_q"), config.q_dim()),
                    (name("attn_k"), config.kv_dim()),
                    (name("attn_v"), config.kv_dim()),
                ],
            )?,
            attn_output: linear(config.q_dim(), &[(name("attn_output"), dim)])?,
            ffn_norm: read_vector(gguf, &name("ffn_norm"), dim)?,
            gate_up: linear(dim, &[(name("ffn_gate"), ffn_dim), (name("ffn_up"), ffn_dim)])?,
            down: linear(ffn_dim, &[(name("ffn_down"), dim)])?,
        })
    }
}

/// Reads a vector of `len` elements as f32.
pub(crate) fn read_vector(gguf: &Gguf, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    let tensor = gguf.tensor(name, &[len])?.dequantize(&Device::Cpu)?;
    Ok(tensor.to_vec1()?)
}

impl From<candle_core::Error> for ModelError {
    fn from(error: candle_core::Error) -> Self {
        Self::Compute(first_line(&error))
    }
}
