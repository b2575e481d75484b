//! A storage full of content, block tables over it, and the passes that read it.

use core::ops::Range;

use paged_kv::BlockId;
use paged_kv::layout::{DType, KvLayout, KvShape};
use paged_kv::step::{Step, TableRow};
use paged_kv::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::error::Error;
use crate::load;
use crate::options::Shape;
use crate::read::Form;

/// Llama-3-8B's attention.
pub const Q_HEADS: u32 = 32;
/// KV heads, each of which four query heads read.
pub const KV_HEADS: u32 = 8;
/// Elements of a head.
pub const HEAD_DIM: u32 = 128;
/// Tokens of a block.
pub const BLOCK_SIZE: u32 = 16;

/// What is done to some layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Attention of one token for each sequence.
    Decode(Order),
    /// The allocations from end to end.
    Sequential(Form),
    /// The blocks of the sequences, in random order.
    Scattered(Form),
}

/// In which order the blocks of a sequence, and of one sequence after the other, lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As they come.
    Random,
    /// One after the other.
    Consecutive,
}

/// As many layers as fill a number of bytes, each with the contexts of a batch.
#[derive(Debug)]
pub struct Pool {
    storage: CpuStorage,
    shape: Shape,
    layers: u32,
    /// Blocks of all sequences, sequence after sequence, in random order.
    random: Vec<BlockId>,
    /// One token for each sequence, over blocks in random order and over consecutive ones.
    steps: [Step; 2],
    q: Vec<f32>,
    out: Vec<f32>,
}

impl Pool {
    /// Layers of at least `bytes` together, at least one, with K, V and queries between -1 and 1, and tables, all of
    /// which follow from the seed.
    ///
    /// # Errors
    /// [`Error::Memory`] where it would not fit into the memory that is available; those of the storage.
    pub fn new(dtype: DType, shape: Shape, bytes: u64, seed: u64) -> Result<Self, Error> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let blocks = shape.context.div_ceil(BLOCK_SIZE);
        // At most 2^26 tokens: see the options.
        let num_blocks = shape.batch * blocks;
        let of_layers = |layers| KvShape::new(layers, KV_HEADS, HEAD_DIM, dtype);
        let layer_bytes = of_layers(1).bytes_per_block(BLOCK_SIZE)? * u64::from(num_blocks);
        let layers = u32::try_from(bytes.div_ceil(layer_bytes).max(1)).unwrap_or(u32::MAX);
        let needed_mib = (layer_bytes * u64::from(layers)) >> 20;
        if let Some(available_mib) = load::available_mib().map(u64::from)
            && needed_mib > available_mib
        {
            return Err(Error::Memory { needed_mib, available_mib });
        }
        let layout = KvLayout::per_layer(&of_layers(layers), num_blocks, BLOCK_SIZE)?;
        let mut storage = CpuStorage::new(layout)?;

