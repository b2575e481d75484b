//! The paged cache and its memory: all keys and values of the engine, and all of its attention.

use paged_kv::cache::{Row, Stats};
use paged_kv::error::PlanError;
use paged_kv::layout::KvLayout;
use paged_kv::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage, StorageError};
use paged_kv::{CacheConfig, KvCache, SeqId, Step};

use super::EngineError;
use super::settings::Settings;
use crate::model::{AttentionError, Batch, Config, LayerAttention, Logits, Model};

/// The cache, the memory that it gives out, and the step at hand.
#[derive(Debug)]
pub struct Kv {
    settings: Settings,
    pub(super) cache: KvCache,
    storage: CpuStorage,
    step: Step,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    params: AttendParams<'static>,
    /// Kept for their memory.
    tokens: Vec<u32>,
    positions: Vec<u32>,
}

/// One row of a step: tokens of one sequence, and whether somebody waits for the logits of the last one.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvRow<'a> {
    pub(super) seq: SeqId,
    pub(super) tokens: &'a [u32],
    pub(super) logits: bool,
}

impl Kv {
    /// Allocates exactly `settings.num_blocks` blocks for a model of this shape.
    ///
    /// # Errors
    /// [`EngineError`] where there is no memory for them, or where their number contradicts itself.
    pub fn new(config: &Config, settings: Settings) -> Result<Self, EngineError> {
        let shape = settings.shape(config)?;
        let layout = KvLayout::per_layer(&shape, settings.num_blocks, settings.block_size)?;
        // First the memory: it refuses what no machine has before the bookkeeping for it is set up.
        let (num_blocks, bytes) = (settings.num_blocks, layout.bytes());
        let storage = CpuStorage::new(layout).map_err(|error| match error {
            StorageError::OutOfMemory { .. } => EngineError::NoMemory { num_blocks, bytes },
            error => error.into(),
        })?;
        // No row is ever padded, so that no block is set aside for padding to write to.
        let cache = CacheConfig::new(settings.num_blocks, settings.block_size).with_scratch(false);
        Ok(Self {
            cache: KvCache::new(cache)?,
            storage,
            step: Step::new(),
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            params: AttendParams::new(shape.k_dim),
            settings,
            tokens: Vec::new(),
            positions: Vec::new(),
        })
    }

    /// What it was made from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Bytes that are allocated for keys and values.
    pub(super) fn bytes(&self) -> u64 {
        self.storage.layout().bytes()
    }

    pub(super) fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Plans a step over the rows. On an error nothing has changed.
    pub(super) fn plan(&mut self, rows: &[KvRow<'_>]) -> Result<(), PlanError> {
        let rows: Vec<Row<'_>> = rows.iter().map(|row| Row::ids(row.seq, row.tokens)).collect();
        self.cache.plan(&rows, &mut self.step).map(|_| ())
    }

    /// How many leading tokens of a row of the planned step need not be computed.
    pub(super) fn skipped(&self, row: usize) -> u32 {
        self.step.rows().get(row).map_or(0, |row| row.skip)
    }

    /// Runs the planned step and commits it; returns the logits of the rows that want them, in their order. A step that
    /// fails is aborted.
    pub(super) fn run(&mut self, model: &Model, rows: &[KvRow<'_>]) -> Result<Logits, EngineError> {
        let result = self.forward(model, rows);
        let id = self.step.id();
        match (result, id) {
            (Ok(logits), Some(id)) => {
                self.cache.commit_all(id).map_err(EngineError::bookkeeping)?;
                Ok(logits)
            }
            (result, _) => {
                self.cache.abort_all();
                result
            }
        }
    }

    fn forward(&mut self, model: &Model, rows: &[KvRow<'_>]) -> Result<Logits, EngineError> {
        self.tokens.clear();
        self.positions.clear();
        let mut logit_rows = Vec::with_capacity(rows.len());
        for (row, planned) in rows.iter().zip(self.step.rows()) {
            let skipped = usize::try_from(planned.skip).unwrap_or(usize::MAX);
            self.tokens.extend_from_slice(row.tokens.get(skipped..).unwrap_or(&[]));
            self.positions.extend(planned.start..planned.seq_len());
            if row.logits {
                // A row has at least one token to compute.
                logit_rows.push(self.tokens.len() - 1);
            }
        }
        // No row is padding.
        let num_rows = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        self.storage.prepare((), &self.step, num_rows)?;
        self.storage.copy_blocks(())?;
        let batch = Batch { tokens: &self.tokens, positions: &self.positions, logit_rows: &logit_rows };
        let mut attention = Paged {
            storage: &mut self.storage,
            query: [batch.tokens.len(), self.num_heads, self.head_dim],
            key: [batch.tokens.len(), self.num_kv_heads, self.head_dim],
            params: self.params,
        };
        Ok(model.forward(batch, &mut attention)?)
    }
}

/// The prepared step, as the forward pass sees it.
struct Paged<'a> {
    storage: &'a mut CpuStorage,
    query: [usize; 3],
    key: [usize; 3],
    params: AttendParams<'static>,
}

impl LayerAttention for Paged<'_> {
    fn attend(&mut self, layer: u32, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        self.storage.write_kv((), layer, CpuTensor::new(k, self.key), CpuTensor::new(v, self.key))?;
        let (q, out) = (CpuTensor::new(q, self.query), CpuTensorMut::new(out, self.query));
        self.storage.attend((), layer, q, out, &self.params)?;
        Ok(())
    }
}
