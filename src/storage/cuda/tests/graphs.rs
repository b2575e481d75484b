//! CUDA graphs: what is captured once and replayed for other steps.

use alloc::vec::Vec;

use cudarc::driver::{CudaGraph, CudaSlice, DevicePtr, sys};

use super::super::{CudaTensor, CudaTensorMut};
use super::found;
use super::rig::{DIM, KV_HEADS, LAYERS, Outputs, Q_HEADS, Rig, Row, assert_near, numbers, row, step};
use crate::id::ix;
use crate::layout::DType;
use crate::storage::{AttendParams, KvStorage, QueryMask, StorageError};

/// Query tokens of the captured tensors: most steps have less.
const TOKENS: usize = 16;

/// Tensors at addresses that do not change.
struct Fixed {
    k: CudaSlice<f32>,
    v: CudaSlice<f32>,
    _q: CudaSlice<f32>,
    out: Vec<CudaSlice<f32>>,
    lse: Vec<CudaSlice<f32>>,
    /// Of K, V, queries, outputs and log-sum-exps, for each layer. Asked for in a capture, `cudarc` would have it wait for
    /// what was done outside.
    addresses: Vec<[u64; 5]>,
}

impl Fixed {
    fn new(rig: &Rig) -> Self {
        let nan = |len| rig.upload(&alloc::vec![f32::NAN; len]);
        let layers = || 0..LAYERS;
        let (k, v) = (nan(TOKENS * KV_HEADS * DIM), nan(TOKENS * KV_HEADS * DIM));
        let q = rig.upload(&numbers(99, TOKENS * Q_HEADS * DIM));
        let out: Vec<_> = layers().map(|_| nan(TOKENS * Q_HEADS * DIM)).collect();
        let lse: Vec<_> = layers().map(|_| nan(TOKENS * Q_HEADS)).collect();
        let of_layer =
            |(out, lse)| [&k, &v, &q, out, lse].map(|slice: &CudaSlice<f32>| slice.device_ptr(&rig.stream).0);
        let addresses = out.iter().zip(&lse).map(of_layer).collect();
        Self { k, v, _q: q, out, lse, addresses }
    }
}

/// Everything of a step but its preparation. Both layers get the same K and V.
fn layers(rig: &mut Rig, fixed: &Fixed, params: &AttendParams<'_>) -> Result<(), StorageError> {
    rig.cuda.copy_blocks((&rig.stream).into())?;
    for layer in 0..LAYERS {
        let [k, v, q, out, lse] = fixed.addresses[ix(layer)];
        let kv = [TOKENS, KV_HEADS, DIM];
        // SAFETY: device memory of these shapes, which outlives the graph; one stream uses it.
        let [k, v] = [k, v].map(|first| unsafe { CudaTensor::from_raw::<f32>(first, kv) });
        rig.cuda.write_kv((&rig.stream).into(), layer, k, v)?;
        let heads = [TOKENS, Q_HEADS, DIM];
        // SAFETY: as above.
        let q = unsafe { CudaTensor::from_raw::<f32>(q, heads) };
        // SAFETY: as above.
        let out = unsafe { CudaTensorMut::from_raw::<f32>(out, heads) };
        // SAFETY: as above.
        let out = unsafe { out.with_raw_lse(lse) };
        rig.cuda.attend((&rig.stream).into(), layer, q, out, params)?;
    }
    Ok(())
}

fn captured(rig: &mut Rig, work: impl FnOnce(&mut Rig) -> Result<(), StorageError>) -> Result<CudaGraph, StorageError> {
    let stream = alloc::sync::Arc::clone(&rig.stream);
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    let done = work(rig);
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags);
    done.map(|()| graph.unwrap().unwrap())
}

