//! KV memory of the host, and attention on its processors.

mod attend;
mod cascade;
mod element;
mod exp;
mod isa;
mod kernel;
mod memory;
mod merge;
mod movement;
mod prepared;
mod rows;
mod shared;
mod stats;
mod tensor;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use attend::Call;
use element::{Convert, Data, ReadHead, Stored};
use isa::Level;
use kernel::Rules;
use memory::{Pools, each};
use movement::{Records, Regions};
use prepared::Prepared;

use super::geometry::Geometry;
use super::{AttendParams, KvStorage, StorageError};
use crate::id::{GroupId, Slot, ix, len32};
use crate::layout::KvLayout;
use crate::step::Step;

pub use element::Element;
#[cfg(feature = "cuda")]
pub(super) use element::dtype_of;
pub use merge::merge_states;
pub use stats::CpuStats;
pub use tensor::{CpuTensor, CpuTensorMut};

/// KV memory of the host, in any [`DType`](crate::layout::DType), for any [`KvLayout`].
///
/// Attention takes decode rows, prompts, pieces of prompts and any mix of them in one step; any number of query heads
/// per KV head; any `k_dim` and `v_dim` up to [`MAX_HEAD_DIM`](crate::storage::MAX_HEAD_DIM). Everything is computed in `f32`. With the feature
/// `rayon`, [`attend`](KvStorage::attend) runs on the threads of the current `rayon` pool.
///
/// # Guarantees
/// The bits of an output row depend on its query, on its position p, on K and V of the positions 0 ..= p (under a mask, of
/// those that it sees), on the parameters of the call, and on the
/// instruction set (the best of AVX-512, AVX2 with FMA and F16C, or NEON that the machine has, else what the target
/// always has). They depend on **nothing else**:
///
/// * not on what lies in slots beyond the sequence or in blocks that the row does not name, NaN included;
/// * not on which blocks hold the context, nor on the block size or the layout;
/// * not on the other rows of the step, nor on how the context was cut into steps;
/// * not on the number of threads, nor on the feature `rayon`.
///
/// Where a result is NaN, that it is NaN is guaranteed and its sign and payload are not.
///
/// A greedy decode therefore gives the same tokens alone and in a batch, with and without prefix sharing, preemption
/// and chunked prefill, as long as the engine's own operations are as careful.
///
/// # Prefixes that rows share
/// Where tables of several rows of a step begin with the same block ids, what these hold is read once for several rows
/// together, as many as have 128 query heads per KV head: first what all have in common, a system prompt, then what some of
/// them have beyond, a document, and so on; then each row goes its own way. Nobody has to say so. No bit changes: a row goes
/// on from the very state that it would have had by itself.
///
/// Whole runs of 256 positions from the first on are shared, by rows of up to 16 query tokens, all of them behind the run,
/// and where no window cuts into the context of any row that begins with the same run. With more than 64 query heads per
/// KV head each row is walked by itself: it has enough arithmetic for every byte.
///
/// [`prepare`](KvStorage::prepare) finds the prefixes in a pass over the tables of rows that share some, times the
/// logarithm of their number; rows that do not are told apart by the first block that differs. The calling thread keeps
/// up to 64 MiB of states for them, `q_heads` × (`v_dim` + 2) × 4 bytes for each query token of such rows; where they would
/// take more, rows are walked by themselves.
///
/// # Copies
/// [`copy_blocks`](KvStorage::copy_blocks) runs the copies of a prepared step once; calling it again does nothing, so
/// that it cannot undo writes. Until it has run, writing to and reading from a step that has copies is refused
/// ([`StorageError::CopiesPending`]).
///
/// # Writes
/// Tensors of the storage's element type are stored bit for bit. Others are rounded to the nearest, ties to even; what
/// is beyond the largest number, infinities included, becomes the largest (65,504 in f16, 3.39 × 10³⁸ in bf16, 448 in
/// E4M3). A NaN stays a NaN: it is quieted and keeps its sign and as many upper bits of its payload as fit (of which E4M3
/// has none).
///
/// Integers get a scale per token and head, of K and of V apart: the head's largest magnitude divided by 127, in `f32`; an
/// element is the number divided by the scale, rounded to the nearest, ties to even, and so off by at most 1 / 254 of the
/// largest (where that is below 127 × 2⁻¹²⁶ the scale is subnormal and has fewer bits, down to none). Infinities count as
/// the largest `f32`. A NaN makes all of its head NaN, by way of the scale.
///
/// Where a call writes or copies 256 KiB or more, it goes past the caches (x86-64), and from 1 MiB on over the threads of
/// the current `rayon` pool, unless layers, heads or slots share memory.
///
/// # Example
/// One layer, one KV head of 8 elements, two query heads, a sequence of three tokens in blocks of two.
/// ```
/// use paged_kv::layout::{DType, KvLayout, KvShape};
/// use paged_kv::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage};
/// use paged_kv::step::{Step, TableRow};
/// use paged_kv::BlockId;
///
/// let layout = KvLayout::per_layer(&KvShape::new(1, 1, 8, DType::F32), 4, 2)?;
/// let mut storage = CpuStorage::new(layout)?;
///
/// // An engine has its steps from `KvCache::plan`; this one is put together by hand.
/// let blocks = [BlockId::new(2), BlockId::new(0)];
/// let step = Step::from_tables(2, &[TableRow { start: 0, len: 3, blocks: &blocks }], &[])?;
/// storage.prepare((), &step, 1)?;
/// storage.copy_blocks(())?;
///
/// let k = [0.5_f32; 3 * 8]; // [3 tokens, 1 KV head, 8]: equal keys, so that all weights are equal
/// let v: Vec<f32> = (0..3).flat_map(|token| [token as f32; 8]).collect();
/// storage.write_kv((), 0, CpuTensor::new(&k, [3, 1, 8]), CpuTensor::new(&v, [3, 1, 8]))?;
///
/// let q = [1.0_f32; 3 * 2 * 8]; // [3 tokens, 2 query heads, 8]
/// let mut out = [0.0; 3 * 2 * 8];
/// let to = CpuTensorMut::new(&mut out, [3, 2, 8]);
/// storage.attend((), 0, CpuTensor::new(&q, [3, 2, 8]), to, &AttendParams::new(8))?;
/// assert_eq!(out[0], 0.0); // the first token sees V of itself
/// assert_eq!(out[16], 0.5); // the second the mean of 0 and 1
/// assert!((out[32] - 1.0).abs() < 1e-6); // the third the mean of 0, 1 and 2
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CpuStorage {
    layout: KvLayout,
    group: GroupId,
    layers: Vec<Geometry>,
    pools: Pools,
    regions: Regions,
    records: Records,
    prepared: Prepared,
    level: Level,
}

