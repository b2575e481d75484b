//! What the writers write, against values that are derived by hand.
//!
//! The step of most tests, with blocks of 4 (slot = block × 4 + offset):
//! ```text
//! row  blocks   start len  positions  slots             seq_len  ⌈/4⌉  in the last block
//!  0   7 1 9      5    3   5 6 7      1·4 + 1, 2, 3        8      2     4   (9 is lookahead)
//!  1   3          0    2   0 1        3·4 + 0, 1           2      1     2
//!  2   2 5 6      8    1   8          6·4 + 0              9      3     1
//! ```

mod changes;
mod encoding;

use super::*;
use crate::error::WriteError;
use crate::{CacheConfig, KvCache, cache::Row};

pub(super) fn blocks<const N: usize>(ids: [u32; N]) -> [BlockId; N] {
    ids.map(BlockId::new)
}

pub(super) fn example() -> Step {
    let rows = [
        TableRow { start: 5, len: 3, blocks: &blocks([7, 1, 9]) },
        TableRow { start: 0, len: 2, blocks: &blocks([3]) },
        TableRow { start: 8, len: 1, blocks: &blocks([2, 5, 6]) },
    ];
    Step::from_tables(4, &rows, &[]).unwrap()
}

fn with_scratch(mut step: Step, block: u32) -> Step {
    step.groups[0].scratch = Some(BlockId::new(block));
    step
}

const ALIAS: Padding = Padding::AliasFirst;
const SCRATCH: Padding = Padding::Scratch;

#[test]
fn lengths_are_those_after_the_step() {
    let mut seq_lens = [0_i32; 3];
    example().write_seq_lens(0..3, ALIAS, &mut seq_lens).unwrap();
    assert_eq!(seq_lens, [8, 2, 9]);
    let mut padded = [0_u32; 5];
    example().write_seq_lens(0..3, ALIAS, &mut padded).unwrap();
    assert_eq!(padded, [8, 2, 9, 8, 8]);
    with_scratch(example(), 10).write_seq_lens(0..3, SCRATCH, &mut padded).unwrap();
    assert_eq!(padded, [8, 2, 9, 1, 1]);
}

#[test]
fn query_lengths_are_summed_up_from_zero() {
    let mut sums = [9_i64; 4];
    example().write_cu_seqlens(0..3, ALIAS, &mut sums).unwrap();
    assert_eq!(sums, [0, 3, 5, 6]);
    let mut padded = [9_i32; 6];
    example().write_cu_seqlens(0..3, ALIAS, &mut padded).unwrap();
    assert_eq!(padded, [0, 3, 5, 6, 9, 12]);
    with_scratch(example(), 10).write_cu_seqlens(0..3, SCRATCH, &mut padded).unwrap();
    assert_eq!(padded, [0, 3, 5, 6, 7, 8]);
}

#[test]
fn positions_are_those_of_the_query_tokens_and_zero_behind() {
    let mut positions = [9_u32; 8];
    example().write_positions(0..3, &mut positions).unwrap();
    assert_eq!(positions, [5, 6, 7, 0, 1, 8, 0, 0]);
}

#[test]
fn slots_are_block_times_block_size_plus_offset() {
    let mut slots = [0_u32; 6];
    example().write_slot_mapping(0..3, ALIAS, &mut slots).unwrap();
    assert_eq!(slots, [5, 6, 7, 12, 13, 24]);
}

#[test]
fn padded_slots_are_none_or_go_round_in_the_scratch_block() {
    let mut slots = [0_i32; 8];
    example().write_slot_mapping(0..3, ALIAS, &mut slots).unwrap();
    assert_eq!(slots, [5, 6, 7, 12, 13, 24, -1, -1]);
    let mut wide = [0_i64; 8];
    example().write_slot_mapping(0..3, ALIAS, &mut wide).unwrap();
    assert_eq!(wide, [5, 6, 7, 12, 13, 24, -1, -1]);
    // Scratch block 10 has the slots 40 to 43; six padding tokens go round once and a half.
    let mut scratch = [0_u32; 12];
    with_scratch(example(), 10).write_slot_mapping(0..3, SCRATCH, &mut scratch).unwrap();
    assert_eq!(scratch, [5, 6, 7, 12, 13, 24, 40, 41, 42, 43, 40, 41]);
}

#[test]
fn tables_include_lookahead_and_are_filled_with_a_block_that_is_valid_to_load() {
    let mut tables = [99_i32; 12];
    example().write_block_tables(0..3, 4, ALIAS, &mut tables).unwrap();
    // Without a scratch block a row is filled with its own first block.
    assert_eq!(tables, [7, 1, 9, 7, 3, 3, 3, 3, 2, 5, 6, 2]);
    with_scratch(example(), 10).write_block_tables(0..3, 4, ALIAS, &mut tables).unwrap();
    assert_eq!(tables, [7, 1, 9, 10, 3, 10, 10, 10, 2, 5, 6, 10]);
}

