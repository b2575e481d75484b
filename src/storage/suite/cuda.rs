//! The CUDA storage under the suite: on a GPU where there is one, or on the emulator of `kernels/emulator`.
#![allow(unsafe_code)]

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result};

use super::harness::Harness;
use crate::id::{Slot, ix};
use crate::layout::KvLayout;
use crate::step::Step;
use crate::storage::cuda::tests::found;
use crate::storage::{AttendParams, CpuStorage, CudaLimits, CudaStorage, CudaTensor, CudaTensorMut, KvStorage};

/// Those of the steps of the suite: no more query tokens than slots, and no row of more blocks than there are.
fn limits(layout: &KvLayout) -> CudaLimits {
    let slots = u32::try_from(layout.slots().end).unwrap_or(u32::MAX);
    CudaLimits::new(64, slots, layout.num_blocks()).with_mask_words(4)
}

/// The CUDA storage, and one of the CPU with the same bytes, which knows how to read and fill them.
pub(super) struct Cuda {
    storage: CudaStorage,
    stream: Arc<CudaStream>,
    twin: RefCell<CpuStorage>,
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Cuda {
    fn upload(&self, numbers: &[f32]) -> Result<Option<CudaSlice<f32>>, String> {
        // There is no device memory of no bytes.
        if numbers.is_empty() { Ok(None) } else { self.stream.clone_htod(numbers).map(Some).map_err(text) }
    }
}

fn tensor<'a>(data: Option<&'a CudaSlice<f32>>, stream: &'a Arc<CudaStream>, shape: [usize; 3]) -> CudaTensor<'a> {
    // SAFETY: no element is read of a tensor without tokens.
    let none = || unsafe { CudaTensor::from_raw::<f32>(0, shape) };
    data.map_or_else(none, |data| CudaTensor::new(data, stream, shape))
}

impl Harness for Cuda {
    fn choose(_: &'static str) -> bool {
        found()
    }

    fn new(layout: KvLayout) -> Result<Self, String> {
        let context = CudaContext::new(0).map_err(text)?;
        let stream = context.new_stream().map_err(text)?;
        let storage = CudaStorage::new(&context, layout.clone(), limits(&layout)).map_err(text)?;
        Ok(Self { storage, stream, twin: RefCell::new(CpuStorage::new(layout).map_err(text)?) })
    }

    fn layout(&self) -> &KvLayout {
        KvStorage::layout(&self.storage)
    }

    fn fill(&mut self, value: f32) {
        let twin = self.twin.get_mut();
        twin.fill(value);
        self.stream.synchronize().unwrap();
        for index in 0.. {
            let Some(bytes) = twin.allocation(index) else { break };
            if bytes.is_empty() {
                continue;
            }
            // SAFETY: the allocation of the layout, which is as long in both storages; nothing runs.
            unsafe { result::memcpy_htod_sync(self.storage.allocation(index).unwrap(), bytes) }.unwrap();
        }
        self.storage.context().synchronize().unwrap();
    }

    fn prepare(&mut self, step: &Step) -> Result<(), String> {
        self.storage.prepare((&self.stream).into(), step, u32::MAX).map_err(text)
    }

    fn copy_blocks(&mut self) -> Result<(), String> {
        self.storage.copy_blocks((&self.stream).into()).map_err(text)
    }

    fn write_kv(&mut self, layer: u32, k: &[f32], v: &[f32]) -> Result<(), String> {
        let shape = self.layout().layers()[ix(layer)];
        let [heads, k_dim, v_dim] = [shape.kv_heads, shape.k_dim, shape.v_dim].map(ix);
        let tokens = k.len() / (heads * k_dim);
        let (k, v, stream) = (self.upload(k)?, self.upload(v)?, Arc::clone(&self.stream));
        let k = tensor(k.as_ref(), &stream, [tokens, heads, k_dim]);
        let v = tensor(v.as_ref(), &stream, [tokens, heads, v_dim]);
        self.storage.write_kv((&stream).into(), layer, k, v).map_err(text)
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
        let q = self.upload(q)?;
        let mut out = self.upload(&alloc::vec![f32::NAN; tokens * q_heads * v_dim])?;
        let mut lse = self.upload(&alloc::vec![f32::NAN; tokens * q_heads])?;
        let to = match (&mut out, &mut lse) {
            (Some(out), Some(lse)) => {
                CudaTensorMut::new(out, &self.stream, [tokens, q_heads, v_dim]).with_lse(lse, &self.stream)
            }
            // SAFETY: no element is written of a tensor without tokens.
            _ => unsafe { CudaTensorMut::from_raw::<f32>(0, [tokens, q_heads, v_dim]) },
        };
        let q = tensor(q.as_ref(), &self.stream, [tokens, q_heads, k_dim]);
        let done = self.storage.attend((&self.stream).into(), layer, q, to, params);
        done.map_err(|error| format!("attend: {error}"))?;
        let read = |data: Option<CudaSlice<f32>>| {
            data.map_or(Ok(Vec::new()), |data| self.stream.clone_dtoh(&data).map_err(text))
        };
        Ok((read(out)?, read(lse)?))
    }

    fn read_slot(&self, layer: u32, slot: Slot) -> Result<(Vec<f32>, Vec<f32>), String> {
        let mut twin = self.twin.borrow_mut();
        self.stream.synchronize().map_err(text)?;
        let index = self.layout().layers()[ix(layer)].allocation;
        let (Some(bytes), Some(first)) = (twin.allocation_mut(index), self.storage.allocation(index)) else {
            return Err("the layer has no memory".into());
        };
        // SAFETY: as in `fill`.
        unsafe { result::memcpy_dtoh_sync(bytes, first) }.map_err(text)?;
        twin.read_slot(layer, slot).map_err(text)
    }
}