impl CpuStorage {
    /// Memory for the layout, zeroed, every allocation on a cache line. The system may hand out its pages when they
    /// are first written. Allocations of 4 MiB or more begin on 2 MiB and, on Linux, ask for huge pages;
    /// [`stats`](Self::stats) says what came of it.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`], also for sizes that no machine has; [`StorageError::HeadTooLong`];
    /// [`StorageError::NoSuchIsa`] where the environment variable `PAGED_KV_ISA` (`avx512`, `avx2`, `neon` or `portable`,
    /// instead of the best one; meant for tests) asks for what this machine lacks.
    pub fn new(layout: KvLayout) -> Result<Self, StorageError> {
        let layers: Result<Vec<_>, _> =
            layout.layers().iter().zip(0..).map(|(layer, index)| Geometry::new(&layout, layer, index)).collect();
        let layers = layers?;
        let level = Level::chosen()?;
        let pools = Pools::zeroed(&layout)?;
        let block_size = ix(layout.block_size());
        let regions = Regions::new(&layers, ix(layout.num_blocks()), block_size);
        let records = Records::new(&layers, block_size, pools.elem_bytes());
        Ok(Self {
            layout,
            group: GroupId::default(),
            layers,
            pools,
            regions,
            records,
            prepared: Prepared::default(),
            level,
        })
    }

    /// Makes this the storage of another group than the first: it then reads that group's tables of every step.
    #[must_use]
    pub fn with_group(mut self, group: GroupId) -> Self {
        self.group = group;
        self
    }

    /// Bytes of K and V and their scales: those of the layout. Beside them a storage keeps the metadata of a step, and
    /// each thread of attention some hundred KiB (for heads of usual length), and the calling thread up to 64 MiB where
    /// a long context is shared among threads, and as much again where rows share a prefix.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// How much memory there is, how much of it lies on huge pages, and which instruction set attention uses.
    ///
    /// # Complexity
    /// Linux is asked at each call (`/proc/self/smaps`): a walk over the page tables of the whole process, of the order
    /// of a millisecond for some GiB. Not for every step.
    pub fn stats(&self) -> CpuStats {
        self.pools.stats(self.level.name())
    }