        let consecutive: Vec<BlockId> = (0..num_blocks).map(BlockId::new).collect();
        let mut random = consecutive.clone();
        shuffle(&mut random, &mut rng);
        let step = |table: &[BlockId], start| {
            let rows: Vec<TableRow<'_>> = table
                .chunks_exact(at(blocks))
                .map(|blocks| TableRow { start, len: shape.context - start, blocks })
                .collect();
            Step::from_tables(BLOCK_SIZE, &rows, &[])
        };
        fill(&mut storage, &step(&consecutive, 0)?, &mut rng)?;
        let steps = [step(&random, shape.context - 1)?, step(&consecutive, shape.context - 1)?];
        let q = noise(at(shape.batch * Q_HEADS * HEAD_DIM), &mut rng);
        let out = vec![0.0; q.len()];
        Ok(Self { storage, shape, layers, random, steps, q, out })
    }

    /// Layers that the passes rotate over.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Bytes of K and V that a pass reads in a layer.
    pub fn layer_bytes(&self, pass: Pass) -> u64 {
        let layout = self.storage.layout();
        let all = layout.bytes() / u64::from(self.layers);
        match pass {
            Pass::Sequential(_) => all,
            // A last block may be filled in part.
            Pass::Decode(_) | Pass::Scattered(_) => {
                let tokens = u64::from(self.shape.batch) * u64::from(self.shape.context);
                all / layout.slots().end * tokens
            }
        }
    }

    /// What has to be done before a pass is timed.
    ///
    /// # Errors
    /// None in practice.
    pub fn prepare(&mut self, pass: Pass) -> Result<(), Error> {
        let step = match pass {
            Pass::Decode(Order::Random) => &self.steps[0],
            Pass::Decode(Order::Consecutive) => &self.steps[1],
            Pass::Sequential(_) | Pass::Scattered(_) => return Ok(()),
        };
        Ok(self.storage.prepare((), step, self.shape.batch)?)
    }

    /// Runs a pass that was prepared over some layers, on the threads of the current pool of rayon; of a read-only pass
    /// the sum.
    ///
    /// # Errors
    /// None in practice.
    pub fn run(&mut self, pass: Pass, layers: &[u32]) -> Result<u64, Error> {
        match pass {
            Pass::Decode(_) => {
                let shape = [self.shape.batch, Q_HEADS, HEAD_DIM].map(at);
                for &layer in layers {
                    let q = CpuTensor::new(&self.q, shape);
                    let out = CpuTensorMut::new(&mut self.out, shape);
                    self.storage.attend((), layer, q, out, &AttendParams::new(HEAD_DIM))?;
                }
                Ok(0)
            }
            Pass::Sequential(form) => {
                let slices: Vec<&[u8]> = layers.iter().map(|&layer| self.memory(layer)).collect();
                Ok(form.sequential(&slices))
            }
            Pass::Scattered(form) => {
                let heads = at(KV_HEADS);
                let rows = at(self.shape.batch);
                let list = |index: usize| self.runs(layers[index / heads / rows], index / heads % rows, index % heads);
                Ok(form.scattered(layers.len() * rows * heads, list))
            }
        }
    }

    /// The memory of a layer.
    fn memory(&self, layer: u32) -> &[u8] {
        let allocation = self.storage.layout().layers()[at(layer)].allocation;
        self.storage.allocation(allocation).expect("the layout has this allocation")
    }

    /// K and V of one KV head of a sequence, and their scales, block by block: what lies side by side is one run.
    fn runs(&self, layer: u32, row: usize, head: usize) -> impl Iterator<Item = &[u8]> {
        let memory = self.memory(layer);
        let layout = self.storage.layout();
        let layer = layout.layers()[at(layer)];
        let dtype = layout.dtype();
        let elem_bytes = dtype.bytes();
        let head = u32::try_from(head).expect("there are few heads");
        let blocks = at(self.shape.context.div_ceil(BLOCK_SIZE));
        let table = &self.random[row * blocks..][..blocks];
        let context = self.shape.context;
        table.iter().zip((0..context).step_by(at(BLOCK_SIZE))).flat_map(move |(&block, start)| {
            let tokens = (context - start).min(BLOCK_SIZE);
            let pieces = layer.planes(dtype).map(move |(plane, elems)| {
                let from = plane.elem(block, head, 0) * elem_bytes;
                let to = from + u64::from(tokens * elems) * elem_bytes;
                let [from, to] = [from, to].map(|n| usize::try_from(n).expect("it is in memory"));
                from..to
            });
            joined(pieces).map(|run| &memory[run])
        })
    }
}

/// Ranges of which each begins behind the one before, those that touch made one.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> impl Iterator<Item = Range<usize>> {
    let mut ranges = ranges.peekable();
    core::iter::from_fn(move || {
        let mut range = ranges.next()?;
        while let Some(next) = ranges.next_if(|next| next.start == range.end) {
            range.end = next.end;
        }
        Some(range)
    })
}

/// Writes K and V of all tokens of a step to all layers: windows of noise, each an element on from the one before, so
/// that no two tokens are alike and little memory is read.
fn fill(storage: &mut CpuStorage, step: &Step, rng: &mut Pcg64Mcg) -> Result<(), Error> {
    let shape = [step.num_tokens(), KV_HEADS, HEAD_DIM].map(at);
    let [tokens, heads, dim] = shape;
    let layers = storage.layout().layers().len();
    let noise = noise(tokens + heads * dim + layers, rng);
    // V is read backwards as it were: from another place than K.
    let turned: Vec<f32> = noise.iter().rev().copied().collect();
    storage.prepare((), step, u32::MAX)?;
    for (layer, from) in (0..).zip(0..layers) {
        let tensor = |noise| CpuTensor::new(noise, shape).with_strides(1, dim);
        storage.write_kv((), layer, tensor(&noise[from..]), tensor(&turned[from..]))?;
    }
    Ok(())
}

/// Numbers between -1 and 1.
fn noise(len: usize, rng: &mut Pcg64Mcg) -> Vec<f32> {
    // The upper 16 bits as a fixed-point number: exact in f32.
    let number = |bits: u32| f32::from(i16::from_ne_bytes([bits.to_ne_bytes()[1], bits.to_ne_bytes()[2]])) / 32_768.0;
    (0..len).map(|_| number(rng.next_u32())).collect()
}

