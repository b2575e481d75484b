//! The suite bites: storages broken on purpose, each of which a law must object to.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::harness::{Cpu, Harness};
use super::{laws, trunks};
use crate::id::{BlockId, Slot, ix};
use crate::layout::{DType, KvLayout};
use crate::planted;
use crate::step::{Step, TableRow};
use crate::storage::AttendParams;

/// Declares the bugs, as types to be a parameter of [`Planted`].
trait Bug {
    /// The row that attention is given instead: its first position, and its blocks.
    fn row(start: u32, blocks: &mut Vec<BlockId>) -> u32 {
        let _ = blocks;
        start
    }

    const SKIPS_COPIES: bool = false;
    const FORGETS_ONE_COPY: bool = false;

    fn layer(layer: u32) -> u32 {
        layer
    }

    /// The query heads of one token, each of `k_dim` elements.
    fn query(q: &mut [f32], k_dim: usize) {
        let _ = (q, k_dim);
    }

    fn output(out: &mut [f32]) {
        let _ = out;
    }
}

struct NoBug;
impl Bug for NoBug {}

/// The mask is one too far: a query sees the key after its own, and the last one a slot beyond its sequence.
struct SeesOneMore;
impl Bug for SeesOneMore {
    fn row(start: u32, blocks: &mut Vec<BlockId>) -> u32 {
        // The slot beyond may lie in a block of lookahead, which every table of the suite has.
        let _ = blocks;
        start + 1
    }
}

/// The mask is one short: a query does not see its own key.
struct SeesOneLess;
impl Bug for SeesOneLess {
    fn row(start: u32, _: &mut Vec<BlockId>) -> u32 {
        start.saturating_sub(1)
    }
}

struct SwapsTwoBlocks;
impl Bug for SwapsTwoBlocks {
    fn row(start: u32, blocks: &mut Vec<BlockId>) -> u32 {
        if blocks.len() > 2 {
            blocks.swap(0, 1);
        }
        start
    }
}

struct SkipsCopies;
impl Bug for SkipsCopies {
    const SKIPS_COPIES: bool = true;
}

struct ForgetsOneCopy;
impl Bug for ForgetsOneCopy {
    const FORGETS_ONE_COPY: bool = true;
}

struct KnowsOneLayer;
impl Bug for KnowsOneLayer {
    fn layer(_: u32) -> u32 {
        0
    }
}

/// Every query head gets the query of the next one.
struct MixesHeads;
impl Bug for MixesHeads {
    fn query(q: &mut [f32], k_dim: usize) {
        q.rotate_left(k_dim);
    }
}

struct GivesZeros;
impl Bug for GivesZeros {
    fn output(out: &mut [f32]) {
        out.fill(0.0);
    }
}

/// One element in a thousand is off by a thousandth.
struct IsSlightlyOff;
impl Bug for IsSlightlyOff {
    fn output(out: &mut [f32]) {
        out.iter_mut().step_by(1000).for_each(|x| *x += 1e-3);
    }
}

/// The CPU storage with a bug.
struct Planted<B> {
    inner: Cpu,
    attended: Option<Step>,
    prepared: Option<Step>,
    bug: core::marker::PhantomData<B>,
}

impl<B: Bug> Planted<B> {
    /// The step as attention gets it.
    fn spoiled(step: &Step) -> Result<Step, String> {
        let mut rows = Vec::new();
        for (index, row) in step.rows().iter().enumerate() {
            let mut blocks = step.tables().table(index).to_vec();
            rows.push((B::row(row.start, &mut blocks), row.len, blocks));
        }
        let rows: Vec<_> =
            rows.iter().map(|(start, len, blocks)| TableRow { start: *start, len: *len, blocks }).collect();
        Step::from_tables(step.tables().block_size(), &rows, &[]).map_err(|error| error.to_string())
    }
}

impl<B: Bug> Harness for Planted<B> {
    fn choose(isa: &'static str) -> bool {
        Cpu::choose(isa)
    }

    fn new(layout: KvLayout) -> Result<Self, String> {
        Ok(Self { inner: Cpu::new(layout)?, attended: None, prepared: None, bug: core::marker::PhantomData })
    }

    fn layout(&self) -> &KvLayout {
        self.inner.layout()
    }

    fn fill(&mut self, value: f32) {
        self.inner.fill(value);
    }

    fn prepare(&mut self, step: &Step) -> Result<(), String> {
        let (rows, tables) = (step.rows(), step.tables());
        let rows: Vec<_> = (rows.iter().enumerate())
            .map(|(index, row)| TableRow { start: row.start, len: row.len, blocks: tables.table(index) })
            .collect();
        let copies = match tables.copies() {
            _ if B::SKIPS_COPIES => &[],
            [_, rest @ ..] if B::FORGETS_ONE_COPY => rest,
            all => all,
        };
        let step = Step::from_tables(tables.block_size(), &rows, copies).map_err(|error| error.to_string())?;
        self.attended = Some(Self::spoiled(&step)?);
        self.inner.prepare(&step)?;
        self.prepared = Some(step);
        Ok(())
    }