    /// The bytes of one of the layout's [allocations](KvLayout::allocations), or `None` where it has no such: to save
    /// them, to hash them, or to measure what a plain read of the same memory reaches.
    ///
    /// They are the elements in order, `allocations()[index] × dtype.bytes()` bytes, each in the byte order of the
    /// machine; the first lies on a cache line. Element e of a [`Plane`](crate::layout::Plane) begins at byte
    /// e × `dtype.bytes()`. Where nothing was written, they are zero.
    ///
    /// # Example
    /// ```
    /// use paged_kv::Slot;
    /// use paged_kv::layout::{DType, KvLayout, KvShape};
    /// use paged_kv::storage::CpuStorage;
    ///
    /// let layout = KvLayout::per_layer(&KvShape::new(1, 1, 2, DType::F32), 1, 2)?; // K of 2 tokens, V of 2 tokens
    /// let mut storage = CpuStorage::new(layout)?;
    /// storage.write_slot(0, Slot::new(1), &[1.0, 2.0], &[3.0, 4.0])?;
    /// let elems: Vec<_> = [0.0_f32, 0.0, 1.0, 2.0, 0.0, 0.0, 3.0, 4.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
    /// assert_eq!(storage.allocation(0), Some(&elems[..]));
    /// assert_eq!(storage.allocation(1), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocation(&self, index: u32) -> Option<&[u8]> {
        (ix(index) < self.pools.len()).then(|| self.pools.bytes(ix(index)))
    }

    /// The same, to write: to load what was saved. Whatever bytes are written are numbers of the element type.
    pub fn allocation_mut(&mut self, index: u32) -> Option<&mut [u8]> {
        (ix(index) < self.pools.len()).then(|| self.pools.bytes_mut(ix(index)))
    }

    /// K `[kv_heads, k_dim]` and V `[kv_heads, v_dim]` of one slot, widened. For tools and tests.
    ///
    /// # Errors
    /// [`StorageError::NoSuchLayer`], [`StorageError::NoSuchSlot`]; [`StorageError::OutOfMemory`] where the vectors cannot be
    /// had.
    pub fn read_slot(&self, layer: u32, slot: Slot) -> Result<(Vec<f32>, Vec<f32>), StorageError> {
        let geometry = self.geometry(layer)?;
        let (block, offset) = self.place(slot)?;
        let zeros = |dim: usize| {
            let elems = geometry.kv_heads.saturating_mul(dim);
            let bytes = (elems as u64).saturating_mul(4);
            let no_memory = |_| StorageError::OutOfMemory { allocation: len32(geometry.allocation), bytes };
            let mut zeros = Vec::new();
            zeros.try_reserve_exact(elems).map_err(no_memory)?;
            zeros.resize(elems, 0.0);
            Ok(zeros)
        };
        let (mut k, mut v) = (zeros(geometry.k_dim)?, zeros(geometry.v_dim)?);
        let level = self.level;
        each!(&self.pools, buffers => {
            let elems = &buffers[geometry.allocation];
            for (to, (strides, scales, dim)) in [&mut k, &mut v].into_iter().zip(geometry.kv()) {
                for (head, to) in to.chunks_exact_mut(dim).enumerate() {
                    let from = &elems[strides.elem(block, head, offset)..][..dim];
                    let scale = scales.map_or(1.0, |scales| Stored::scale(&elems[scales.elem(block, head, offset)..]));
                    level.run(ReadHead { from, scale, to });
                }
            }
        });
        Ok((k, v))
    }

    /// Writes K `[kv_heads, k_dim]` and V `[kv_heads, v_dim]` of one slot, outside of any step. For tools and tests.
    ///
    /// # Errors
    /// [`StorageError::NoSuchLayer`], [`StorageError::NoSuchSlot`]; [`StorageError::TooShort`] where a slice is.
    pub fn write_slot(&mut self, layer: u32, slot: Slot, k: &[f32], v: &[f32]) -> Result<(), StorageError> {
        let geometry = self.geometry(layer)?;
        let (level, place) = (self.level, self.place(slot)?);
        let k = CpuTensor::new(k, [1, geometry.kv_heads, geometry.k_dim]);
        let v = CpuTensor::new(v, [1, geometry.kv_heads, geometry.v_dim]);
        k.check("k", [1, geometry.kv_heads, geometry.k_dim])?;
        v.check("v", [1, geometry.kv_heads, geometry.v_dim])?;
        each!(&mut self.pools, buffers => {
            movement::write_token(level, &mut buffers[geometry.allocation], &geometry, 0, place, [&k, &v]);
        });
        Ok(())
    }

    /// Sets every element of every allocation, and with it what scales there are. For tests: what was never written may be
    /// NaN.
    pub fn fill(&mut self, value: f32) {
        fn all<E: Stored>(level: Level, buffers: &mut [memory::Buffer<E>], value: f32) {
            let mut elem = [E::ZERO];
            level.run(Convert { from: Data::F32(&[value]), at: 0, scale: 1.0, to: &mut elem });
            buffers.iter_mut().for_each(|buffer| buffer.fill(elem[0]));
        }
        let (level, block_size) = (self.level, ix(self.layout.block_size()));
        each!(&mut self.pools, buffers => all(level, buffers, value));
        for geometry in self.layers.iter().filter(|geometry| geometry.scales.is_some()) {
            // One head of `value`, for all heads of all slots.
            let numbers = alloc::vec![value; geometry.k_dim.max(geometry.v_dim)];
            let head = |dim| CpuTensor::new(&numbers, [1, geometry.kv_heads, dim]).with_strides(0, 0);
            let (k, v) = (head(geometry.k_dim), head(geometry.v_dim));
            for (block, offset) in (0..ix(self.layout.num_blocks())).flat_map(|b| (0..block_size).map(move |o| (b, o)))
            {
                each!(&mut self.pools, buffers => {
                    let elems = &mut buffers[geometry.allocation];
                    movement::write_token(level, elems, geometry, 0, (block, offset), [&k, &v]);
                });
            }
        }
    }

    /// The same storage on another instruction set, if this machine has it.
    #[cfg(test)]
    pub(super) fn on(mut self, isa: &str) -> Option<Self> {
        self.level = Level::named(isa)?;
        Some(self)
    }

    /// Whether this machine has an instruction set.
    #[cfg(test)]
    pub(super) fn runs_on(isa: &str) -> bool {
        Level::named(isa).is_some()
    }

    fn geometry(&self, layer: u32) -> Result<Geometry, StorageError> {
        let layers = self.layers.len();
        self.layers.get(ix(layer)).copied().ok_or(StorageError::NoSuchLayer { layer, layers })
    }

    /// Block and offset of a slot.
    fn place(&self, slot: Slot) -> Result<(usize, usize), StorageError> {
        let slots = self.layout.slots().end;
        if u64::from(slot.get()) >= slots {
            return Err(StorageError::NoSuchSlot { slot, slots });
        }
        let block_size = self.layout.block_size();
        Ok((slot.block(block_size).index(), ix(slot.offset(block_size))))
    }
}