#[test]
fn padding_rows_of_a_table_alias_the_first_row_or_name_the_scratch_block() {
    let mut tables = [99_u32; 12];
    example().write_block_tables(0..2, 3, ALIAS, &mut tables).unwrap();
    assert_eq!(tables, [7, 1, 9, 3, 3, 3, 7, 1, 9, 7, 1, 9]);
    with_scratch(example(), 10).write_block_tables(0..2, 3, SCRATCH, &mut tables).unwrap();
    assert_eq!(tables, [7, 1, 9, 3, 10, 10, 10, 10, 10, 10, 10, 10]);
}

#[test]
fn compressed_rows_hold_exactly_the_blocks_in_use() {
    let (mut indptr, mut indices, mut last) = ([9_i32; 4], [99_i32; 8], [9_i32; 3]);
    let written = example().write_csr(0..3, ALIAS, &mut indptr, &mut indices, &mut last).unwrap();
    assert_eq!((indptr, last, written), ([0, 2, 3, 6], [4, 2, 1], 6));
    assert_eq!(indices, [7, 1, 3, 2, 5, 6, 99, 99]);
}

#[test]
fn compressed_padding_rows_count_like_rows() {
    let (mut indptr, mut indices, mut last) = ([9_u32; 6], [99_u32; 10], [9_u32; 5]);
    let written = example().write_csr(0..3, ALIAS, &mut indptr, &mut indices, &mut last).unwrap();
    assert_eq!((indptr, last, written), ([0, 2, 3, 6, 8, 10], [4, 2, 1, 4, 4], 10));
    assert_eq!(indices, [7, 1, 3, 2, 5, 6, 7, 1, 7, 1]);
    let step = with_scratch(example(), 10);
    let written = step.write_csr(0..3, SCRATCH, &mut indptr, &mut indices, &mut last).unwrap();
    assert_eq!((indptr, last, written), ([0, 2, 3, 6, 7, 8], [4, 2, 1, 1, 1], 8));
    assert_eq!(indices[6..8], [10, 10]);
}

#[test]
fn a_range_of_rows_stands_for_itself() {
    // Rows 1 and 2 alone: sums and slots begin anew, and padding aliases row 1, the first of the range.
    let step = example();
    let (mut sums, mut slots, mut positions) = ([0_u32; 3], [0_u32; 3], [0_u32; 3]);
    step.write_cu_seqlens(1..3, ALIAS, &mut sums).unwrap();
    step.write_slot_mapping(1..3, ALIAS, &mut slots).unwrap();
    step.write_positions(1..3, &mut positions).unwrap();
    assert_eq!((sums, slots, positions), ([0, 2, 3], [12, 13, 24], [0, 1, 8]));
    let (mut lens, mut tables) = ([0_u32; 3], [0_u32; 9]);
    step.write_seq_lens(1..3, ALIAS, &mut lens).unwrap();
    step.write_block_tables(1..3, 3, ALIAS, &mut tables).unwrap();
    assert_eq!((lens, tables), ([2, 9, 2], [3, 3, 3, 2, 5, 6, 3, 3, 3]));
    let (mut indptr, mut indices, mut last) = ([0_u32; 3], [0_u32; 4], [0_u32; 2]);
    step.write_csr(1..3, ALIAS, &mut indptr, &mut indices, &mut last).unwrap();
    assert_eq!((indptr, indices, last), ([0, 1, 4], [3, 2, 5, 6], [2, 1]));
}

#[test]
fn an_empty_range_writes_nothing_and_cannot_be_aliased() {
    let step = example();
    let mut sums = [9_i32; 1];
    step.write_cu_seqlens(3..3, ALIAS, &mut sums).unwrap();
    step.write_slot_mapping::<i32>(3..3, ALIAS, &mut []).unwrap();
    step.write_block_tables::<i32>(3..3, 2, ALIAS, &mut []).unwrap();
    assert_eq!(sums, [0]);
    assert_eq!(step.write_seq_lens(3..3, ALIAS, &mut [0_i32]), Err(WriteError::CannotPad));
    assert_eq!(step.write_block_tables(3..3, 2, ALIAS, &mut [0_i32; 2]), Err(WriteError::CannotPad));
    let csr = step.write_csr(3..3, ALIAS, &mut [0_i32; 2], &mut [0; 2], &mut [0; 1]);
    assert_eq!(csr, Err(WriteError::CannotPad));
}

