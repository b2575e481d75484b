//! KV memory of an NVIDIA GPU, and attention on it.
//!
//! The pieces, from the driver up: `driver` finds it and reads its errors; `memory` owns what it gives; `kernels` loads and
//! launches; `decode` and `plans` are the fast kernel and what it works by; `stream` keeps calls in order; `pool` is K and
//! V; `buffers` and `masks` are the metadata of a step.
#![allow(unsafe_code)]

mod buffers;
mod decode;
mod driver;
mod kernels;
mod limits;
mod masks;
mod memory;
mod params;
mod plans;
mod pool;
mod records;
mod slab;
mod stream;
mod tensor;
#[cfg(test)]
pub(super) mod tests;

use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::CudaContext;

use buffers::Buffers;
use decode::{Call, Decode};
use kernels::{Grid, Kernels};
use masks::Masks;
use memory::DeviceMemory;
use params::MAX_PER_HEAD;
use pool::{Layer, Pool, int};
use records::Pieces;
use stream::{Order, Turn};

use super::check::{self, Check};
use super::{AttendParams, KvStorage, QueryMask, StorageError};
use crate::id::{GroupId, ix};
use crate::layout::{KvLayout, LayerLayout};
use crate::step::Step;

pub use limits::CudaLimits;
pub use records::CudaRecords;
pub use stream::CudaExec;
pub use tensor::{CudaTensor, CudaTensorMut};

/// The longest head, in elements, of K or V: what the naive kernel keeps of it in shared memory.
pub const MAX_CUDA_HEAD_DIM: u32 = 4096;

/// Bytes of a block that one group of threads copies: enough to be worth its start, and so few that the copy of one block
/// keeps many of them busy.
const RUN_BYTES: i64 = 16 << 10;

/// Groups of threads of a copy, at most. What there is beyond, they take one after the other.
const COPY_CTAS: u32 = 1024;

