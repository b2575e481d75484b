//! An engine with its own memory takes the metadata only: slots, tables and copies, in the types its kernels read.
//!
//! `cargo run --example 04_own_tensors`

use std::error::Error;

use paged_kv::cache::Row;
use paged_kv::step::Padding;
use paged_kv::{CacheConfig, KvCache, Query, Scope, Step};

const NUM_BLOCKS: u32 = 16;
const BLOCK_SIZE: u32 = 4;
/// Rows that a captured graph would run.
const MAX_ROWS: usize = 4;
const MAX_BLOCKS_PER_ROW: usize = 8;

/// The engine's own K memory: one number per slot, for show.
struct Memory(Vec<f32>);

impl Memory {
    fn copy(&mut self, step: &Step) {
        let size = BLOCK_SIZE as usize;
        for copy in step.tables().copies() {
            let src = copy.src.index() * size;
            self.0.copy_within(src..src + size, copy.dst.index() * size);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut cache = KvCache::new(CacheConfig::new(NUM_BLOCKS, BLOCK_SIZE))?;
    let mut memory = Memory(vec![f32::NAN; (NUM_BLOCKS * BLOCK_SIZE) as usize]);
    let mut step = Step::new();

    let prompt = [10, 11, 12, 13, 14, 15];
    let first = cache.create(&Scope::default(), &prompt, Query::default())?.seq;
    let id = cache.plan(&[Row::ids(first, &prompt)], &mut step)?;
    for (slot, token) in step.tables().slots().iter().zip(prompt) {
        memory.0[slot.index()] = token as f32;
    }
    cache.commit_all(id)?;

    // Two sequences that differ from here on, padded to the rows of the graph.
    let second = cache.fork(first)?;
    let id = cache.plan(&[Row::ids(first, &[20]), Row::ids(second, &[30])], &mut step)?;
    memory.copy(&step);

    let rows = 0..step.rows().len();
    let mut slots = [0_i64; MAX_ROWS];
    step.write_slot_mapping(rows.clone(), Padding::AliasFirst, &mut slots)?;
    let mut tables = [0_i32; MAX_ROWS * MAX_BLOCKS_PER_ROW];
    step.write_block_tables(rows.clone(), MAX_BLOCKS_PER_ROW, Padding::AliasFirst, &mut tables)?;
    let mut seq_lens = [0_i32; MAX_ROWS];
    step.write_seq_lens(rows.clone(), Padding::AliasFirst, &mut seq_lens)?;
    let (mut indptr, mut indices, mut last) = ([0_i32; MAX_ROWS + 1], [0_i32; 16], [0_i32; MAX_ROWS]);
    let used = step.write_csr(rows, Padding::AliasFirst, &mut indptr, &mut indices, &mut last)?;
    println!("slots     {slots:?}");
    println!("seq_lens  {seq_lens:?}");
    println!("tables    {:?}", tables.chunks(MAX_BLOCKS_PER_ROW).map(|row| &row[..3]).collect::<Vec<_>>());
    println!("csr       {indptr:?} {:?} {last:?}", &indices[..used]);

    // "The kernel": what each row reads is its own sequence, and the padding writes nothing.
    for (slot, token) in slots.iter().zip([20.0, 30.0]) {
        memory.0[usize::try_from(*slot)?] = token;
    }
    assert_eq!(slots[2..], [-1, -1]);
    cache.commit_all(id)?;
    for (seq, last) in [(first, 20.0), (second, 30.0)] {
        let table = cache.sequence(seq)?.table();
        let read: Vec<f32> =
            (0..7).filter_map(|position| table.slot(position, BLOCK_SIZE)).map(|slot| memory.0[slot.index()]).collect();
        println!("{seq:?} reads {read:?}");
        assert_eq!(read, [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, last]);
    }
    Ok(())
}
