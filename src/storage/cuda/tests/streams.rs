//! The order of calls.

use alloc::sync::Arc;

use super::found;
use super::rig::{Rig, row};
use crate::layout::DType;
use crate::storage::KvStorage;

#[test]
fn a_batch_of_prompts_and_decode_rows_agrees_with_the_cpu() {
    if !found() {
        return;
    }
    for dtype in [DType::F32, DType::I8] {
        let mut rig = Rig::new(dtype);
        rig.run(&[row(0, 30, [3, 4, 5, 6]), row(0, 1, [9]), row(0, 8, [20])], &[], 1);
        rig.run(&[row(30, 1, [3, 4, 5, 6]), row(1, 1, [9]), row(8, 17, [20, 21, 22, 23])], &[], 2);
        rig.run(&[], &[], 3);
        rig.run(&[row(31, 1, [3, 4, 5, 39])], &[(6, 39)], 4);
    }
}

/// Work is done when somebody waits for it: calls on several streams must wait for each other.
#[test]
fn calls_on_several_streams_keep_their_order() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F16);
    let streams = [Arc::clone(&rig.stream), rig.context.new_stream().unwrap(), rig.context.default_stream()];
    for round in 0..6 {
        rig.stream = Arc::clone(&streams[round % 3]);
        let at = u32::try_from(round).unwrap() * 3;
        let copies: &[_] = if round == 4 { &[(2, 12)] } else { &[] };
        let last = if round >= 4 { 12 } else { 2 };
        rig.run(&[row(at, 3, [7, 1, last])], copies, at);
    }
}

/// What was copied and then written to is not copied again.
#[test]
fn copies_run_once() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    rig.run(&[row(0, 5, [1])], &[], 1);
    rig.prepare(&super::rig::step(&[row(5, 1, [2])], &[(1, 2)]));
    rig.write(0, 1, 3);
    rig.cuda.copy_blocks((&rig.stream).into()).unwrap();
    rig.assert_same_bytes();
}