impl KvStorage for CpuStorage {
    type Error = StorageError;
    type Exec<'a> = ();
    type Input<'a> = CpuTensor<'a>;
    type Output<'a> = CpuTensorMut<'a>;

    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn prepare(&mut self, (): (), step: &Step, padded_rows: u32) -> Result<(), StorageError> {
        self.prepared.set(&self.layout, self.group, step, padded_rows)
    }

    fn copy_blocks(&mut self, (): ()) -> Result<(), StorageError> {
        let copies = self.prepared.take_copies()?;
        let block_size = ix(self.layout.block_size());
        movement::copy_blocks(&mut self.pools, &self.layers, &self.regions, block_size, copies);
        Ok(())
    }

    fn write_kv(&mut self, (): (), layer: u32, k: CpuTensor<'_>, v: CpuTensor<'_>) -> Result<(), StorageError> {
        self.prepared.check_ready()?;
        let geometry = self.geometry(layer)?;
        let tokens = self.prepared.slots().len();
        k.check("k", [tokens, geometry.kv_heads, geometry.k_dim])?;
        v.check("v", [tokens, geometry.kv_heads, geometry.v_dim])?;
        let (level, apart) = (self.level, self.regions.apart(layer));
        each!(&mut self.pools, buffers => {
            let elems = &mut buffers[geometry.allocation];
            movement::write(level, elems, &geometry, apart, &self.prepared, [&k, &v]);
        });
        Ok(())
    }

    fn attend(
        &self,
        (): (),
        layer: u32,
        q: CpuTensor<'_>,
        out: CpuTensorMut<'_>,
        params: &AttendParams<'_>,
    ) -> Result<(), StorageError> {
        self.prepared.check_ready()?;
        let geometry = &self.geometry(layer)?;
        let tokens = self.prepared.slots().len();
        let (q_heads, kv_heads) = (q.heads(), geometry.kv_heads);
        if q_heads == 0 || q_heads % kv_heads != 0 {
            return Err(StorageError::QueryHeads { q_heads, kv_heads });
        }
        q.check("q", [tokens, q_heads, geometry.k_dim])?;
        let out = out.share("out", [tokens, q_heads, geometry.v_dim])?;
        let rules = &Rules::new(params, q_heads, tokens, self.prepared.row_tokens())?;
        let (level, prepared, block_size) = (self.level, &self.prepared, self.layout.block_size());
        each!(&self.pools, buffers => {
            let elems = &buffers[geometry.allocation];
            Call { level, prepared, geometry, block_size, elems, q, out, rules }.run();
        });
        Ok(())
    }
}
