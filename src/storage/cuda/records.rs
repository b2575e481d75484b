//! Blocks as records in pinned memory: swaps, hand-overs, slower tiers.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;

use cudarc::driver::CudaContext;

use super::driver::fault;
use super::kernels::{Grid, Kernel};
use super::memory::{DeviceMemory, bind};
use super::params::{self, Piece};
use super::pool::{Layer, bytes, cut, int};
use super::slab::Slab;
use super::{CudaExec, CudaStorage};
use crate::id::{BlockId, ix};
use crate::layout::KvLayout;
use crate::storage::{StorageError, check};

/// Groups of threads of a transfer, at most: enough to fill the bus, and few enough to leave the device to others.
const CTAS: u32 = 64;

/// Words that the numbers of blocks are padded to, so that records begin on a line of the memory.
const LINE_WORDS: u64 = 64;

/// Pinned memory of the host for records of blocks, and the transfer that uses it.
///
/// Made by [`CudaStorage::records`]; filled by the device with [`read_blocks`](CudaStorage::read_blocks) or by the host with
/// [`bytes_mut`](Self::bytes_mut). A record has the form that
/// [`CpuStorage::read_blocks`](crate::storage::CpuStorage::read_blocks) says: those of either storage can be written to the
/// other.
#[derive(Debug)]
pub struct CudaRecords {
    slab: Slab,
    capacity: usize,
    block_bytes: usize,
    /// Words before the first record.
    header_words: usize,
    context: Arc<CudaContext>,
}

impl CudaRecords {
    /// Records that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether the transfer is done: then blocks that were read may be given to others, and blocks that were written can be
    /// attended to on any stream.
    ///
    /// # Errors
    /// What the driver says of the work so far.
    pub fn is_done(&self) -> Result<bool, StorageError> {
        bind(&self.context).map_err(fault("cuCtxSetCurrent"))?;
        self.slab.is_done()
    }

    /// The records, one after the other. Waits for the transfer.
    ///
    /// # Errors
    /// As [`is_done`](Self::is_done).
    pub fn bytes(&mut self) -> Result<&[u8], StorageError> {
        self.bytes_mut().map(|bytes| &*bytes)
    }

    /// The records, to be written by the host. Waits for the transfer.
    ///
    /// # Errors
    /// As [`is_done`](Self::is_done).
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], StorageError> {
        bind(&self.context).map_err(fault("cuCtxSetCurrent"))?;
        let (header, len) = (self.header_words, self.capacity * self.block_bytes);
        let words = &mut self.slab.words()?[header..];
        // SAFETY: `len` bytes of these words, which are borrowed for as long; any bytes are words, and the reverse.
        Ok(unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) })
    }
}

/// What a block's record is made of, on the device.
#[derive(Debug)]
pub(super) struct Pieces {
    device: DeviceMemory,
    count: i32,
    block_bytes: usize,
}

impl Pieces {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        layout: &KvLayout,
        layers: &[Layer],
        max_bytes: i64,
    ) -> Result<Self, StorageError> {
        let (pieces, block_bytes) = pieces(layout, layers, max_bytes);
        let count = int("pieces of a block", pieces.len())?;
        let block_bytes = usize::try_from(block_bytes).unwrap_or(usize::MAX);
        Ok(Self { device: DeviceMemory::holding(context, &pieces)?, count, block_bytes })
    }
}

/// The runs of block 0 in the order of its record, none longer than `max_bytes`, and the bytes of the record.
fn pieces(layout: &KvLayout, layers: &[Layer], max_bytes: i64) -> (Vec<Piece>, i64) {
    let (block_size, mut at, mut pieces) = (ix(layout.block_size()), 0, Vec::new());
    for layer in layers {
        for (plane, strides, dim) in layer.planes() {
            let bytes = |elems| bytes(elems, layout.dtype().bytes());
            for run in strides.runs(0, layer.geometry.kv_heads, block_size, dim) {
                for piece in cut(bytes(run.start)..bytes(run.end), max_bytes) {
                    let len = piece.end - piece.start;
                    // `plane.base` is the address of element `strides.base()`.
                    let base = plane.base.wrapping_add_signed(piece.start - bytes(strides.base()));
                    pieces.push(Piece { base, block_bytes: plane.block_bytes, bytes: len, at });
                    at += len;
                }
            }
        }
    }
    (pieces, at)
}

impl CudaStorage {
    /// Bytes of the record of a block: K and V of all layers, and their scales.
    pub fn block_bytes(&self) -> usize {
        self.pieces.block_bytes
    }

