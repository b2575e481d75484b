//! A toy transformer for the examples: real attention over random weights, and no tensors worth the name.
//!
//! It stands where an engine's model stands. K and V go to the storage and come from nowhere else.

use paged_kv::layout::{DType, KvShape};
use paged_kv::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage};
use paged_kv::{Step, step::StepRow};

const VOCAB: usize = 61;
const LAYERS: u32 = 2;
const SHAPE: KvShape = KvShape::new(LAYERS, 2, 8, DType::F32);
const Q_HEADS: usize = 4;
const KV_HEADS: usize = SHAPE.kv_heads as usize;
const HEAD_DIM: usize = SHAPE.k_dim as usize;
const WIDTH: usize = Q_HEADS * HEAD_DIM;

/// Random numbers between −1 and 1 in the place of trained ones.
pub(crate) struct Toy {
    embedding: Vec<f32>,
    unembedding: Vec<f32>,
    /// Per layer: q, k and v projections side by side, `[WIDTH, Q_HEADS + 2 × KV_HEADS, HEAD_DIM]`.
    qkv: Vec<Vec<f32>>,
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        // A 64-bit linear congruence (Knuth's constants); its upper bits are random enough for weights.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

impl Toy {
    pub(crate) fn new() -> Self {
        let row = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM;
        let qkv = (0..LAYERS.into()).map(|layer: u64| random(WIDTH * row, layer + 2)).collect();
        Self { embedding: random(VOCAB * WIDTH, 1), unembedding: random(VOCAB * WIDTH, 99), qkv }
    }

    /// What a cache for this model keeps.
    pub(crate) fn shape() -> KvShape {
        SHAPE
    }

    /// One forward pass over a planned step. `tokens` are the query tokens, row after row, skipped ones left out; the
    /// result is, per row, a score for every token that may come next.
    pub(crate) fn forward(&self, storage: &mut CpuStorage, step: &Step, tokens: &[u32]) -> Vec<Vec<f32>> {
        assert_eq!(tokens.len(), step.num_tokens() as usize);
        let positions = step.rows().iter().flat_map(|row| row.start..row.seq_len());
        let mut x: Vec<f32> = Vec::new();
        for (&token, position) in tokens.iter().zip(positions) {
            let token = &self.embedding[token as usize * WIDTH..][..WIDTH];
            // A position is told from another by a slow wave on every channel.
            x.extend(token.iter().zip(1_u16..).map(|(e, i)| e + (position as f32 / f32::from(i)).sin()));
        }
        let rows = u32::try_from(step.rows().len()).expect("a small batch");
        storage.prepare((), step, rows).expect("the step fits the storage");
        storage.copy_blocks(()).expect("prepared");
        for layer in 0..LAYERS {
            self.layer(storage, layer, &mut x);
        }
        step.rows().iter().map(|row| self.scores(row, &x)).collect()
    }

    fn layer(&self, storage: &mut CpuStorage, layer: u32, x: &mut [f32]) {
        let tokens = x.len() / WIDTH;
        let row = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM;
        let mut qkv = vec![0.0; tokens * row];
        for (x, out) in x.chunks_exact(WIDTH).zip(qkv.chunks_exact_mut(row)) {
            for (x, weights) in x.iter().zip(self.qkv[layer as usize].chunks_exact(row)) {
                out.iter_mut().zip(weights).for_each(|(out, weight)| *out += x * weight / WIDTH as f32);
            }
        }
        // The three stay where the projection left them: strides say where each begins.
        let part = |from: usize, heads| {
            CpuTensor::new(&qkv[from * HEAD_DIM..], [tokens, heads, HEAD_DIM]).with_strides(row, HEAD_DIM)
        };
        let (q, k, v) = (part(0, Q_HEADS), part(Q_HEADS, KV_HEADS), part(Q_HEADS + KV_HEADS, KV_HEADS));
        storage.write_kv((), layer, k, v).expect("shapes fit");
        let mut attended = vec![0.0; x.len()];
        let out = CpuTensorMut::new(&mut attended, [tokens, Q_HEADS, HEAD_DIM]);
        storage.attend((), layer, q, out, &AttendParams::new(SHAPE.k_dim)).expect("shapes fit");
        x.iter_mut().zip(attended).for_each(|(x, attended)| *x += attended);
    }

    fn scores(&self, row: &StepRow, x: &[f32]) -> Vec<f32> {
        let last = (row.first_token + row.len - 1) as usize;
        let x = &x[last * WIDTH..][..WIDTH];
        self.unembedding.chunks_exact(WIDTH).map(|e| x.iter().zip(e).map(|(x, e)| x * e).sum()).collect()
    }
}

/// The token with the highest score.
pub(crate) fn greedy(scores: &[f32]) -> u32 {
    let best = (0_u32..).zip(scores).max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(token, _)| token)
}
