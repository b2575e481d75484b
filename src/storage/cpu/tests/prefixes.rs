//! Prefixes that rows of a step share.

use super::*;

/// Five rows of one token and 2 KV heads of 8 elements, which share their first `prefix` tokens, up to 1,000, and have some
/// more of their own; `group` query heads per KV head.
fn attend_shared(storage: &mut CpuStorage, step: &Step, group: usize, params: &AttendParams<'_>, out: &mut [f32]) {
    storage.prepare((), step, 5).unwrap();
    let (q, shape) = ([0.5_f32; 5 * 2 * 65 * 8], [5, 2 * group, 8]);
    let to = CpuTensorMut::new(out, shape);
    storage.attend((), 0, CpuTensor::new(&q, shape), to, params).unwrap();
}

/// Blocks of 8: 125 that all have, or those of their own, and 5 more each.
fn step_shared(prefix: u32) -> (CpuStorage, Step) {
    let layout = KvLayout::per_layer(&KvShape::new(1, 2, 8, DType::F32), 5 * 130, 8).unwrap();
    let own = |row: u32, block: u32| BlockId::new(if block < prefix / 8 { block } else { row * 130 + block });
    let tables: Vec<Vec<_>> = (0..5).map(|row| (0..130).map(|block| own(row, block)).collect()).collect();
    let rows: Vec<_> = tables.iter().zip(1003..).map(|(blocks, start)| TableRow { start, len: 1, blocks }).collect();
    (CpuStorage::new(layout).unwrap(), Step::from_tables(8, &rows, &[]).unwrap())
}

#[test]
fn a_prefix_that_rows_share_is_read_once() {
    let read = |prefix: u32, group: usize, params: AttendParams<'_>| {
        let (mut storage, step) = step_shared(prefix);
        let mut out = [0.0; 5 * 2 * 65 * 8];
        attend::SPANS_READ.set(0);
        attend_shared(&mut storage, &step, group, &params, &mut out);
        attend::SPANS_READ.get()
    };
    let plain = AttendParams::new(8);
    // 2 KV heads; 4 spans of 256 begin before position 1,004 to 1,008.
    assert_eq!(read(0, 1, plain), 2 * 5 * 4);
    assert_eq!(read(255, 1, plain), 2 * 5 * 4);
    // 1 and 3 of them once, the others by each row.
    assert_eq!(read(256, 1, plain), 2 * (1 + 5 * 3));
    assert_eq!(read(1000, 1, plain), 2 * (3 + 5));
    // 32 query heads: of 128 rows 4 queries go together, so that 5 do by 2 and 3.
    assert_eq!(read(1000, 32, plain), 2 * (2 * 3 + 5));
    // Of 65 no two do.
    assert_eq!(read(1000, 65, plain), 2 * 5 * 4);
    // A window that all of it lies within; one that cuts the first of 1,008 off; one from position 504 or later on.
    assert_eq!(read(1000, 1, plain.with_window(1008)), 2 * (3 + 5));
    assert_eq!(read(1000, 1, plain.with_window(1007)), 2 * 5 * 4);
    assert_eq!(read(1000, 1, plain.with_window(500)), 2 * 5 * 3);
}

#[test]
fn rows_that_share_allocate_nothing_once_buffers_have_grown() {
    let (mut storage, step) = step_shared(1000);
    let mut out = [0.0; 5 * 2 * 8];
    let mut pass = || attend_shared(&mut storage, &step, 1, &AttendParams::new(8), &mut out);
    pass();
    assert_eq!(allocation_counter::measure(pass).count_total, 0);
}
