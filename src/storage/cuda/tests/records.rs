//! Blocks as records, to and from the other storage, and beside the work of steps.

use alloc::vec::Vec;

use super::super::CudaStorage;
use super::found;
use super::rig::{BLOCK_SIZE, BLOCKS, LIMITS, Rig, layout, row};
use crate::id::BlockId;
use crate::layout::{DType, KvLayout, KvShape};
use crate::storage::{CpuStorage, StorageError};

const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8];

fn ids(blocks: &[u32]) -> Vec<BlockId> {
    blocks.iter().copied().map(BlockId::new).collect()
}

#[test]
fn records_are_those_of_the_cpu_and_go_both_ways() {
    if !found() {
        return;
    }
    for dtype in DTYPES {
        let mut rig = Rig::new(dtype);
        rig.run(&[row(0, 30, [3, 4, 5, 6]), row(0, 8, [20])], &[], 1);
        let blocks = ids(&[4, 20, 3, 4, 39]);
        let mut expected = alloc::vec![0; blocks.len() * rig.cpu.block_bytes()];
        rig.cpu.read_blocks(&blocks, &mut expected).unwrap();
        assert_eq!(rig.cuda.block_bytes(), rig.cpu.block_bytes());
        let mut records = rig.cuda.records(6).unwrap();
        rig.cuda.read_blocks((&rig.stream).into(), &blocks, &mut records).unwrap();
        assert!(records.bytes().unwrap()[..expected.len()] == expected, "{dtype:?}");
        assert_eq!(records.is_done(), Ok(true));

        // To a storage across layers of the same shape, and from there home to other blocks.
        let shape = KvShape::new(2, 2, 24, dtype);
        let other = KvLayout::cross_layer(&shape, 9, BLOCK_SIZE).unwrap();
        let mut other = CudaStorage::new(&rig.context, other, LIMITS).unwrap();
        let there = ids(&[8, 0, 2, 5]);
        other.write_blocks((&rig.stream).into(), &there, &mut records).unwrap();
        let mut back = other.records(4).unwrap();
        other.read_blocks((&rig.stream).into(), &there, &mut back).unwrap();
        let home = ids(&[30, 31, 32, 33]);
        rig.cpu.write_blocks(&home, back.bytes().unwrap()).unwrap();
        rig.cuda.write_blocks((&rig.stream).into(), &home, &mut back).unwrap();
        rig.assert_same_bytes();
        // Which attention reads as it read those they came from.
        rig.run(&[row(30, 1, [32, 30, 5, 6])], &[], 2);
    }
}

#[test]
fn a_transfer_runs_beside_steps_and_is_waited_for() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F16);
    let swaps = rig.context.new_stream().unwrap();
    rig.run(&[row(0, 16, [3, 4])], &[], 1);
    let mut expected = alloc::vec![0; 2 * rig.cpu.block_bytes()];
    rig.cpu.read_blocks(&ids(&[3, 4]), &mut expected).unwrap();
    let mut records = rig.cuda.records(2).unwrap();
    // Out, on a stream of its own: behind the writes of the step before.
    rig.cuda.read_blocks((&swaps).into(), &ids(&[3, 4]), &mut records).unwrap();
    // A step goes on meanwhile, in other blocks.
    rig.run(&[row(0, 5, [9])], &[], 2);
    assert!(records.bytes().unwrap() == expected);
    // In again, on that stream; the step that reads it waits.
    rig.cuda.write_blocks((&swaps).into(), &ids(&[11, 12]), &mut records).unwrap();
    rig.cpu.write_blocks(&ids(&[11, 12]), &expected).unwrap();
    rig.cuda.wait_for((&rig.stream).into(), &records).unwrap();
    rig.run(&[row(15, 1, [11, 12])], &[], 3);
}

#[test]
fn transfers_that_do_not_fit_are_refused() {
    if !found() {
        return;
    }
    let mut rig = Rig::new(DType::F32);
    let mut records = rig.cuda.records(1).unwrap();
    let stream = alloc::sync::Arc::clone(&rig.stream);
    let block_bytes = rig.cuda.block_bytes();
    let outside = StorageError::NoSuchBlock { block: BlockId::new(BLOCKS), num_blocks: BLOCKS };
    assert_eq!(rig.cuda.read_blocks((&stream).into(), &ids(&[BLOCKS]), &mut records), Err(outside));
    let few = StorageError::RecordBytes { given: block_bytes, expected: 2 * block_bytes };
    assert_eq!(rig.cuda.read_blocks((&stream).into(), &ids(&[1, 2]), &mut records), Err(few));
    let twice = StorageError::RepeatedBlock { block: BlockId::new(2) };
    assert_eq!(rig.cuda.write_blocks((&stream).into(), &ids(&[2, 2]), &mut records), Err(twice));
    let foreign = CudaStorage::new(&rig.context, layout(DType::F16), LIMITS).unwrap();
    let mut foreign = foreign.records(2).unwrap();
    let other = StorageError::RecordBytes { given: block_bytes, expected: block_bytes };
    assert_eq!(rig.cuda.read_blocks((&stream).into(), &ids(&[1]), &mut foreign), Err(other));
    assert_eq!(rig.cuda.read_blocks((&stream).into(), &[], &mut records), Ok(()));
    // Nothing was written.
    rig.assert_same_bytes();
    for many in [usize::MAX / 8, usize::MAX] {
        let refused = rig.cuda.records(many);
        assert!(matches!(refused, Err(StorageError::NoBuffers { .. })), "{refused:?}");
    }
    assert_eq!(CpuStorage::new(layout(DType::F32)).unwrap().block_bytes(), block_bytes);
}