/// KV memory of an NVIDIA GPU, in any [`DType`](crate::layout::DType), for any [`KvLayout`].
///
/// Needs a driver of CUDA 12.0 (525) or later and a GPU of compute capability 8.0 or later when it is made, and nothing
/// when it is built. Ask [`probe`](Self::probe) first: `cudarc` panics where there is no driver.
///
/// # Streams
/// Every call enqueues its work on the stream that it is given and returns. Nothing is allocated on the way. The host waits in
/// [`prepare`](KvStorage::prepare) where it is two steps ahead of the device, and in [`attend`](KvStorage::attend) where a mask
/// takes the place of one that is still on its way. Calls of one storage run in the order in which they are made, whatever
/// their streams; a stream of the engine's that was given last is kept alive until another one is.
///
/// # Steps of changes
/// Steps with [whole tables](Step::new) send the tables of all rows. Those [of changes](Step::of_changes) send what is new: the
/// storage keeps a table for each of [`max_sequences`](CudaLimits::max_sequences) sequences, and a step of a decode loop costs
/// the same for any length of context, on the host, on the bus and on the device. Then every step that the cache plans
/// is to be prepared here, in the order of the plans, and views at once: a view that is prepared behind a later plan brings an
/// old table back. What is noticed is refused: changes to a table that the storage does not have as long as they say it is
/// ([`StorageError::UnknownTable`]); a view of the sequence sends it anew. Blocks of lookahead are part of kept tables. A step
/// with whole tables takes the place of the first tables that were kept.
///
/// # Kernels
/// Which one attention of a layer runs on is a matter of the layout: [`kernel`](Self::kernel) says it, and [`CudaKernel`]
/// what they promise. The faster one plans the work of a step on the device, once for each kind of attention, and cuts
/// long contexts into parts; see [`CudaLimits::with_fixed_splits`].
///
/// # CUDA graphs
/// [`copy_blocks`](KvStorage::copy_blocks), [`write_kv`](KvStorage::write_kv) and [`attend`](KvStorage::attend) can be captured;
/// [`prepare`](KvStorage::prepare) stays outside, before each replay, on the stream of the replay. All that varies from step to
/// step (lengths, tables, slots, copies, how many rows there are) is read from fixed addresses on the device. Tensors
/// may have more tokens than the step: those of padding write no K and V, and get zeros and a log-sum-exp of −∞. Capture
/// with the most tokens that a replay is to have; query tokens beyond the tensors' are an error of the caller's that
/// leaves their outputs out.
///
/// A mask lies at a fixed address too: a replay sees the one that was sent last, by [`set_mask`](Self::set_mask) or by an
/// `attend` outside of graphs, and a captured `attend` must find its mask sent. Whether a graph has run nobody tells the
/// storage: call `copy_blocks` once more before calls outside of the graph, which does what is left to do.
///
/// A stream that is captured beside that of the calls before is not made to wait for it: order is then the caller's. Calls on
/// other streams while the stream of the calls before is captured are refused ([`StorageError::Capturing`]). A graph holds
/// addresses of the storage: whoever launches it after the storage is dropped has the device use memory that is gone.
///
/// # Example
/// A step of an engine; zeros stand for its own tensors.
/// ```no_run
/// use paged_kv::layout::{DType, KvLayout, KvShape};
/// use paged_kv::storage::cudarc::driver::CudaContext;
/// use paged_kv::storage::{AttendParams, CudaLimits, CudaStorage, CudaTensor, CudaTensorMut, KvStorage};
/// use paged_kv::Step;
///
/// CudaStorage::probe()?; // says what is missing, where `cudarc` would panic
/// let context = CudaContext::new(0)?;
/// let stream = context.new_stream()?;
/// let shape = KvShape::new(32, 8, 128, DType::F16); // layers, KV heads, head_dim
/// let layout = KvLayout::per_layer(&shape, 4096, 16)?; // blocks, tokens of each
/// let limits = CudaLimits::new(256, 8192, 32_768 / 16); // rows, query tokens, blocks of a row
/// let mut storage = CudaStorage::new(&context, layout, limits)?;
/// # let (step, tokens) = (Step::new(), 1);
///
/// storage.prepare((&stream).into(), &step, 256)?; // `step` from `KvCache::plan`
/// storage.copy_blocks((&stream).into())?;
/// let mut out = stream.alloc_zeros::<f32>(tokens * 32 * 128)?;
/// for layer in 0..32 {
///     let [q, k, v] = [32, 8, 8].map(|heads| stream.alloc_zeros::<f32>(tokens * heads * 128));
///     let (q, k, v) = (q?, k?, v?);
///     let kv = [tokens, 8, 128];
///     let (k, v) = (CudaTensor::new(&k, &stream, kv), CudaTensor::new(&v, &stream, kv));
///     storage.write_kv((&stream).into(), layer, k, v)?;
///     let q = CudaTensor::new(&q, &stream, [tokens, 32, 128]);
///     let to = CudaTensorMut::new(&mut out, &stream, [tokens, 32, 128]);
///     storage.attend((&stream).into(), layer, q, to, &AttendParams::new(128))?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A call that is refused for its arguments has changed nothing. Where the driver refuses to send a step, none is prepared any
/// more; after [`ContextLost`](StorageError::ContextLost) nothing of the context can be used.
#[derive(Debug)]
pub struct CudaStorage {
    layout: KvLayout,
    group: GroupId,
    layers: Vec<Layer>,
    pool: Pool,
    /// On the device: what a block is made of.
    runs: DeviceMemory,
    num_runs: i32,
    pieces: Pieces,
    kernels: Kernels,
    /// Where a layer is one for it.
    decode: Option<Decode>,
    buffers: Buffers,
    masks: Mutex<Masks>,
    order: Order,
    check: Check,
    limits: CudaLimits,
    /// Steps that were prepared, or that it was tried with.
    steps: u64,
    prepared: Option<Prepared>,
    context: Arc<CudaContext>,
}

/// What the host remembers of the step that is on the device.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    tokens: usize,
    /// Query tokens of the longest row.
    row_tokens: usize,
    copies: usize,
    copied: Copied,
    /// Counts the steps of the storage.
    number: u64,
    /// Tiles of keys of all query tokens, each by itself: no less than there are to be worked on.
    tiles: u64,
}

/// Where the copies of the step are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copied {
    No,
    /// They are part of a graph, which may be replayed or thrown away: who knows.
    Captured,
    Yes,
}

