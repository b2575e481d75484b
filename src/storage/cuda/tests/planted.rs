//! Bugs of the host's side, each of which a test notices: on the emulator, where work is done as late as it may be. A GPU may
//! be quick enough to hide them.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use super::super::{CudaTensor, CudaTensorMut};
use super::found;
use super::rig::{DIM, KV_HEADS, Q_HEADS, Rig, assert_near, numbers, row, step};
use crate::layout::DType;
use crate::planted::{self, Bug};
use crate::storage::{AttendParams, KvStorage, QueryMask};

/// Whether the driver found is the emulator, and does its work late, as it does when nobody asks for something else.
fn emulated() -> bool {
    found()
        && std::env::var_os("PAGED_KV_EMULATOR").is_none()
        && Rig::new(DType::F32).context.name().is_ok_and(|name| name.contains("emulated"))
}

/// Five decode steps of one sequence are told to the device at once; nobody waits before all are told.
fn steps_that_are_told_at_once() {
    let mut rig = Rig::new(DType::F32);
    rig.run(&[row(0, 20, 8..14)], &[], 1);
    let shape = [1, KV_HEADS, DIM];
    let kv: alloc::vec::Vec<_> = (0..5).map(|seed| rig.upload(&numbers(seed, KV_HEADS * DIM))).collect();
    let q = rig.upload(&numbers(99, Q_HEADS * DIM));
    let mut outs: alloc::vec::Vec<_> = (0..5).map(|_| rig.upload(&[f32::NAN; Q_HEADS * DIM])).collect();
    rig.stream.synchronize().unwrap();
    for ((at, kv), out) in (20..).zip(&kv).zip(&mut outs) {
        rig.cuda.prepare((&rig.stream).into(), &step(&[row(at, 1, 8..14)], &[]), 1).unwrap();
        let (k, v) = (CudaTensor::new(kv, &rig.stream, shape), CudaTensor::new(kv, &rig.stream, shape));
        rig.cuda.write_kv((&rig.stream).into(), 0, k, v).unwrap();
        let heads = [1, Q_HEADS, DIM];
        let (q, out) = (CudaTensor::new(&q, &rig.stream, heads), CudaTensorMut::new(out, &rig.stream, heads));
        rig.cuda.attend((&rig.stream).into(), 0, q, out, &AttendParams::new(24)).unwrap();
    }
    for ((at, seed), out) in (20..).zip(0..5).zip(&outs) {
        rig.prepare_cpu(&step(&[row(at, 1, 8..14)], &[]));
        let numbers = numbers(seed, KV_HEADS * DIM);
        let kv = crate::storage::CpuTensor::new(&numbers, shape);
        rig.cpu.write_kv((), 0, kv, kv).unwrap();
        let (expected, _) = rig.attend_cpu(0, 1, &AttendParams::new(24));
        let out = rig.stream.clone_dtoh(out).unwrap();
        assert_near(&(out, alloc::vec![]), &(expected, alloc::vec![]));
    }
}

/// A step that is prepared and written on one stream is read on another.
fn a_step_on_two_streams() {
    let mut rig = Rig::new(DType::F32);
    let other = rig.context.new_stream().unwrap();
    rig.prepare(&step(&[row(0, 9, [3, 4])], &[]));
    let q = other.clone_htod(&numbers(99, 9 * Q_HEADS * DIM)).unwrap();
    let mut out = other.clone_htod(&[f32::NAN; 9 * Q_HEADS * DIM]).unwrap();
    other.synchronize().unwrap();
    rig.write(0, 9, 1);
    let heads = [9, Q_HEADS, DIM];
    let to = CudaTensorMut::new(&mut out, &other, heads);
    let q = CudaTensor::new(&q, &other, heads);
    rig.cuda.attend((&other).into(), 0, q, to, &AttendParams::new(24)).unwrap();
    let out = other.clone_dtoh(&out).unwrap();
    let (expected, _) = rig.attend_cpu(0, 9, &AttendParams::new(24));
    assert_near(&(out, alloc::vec![]), &(expected, alloc::vec![]));
}

/// Two layers with masks that differ.
fn masks_that_change() {
    let mut rig = Rig::new(DType::F32);
    rig.prepare(&step(&[row(0, 3, [3])], &[]));
    for (layer, words) in [(0, [0b001, 0b011, 0b101]), (1, [0b111, 0b010, 0b110])] {
        rig.write(layer, 3, 1);
        let params = AttendParams::new(24).with_mask(QueryMask { words: &words, words_per_token: 1 });
        let [cuda, cpu] = rig.attend(layer, 3, &params);
        assert_near(&cuda, &cpu);
    }
}

#[test]
fn every_bug_of_the_host_meets_an_objection() {
    if !emulated() {
        return;
    }
    let tests: [(Bug, fn()); 6] = [
        (Bug::SlabNotAwaited, steps_that_are_told_at_once),
        (Bug::StreamsNotOrdered, a_step_on_two_streams),
        (Bug::MaskNotSent, masks_that_change),
        (Bug::PlanOfAnotherStep, super::decode::steps_of_other_rows),
        (Bug::PlanOfAnotherCapture, super::decode::graphs_in_pieces),
        (Bug::PlanInOnePlace, super::decode::graphs_in_pieces),
    ];
    for (bug, test) in tests {
        test();
        let objection = catch_unwind(AssertUnwindSafe(|| planted::with(bug, test)));
        assert!(objection.is_err(), "{bug:?} passes");
    }
}
