//! The forward pass over a flat batch: tokens of many sequences, one after the other, without padding.
//!
//! ```text
//! tokens ─ embedding ─┬─ norm ─ q k v ─ rope ─ attend ─ output ─(+)─┬─ norm ─ gate up ─ silu ─ down ─(+)─ …
//!                     └─────────────────────────────────────────┘  └──────────────────────────────┘
//! ```
//! Everything but [`LayerAttention::attend`] treats each token alone, so a token's result does not depend on who shares
//! its batch.

use rayon::prelude::*;

use super::weights::read_slice;
use super::{Model, ModelError};

/// Where keys and values live and attention happens. The forward pass holds neither.
pub trait LayerAttention {
    /// Stores this layer's keys and values of the batch's tokens, then attends.
    ///
    /// `q: [tokens, heads, head_dim]`, `k, v: [tokens, kv_heads, head_dim]`, `out: [tokens, heads, head_dim]`, all
    /// row-major and contiguous, rotary embedding applied. Layers come in order, each once for a batch.
    ///
    /// # Errors
    /// Whatever the storage reports; the forward pass stops there.
    fn attend(&mut self, layer: u32, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) -> Result<(), AttentionError>;
}

/// What a [`LayerAttention`] may report.
pub type AttentionError = Box<dyn core::error::Error + Send + Sync>;

/// One batch of tokens.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids, sequence after sequence.
    pub tokens: &'a [u32],
    /// Position of each token in its own sequence.
    pub positions: &'a [u32],
    /// Indices into `tokens` of the tokens whose logits are wanted, in the order wanted.
    pub logit_rows: &'a [usize],
}

/// Logits of the tokens that were asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    values: Vec<f32>,
    vocab_len: usize,
}

impl Logits {
    /// The logits of row `row` of `logit_rows`, one for each entry of the vocabulary.
    ///
    /// # Panics
    /// If fewer rows were asked for.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.vocab_len..][..self.vocab_len]
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.values.len() / self.vocab_len
    }
}

impl Model {
    /// Runs one batch through the model.
    ///
    /// # Errors
    /// [`ModelError::Batch`], [`ModelError::Token`], [`ModelError::Position`] before anything is computed, so that the
    /// storage is untouched; [`ModelError::Attention`] from `attention`; [`ModelError::Compute`].
    pub fn forward(&self, batch: Batch<'_>, attention: &mut dyn LayerAttention) -> Result<Logits, ModelError> {
        self.check(batch)?;
        let config = &self.config;
        let tokens = batch.tokens.len();
        let rotations = Rotations::new(batch.positions, &self.inverse_frequencies);
        let mut hidden = self.embed(batch.tokens)?;
        let mut q = vec![0.0; tokens * config.q_dim()];
        let mut k = vec![0.0; tokens * config.kv_dim()];
        let mut v = vec![0.0; tokens * config.kv_dim()];
        let mut attended = vec![0.0; tokens * config.q_dim()];

        for (layer, weights) in (0..config.num_layers).zip(&self.layers) {
            let x = rms_norm(&hidden, &weights.attn_norm, config.rms_eps);
            weights.qkv.apply(x, |qkv| {
                rotations.split(qkv, config.head_dim, &mut q, &mut k, &mut v);
            })?;
            attention.attend(layer, &q, &k, &v, &mut attended).map_err(ModelError::Attention)?;
            if layer + 1 == config.num_layers {
                // After the last attention only the rows that are asked for are of use.
                hidden = gather(&hidden, config.dim, batch.logit_rows);
                attended = gather(&attended, config.q_dim(), batch.logit_rows);
                if batch.logit_rows.is_empty() {
                    break;
                }
            }
            let x = attended.clone();
            weights.attn_output.apply(x, |y| add(&mut hidden, y))?;
            let x = rms_norm(&hidden, &weights.ffn_norm, config.rms_eps);
            let x = weights.gate_up.apply(x, |y| swiglu(y, config.ffn_dim))?;
            weights.down.apply(x, |y| add(&mut hidden, y))?;
        }

        let vocab_len = config.vocab_len;
        let mut values = Vec::new();
        if !hidden.is_empty() {
            let x = rms_norm(&hidden, &self.output_norm, config.rms_eps);
            self.output.apply(x, |y| values.extend_from_slice(y))?;
        }
        Ok(Logits { values, vocab_len })
    }

