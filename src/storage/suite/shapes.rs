//! The shapes that the suite runs, and the numbers that stand in them.

use alloc::vec::Vec;

use half::{bf16, f16};

use crate::id::ix;
use crate::layout::{DType, KvLayout, KvShape, LayerLayout, Plane, Scales};

/// A small generator with a fixed definition (splitmix64), so that a seed means the same everywhere.
#[derive(Clone, Copy)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).unwrap()
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.next() % from.len() as u64).unwrap()]
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, usize::try_from(self.next() % (last as u64 + 1)).unwrap());
        }
    }

    /// Uniform in −1 ..= 1, in steps of 2⁻²⁰.
    fn unit(&mut self) -> f32 {
        let steps = i32::try_from(self.next() >> 43).unwrap() - (1 << 20);
        steps as f32 / (1 << 20) as f32
    }
}

/// How the layers lie in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Form {
    PerLayer,
    CrossLayer,
    /// `[block, token, head, K then V]` with gaps, at an odd offset, all layers in one allocation, and one KV head
    /// more in each layer.
    Foreign,
    /// All of K, then all of V, each `[block, head, token, dim]` and dense: a block of a plane is one run.
    Planes,
}

pub(super) const FORMS: [Form; 4] = [Form::PerLayer, Form::CrossLayer, Form::Foreign, Form::Planes];

/// The attention of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) dtype: DType,
    pub(super) layers: u32,
    /// KV heads of the first layer.
    pub(super) kv_heads: u32,
    /// Query heads per KV head.
    pub(super) group: u32,
    pub(super) k_dim: u32,
    pub(super) v_dim: u32,
    pub(super) form: Form,
    pub(super) scale: f32,
    pub(super) variant: Variant,
}

/// What the attention of a model does beside the softmax of scaled scores.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Variant {
    pub(super) window: Option<u32>,
    pub(super) soft_cap: Option<f32>,
    pub(super) sinks: bool,
    pub(super) alibi: bool,
    pub(super) mask: Option<Mask>,
}

/// Who of a row's query tokens sees whom.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Mask {
    /// Each those up to itself, as without a mask.
    Causal,
    /// Any, by a seed: later ones too, and not always itself.
    Random(u64),
    /// Nobody: only what lies before the row.
    Nobody,
}

impl Mask {
    /// Whether query token `query` of a row sees query token `key` of it.
    pub(super) fn sees(self, query: u32, key: u32) -> bool {
        match self {
            Self::Causal => key <= query,
            Self::Random(seed) => Rng(seed ^ (u64::from(query) << 32 | u64::from(key))).next().is_multiple_of(2),
            Self::Nobody => false,
        }
    }
}

impl Variant {
    /// The sink of a query head: between −2 and 2, as scores are.
    pub(super) fn sink(self, head: usize) -> Option<f32> {
        self.sinks.then_some((head % 5) as f32 - 2.0)
    }

    /// The slope of a query head, as in the paper on `ALiBi`: 2^(−8 (h + 1) / heads).
    pub(super) fn slope(self, head: usize, heads: usize) -> Option<f32> {
        self.alibi.then(|| (-8.0 * (head + 1) as f32 / heads as f32).exp2())
    }
}

impl Model {
    pub(super) fn new(dtype: DType, kv_heads: u32, group: u32, head_dim: u32) -> Self {
        let scale = 1.0 / (head_dim as f32).sqrt();
        Self {
            dtype,
            layers: 1,
            kv_heads,
            group,
            k_dim: head_dim,
            v_dim: head_dim,
            form: Form::PerLayer,
            scale,
            variant: Variant::default(),
        }
    }

    /// KV heads of a layer.
    pub(super) fn kv_heads(&self, layer: u32) -> u32 {
        if self.form == Form::Foreign { self.kv_heads + layer } else { self.kv_heads }
    }

    pub(super) fn q_heads(&self, layer: u32) -> usize {
        ix(self.kv_heads(layer) * self.group)
    }

    pub(super) fn layout(&self, num_blocks: u32, block_size: u32) -> KvLayout {
        let shape = KvShape::new(self.layers, self.kv_heads, self.k_dim, self.dtype).with_v_dim(self.v_dim);
        match self.form {
            Form::PerLayer => KvLayout::per_layer(&shape, num_blocks, block_size).unwrap(),
            Form::CrossLayer => KvLayout::cross_layer(&shape, num_blocks, block_size).unwrap(),
            Form::Foreign => self.foreign(num_blocks, block_size),
            Form::Planes => self.planes(num_blocks, block_size),
        }
    }