/// Replays the graph for a step and compares with the CPU.
fn replay(rig: &mut Rig, fixed: &mut Fixed, graph: &CudaGraph, rows: &[Row], copies: &[(u32, u32)], seed: u32) {
    let step = step(rows, copies);
    let tokens = ix(step.num_tokens());
    let (k, v) = (numbers(seed, TOKENS * KV_HEADS * DIM), numbers(seed + 50, TOKENS * KV_HEADS * DIM));
    rig.stream.memcpy_htod(&k, &mut fixed.k).unwrap();
    rig.stream.memcpy_htod(&v, &mut fixed.v).unwrap();
    rig.cuda.prepare((&rig.stream).into(), &step, 6).unwrap();
    graph.launch().unwrap();
    rig.prepare_cpu(&step);
    for layer in 0..LAYERS {
        rig.write_cpu(layer, tokens, seed);
        let cpu = rig.attend_cpu(layer, tokens, &AttendParams::new(24));
        let (out, lse) = (&fixed.out[ix(layer)], &fixed.lse[ix(layer)]);
        let (mut out, mut lse) = (rig.stream.clone_dtoh(out).unwrap(), rig.stream.clone_dtoh(lse).unwrap());
        assert!(out.split_off(tokens * Q_HEADS * DIM).iter().all(|x| x.to_bits() == 0), "padding gets zeros");
        assert!(lse.split_off(tokens * Q_HEADS).iter().all(|x| *x == f32::NEG_INFINITY), "padding sees nothing");
        let cuda: Outputs = (out, lse);
        assert_near(&cuda, &cpu);
    }
    rig.assert_same_bytes();
}

#[test]
fn a_graph_captured_for_a_short_step_replays_a_long_one_and_the_reverse() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F16);
    let mut fixed = Fixed::new(&rig);
    // What is to be read later, and a capture of one token at position 0.
    rig.run(&[row(0, 60, 8..16)], &[], 1);
    rig.run(&[row(0, 20, 20..23)], &[], 1);
    rig.cuda.prepare((&rig.stream).into(), &step(&[row(0, 1, [30])], &[]), 6).unwrap();
    let graph = captured(&mut rig, |rig| layers(rig, &fixed, &AttendParams::new(24))).unwrap();
    let long = [row(60, 1, 8..16), row(20, 1, 20..23), row(0, 9, [31, 32])];
    replay(&mut rig, &mut fixed, &graph, &long, &[], 2);
    replay(&mut rig, &mut fixed, &graph, &[row(0, 1, [33])], &[], 3);
    replay(&mut rig, &mut fixed, &graph, &[], &[], 4);
    // A step with copies, where the captured one had none; then none again.
    replay(&mut rig, &mut fixed, &graph, &[row(21, 1, [20, 21, 34])], &[(22, 34)], 5);
    replay(&mut rig, &mut fixed, &graph, &[row(22, 1, [20, 21, 34])], &[], 6);
    replay(&mut rig, &mut fixed, &graph, &[row(61, 2, 8..16), row(9, 7, [31, 32])], &[], 7);
}

#[test]
fn a_step_is_prepared_outside_of_graphs() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let refused = captured(&mut rig, |rig| rig.cuda.prepare((&rig.stream).into(), &step(&[row(0, 1, [3])], &[]), 1));
    assert_eq!(refused.err(), Some(StorageError::Capturing));
    // And all is as it was.
    rig.run(&[row(0, 9, [3, 4])], &[], 1);
}

#[test]
fn a_capture_that_is_thrown_away_leaves_the_copies_to_be_done() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F16);
    let fixed = Fixed::new(&rig);
    rig.run(&[row(0, 5, [3])], &[], 1);
    let forked = step(&[row(5, 1, [4])], &[(3, 4)]);
    rig.cuda.prepare((&rig.stream).into(), &forked, 6).unwrap();
    drop(captured(&mut rig, |rig| layers(rig, &fixed, &AttendParams::new(24))).unwrap());
    // Nothing was copied, and nobody reads before it is.
    let out = rig.upload(&numbers(1, KV_HEADS * DIM));
    let tensor = || CudaTensor::new(&out, &rig.stream, [1, KV_HEADS, DIM]);
    let pending = rig.cuda.write_kv((&rig.stream).into(), 0, tensor(), tensor());
    assert_eq!(pending, Err(StorageError::CopiesPending { copies: 1 }));
    rig.run(&[row(5, 1, [4])], &[(3, 4)], 2);
}