#[test]
fn rows_that_the_step_does_not_have_are_refused() {
    let expected = Err(WriteError::NoSuchRows { end: 4, rows: 3 });
    let (step, mut out) = (example(), [0_i32; 64]);
    assert_eq!(step.write_seq_lens(2..4, ALIAS, &mut out), expected);
    assert_eq!(step.write_cu_seqlens(2..4, ALIAS, &mut out), expected);
    assert_eq!(step.write_positions(2..4, &mut out), expected);
    assert_eq!(step.write_slot_mapping(2..4, ALIAS, &mut out), expected);
    assert_eq!(step.write_block_tables(2..4, 4, ALIAS, &mut out), expected);
    assert_eq!(step.write_csr(2..4, ALIAS, &mut [0; 4], &mut out, &mut [0; 4]).map(|_| ()), expected);
    #[expect(clippy::reversed_empty_ranges, reason = "bad input")]
    let reversed = step.write_positions(2..1, &mut out);
    assert_eq!(reversed, Err(WriteError::NoSuchRows { end: 1, rows: 3 }));
    assert_eq!(step.table_edits(2..4).count(), 0);
}

#[test]
fn buffers_that_are_too_small_are_refused_with_the_size_needed() {
    let step = example();
    let small = |needed, given| Err(WriteError::TooSmall { needed, given });
    assert_eq!(step.write_seq_lens(0..3, ALIAS, &mut [0_i32; 2]), small(3, 2));
    assert_eq!(step.write_cu_seqlens(0..3, ALIAS, &mut [0_i32; 3]), small(4, 3));
    assert_eq!(step.write_positions(0..3, &mut [0_i32; 5]), small(6, 5));
    assert_eq!(step.write_slot_mapping(0..3, ALIAS, &mut [0_i32; 5]), small(6, 5));
    assert_eq!(step.write_block_tables(0..3, 3, ALIAS, &mut [0_i32; 8]), small(9, 8));
    assert_eq!(step.write_block_tables(0..3, 0, ALIAS, &mut [0_i32; 8]), small(3, 8));
    let wide = Err(WriteError::RowTooWide { row: 0, blocks: 3, columns: 2 });
    assert_eq!(step.write_block_tables(0..3, 2, ALIAS, &mut [0_i32; 6]), wide);
    let csr = |indptr: usize, indices: usize, last: usize| {
        let mut buffers = [indptr, indices, last].map(|len| alloc::vec![0_i32; len]);
        let [indptr, indices, last] = &mut buffers;
        step.write_csr(0..3, ALIAS, indptr, indices, last).map(|_| ())
    };
    assert_eq!(
        (csr(4, 6, 3), csr(3, 6, 3), csr(4, 5, 3), csr(4, 6, 2)),
        (Ok(()), small(4, 3), small(6, 5), small(3, 2))
    );
}

#[test]
fn padding_wants_what_it_pads_with() {
    let step = example();
    assert_eq!(step.write_slot_mapping(0..3, ALIAS, &mut [0_u32; 7]), Err(WriteError::CannotPad));
    assert_eq!(step.write_slot_mapping(0..3, SCRATCH, &mut [0_i32; 7]), Err(WriteError::CannotPad));
    assert_eq!(step.write_seq_lens(0..3, SCRATCH, &mut [0_u32; 4]), Err(WriteError::CannotPad));
    assert_eq!(step.write_cu_seqlens(0..3, SCRATCH, &mut [0_u32; 5]), Err(WriteError::CannotPad));
    assert_eq!(step.write_block_tables(0..3, 3, SCRATCH, &mut [0_u32; 12]), Err(WriteError::CannotPad));
    let csr = step.write_csr(0..3, SCRATCH, &mut [0_u32; 5], &mut [0; 9], &mut [0; 4]);
    assert_eq!(csr, Err(WriteError::CannotPad));
    // Where nothing is padded nothing is wanted.
    assert_eq!(step.write_slot_mapping(0..3, SCRATCH, &mut [0_u32; 6]), Ok(()));
}