/// The kernel that a layer's attention runs on. The layout decides, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CudaKernel {
    /// For every layout: a group of threads for each query head of each token, which reads all keys by itself.
    Naive,
    /// By tensor cores, all query heads of a KV head at once, long contexts by many groups of threads: for K and V of
    /// `f16`, `bf16` or `F8E4M3`, of 64, 128 or 256 elements both, in blocks of a multiple of 16 tokens, every head of
    /// every token beginning at a multiple of 16 bytes.
    ///
    /// Queries, and weights where they are multiplied by V, are rounded to 16 bits: to `bf16` for a pool of that, else to
    /// `f16`, beyond whose largest number, 65,504, they count as that. NaN and infinities in V reach all queries of a row
    /// that are worked on together, eight or sixteen heads of tokens, if one of them sees them: those of a later token
    /// an earlier one, too. In K they do not.
    Decode,
}

impl CudaStorage {
    /// Whether there is a driver that runs the kernels. To be asked before anything of `cudarc`, which panics where there
    /// is none.
    ///
    /// # Errors
    /// [`StorageError::NoDriver`], [`StorageError::OldDriver`].
    pub fn probe() -> Result<(), StorageError> {
        driver::probe()
    }

    /// Device memory for the layout, zeroed, and for the metadata of steps within the limits.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`], [`StorageError::NoBuffers`]; [`StorageError::HeadTooLong`], [`StorageError::Limit`]
    /// for layouts that no kernel takes; [`StorageError::OldDriver`], [`StorageError::OldDevice`],
    /// [`StorageError::Kernels`], and what else the driver says.
    pub fn new(context: &Arc<CudaContext>, layout: KvLayout, limits: CudaLimits) -> Result<Self, StorageError> {
        Self::check_layout(context, &layout)?;
        let pool = Pool::zeroed(context, &layout)?;
        Self::on(context, layout, limits, pool)
    }

    /// The same over memory of the engine's: the addresses of the layout's [allocations](KvLayout::allocations), in their
    /// order. It is left as it is, and never freed.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`StorageError::Limit`] where there are not as many addresses as allocations, and
    /// [`StorageError::Misaligned`] where one is not a multiple of the size of an element.
    ///
    /// # Safety
    /// Each address begins device memory of the context for all elements of its allocation, until the storage and all work
    /// of its calls is gone. Whoever else uses it keeps in order with the calls.
    pub unsafe fn from_raw(
        context: &Arc<CudaContext>,
        layout: KvLayout,
        limits: CudaLimits,
        allocations: &[u64],
    ) -> Result<Self, StorageError> {
        Self::check_layout(context, &layout)?;
        let pool = Pool::adopted(&layout, allocations)?;
        Self::on(context, layout, limits, pool)
    }

    fn check_layout(context: &CudaContext, layout: &KvLayout) -> Result<(), StorageError> {
        driver::probe()?;
        driver::check_device(context)?;
        int("slots in the pool", usize::try_from(layout.slots().end).unwrap_or(usize::MAX))?;
        int("tokens in a block", ix(layout.block_size()))?;
        for (LayerLayout { k_dim, v_dim, kv_heads, .. }, layer) in layout.layers().iter().zip(0..) {
            int("KV heads", ix(*kv_heads))?;
            if let Some(dim) = [*k_dim, *v_dim].into_iter().find(|dim| *dim > MAX_CUDA_HEAD_DIM) {
                return Err(StorageError::HeadTooLong { layer, dim, max: MAX_CUDA_HEAD_DIM });
            }
        }
        Ok(())
    }

    fn on(context: &Arc<CudaContext>, layout: KvLayout, limits: CudaLimits, pool: Pool) -> Result<Self, StorageError> {
        int("query tokens in a step", ix(limits.max_tokens))?;
        let layers = pool.layers(&layout)?;
        let runs = pool.runs(&layout, &layers, RUN_BYTES);
        let num_runs = int("pieces of a block", runs.len())?;
        let runs = DeviceMemory::holding(context, &runs)?;
        let pieces = Pieces::new(context, &layout, &layers, RUN_BYTES)?;
        Ok(Self {
            kernels: Kernels::load(context, layout.dtype())?,
            decode: Decode::new(context, &layout, &layers, limits)?,
            buffers: Buffers::new(context, limits)?,
            masks: Mutex::new(Masks::new(context, &limits)?),
            order: Order::new(context)?,
            layout,
            group: GroupId::default(),
            layers,
            pool,
            runs,
            num_runs,
            pieces,
            check: Check::default(),
            limits,
            steps: 0,
            prepared: None,
            context: Arc::clone(context),
        })
    }

