//! Blocks as records of bytes, in an order that does not depend on the layout.
#![allow(unsafe_code)]

use alloc::vec::Vec;

use super::spread;
use super::stream::{Mover, streaming};
use crate::id::{BlockId, ix};
use crate::storage::cpu::CpuStorage;
use crate::storage::cpu::shared::Shared;
use crate::storage::geometry::{Geometry, Strides};
use crate::storage::{StorageError, check};

/// Where the layers lie in a record.
#[derive(Debug)]
pub(in super::super) struct Records {
    /// First byte of each layer.
    layers: Vec<usize>,
    /// Bytes of a record; `usize::MAX` where that is too few.
    block_bytes: usize,
}

impl Records {
    pub(in super::super) fn new(layers: &[Geometry], block_size: usize, elem_bytes: usize) -> Self {
        let mut block_bytes = 0_usize;
        let first = |layer: &Geometry| {
            let first = block_bytes;
            let slot_bytes = layer.head_elems().saturating_mul(elem_bytes);
            let bytes = slot_bytes.saturating_mul(layer.kv_heads).saturating_mul(block_size);
            block_bytes = block_bytes.saturating_add(bytes);
            first
        };
        let layers = layers.iter().map(first).collect();
        Self { layers, block_bytes }
    }
}

/// A piece of a record and of the allocation of its layer.
struct Piece {
    record: core::ops::Range<usize>,
    memory: core::ops::Range<usize>,
    /// Bytes of a number.
    unit: usize,
    /// Bytes of the same plane that come after in the record, and nearly so in memory; see [`Mover::copy`].
    follows: usize,
}

impl CpuStorage {
    /// Bytes of the record of a block: K and V of all layers, and their scales.
    pub fn block_bytes(&self) -> usize {
        self.records.block_bytes
    }

    /// Gathers blocks into records, one after the other: for a swap to another storage, or to a slower tier.
    ///
    /// A record is, for each layer in order, K then V, each `[kv_heads, block_size, dim]`, and where the element type
    /// has scales those of K and of V, each `[kv_heads, block_size]` in `f32`; all in little-endian order. It does not
    /// depend on the layout: it can be [written](Self::write_blocks) to any storage whose layers have the same heads,
    /// sizes of heads, block size and element type. Blocks may repeat.
    ///
    /// Large gathers run on the threads of the current `rayon` pool (with the feature) and write past the caches.
    ///
    /// # Errors
    /// [`StorageError::NoSuchBlock`]; [`StorageError::RecordBytes`] where `to` is not `blocks.len()` × [`Self::block_bytes`]
    /// long. Nothing is written then.
    ///
    /// # Complexity
    /// One copy of the bytes.
    ///
    /// # Example
    /// ```
    /// use paged_kv::layout::{DType, KvLayout, KvShape};
    /// use paged_kv::storage::CpuStorage;
    /// use paged_kv::{BlockId, Slot};
    ///
    /// let shape = KvShape::new(2, 1, 4, DType::F16); // 2 layers, 1 KV head of 4
    /// let mut fast = CpuStorage::new(KvLayout::per_layer(&shape, 8, 2)?)?;
    /// let mut large = CpuStorage::new(KvLayout::cross_layer(&shape, 64, 2)?)?;
    /// assert_eq!(fast.block_bytes(), 2 * 2 * 2 * 4 * 2); // layers, K and V, tokens, elements, bytes of one
    ///
    /// fast.write_slot(1, Slot::new(7), &[1.0; 4], &[2.0; 4])?; // the second token of block 3
    /// let mut records = vec![0; fast.block_bytes()];
    /// fast.read_blocks(&[BlockId::new(3)], &mut records)?;
    /// large.write_blocks(&[BlockId::new(40)], &records)?;
    /// assert_eq!(large.read_slot(1, Slot::new(81))?, (vec![1.0; 4], vec![2.0; 4]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_blocks(&self, blocks: &[BlockId], to: &mut [u8]) -> Result<(), StorageError> {
        self.check_records(blocks, to.len())?;
        let (bytes, layers) = (to.len(), self.layers.len());
        let to = Shared::new(to);
        spread(blocks.len() * layers, bytes, |task, mover| {
            let (index, layer) = (task / layers, task % layers);
            let memory = self.pools.bytes(self.layers[layer].allocation);
            self.pieces(index, blocks[index], layer, |piece| {
                // SAFETY: pieces of a record are disjoint, and tasks, which run once each, are of different records or
                // of different layers, that is of different parts of a record.
                let to = unsafe { to.claim(piece.record) };
                // SAFETY: by the same, nothing in this call touches `to` again, and nothing else can before it returns.
                unsafe { copy(mover, &memory[piece.memory], to, piece.unit, piece.follows) };
            });
        });
        Ok(())
    }

    /// Writes records, as [`read_blocks`](Self::read_blocks) made them, to blocks. Every slot of a block and all its
    /// layers are written. Where layers share memory, the later layer stays.
    ///
    /// # Errors
    /// [`StorageError::NoSuchBlock`]; [`StorageError::RecordBytes`] where `from` is not `blocks.len()` × [`Self::block_bytes`]
    /// long; [`StorageError::RepeatedBlock`]. Nothing is written then.
    ///
    /// # Complexity
    /// One copy of the bytes; sorts the blocks' numbers.
    pub fn write_blocks(&mut self, blocks: &[BlockId], from: &[u8]) -> Result<(), StorageError> {
        self.check_records(blocks, from.len())?;
        check::differ(blocks)?;
        let (layers, size) = (self.layers.len(), self.pools.elem_bytes());
        if !self.regions.all_apart {
            for (index, block) in blocks.iter().enumerate() {
                for layer in 0..layers {
                    let mut pieces = Vec::new();
                    self.pieces(index, *block, layer, |piece| pieces.push(piece));
                    pieces.sort_by_key(|piece| piece.record.start);
                    let memory = self.pools.bytes_mut(self.layers[layer].allocation);
                    streaming(false, |mover| {
                        for piece in pieces {
                            let (from, to) = (&from[piece.record], &mut memory[piece.memory]);
                            // SAFETY: the contract is about stores past the caches, and this mover makes none.
                            unsafe { copy(mover, from, to, piece.unit, 0) };
                        }
                    });
                }
            }
            return Ok(());
        }
        // Not all of `self` is borrowed, so that what describes the records can be used meanwhile.
        let Self { pools, layers: geometry, records, layout, .. } = self;
        let memory: Vec<_> = pools.all_bytes_mut().into_iter().map(Shared::new).collect();
        let block_size = ix(layout.block_size());
        spread(blocks.len() * layers, from.len(), |task, mover| {
            let (index, layer) = (task / layers, task % layers);
            let memory = &memory[geometry[layer].allocation];
            records.pieces(index, blocks[index], layer, &geometry[layer], block_size, size, |piece| {
                // SAFETY: claims are of different blocks (they do not repeat, and tasks run once each), of different
                // layers, of K or of V, or of different runs of one of them, and no two of those share memory:
                // `Regions` has shown that all slots, heads and layers are apart.
                let to = unsafe { memory.claim(piece.memory) };
                // SAFETY: by the same, nothing in this call touches `to` again, and nothing else can before it returns.
                unsafe { copy(mover, &from[piece.record], to, piece.unit, piece.follows) };
            });
        });
        Ok(())
    }

    fn check_records(&self, blocks: &[BlockId], given: usize) -> Result<(), StorageError> {
        check::exist(blocks, self.layout.num_blocks())?;
        let expected = blocks.len().saturating_mul(self.records.block_bytes);
        if given == expected { Ok(()) } else { Err(StorageError::RecordBytes { given, expected }) }
    }

    fn pieces(&self, index: usize, block: BlockId, layer: usize, each: impl FnMut(Piece)) {
        let (block_size, size) = (ix(self.layout.block_size()), self.pools.elem_bytes());
        self.records.pieces(index, block, layer, &self.layers[layer], block_size, size, each);
    }
}