/// Fisher and Yates.
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut Pcg64Mcg) {
    for last in (1..items.len()).rev() {
        let choices = u64::try_from(last + 1).expect("it fits 64 bits");
        let chosen = usize::try_from(rng.next_u64() % choices).expect("it is at most `last`");
        items.swap(last, chosen);
    }
}

fn at(number: u32) -> usize {
    usize::try_from(number).expect("a machine with a pool in memory has 32-bit indices")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::FORMS;

    /// 3 sequences of 20 tokens: 2 blocks each, the second with 4 tokens. A token of a layer takes 2 (K and V) × 8 × 128
    /// elements of 2 bytes, 4,096 bytes; a block 65,536, a layer of 6 blocks 393,216. 1 MiB takes 3 layers.
    fn pool() -> Pool {
        Pool::new(DType::F16, Shape { batch: 3, context: 20 }, 1 << 20, 7).unwrap()
    }

    #[test]
    fn bytes_are_those_of_the_contexts_and_sequential_reads_all() {
        let pool = pool();
        assert_eq!(pool.layers(), 3);
        for form in FORMS {
            assert_eq!(pool.layer_bytes(Pass::Sequential(form)), 393_216);
            assert_eq!(pool.layer_bytes(Pass::Scattered(form)), 3 * 20 * 4_096);
        }
        assert_eq!(pool.layer_bytes(Pass::Decode(Order::Random)), 245_760);
        assert_eq!(pool.storage.bytes(), 3 * 393_216);
    }

    #[test]
    fn the_read_only_passes_read_as_many_words_and_lines_as_they_claim() {
        let mut pool = pool();
        // 1.0 is 0x3c00 as f16: every 8 bytes are this word, and the sum counts those that were looked at.
        pool.storage.fill(1.0);
        for (form, step) in [(Form::Bytes, 8), (Form::Lines, 64)] {
            let words = |bytes: u64| (bytes / step).wrapping_mul(0x3c00_3c00_3c00_3c00);
            for (pass, bytes) in [(Pass::Sequential(form), 2 * 393_216), (Pass::Scattered(form), 2 * 245_760)] {
                pool.prepare(pass).unwrap();
                assert_eq!(pool.run(pass, &[2, 0]).unwrap(), words(bytes), "{pass:?}");
            }
        }
    }

    #[test]
    fn the_scattered_pass_reads_each_block_of_the_batch_once() {
        // 2 × 3 blocks of 8 heads: K and V of 16 × 128 elements, and 2 × 16 scales of 4 bytes, side by side.
        for (dtype, bytes) in [(DType::F32, 2 * 8_192), (DType::I8, 2 * 2_048 + 2 * 64)] {
            let pool = Pool::new(dtype, Shape { batch: 2, context: 48 }, 1, 7).unwrap();
            let runs: Vec<&[u8]> = (0..2)
                .flat_map(|row| (0..8).flat_map(move |head| [(row, head)]))
                .flat_map(|(row, head)| pool.runs(0, row, head))
                .collect();
            assert!(runs.iter().all(|run| run.len() == bytes));
            let first = pool.memory(0).as_ptr().addr();
            let mut starts: Vec<usize> = runs.iter().map(|run| run.as_ptr().addr() - first).collect();
            assert!(!starts.is_sorted(), "the order is random");
            starts.sort_unstable();
            assert_eq!(starts, (0..48).map(|run| run * bytes).collect::<Vec<_>>());
        }
    }

    #[test]
    fn decode_writes_what_the_noise_says_and_tables_differ() {
        let mut pool = pool();
        let mut outs = Vec::new();
        for order in [Order::Random, Order::Consecutive] {
            pool.prepare(Pass::Decode(order)).unwrap();
            pool.run(Pass::Decode(order), &[1]).unwrap();
            // A mean of values between -1 and 1.
            assert!(pool.out.iter().all(|x| x.abs() < 1.0) && pool.out.iter().any(|&x| x != 0.0));
            outs.push(pool.out.clone());
        }
        assert_ne!(outs[0], outs[1]);
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        if load::available_mib().is_some() {
            let error = Pool::new(DType::F16, Shape { batch: 1, context: 16 }, 1 << 46, 0).unwrap_err();
            assert!(matches!(error, Error::Memory { needed_mib: 67_108_864, .. }), "{error}");
        }
    }
}