    /// Makes this the storage of another group than the first: it then reads that group's tables of every step.
    #[must_use]
    pub fn with_group(mut self, group: GroupId) -> Self {
        self.group = group;
        self.prepared = None;
        self.buffers.forget();
        self
    }

    /// Bytes of K and V and their scales: those of the layout.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// Bytes of device memory that the storage takes beside the pool: for [steps](CudaLimits::device_bytes), and for what
    /// attention leaves in between. The latter depends on the device, not on the length of contexts.
    pub fn device_bytes(&self) -> u64 {
        self.limits.device_bytes() + self.decode.as_ref().map_or(0, Decode::bytes)
    }

    /// What attention of a layer runs on.
    ///
    /// # Errors
    /// [`StorageError::NoSuchLayer`].
    pub fn kernel(&self, layer: u32) -> Result<CudaKernel, StorageError> {
        let layer = self.layer(layer)?;
        Ok(if Decode::takes(&self.layout, layer) { CudaKernel::Decode } else { CudaKernel::Naive })
    }

    /// The device address of one of the layout's [allocations](KvLayout::allocations), or `None` where it has no such: for
    /// kernels of the engine's own.
    pub fn allocation(&self, index: u32) -> Option<u64> {
        self.pool.first(index)
    }

    /// The context of the memory.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    fn layer(&self, layer: u32) -> Result<&Layer, StorageError> {
        self.layers.get(ix(layer)).ok_or(StorageError::NoSuchLayer { layer, layers: self.layers.len() })
    }

    /// That the copies of the step have run before what the turn is taken for: in a graph, those of the graph.
    fn check_copied(&self, turn: &Turn<'_>, prepared: Prepared) -> Result<(), StorageError> {
        let Prepared { copies, copied, .. } = prepared;
        match copied {
            Copied::Yes => Ok(()),
            Copied::Captured if turn.is_capturing()? => Ok(()),
            Copied::Captured | Copied::No => Err(StorageError::CopiesPending { copies }),
        }
    }

    /// Sends the mask of the prepared step, for graphs that are replayed after it: see the [type](Self).
    ///
    /// # Errors
    /// [`StorageError::Mask`] where it does not fit the step, [`StorageError::Limit`], [`StorageError::Capturing`].
    pub fn set_mask(&self, exec: CudaExec<'_>, mask: QueryMask<'_>) -> Result<(), StorageError> {
        let Prepared { tokens, row_tokens, .. } = self.prepared.ok_or(StorageError::NotPrepared)?;
        check::mask(mask, tokens, row_tokens)?;
        let turn = self.order.enter(exec)?;
        let mut masks = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        masks.send(&turn, mask).map(|_| ())
    }

    /// What of the parameters kernels take.
    fn variant(
        &self,
        turn: &Turn<'_>,
        params: &AttendParams<'_>,
        q_heads: usize,
    ) -> Result<params::Variant, StorageError> {
        let per_head = |values: Option<&[f32]>| -> Result<[f32; MAX_PER_HEAD], StorageError> {
            let mut all = [0.0; MAX_PER_HEAD];
            if let Some(values) = values {
                let (given, max) = (q_heads as u64, MAX_PER_HEAD as u64);
                let limit = StorageError::Limit { what: "query heads with sinks or slopes", given, max };
                all.get_mut(..q_heads).ok_or(limit)?.copy_from_slice(values);
            }
            Ok(all)
        };
        let (sinks, slopes) = (per_head(params.sinks)?, per_head(params.alibi_slopes)?);
        let (mask, mask_words) = match params.mask {
            // Of a step without query tokens; a graph would have no mask then for any step.
            Some(mask) if mask.words.is_empty() && turn.is_capturing()? => return Err(StorageError::Capturing),
            Some(mask) if mask.words.is_empty() => (0, 0),
            Some(mask) => {
                let mut masks = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
                (masks.send(turn, mask)?, int("words of a mask", ix(mask.words_per_token))?)
            }
            None => (0, 0),
        };
        Ok(params::Variant {
            scale: params.scale,
            soft_cap: params.soft_cap.unwrap_or(0.0),
            // A wider one is none: there are no so many positions.
            window: params.window.map_or(0, |window| i32::try_from(window).unwrap_or(0)),
            has_sinks: i32::from(params.sinks.is_some()),
            has_slopes: i32::from(params.alibi_slopes.is_some()),
            mask_words,
            mask,
            sinks,
            slopes,
        })
    }
}

