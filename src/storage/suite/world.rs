//! A storage with some sequences in it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::harness::Harness;
use super::reference::attention;
use super::shapes::{Content, Model, Part, Rng};
use crate::id::{BlockId, Slot, ix, len32};
use crate::step::{BlockCopy, Step, TableRow};
use crate::storage::{AttendParams, QueryMask};

/// Positions `start .. start + len` of a sequence, to be written and to attend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) seq: u32,
    pub(super) start: u32,
    pub(super) len: u32,
}

/// Which blocks sequences get.
#[derive(Clone, Copy, Debug)]
pub(super) enum Blocks {
    /// 0, 1, 2, …
    Identity,
    /// A permutation from this seed.
    Shuffled(u64),
}

/// Outputs of a step: per layer `[tokens, q_heads, v_dim]`.
pub(super) type Outputs = Vec<Vec<f32>>;

pub(super) struct World<H> {
    pub(super) storage: H,
    pub(super) model: Model,
    pub(super) content: Content,
    pub(super) block_size: u32,
    pub(super) tables: Vec<Vec<BlockId>>,
    /// Log-sum-exps of the last step, per layer `[tokens, q_heads]`.
    pub(super) lse: Outputs,
}

impl<H: Harness> World<H> {
    /// Sequences of at most `lens` tokens, a block of lookahead each, and three blocks that nobody has.
    pub(super) fn new(
        model: Model,
        content: Content,
        block_size: u32,
        lens: &[u32],
        blocks: Blocks,
    ) -> Result<Self, String> {
        let (model, block_size) = (H::model(model), H::block_size(block_size));
        let widths: Vec<u32> = lens.iter().map(|len| len.div_ceil(block_size) + 1).collect();
        let num_blocks = widths.iter().sum::<u32>() + 3;
        let mut ids: Vec<_> = (0..num_blocks).map(BlockId::new).collect();
        if let Blocks::Shuffled(seed) = blocks {
            Rng(seed).shuffle(&mut ids);
        }
        let mut ids = ids.into_iter();
        let tables = widths.iter().map(|width| ids.by_ref().take(ix(*width)).collect()).collect();
        let mut storage = H::new(model.layout(num_blocks, block_size))?;
        storage.fill(f32::NAN);
        Ok(Self { storage, model, content, block_size, tables, lse: Vec::new() })
    }

    /// Gives sequences the same blocks where these hold what the sequences have in common.
    pub(super) fn share(&mut self) {
        for seq in 0..self.tables.len() {
            for block in 0..self.tables[seq].len() {
                let (number, from) = (len32(seq), len32(block) * self.block_size);
                let [owner, last] = [from, from + self.block_size - 1].map(|at| self.content.owner(number, at));
                if let (true, Some(&shared)) = (owner == last, self.tables[ix(owner)].get(block)) {
                    self.tables[seq][block] = shared;
                }
            }
        }
    }