    /// Pinned memory for so many records. To be kept and used again: to pin memory takes long, and waits for the device.
    ///
    /// # Errors
    /// [`StorageError::NoBuffers`].
    pub fn records(&self, capacity: usize) -> Result<CudaRecords, StorageError> {
        let (capacity_words, block_bytes) = (capacity as u64, self.pieces.block_bytes);
        let record_words = capacity_words.saturating_mul(block_bytes as u64).div_ceil(4);
        let refusal = StorageError::NoBuffers { bytes: record_words.saturating_mul(4) };
        let header_words = capacity_words.checked_next_multiple_of(LINE_WORDS).ok_or(refusal)?;
        let slab = Slab::new(&self.context, header_words.saturating_add(record_words))?;
        let header_words = usize::try_from(header_words).map_err(|_| refusal)?;
        Ok(CudaRecords { slab, capacity, block_bytes, header_words, context: Arc::clone(&self.context) })
    }

    /// Gathers blocks into records, from the first on: for a swap to another storage, or to a slower tier. Waits for the
    /// calls before on the device, and calls after it do not wait for it: whoever reads blocks beside the work of a
    /// step gives them to nobody before [`is_done`](CudaRecords::is_done) (a cache that withholds blocks until `retire`
    /// does that).
    ///
    /// One kernel moves all pieces across the bus, whatever the layout; nothing is copied on the device first.
    ///
    /// # Errors
    /// [`StorageError::NoSuchBlock`]; [`StorageError::RecordBytes`] where there are more blocks than room, or the records are
    /// of another storage.
    pub fn read_blocks(
        &self,
        exec: CudaExec<'_>,
        blocks: &[BlockId],
        to: &mut CudaRecords,
    ) -> Result<(), StorageError> {
        self.transfer(exec, blocks, to, &self.kernels.gather_blocks)
    }

    /// Writes the first records, as [`read_blocks`](Self::read_blocks) or
    /// [`CpuStorage::read_blocks`](crate::storage::CpuStorage::read_blocks) made them, to blocks. Waits for the calls before on the
    /// device; calls on other streams do not wait for it, unless they are told to by [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// As [`read_blocks`](Self::read_blocks); and [`StorageError::RepeatedBlock`].
    pub fn write_blocks(
        &mut self,
        exec: CudaExec<'_>,
        blocks: &[BlockId],
        from: &mut CudaRecords,
    ) -> Result<(), StorageError> {
        check::differ(blocks)?;
        self.transfer(exec, blocks, from, &self.kernels.scatter_blocks)
    }

    /// Makes a stream wait for a transfer.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, exec: CudaExec<'_>, records: &CudaRecords) -> Result<(), StorageError> {
        let turn = self.order.enter_beside(exec)?;
        if turn.is_capturing()? {
            return Err(StorageError::Capturing);
        }
        records.slab.hold(&turn)
    }

    fn transfer(
        &self,
        exec: CudaExec<'_>,
        blocks: &[BlockId],
        records: &mut CudaRecords,
        kernel: &Kernel<params::Records>,
    ) -> Result<(), StorageError> {
        let num_blocks = self.layout.num_blocks();
        check::exist(blocks, num_blocks)?;
        let block_bytes = self.pieces.block_bytes;
        if blocks.len() > records.capacity || records.block_bytes != block_bytes {
            let given = records.capacity.saturating_mul(records.block_bytes);
            return Err(StorageError::RecordBytes { given, expected: blocks.len().saturating_mul(block_bytes) });
        }
        if records.context != self.context {
            return Err(StorageError::OtherContext);
        }
        let count = int("blocks of a transfer", blocks.len())?;
        bind(&self.context).map_err(fault("cuCtxSetCurrent"))?;
        // Before anybody else's calls have to wait for this one.
        for (word, block) in records.slab.words()?.iter_mut().zip(blocks) {
            *word = block.get();
        }
        let turn = self.order.enter_beside(exec)?;
        if turn.is_capturing()? {
            // The numbers of the blocks would be those of the capture.
            return Err(StorageError::Capturing);
        }
        let first = records.slab.first();
        let params = params::Records {
            pieces: self.pieces.device.first(),
            blocks: first,
            records: first + 4 * records.header_words as u64,
            record_bytes: i64::try_from(block_bytes).unwrap_or(i64::MAX),
            num_pieces: self.pieces.count,
            count,
            num_blocks: int("blocks", ix(num_blocks))?,
            unused: 0,
        };
        let ctas = if count == 0 { 0 } else { CTAS };
        // SAFETY: the slab has the numbers of the blocks and room for their records, and stays until the mark below is
        // passed; the pieces are runs of every block of the layout.
        unsafe { kernel.launch(&turn, Grid { ctas, threads: 128, shared_bytes: 0 }, &params) }?;
        records.slab.mark(&turn)
    }
}