impl KvStorage for CudaStorage {
    type Error = StorageError;
    type Exec<'a> = CudaExec<'a>;
    type Input<'a> = CudaTensor<'a>;
    type Output<'a> = CudaTensorMut<'a>;

    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn prepare(&mut self, exec: CudaExec<'_>, step: &Step, padded_rows: u32) -> Result<(), StorageError> {
        let tables = self.check.step(&self.layout, self.group, step, padded_rows, true)?;
        self.buffers.check(step, tables)?;
        let turn = self.order.enter(exec)?;
        if turn.is_capturing()? {
            return Err(StorageError::Capturing);
        }
        self.prepared = None;
        self.steps += 1;
        self.buffers.send(&turn, &self.kernels, step, tables)?;
        let copies = tables.copies().len();
        self.prepared = Some(Prepared {
            tokens: ix(step.num_tokens()),
            row_tokens: step.rows().iter().map(|row| ix(row.len)).max().unwrap_or(0),
            copies,
            copied: if copies > 0 { Copied::No } else { Copied::Yes },
            number: self.steps,
            tiles: step
                .rows()
                .iter()
                .map(|row| u64::from(row.seq_len().div_ceil(decode::TILE)) * u64::from(row.len))
                .sum(),
        });
        Ok(())
    }

    fn copy_blocks(&mut self, exec: CudaExec<'_>) -> Result<(), StorageError> {
        let prepared = self.prepared.as_mut().ok_or(StorageError::NotPrepared)?;
        let turn = self.order.enter(exec)?;
        // A graph is captured with one step and replayed with others, which may have copies where this one has none.
        let capturing = turn.is_capturing()?;
        if prepared.copied == Copied::Yes && !capturing {
            return Ok(());
        }
        let (step, num_blocks) = (self.buffers.addresses(), int("blocks", ix(self.layout.num_blocks()))?);
        let params = params::Copy { step, runs: self.runs.first(), num_runs: self.num_runs, num_blocks };
        let grid = Grid { ctas: COPY_CTAS, threads: 128, shared_bytes: 0 };
        // SAFETY: the kernel reads the copies that are on the device and copies runs of blocks that exist: `runs` lists
        // parts of every block of the layout, which lies inside of its allocations.
        unsafe { self.kernels.copy_blocks.launch(&turn, grid, &params) }?;
        // They are done once: to do them again would undo writes.
        // SAFETY: the counts are four words on the device; the third is that of copies.
        unsafe { memory::clear_word(turn.stream(), step.counts + 2 * 4) }?;
        match (capturing, prepared.copied) {
            (false, _) => prepared.copied = Copied::Yes,
            (true, Copied::No) => prepared.copied = Copied::Captured,
            (true, _) => {}
        }
        Ok(())
    }

    fn write_kv(
        &mut self,
        exec: CudaExec<'_>,
        layer: u32,
        k: CudaTensor<'_>,
        v: CudaTensor<'_>,
    ) -> Result<(), StorageError> {
        let prepared = self.prepared.ok_or(StorageError::NotPrepared)?;
        let layer = self.layer(layer)?;
        let geometry = &layer.geometry;
        let tokens = k.tokens().max(prepared.tokens);
        let k = k.check("k", &self.context, exec, [tokens, geometry.kv_heads, geometry.k_dim])?;
        let v = v.check("v", &self.context, exec, [tokens, geometry.kv_heads, geometry.v_dim])?;
        let ctas = grid_of(tokens, geometry.kv_heads)?;
        let params = params::Write {
            step: self.buffers.addresses(),
            k,
            v,
            k_pool: layer.k,
            v_pool: layer.v,
            k_scales: layer.scales[0],
            v_scales: layer.scales[1],
            kv_heads: int("KV heads", geometry.kv_heads)?,
            k_dim: int("elements of a head", geometry.k_dim)?,
            v_dim: int("elements of a head", geometry.v_dim)?,
            block_size: int("tokens in a block", ix(self.layout.block_size()))?,
            num_blocks: int("blocks", ix(self.layout.num_blocks()))?,
            unused: 0,
        };
        let turn = self.order.enter(exec)?;
        self.check_copied(&turn, prepared)?;
        // SAFETY: the tensors have the shapes that the kernel reads, inside of their memory (by the check, or the contract
        // of `from_raw`), and the planes are those of the layout, which lies inside of its allocations. Slots that the pool
        // does not have the kernel leaves out.
        unsafe { self.kernels.write_kv.launch(&turn, Grid { ctas, threads: 32, shared_bytes: 0 }, &params) }
    }

