//! What the suite needs of a storage: host slices in, host vectors out.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::Cell;

use super::reference::Rounding;
use super::shapes::Model;
use crate::id::{Slot, ix};
use crate::layout::KvLayout;
use crate::step::Step;
use crate::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage};

/// A storage under test. Tensors are dense `f32`; errors are text, as the laws only want to know that there are none.
pub(super) trait Harness: Sized {
    /// Makes this thread's storages use an instruction set, where it matters; whether this machine can run them.
    fn choose(isa: &'static str) -> bool;
    /// Whether a query's output is the same where a later token of its row is NaN.
    const LATER_IS_UNSEEN: bool = true;
    /// The model nearest to this one that is a question to the part under test. That of such a model is itself.
    fn model(model: Model) -> Model {
        model
    }
    /// So of tokens in a block.
    fn block_size(tokens: u32) -> u32 {
        tokens
    }
    /// What attention of a layer rounds beside what it adds up.
    fn rounding(&self, layer: u32) -> Rounding {
        let _ = layer;
        Rounding::default()
    }
    fn new(layout: KvLayout) -> Result<Self, String>;
    fn layout(&self) -> &KvLayout;
    /// Sets every element.
    fn fill(&mut self, value: f32);
    fn prepare(&mut self, step: &Step) -> Result<(), String>;
    fn copy_blocks(&mut self) -> Result<(), String>;
    fn write_kv(&mut self, layer: u32, k: &[f32], v: &[f32]) -> Result<(), String>;
    /// Outputs `[tokens, q_heads, v_dim]` and log-sum-exps `[tokens, q_heads]`.
    fn attend(
        &mut self,
        layer: u32,
        q: &[f32],
        q_heads: usize,
        params: &AttendParams<'_>,
    ) -> Result<(Vec<f32>, Vec<f32>), String>;
    /// K and V of a slot, all heads.
    fn read_slot(&self, layer: u32, slot: Slot) -> Result<(Vec<f32>, Vec<f32>), String>;
}

std::thread_local! {
    /// The instruction set of storages that this thread makes. Laws know nothing of it, so that they are compiled once.
    static ISA: Cell<&'static str> = const { Cell::new("portable") };
}

/// The CPU storage.
pub(super) struct Cpu(CpuStorage);

impl Cpu {
    fn tensor<'a>(&self, data: &'a [f32], heads: usize, dim: usize) -> CpuTensor<'a> {
        CpuTensor::new(data, [data.len() / (heads * dim), heads, dim])
    }
}

impl Harness for Cpu {
    fn choose(isa: &'static str) -> bool {
        ISA.set(isa);
        CpuStorage::runs_on(isa)
    }

    fn new(layout: KvLayout) -> Result<Self, String> {
        let storage = CpuStorage::new(layout).map_err(|error| error.to_string())?;
        storage.on(ISA.get()).map(Self).ok_or_else(|| "this machine has no such instruction set".to_string())
    }

    fn layout(&self) -> &KvLayout {
        KvStorage::layout(&self.0)
    }

    fn fill(&mut self, value: f32) {
        self.0.fill(value);
    }

    fn prepare(&mut self, step: &Step) -> Result<(), String> {
        self.0.prepare((), step, u32::MAX).map_err(|error| error.to_string())
    }

    fn copy_blocks(&mut self) -> Result<(), String> {
        self.0.copy_blocks(()).map_err(|error| error.to_string())
    }

    fn write_kv(&mut self, layer: u32, k: &[f32], v: &[f32]) -> Result<(), String> {
        let shape = self.layout().layers()[ix(layer)];
        let [heads, k_dim, v_dim] = [shape.kv_heads, shape.k_dim, shape.v_dim].map(ix);
        let (k, v) = (self.tensor(k, heads, k_dim), self.tensor(v, heads, v_dim));
        self.0.write_kv((), layer, k, v).map_err(|error| error.to_string())
    }

    fn attend(
        &mut self,
        layer: u32,
        q: &[f32],
        q_heads: usize,
        params: &AttendParams<'_>,
    ) -> Result<(Vec<f32>, Vec<f32>), String> {
        let shape = self.layout().layers()[ix(layer)];
        let [k_dim, v_dim] = [shape.k_dim, shape.v_dim].map(ix);
        let tokens = q.len() / (q_heads * k_dim);
        let mut out = alloc::vec![f32::NAN; tokens * q_heads * v_dim];
        let mut lse = alloc::vec![f32::NAN; tokens * q_heads];
        let to = CpuTensorMut::new(&mut out, [tokens, q_heads, v_dim]).with_lse(&mut lse);
        let done = self.0.attend((), layer, self.tensor(q, q_heads, k_dim), to, params);
        done.map_err(|error| format!("attend: {error}"))?;
        Ok((out, lse))
    }

    fn read_slot(&self, layer: u32, slot: Slot) -> Result<(Vec<f32>, Vec<f32>), String> {
        self.0.read_slot(layer, slot).map_err(|error| error.to_string())
    }
}