    /// A step of these rows and copies.
    pub(super) fn step(&self, rows: &[Row], copies: &[BlockCopy]) -> Result<Step, String> {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| TableRow { start: row.start, len: row.len, blocks: &self.tables[ix(row.seq)] })
            .collect();
        Step::from_tables(self.block_size, &rows, copies).map_err(|error| error.to_string())
    }

    /// The numbers of the rows' tokens.
    fn numbers(&self, part: Part, layer: u32, rows: &[Row]) -> Vec<f32> {
        let token = |seq, position| self.content.token(&self.model, part, layer, seq, position);
        rows.iter().flat_map(|row| (row.start..row.start + row.len).flat_map(move |at| token(row.seq, at))).collect()
    }

    /// Writes K and V of the rows and does not attend.
    pub(super) fn feed(&mut self, rows: &[Row]) -> Result<(), String> {
        self.pass(rows, &[], false).map(|_| ())
    }

    /// A whole step: copies, writes, attention.
    pub(super) fn run(&mut self, rows: &[Row], copies: &[BlockCopy]) -> Result<Outputs, String> {
        self.pass(rows, copies, true)
    }

    fn pass(&mut self, rows: &[Row], copies: &[BlockCopy], attend: bool) -> Result<Outputs, String> {
        let step = self.step(rows, copies)?;
        self.storage.prepare(&step)?;
        self.storage.copy_blocks()?;
        let mut outputs = Vec::new();
        self.lse.clear();
        for layer in 0..self.model.layers {
            let (k, v) = (self.numbers(Part::K, layer, rows), self.numbers(Part::V, layer, rows));
            self.storage.write_kv(layer, &k, &v)?;
            if attend {
                let q = self.numbers(Part::Q, layer, rows);
                let heads = self.model.q_heads(layer);
                let (out, lse) = self.attend(layer, &q, heads, rows)?;
                outputs.push(out);
                self.lse.push(lse);
            }
        }
        Ok(outputs)
    }

    /// Attention of one layer with what the model's variant asks for.
    fn attend(&mut self, layer: u32, q: &[f32], heads: usize, rows: &[Row]) -> Result<(Vec<f32>, Vec<f32>), String> {
        let variant = self.model.variant;
        let mut params = AttendParams::new(1).with_scale(self.model.scale);
        (params.window, params.soft_cap) = (variant.window, variant.soft_cap);
        let sinks: Option<Vec<f32>> = (0..heads).map(|head| variant.sink(head)).collect();
        let slopes: Option<Vec<f32>> = (0..heads).map(|head| variant.slope(head, heads)).collect();
        (params.sinks, params.alibi_slopes) = (sinks.as_deref(), slopes.as_deref());
        // One word more than is needed, of ones that nobody may look at.
        let words_per_token = rows.iter().map(|row| row.len.div_ceil(64)).max().unwrap_or(0) + 1;
        let mut words = Vec::new();
        if let Some(mask) = variant.mask {
            for (row, query) in rows.iter().flat_map(|row| (0..row.len).map(move |query| (row, query))) {
                words.extend((0..words_per_token).map(|word| {
                    (0..64).map(|bit| (word * 64 + bit, bit)).fold(0_u64, |bits, (key, bit)| {
                        bits | u64::from(key >= row.len || mask.sees(query, key)) << bit
                    })
                }));
            }
            params.mask = Some(QueryMask { words: &words, words_per_token });
        }
        self.storage.attend(layer, q, heads, &params)
    }

    /// Feeds what comes before the rows, runs them in one step, and compares with the reference. Returns the largest
    /// error as a share of its tolerance.
    pub(super) fn check(&mut self, rows: &[Row]) -> Result<f64, String> {
        let before: Vec<_> =
            rows.iter().filter(|row| row.start > 0).map(|row| Row { start: 0, len: row.start, ..*row }).collect();
        if !before.is_empty() {
            self.feed(&before)?;
        }
        let outputs = self.run(rows, &[])?;
        self.compare(rows, &outputs)
    }

    /// Compares outputs with the reference.
    pub(super) fn compare(&self, rows: &[Row], outputs: &Outputs) -> Result<f64, String> {
        let mut worst = 0.0_f64;
        for ((layer, outputs), lse) in (0..self.model.layers).zip(outputs).zip(&self.lse) {
            let (v_dim, rounding) = (ix(self.model.v_dim), self.storage.rounding(layer));
            let mut heads = outputs.chunks_exact(v_dim);
            let mut lse = lse.iter();
            for row in rows {
                let positions = row.start..row.start + row.len;
                for (expected, position) in
                    attention(&self.model, &self.content, layer, row.seq, positions.clone(), rounding)
                        .iter()
                        .zip(positions)
                {
                    for (head, tolerance) in expected.tolerance.iter().enumerate() {
                        let got = heads.next().ok_or("outputs are missing")?;
                        let (want, near) = expected.lse[head];
                        let lse = f64::from(*lse.next().ok_or("log-sum-exps are missing")?);
                        if !(lse == want || (lse - want).abs() <= near) {
                            return Err(format!(
                                "layer {layer}, {row:?}, position {position}, head {head}: log-sum-exp {lse} where {want} ± \
                                 {near:e} is right, {:?}",
                                self.model
                            ));
                        }
                        for (d, (got, want)) in got.iter().zip(&expected.values[head * v_dim..]).enumerate() {
                            if f64::from(*got) == *want {
                                // Also where nothing was seen, and no error is allowed.
                                continue;
                            }
                            let share = (f64::from(*got) - want).abs() / tolerance;
                            if share.is_nan() || share > 1.0 {
                                return Err(format!(
                                    "layer {layer}, {row:?}, position {position}, head {head}, element {d}: {got} where \
                                     {want} ± {tolerance:e} is right, {:?}",
                                    self.model
                                ));
                            }
                            worst = worst.max(share);
                        }
                    }
                }
            }
            if heads.next().is_some() {
                return Err("there are more outputs than queries".to_string());
            }
        }
        Ok(worst)
    }

    /// The slot of a position.
    pub(super) fn slot(&self, seq: u32, position: u32) -> Slot {
        self.tables[ix(seq)][ix(position / self.block_size)].slot(position % self.block_size, self.block_size)
    }

    /// All bits of a block: K and V of every slot on every layer.
    pub(super) fn block_bits(&self, block: BlockId) -> Result<Vec<u32>, String> {
        let mut bits = Vec::new();
        for layer in 0..self.model.layers {
            for offset in 0..self.block_size {
                let (k, v) = self.storage.read_slot(layer, block.slot(offset, self.block_size))?;
                bits.extend(k.iter().chain(&v).map(|x| x.to_bits()));
            }
        }
        Ok(bits)
    }
}

/// The bits of all outputs.
pub(super) fn bits(outputs: &Outputs) -> Vec<u32> {
    outputs.iter().flatten().map(|x| x.to_bits()).collect()
}