    fn check(&self, batch: Batch<'_>) -> Result<(), ModelError> {
        let (tokens, positions) = (batch.tokens.len(), batch.positions.len());
        let last_row = batch.logit_rows.iter().max().copied();
        if tokens == 0 || tokens != positions || last_row.is_some_and(|row| row >= tokens) {
            return Err(ModelError::Batch { tokens, positions, last_row });
        }
        for &token in batch.tokens {
            if usize::try_from(token).map_or(true, |token| token >= self.config.vocab_len) {
                return Err(ModelError::Token { token, vocab_len: self.config.vocab_len });
            }
        }
        let context_len = self.config.context_len;
        match batch.positions.iter().find(|&&position| position >= context_len) {
            Some(&position) => Err(ModelError::Position { position, context_len }),
            None => Ok(()),
        }
    }

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        let dim = self.config.dim;
        read_slice(&self.embedding, |rows| {
            let mut hidden = Vec::with_capacity(tokens.len() * dim);
            for &token in tokens {
                // `check` has seen that every token is below `vocab_len`, a usize.
                let row = usize::try_from(token).unwrap_or_default();
                hidden.extend_from_slice(&rows[row * dim..][..dim]);
            }
            hidden
        })
    }
}

/// Elements below which starting threads costs more than it saves, for loops of a few operations an element.
const PARALLEL_ELEMS: usize = 1 << 15;

/// Runs `f(row, out)` over the rows of `out`.
fn for_rows(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if out.len() < PARALLEL_ELEMS {
        out.chunks_exact_mut(width).enumerate().for_each(|(row, out)| f(row, out));
    } else {
        out.par_chunks_exact_mut(width).enumerate().for_each(|(row, out)| f(row, out));
    }
}

/// `x / sqrt(mean(x²) + eps) · weight` for each row; the sum in f64, because it decides the scale of the whole row.
fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let width = weight.len();
    let mut out = vec![0.0; x.len()];
    for_rows(&mut out, width, |row, out| {
        let x = &x[row * width..][..width];
        let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let scale = 1.0 / (squares / to_f64(width) + f64::from(eps)).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = to_f32(f64::from(x) * scale) * weight;
        }
    });
    out
}

/// `silu(gate) · up` for rows of `[gate, up]`.
fn swiglu(gate_up: &[f32], ffn_dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; gate_up.len() / 2];
    for_rows(&mut out, ffn_dim, |row, out| {
        let (gate, up) = gate_up[row * 2 * ffn_dim..][..2 * ffn_dim].split_at(ffn_dim);
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + (-gate).exp()) * up;
        }
    });
    out
}

fn add(hidden: &mut [f32], y: &[f32]) {
    for (hidden, &y) in hidden.iter_mut().zip(y) {
        *hidden += y;
    }
}

fn gather(values: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    let rows = rows.iter().flat_map(|&row| &values[row * width..][..width]);
    rows.copied().collect()
}

/// Cosine and sine of each token's angles, computed once for all layers, in f64.
struct Rotations {
    /// `[tokens, head_dim / 2]` of (cosine, sine).
    angles: Vec<(f32, f32)>,
    pairs: usize,
}

impl Rotations {
    fn new(positions: &[u32], inverse_frequencies: &[f64]) -> Self {
        let angles = positions.iter().flat_map(|&position| {
            inverse_frequencies.iter().map(move |frequency| {
                let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                (to_f32(cos), to_f32(sin))
            })
        });
        Self { angles: angles.collect(), pairs: inverse_frequencies.len() }
    }