#[test]
fn numbers_beyond_the_element_type_are_an_error_and_never_wrap() {
    // vLLM 1486: an i32 that overflowed at block x stride. Block 3 x 10^9 of one token is slot 3 x 10^9 > 2^31.
    let large = 3_000_000_000;
    let row = TableRow { start: 0, len: 1, blocks: &blocks([large]) };
    let step = Step::from_tables(1, &[row], &[]).unwrap();
    let overflow = Err(WriteError::Overflow { value: u64::from(large) });
    assert_eq!(step.write_slot_mapping(0..1, ALIAS, &mut [0_i32]), overflow);
    assert_eq!(step.write_block_tables(0..1, 1, ALIAS, &mut [0_i32]), overflow);
    assert_eq!(step.write_csr(0..1, ALIAS, &mut [0_i32; 2], &mut [0], &mut [0]).map(|_| ()), overflow);
    let (mut narrow, mut wide) = ([0_u32], [0_i64]);
    step.write_slot_mapping(0..1, ALIAS, &mut narrow).unwrap();
    step.write_block_tables(0..1, 1, ALIAS, &mut wide).unwrap();
    assert_eq!((narrow, wide), ([large], [i64::from(large)]));
    // The first that does not fit, and the last that does.
    for (block, fits) in [(0x7fff_ffff, true), (0x8000_0000, false)] {
        let row = TableRow { start: 0, len: 1, blocks: &blocks([block]) };
        let step = Step::from_tables(1, &[row], &[]).unwrap();
        assert_eq!(step.write_slot_mapping(0..1, ALIAS, &mut [0_i32]).is_ok(), fits);
    }
}

#[test]
fn positions_of_long_sequences_overflow_narrow_types_too() {
    // One block of 2^32 - 1 tokens, of which the last is computed: length 2^32 - 1, position 2^32 - 2.
    let row = TableRow { start: u32::MAX - 1, len: 1, blocks: &blocks([0]) };
    let step = Step::from_tables(u32::MAX, &[row], &[]).unwrap();
    let mut positions = [0_u32];
    step.write_positions(0..1, &mut positions).unwrap();
    assert_eq!(positions, [u32::MAX - 1]);
    let overflow = |value| Err(WriteError::Overflow { value });
    assert_eq!(step.write_positions(0..1, &mut [0_i32]), overflow(u64::from(u32::MAX) - 1));
    assert_eq!(step.write_seq_lens(0..1, ALIAS, &mut [0_i32]), overflow(u64::from(u32::MAX)));
    let csr = step.write_csr(0..1, ALIAS, &mut [0_i64; 2], &mut [0], &mut [0]);
    assert_eq!(csr, Ok(1));
}

#[test]
fn edits_are_what_a_step_changed_in_its_rows_tables() {
    // Blocks of 4, ids from 0. A prompt of 5 is new whole: columns 0 and 1. Positions 5 to 7 stay in block 1: none.
    // Position 8 opens column 2. A fork of 9 tokens is new whole, and its tail is a copy.
    let mut cache = KvCache::new(CacheConfig::new(8, 4).with_scratch(false)).unwrap();
    let seq = cache.create_blank(&crate::Scope::default()).unwrap();
    let mut step = Step::new();
    let edit = |seq: SeqId, column, block| TableEdit { seq_index: seq.index(), column, block: BlockId::new(block) };
    let steps =
        [(5, alloc::vec![edit(seq, 0, 0), edit(seq, 1, 1)]), (3, alloc::vec![]), (1, alloc::vec![edit(seq, 2, 2)])];
    for (count, expected) in steps {
        let id = cache.plan(&[Row::count(seq, count)], &mut step).unwrap();
        assert_eq!(step.table_edits(0..1).collect::<Vec<_>>(), expected);
        cache.commit_all(id).unwrap();
    }
    let fork = cache.fork(seq).unwrap();
    cache.plan(&[Row::count(fork, 1), Row::count(seq, 1)], &mut step).unwrap();
    let expected = [edit(fork, 0, 0), edit(fork, 1, 1), edit(fork, 2, 3)];
    assert_eq!(step.table_edits(0..2).collect::<Vec<_>>(), expected);
    assert_eq!(step.table_edits(1..2).count(), 0);
}

#[test]
fn tables_by_hand_are_checked() {
    let refused = |block_size, start, len, ids: &[u32]| {
        let blocks: Vec<_> = ids.iter().copied().map(BlockId::new).collect();
        Step::from_tables(block_size, &[TableRow { start, len, blocks: &blocks }], &[]).is_err()
    };
    assert!(refused(0, 0, 1, &[1]));
    assert!(refused(4, 0, 0, &[1]));
    assert!(refused(4, 3, 2, &[1]));
    assert!(refused(4, u32::MAX, 1, &[1]));
    // Block 2^30 of 4 tokens would have the slots 2^32 ...; the one before ends at 2^32, which is no u32 either.
    assert!(refused(4, 0, 1, &[1 << 30]));
    assert!(refused(4, 0, 1, &[(1 << 30) - 1]));
    assert!(!refused(4, 0, 1, &[(1 << 30) - 2]));
    assert!(!refused(4, 3, 1, &[1]));
    let copy = BlockCopy { src: BlockId::new(0), dst: BlockId::new(1 << 30) };
    assert!(Step::from_tables(4, &[], &[copy]).is_err());
}