    fn copy_blocks(&mut self) -> Result<(), String> {
        self.inner.copy_blocks()
    }

    fn write_kv(&mut self, layer: u32, k: &[f32], v: &[f32]) -> Result<(), String> {
        self.inner.write_kv(B::layer(layer), k, v)
    }

    fn attend(
        &mut self,
        layer: u32,
        q: &[f32],
        q_heads: usize,
        params: &AttendParams<'_>,
    ) -> Result<(Vec<f32>, Vec<f32>), String> {
        let mut q = q.to_vec();
        let k_dim = ix(self.layout().layers()[ix(layer)].k_dim);
        q.chunks_exact_mut(q_heads * k_dim).for_each(|q| B::query(q, k_dim));
        if let Some(step) = &self.attended {
            self.inner.prepare(step)?;
        }
        let (mut out, lse) = self.inner.attend(B::layer(layer), &q, q_heads, params)?;
        B::output(&mut out);
        // Back to the sound step, whose copies have run, for the writes of the next layer.
        if let Some(step) = &self.prepared {
            let rows: Vec<_> = (step.rows().iter().enumerate())
                .map(|(index, row)| TableRow { start: row.start, len: row.len, blocks: step.tables().table(index) })
                .collect();
            let step = Step::from_tables(step.tables().block_size(), &rows, &[]).map_err(|error| error.to_string())?;
            self.inner.prepare(&step)?;
        }
        Ok((out, lse))
    }

    fn read_slot(&self, layer: u32, slot: Slot) -> Result<(Vec<f32>, Vec<f32>), String> {
        self.inner.read_slot(layer, slot)
    }
}

/// The laws that object to a bug.
fn objections<B: Bug>() -> Vec<&'static str> {
    type Law = fn(DType) -> Result<(), String>;
    let all: [(&str, Law); 8] = [
        ("float64", laws::every_shape_agrees_with_float64::<Planted<B>>),
        ("stale", laws::stale_bytes_change_nothing::<Planted<B>>),
        ("blocks", laws::the_choice_of_blocks_changes_nothing::<Planted<B>>),
        ("later", laws::what_comes_later_changes_nothing::<Planted<B>>),
        ("chunks", laws::the_cut_into_chunks_changes_nothing::<Planted<B>>),
        ("copy", laws::a_copy_is_a_whole_block_on_all_layers::<Planted<B>>),
        ("order", laws::the_order_of_copies_changes_nothing::<Planted<B>>),
        ("fork", laws::a_fork_that_appends_leaves_its_parent_unchanged::<Planted<B>>),
    ];
    all.iter().filter(|(_, law)| law(DType::F32).is_err()).map(|(name, _)| *name).collect()
}

#[test]
fn a_sound_storage_has_no_objection() {
    assert!(objections::<NoBug>().is_empty());
}

#[test]
fn every_planted_bug_meets_the_objection_that_is_due() {
    let due: [(&str, Vec<&str>, &[&str]); 9] = [
        ("sees one more", objections::<SeesOneMore>(), &["float64", "stale", "later"]),
        ("sees one less", objections::<SeesOneLess>(), &["float64", "chunks"]),
        ("swaps two blocks", objections::<SwapsTwoBlocks>(), &["float64"]),
        ("skips copies", objections::<SkipsCopies>(), &["copy", "fork"]),
        ("forgets one copy", objections::<ForgetsOneCopy>(), &["copy"]),
        ("knows one layer", objections::<KnowsOneLayer>(), &["float64"]),
        ("mixes heads", objections::<MixesHeads>(), &["float64"]),
        ("gives zeros", objections::<GivesZeros>(), &["float64"]),
        ("is slightly off", objections::<IsSlightlyOff>(), &["float64"]),
    ];
    for (bug, objections, due) in due {
        std::println!("{bug}: {objections:?}");
        assert!(due.iter().all(|law| objections.contains(law)), "{bug} passes one of {due:?}");
    }
}

/// Bugs within the storage: prefixes that rows share, and who goes on from where.
#[test]
fn every_bug_of_shared_prefixes_meets_an_objection() {
    let objection = || trunks::blocks_that_sequences_share_change_no_bit::<Cpu>(DType::F32).err();
    assert_eq!(objection(), None);
    for bug in [planted::Bug::PausedElsewhere, planted::Bug::SharedTooLong] {
        let objection = planted::with(bug, objection);
        std::println!("{bug:?}: {objection:?}");
        assert!(objection.is_some(), "{bug:?}");
    }
}