    /// Takes rows of `[q, k, v]` apart and rotates q and k on the way.
    ///
    /// Elements 2i and 2i + 1 of a head form pair i: GGUF files of this architecture keep q and k permuted for that.
    fn split(&self, qkv: &[f32], head_dim: usize, q: &mut [f32], k: &mut [f32], v: &mut [f32]) {
        let tokens = self.angles.len() / self.pairs;
        let (q_dim, kv_dim) = (q.len() / tokens, k.len() / tokens);
        let rows = qkv.chunks_exact(q_dim + 2 * kv_dim);
        for (token, row) in rows.enumerate() {
            let angles = &self.angles[token * self.pairs..][..self.pairs];
            let (q_row, kv_row) = row.split_at(q_dim);
            let (k_row, v_row) = kv_row.split_at(kv_dim);
            rotate(q_row, head_dim, angles, &mut q[token * q_dim..][..q_dim]);
            rotate(k_row, head_dim, angles, &mut k[token * kv_dim..][..kv_dim]);
            v[token * kv_dim..][..kv_dim].copy_from_slice(v_row);
        }
    }
}

fn rotate(heads: &[f32], head_dim: usize, angles: &[(f32, f32)], out: &mut [f32]) {
    let heads = heads.chunks_exact(head_dim);
    for (head, out) in heads.zip(out.chunks_exact_mut(head_dim)) {
        let pairs = head.chunks_exact(2).zip(out.chunks_exact_mut(2));
        for ((pair, out), &(cos, sin)) in pairs.zip(angles) {
            out[0] = pair[0] * cos - pair[1] * sin;
            out[1] = pair[0] * sin + pair[1] * cos;
        }
    }
}

/// Rounds to f32, which is what the weights and the cache hold.
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

/// A width as a number; widths are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
pub(super) fn to_f64(value: usize) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-6, "{got} against {want}");
        }
    }

    #[test]
    fn rms_norm_divides_by_the_root_of_the_mean_square() {
        // Mean of 9 and 16 is 12.5, its root 3.5355339: 3 / 3.5355339 and 2 · 4 / 3.5355339.
        close(&rms_norm(&[3.0, 4.0], &[1.0, 2.0], 0.0), &[0.848_528_1, 2.262_741_7]);
        // eps is inside the root: 0 / sqrt(eps) is 0 and not NaN.
        close(&rms_norm(&[0.0, 0.0], &[1.0, 2.0], 1e-5), &[0.0, 0.0]);
    }

    #[test]
    fn swiglu_is_silu_of_the_gate_times_up() {
        // silu(1) = 1 / (1 + e^-1) = 0.7310586; silu(-2) = -2 / (1 + e^2) = -0.2384058.
        close(&swiglu(&[1.0, -2.0, 3.0, 10.0], 2), &[2.193_175_7, -2.384_058_5]);
        // e^100 is infinite in f32: the quotient is then 0, as it should be.
        close(&swiglu(&[-100.0, 5.0], 1), &[0.0]);
    }

    #[test]
    fn rope_turns_neighbours_and_leaves_values_alone() {
        // Two tokens at positions 0 and 1; one query head, one key head of 4; frequencies 1 and 0.01.
        let rotations = Rotations::new(&[0, 1], &[1.0, 0.01]);
        let row = [1.0, 0.0, 0.0, 1.0];
        let qkv = [row, row, row, row, row, row].concat();
        let (mut q, mut k, mut v) = ([0.0; 8], [0.0; 8], [0.0; 8]);
        rotations.split(&qkv, 4, &mut q, &mut k, &mut v);
        let turned = [1f32.cos(), 1f32.sin(), -(0.01f32.sin()), 0.01f32.cos()];
        close(&q, &[row, turned].concat());
        close(&k, &q);
        close(&v, &[row, row].concat());
    }
}