impl Records {
    /// Where a layer of a block lies, in memory and in the record of this index: the runs of K and of V, which are both in
    /// the order of the record.
    #[expect(clippy::too_many_arguments, reason = "parts of a storage of which one is borrowed for writing")]
    fn pieces(
        &self,
        index: usize,
        block: BlockId,
        layer: usize,
        geometry: &Geometry,
        block_size: usize,
        size: usize,
        mut each: impl FnMut(Piece),
    ) {
        let mut first = index * self.block_bytes + self.layers[layer];
        let slots = geometry.kv_heads * block_size;
        let mut runs = |strides: Strides, dim: usize, unit: usize| {
            let mut at = first;
            first += slots * dim * size;
            let end = first;
            strides.runs(block.index(), geometry.kv_heads, block_size, dim).map(move |run| {
                let memory = run.start * size..run.end * size;
                let record = at..at + memory.len();
                at = record.end;
                let follows = end - at;
                Piece { record, memory, unit, follows }
            })
        };
        let mut k = runs(geometry.k, geometry.k_dim, size);
        let mut v = runs(geometry.v, geometry.v_dim, size);
        // In turn: in the default layout they are neighbours in memory.
        loop {
            match (k.next(), v.next()) {
                (None, None) => break,
                (k, v) => k.into_iter().chain(v).for_each(&mut each),
            }
        }
        for strides in geometry.scales.into_iter().flatten() {
            runs(strides, geometry.scale_elems, geometry.scale_elems * size).for_each(&mut each);
        }
    }
}

/// Copies numbers of `size` bytes between the order of the machine and little-endian order, whichever way.
///
/// # Safety
/// As [`Mover::copy`].
unsafe fn copy(mover: &Mover, from: &[u8], to: &mut [u8], size: usize, follows: usize) {
    if cfg!(target_endian = "little") {
        // SAFETY: the caller's contract.
        return unsafe { mover.copy(from, to, follows) };
    }
    for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(size)) {
        from.iter().rev().zip(to).for_each(|(from, to)| *to = *from);
    }
}