    fn foreign(&self, num_blocks: u32, block_size: u32) -> KvLayout {
        let [k_dim, v_dim, tokens] = [self.k_dim, self.v_dim, block_size].map(u64::from);
        let scale_elems = u64::from(self.dtype.scale_elems());
        let head_stride_elems = k_dim + v_dim + 3 + 2 * scale_elems;
        let mut base = 5;
        let layers = (0..self.layers)
            .map(|index| {
                let kv_heads = self.kv_heads(index);
                let token_stride_elems = u64::from(kv_heads) * head_stride_elems + 1;
                let block_stride_elems = tokens * token_stride_elems + 2;
                let plane =
                    |base_elems| Plane { base_elems, block_stride_elems, head_stride_elems, token_stride_elems };
                let (k, v) = (plane(base), plane(base + k_dim + 1));
                // Behind K and V, at any address.
                let after = base + k_dim + v_dim + 2;
                let scales = (scale_elems > 0).then(|| Scales { k: plane(after), v: plane(after + scale_elems) });
                base += u64::from(num_blocks) * block_stride_elems;
                LayerLayout { k, v, scales, kv_heads, k_dim: self.k_dim, v_dim: self.v_dim, allocation: 1 }
            })
            .collect();
        KvLayout::custom(num_blocks, block_size, self.dtype, layers, alloc::vec![0, base]).unwrap()
    }

    fn planes(&self, num_blocks: u32, block_size: u32) -> KvLayout {
        let [blocks, heads, tokens] = [num_blocks, self.kv_heads, block_size].map(u64::from);
        let plane = |base_elems, dim| Plane {
            base_elems,
            block_stride_elems: heads * tokens * dim,
            head_stride_elems: tokens * dim,
            token_stride_elems: dim,
        };
        let mut end = 0;
        let [k, v, k_scales, v_scales] = [self.k_dim, self.v_dim, self.dtype.scale_elems(), self.dtype.scale_elems()]
            .map(|dim| {
                let dim = u64::from(dim);
                let base = end;
                end += blocks * heads * tokens * dim;
                plane(base, dim)
            });
        let scales = (self.dtype.scale_elems() > 0).then_some(Scales { k: k_scales, v: v_scales });
        let (kv_heads, k_dim, v_dim) = (self.kv_heads, self.k_dim, self.v_dim);
        let layer = |allocation| LayerLayout { k, v, scales, kv_heads, k_dim, v_dim, allocation };
        let sizes = alloc::vec![end; ix(self.layers)];
        KvLayout::custom(num_blocks, block_size, self.dtype, (0..self.layers).map(layer).collect(), sizes).unwrap()
    }

    /// What the storage keeps of the numbers of a head.
    pub(super) fn kept(&self, head: &[f32]) -> Vec<f32> {
        let each = |kept: fn(f32) -> f32| head.iter().map(|x| kept(*x)).collect();
        match self.dtype {
            DType::F32 => head.to_vec(),
            DType::F16 => each(|x| f16::from_f32(x).to_f32()),
            DType::BF16 => each(|x| bf16::from_f32(x).to_f32()),
            DType::F8E4M3 => each(e4m3),
            DType::I8 => {
                let scale = head.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 127.0;
                head.iter().map(|x| (x / scale).round_ties_even() * scale).collect()
            }
        }
    }
}

/// A number of at most 448 to three bits after the first, or to a multiple of 2⁻⁹ where that is coarser: as the nearest of
/// two neighbours, ties to even.
#[expect(clippy::cast_possible_truncation, reason = "an exponent")]
fn e4m3(x: f32) -> f32 {
    let exponent = if x == 0.0 { -6 } else { (x.abs().log2().floor() as i32).max(-6) };
    let step = 2.0_f32.powi(exponent - 3);
    (x / step).round_ties_even() * step
}
/// The numbers of all sequences: a function of the seed and of what they are for, so that nothing needs to be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) seed: u64,
    /// K and V from this position on are NaN.
    pub(super) nan_from: u32,
    /// What sequences have in common, the shortest first.
    pub(super) trunks: [Trunk; 2],
}

/// A prefix that sequences have in common: positions before `len` are, in every `of` sequences, those of the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trunk {
    pub(super) len: u32,
    pub(super) of: u32,
}

/// What numbers are for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    K,
    V,
    Q,
}

impl Content {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, nan_from: u32::MAX, trunks: [Trunk { len: 0, of: 1 }; 2] }
    }

    /// The sequence whose K and V a sequence has at a position.
    pub(super) fn owner(&self, seq: u32, position: u32) -> u32 {
        let trunk = self.trunks.iter().find(|trunk| position < trunk.len);
        trunk.map_or(seq, |trunk| seq - seq % trunk.of)
    }

    /// The numbers of one token, head after head.
    pub(super) fn token(&self, model: &Model, part: Part, layer: u32, seq: u32, position: u32) -> Vec<f32> {
        let (heads, dim) = match part {
            Part::K => (model.kv_heads(layer), model.k_dim),
            Part::V => (model.kv_heads(layer), model.v_dim),
            Part::Q => (model.kv_heads(layer) * model.group, model.k_dim),
        };
        let seq = if matches!(part, Part::Q) { seq } else { self.owner(seq, position) };
        let tag = u64::from(layer) << 58 | u64::from(seq) << 40 | u64::from(position) << 8 | part as u64;
        let mut rng = Rng(self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ tag);
        rng.next();
        let count = ix(heads * dim);
        if position >= self.nan_from && !matches!(part, Part::Q) {
            return alloc::vec![f32::NAN; count];
        }
        (0..count).map(|_| rng.unit()).collect()
    }
}