    fn attend(
        &self,
        exec: CudaExec<'_>,
        layer: u32,
        q: CudaTensor<'_>,
        out: CudaTensorMut<'_>,
        params: &AttendParams<'_>,
    ) -> Result<(), StorageError> {
        let prepared = self.prepared.ok_or(StorageError::NotPrepared)?;
        let layer = self.layer(layer)?;
        let geometry = &layer.geometry;
        let (q_heads, kv_heads) = (q.heads(), geometry.kv_heads);
        if q_heads == 0 || q_heads % kv_heads != 0 {
            return Err(StorageError::QueryHeads { q_heads, kv_heads });
        }
        let tokens = q.tokens().max(prepared.tokens);
        let q = q.check("q", &self.context, exec, [tokens, q_heads, geometry.k_dim])?;
        let (out, lse) = out.check(&self.context, exec, [tokens, q_heads, geometry.v_dim])?;
        check::params(params, q_heads, prepared.tokens, prepared.row_tokens)?;
        let ctas = grid_of(tokens, q_heads)?;
        let turn = self.order.enter(exec)?;
        self.check_copied(&turn, prepared)?;
        let variant = self.variant(&turn, params, q_heads)?;
        if let Some(decode) = self.decode.as_ref().filter(|_| Decode::takes(&self.layout, layer)) {
            let call = Call {
                step: self.buffers.addresses(),
                q,
                out,
                lse,
                variant,
                q_heads,
                num_blocks: self.layout.num_blocks(),
                number: prepared.number,
                row_tokens: prepared.row_tokens,
                tiles: prepared.tiles,
            };
            // SAFETY: the tensors were checked; the output's heads are disjoint, and there is a log-sum-exp for each.
            return unsafe { decode.attend(&turn, layer, call) };
        }
        let (k_dim, v_dim) = (geometry.k_dim, geometry.v_dim);
        let params = params::Attend {
            step: self.buffers.addresses(),
            q,
            out,
            lse,
            k_pool: layer.k,
            v_pool: layer.v,
            k_scales: layer.scales[0],
            v_scales: layer.scales[1],
            q_heads: int("query heads", q_heads)?,
            kv_heads: int("KV heads", kv_heads)?,
            k_dim: int("elements of a head", k_dim)?,
            v_dim: int("elements of a head", v_dim)?,
            block_size: int("tokens in a block", ix(self.layout.block_size()))?,
            num_blocks: int("blocks", ix(self.layout.num_blocks()))?,
            variant,
        };
        // A chunk of keys, the query, and the sums: at most 384 + 4 × 2 × 4,096 bytes, of the 48 KiB that any kernel may have.
        let shared_bytes = u32::try_from(384 + 4 * (k_dim + v_dim)).unwrap_or(u32::MAX);
        // SAFETY: as in `write_kv`; the output's heads are disjoint, and there is a log-sum-exp for each. Tables hold blocks
        // of the pool up to each row's last token, and others the kernel does not read.
        unsafe { self.kernels.attend_naive.launch(&turn, Grid { ctas, threads: 32, shared_bytes }, &params) }
    }
}

/// A group of threads for every head of every token.
fn grid_of(tokens: usize, heads: usize) -> Result<u32, StorageError> {
    int("heads of query tokens", tokens.saturating_mul(heads)).map(i32::unsigned_abs)
}
