//! The CUDA storage under the suite: on a GPU where there is one, or on the emulator of `kernels/emulator`.
#![allow(unsafe_code)]

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::marker::PhantomData;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result};

use super::harness::Harness;
use super::reference::Rounding;
use super::shapes::{Form, Model};
use crate::id::{Slot, ix, len32};
use crate::layout::{DType, KvLayout};
use crate::step::Step;
use crate::storage::cuda::tests::found;
use crate::storage::{
    AttendParams, CpuStorage, CudaKernel, CudaLimits, CudaStorage, CudaTensor, CudaTensorMut, KvStorage,
};

/// Those of the steps of the suite: no more query tokens than slots, and no row of more blocks than there are.
fn limits(layout: &KvLayout) -> CudaLimits {
    let slots = u32::try_from(layout.slots().end).unwrap_or(u32::MAX);
    CudaLimits::new(64, slots, layout.num_blocks()).with_mask_words(4)
}

/// Which of its kernels is under test, and on what terms.
pub(super) trait Under {
    const KERNEL: CudaKernel;
    const FIXED_SPLITS: bool;
    /// The shape nearest to one that it takes.
    fn model(model: Model) -> Model {
        match Self::KERNEL {
            CudaKernel::Naive => not_for_decode(model),
            _ => for_decode(model),
        }
    }

    fn block_size(tokens: u32) -> u32 {
        match Self::KERNEL {
            CudaKernel::Naive => tokens,
            _ => tokens.next_multiple_of(16),
        }
    }
}

/// Shapes that the decode kernel takes get a V of another width.
fn not_for_decode(model: Model) -> Model {
    let taken = matches!(model.dtype, DType::F16 | DType::BF16 | DType::F8E4M3)
        && model.k_dim == model.v_dim
        && matches!(model.k_dim, 64 | 128 | 256);
    if taken { Model { v_dim: model.v_dim - 8, ..model } } else { model }
}

fn for_decode(model: Model) -> Model {
    let head_dim = match model.k_dim {
        ..=64 => 64,
        65..=128 => 128,
        _ => 256,
    };
    // The foreign form has its rows anywhere.
    let form = if model.form == Form::Foreign { Form::Planes } else { model.form };
    Model { k_dim: head_dim, v_dim: head_dim, form, ..model }
}

/// The naive kernel, which takes every shape.
pub(super) struct Naive;

impl Under for Naive {
    const KERNEL: CudaKernel = CudaKernel::Naive;
    const FIXED_SPLITS: bool = false;
}

/// The decode kernel that deals its work out evenly: where sums are cut depends on the whole step.
pub(super) struct Balanced;

impl Under for Balanced {
    const KERNEL: CudaKernel = CudaKernel::Decode;
    const FIXED_SPLITS: bool = false;
}

/// The decode kernel that cuts its work at fixed positions.
pub(super) struct Fixed;

impl Under for Fixed {
    const KERNEL: CudaKernel = CudaKernel::Decode;
    const FIXED_SPLITS: bool = true;
}

/// The CUDA storage, and one of the CPU with the same bytes, which knows how to read and fill them.
pub(super) struct Cuda<U> {
    storage: CudaStorage,
    stream: Arc<CudaStream>,
    twin: RefCell<CpuStorage>,
    under: PhantomData<U>,
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl<U> Cuda<U> {
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

impl<U: Under> Harness for Cuda<U> {
    const LATER_IS_UNSEEN: bool = matches!(U::KERNEL, CudaKernel::Naive);

    fn choose(_: &'static str) -> bool {
        found()
    }

    fn model(model: Model) -> Model {
        U::model(model)
    }

    fn block_size(tokens: u32) -> u32 {
        U::block_size(tokens)
    }

    /// Half of the last place of numbers of 11 and of 8 bits, and half of the last place of the smallest f16.
    fn rounding(&self, layer: u32) -> Rounding {
        match (self.storage.kernel(layer), self.layout().dtype()) {
            (Ok(CudaKernel::Decode), DType::BF16) => Rounding { share: 2.0_f64.powi(-8), least: 0.0 },
            (Ok(CudaKernel::Decode), _) => Rounding { share: 2.0_f64.powi(-11), least: 2.0_f64.powi(-25) },
            _ => Rounding::default(),
        }
    }

    fn new(layout: KvLayout) -> Result<Self, String> {
        let context = CudaContext::new(0).map_err(text)?;
        let stream = context.new_stream().map_err(text)?;
        let limits = limits(&layout).with_fixed_splits(U::FIXED_SPLITS);
        let storage = CudaStorage::new(&context, layout.clone(), limits).map_err(text)?;
        for layer in 0..len32(layout.layers().len()) {
            assert_eq!(storage.kernel(layer), Ok(U::KERNEL), "{layout:?}");
        }
        let twin = RefCell::new(CpuStorage::new(layout).map_err(text)?);
        Ok(Self { storage, stream, twin, under: PhantomData })
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
