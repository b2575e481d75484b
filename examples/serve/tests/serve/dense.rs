//! The reference attention: dense, in float64, over contiguous keys and values. Tests only.

use serve::engine::Generated;
use serve::model::{AttentionError, Batch, LayerAttention, Logits, Model};
use serve::report::FinishReason;
use serve::sampling::log_softmax;

/// Keys and values of one sequence in one layer, `[tokens, kv_heads, head_dim]`.
#[derive(Debug, Default, Clone)]
struct Contiguous {
    k: Vec<f64>,
    v: Vec<f64>,
}

/// Sequences with contiguous keys and values, and the rows of the batch at hand.
#[derive(Debug)]
pub(crate) struct Dense {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    /// `[sequence][layer]`.
    sequences: Vec<Vec<Contiguous>>,
    /// For each token of the batch its sequence.
    owners: Vec<usize>,
}

impl Dense {
    pub(crate) fn new(model: &Model, num_sequences: usize) -> Self {
        let config = model.config();
        let layers = usize::try_from(config.num_layers).unwrap();
        Self {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            sequences: vec![vec![Contiguous::default(); layers]; num_sequences],
            owners: Vec::new(),
        }
    }

    /// Tokens that sequence `sequence` holds.
    fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence][0].k.len() / (self.num_kv_heads * self.head_dim)
    }

    /// Says which sequence each token of the next batch belongs to.
    pub(crate) fn own(&mut self, owners: &[usize]) {
        self.owners = owners.to_vec();
    }

    /// Appends tokens to sequences and returns the logits of the last token of each entry.
    pub(crate) fn step(&mut self, model: &Model, entries: &[(usize, &[u32])]) -> Logits {
        let (mut tokens, mut positions, mut rows) = (vec![], vec![], vec![]);
        self.owners.clear();
        for &(sequence, new) in entries {
            let start = self.len(sequence);
            let start = u32::try_from(start).unwrap();
            positions.extend((start..).take(new.len()));
            tokens.extend_from_slice(new);
            self.owners.extend(core::iter::repeat_n(sequence, new.len()));
            rows.push(tokens.len() - 1);
        }
        let batch = Batch { tokens: &tokens, positions: &positions, logit_rows: &rows };
        model.forward(batch, self).unwrap()
    }
}

impl LayerAttention for Dense {
    fn attend(&mut self, layer: u32, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        let layer = usize::try_from(layer)?;
        let (kv_dim, d) = (self.num_kv_heads * self.head_dim, self.head_dim);
        let group = self.num_heads / self.num_kv_heads;
        let q_dim = self.num_heads * d;
        let scale = 1.0 / (d as f64).sqrt();
        for (token, &owner) in self.owners.iter().enumerate() {
            let cache = &mut self.sequences[owner][layer];
            cache.k.extend(k[token * kv_dim..][..kv_dim].iter().map(|&x| f64::from(x)));
            cache.v.extend(v[token * kv_dim..][..kv_dim].iter().map(|&x| f64::from(x)));
            let len = cache.k.len() / kv_dim;
            for head in 0..self.num_heads {
                let kv_head = head / group;
                let q = &q[token * q_dim + head * d..][..d];
                let row = |t: usize| t * kv_dim + kv_head * d;
                let mut scores: Vec<f64> = (0..len)
                    .map(|t| {
                        let k = &cache.k[row(t)..][..d];
                        q.iter().zip(k).map(|(&q, &k)| f64::from(q) * k).sum::<f64>() * scale
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                scores.iter_mut().for_each(|s| *s = (*s - max).exp());
                let sum: f64 = scores.iter().sum();
                let mut acc = vec![0.0; d];
                for (t, &p) in scores.iter().enumerate() {
                    let v = &cache.v[row(t)..][..d];
                    acc.iter_mut().zip(v).for_each(|(a, &v)| *a += p * v);
                }
                let out = &mut out[token * q_dim + head * d..][..d];
                out.iter_mut().zip(acc).for_each(|(out, acc)| *out = round(acc / sum));
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
fn round(value: f64) -> f32 {
    value as f32
}

/// A beam search by the rules of the engine's documentation that keeps nothing: in each step every hypothesis is
/// computed from its first token on. Returns (score, output), best first.
pub(crate) fn beam_search(
    model: &Model,
    prompt: &[u32],
    width: usize,
    max_tokens: usize,
    ends: &[u32],
) -> Vec<(f64, Generated)> {
    let mut running: Vec<(f64, Vec<u32>)> = vec![(0.0, vec![])];
    let mut finished: Vec<(f64, Generated)> = vec![];
    for len in 1..=max_tokens {
        let mut all: Vec<(f64, usize, u32)> = vec![];
        for (rank, (score, tokens)) in running.iter().enumerate() {
            let logits = Dense::new(model, 1).step(model, &[(0, &[prompt, tokens].concat())]);
            let logs = log_softmax(logits.row(0));
            all.extend(logs.iter().zip(0..).map(|(log, token)| (score + log, rank, token)));
        }
        // The sort is stable: of equal scores the better rank comes first, then the lower token.
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut next = vec![];
        for (score, rank, token) in all {
            if next.len() == width {
                break;
            }
            let mut tokens = running[rank].1.clone();
            tokens.push(token);
            if ends.contains(&token) {
                finished.push((score, Generated { tokens, finish_reason: FinishReason::Stop }));
            } else if len == max_tokens {
                next.push((score, tokens.clone()));
                finished.push((score, Generated { tokens, finish_reason: FinishReason::Length }));
            } else {
                next.push((score, tokens));
            }
        }
        finished.sort_by(|a, b| b.0.total_cmp(&a.0));
        finished.truncate(width);
        let best = next.first().map_or(f64::NEG_INFINITY, |best| best.0);
        if finished.len() == width && best <= finished[width - 1].0 {
            break;
        }
        running = next;
    }
    finished
}