/// Calls beside a capture neither become part of it nor break it.
#[test]
fn a_capture_and_calls_on_other_streams_leave_each_other_alone() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let fixed = Fixed::new(&rig);
    let other = rig.context.new_stream().unwrap();
    rig.run(&[row(0, 9, [3, 4])], &[], 1);
    let mut records = rig.cuda.records(1).unwrap();
    let block = [crate::BlockId::new(3)];
    // While the stream of the last calls is captured, calls on others are refused.
    captured(&mut rig, |rig| {
        let next = step(&[row(9, 1, [3, 4])], &[]);
        assert_eq!(rig.cuda.prepare((&other).into(), &next, 1), Err(StorageError::Capturing));
        let refused = rig.cuda.read_blocks((&other).into(), &block, &mut records);
        assert_eq!(refused, Err(StorageError::Capturing));
        layers(rig, &fixed, &AttendParams::new(24))
    })
    .unwrap();
    // Another stream is captured beside that of the last calls.
    let side = core::mem::replace(&mut rig.stream, other);
    let graph = captured(&mut rig, |rig| {
        let next = step(&[row(9, 1, [3, 4])], &[]);
        assert_eq!(rig.cuda.prepare((&rig.stream).into(), &next, 1), Err(StorageError::Capturing));
        assert_eq!(rig.cuda.wait_for((&rig.stream).into(), &records), Err(StorageError::Capturing));
        layers(rig, &fixed, &AttendParams::new(24))
    })
    .unwrap();
    drop(graph);
    rig.stream = side;
    rig.run(&[row(9, 1, [3, 4])], &[], 2);
}

#[test]
fn a_replay_sees_the_mask_that_was_set_last() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let mut fixed = Fixed::new(&rig);
    rig.run(&[row(0, 5, [3])], &[], 1);
    rig.prepare(&step(&[row(5, 3, [3])], &[]));
    rig.stream.memcpy_htod(&numbers(7, TOKENS * KV_HEADS * DIM), &mut fixed.k).unwrap();
    rig.stream.memcpy_htod(&numbers(57, TOKENS * KV_HEADS * DIM), &mut fixed.v).unwrap();
    let masks = [[0b001, 0b011, 0b101], [0b111, 0b010, 0b110]];
    let of = |words| QueryMask { words, words_per_token: 1 };
    rig.cuda.set_mask((&rig.stream).into(), of(&masks[0])).unwrap();
    let params = AttendParams::new(24).with_mask(of(&masks[0]));
    let graph = captured(&mut rig, |rig| layers(rig, &fixed, &params)).unwrap();
    for words in [&masks[1], &masks[0]] {
        rig.cuda.set_mask((&rig.stream).into(), of(words)).unwrap();
        graph.launch().unwrap();
        let params = AttendParams::new(24).with_mask(of(words));
        rig.write_cpu(0, 3, 7);
        let (expected, _) = rig.attend_cpu(0, 3, &params);
        let mut out = rig.stream.clone_dtoh(&fixed.out[0]).unwrap();
        out.truncate(expected.len());
        assert_near(&(out, Vec::new()), &(expected, Vec::new()));
    }
    let short = rig.cuda.set_mask((&rig.stream).into(), of(&masks[0][..2]));
    assert!(matches!(short, Err(StorageError::Mask { words: 2, .. })), "{short:?}");
}

#[test]
fn a_mask_is_sent_before_the_capture_and_replayed() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let fixed = Fixed::new(&rig);
    let rows = [row(5, 3, [3])];
    rig.run(&[row(0, 5, [3])], &[], 1);
    rig.prepare(&step(&rows, &[]));
    rig.write(0, 3, 2);
    let words = [0b001, 0b011, 0b101];
    let params = AttendParams::new(24).with_mask(QueryMask { words: &words, words_per_token: 1 });
    let unseen = captured(&mut rig, |rig| layers(rig, &fixed, &params));
    assert_eq!(unseen.err(), Some(StorageError::Capturing));
    let [cuda, cpu] = rig.attend(0, 3, &params);
    assert_near(&cuda, &cpu);
    // The device has the mask now.
    captured(&mut rig, |rig| layers(rig, &fixed, &params)).unwrap();
    // Another one replaces it.
    let words = [0b001, 0b010, 0b110];
    let other = AttendParams::new(24).with_mask(QueryMask { words: &words, words_per_token: 1 });
    let [cuda, cpu] = rig.attend(0, 3, &other);
    assert_near(&cuda, &cpu);
    assert_ne!(rig.attend_cpu(0, 3, &params).0, cpu.0);
}
