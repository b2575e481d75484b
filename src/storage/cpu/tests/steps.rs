//! One step after another: copies, and buffers that are kept.

use super::*;

#[test]
fn a_step_like_the_one_before_allocates_nothing() {
    let mut storage = storage(DType::BF16);
    let (k, v, q) = (numbers(144, 1), numbers(144, 2), numbers(288, 3));
    let mut out = alloc::vec![0.0; 288];
    let step = prompt(&[BlockCopy { src: BlockId::new(0), dst: BlockId::new(5) }]);
    let mut pass = || {
        storage.prepare((), &step, 1).unwrap();
        storage.copy_blocks(()).unwrap();
        storage.write_kv((), 1, CpuTensor::new(&k, KV), CpuTensor::new(&v, KV)).unwrap();
        let to = CpuTensorMut::new(&mut out, Q);
        storage.attend((), 1, CpuTensor::new(&q, Q), to, &quarter()).unwrap();
    };
    pass();
    assert_eq!(allocation_counter::measure(pass).count_total, 0);
}

#[test]
fn copies_run_once_and_before_anything_else() {
    let mut storage = storage(DType::F32);
    assert_eq!(storage.copy_blocks(()), Err(StorageError::NotPrepared));
    let (k, v) = (numbers(144, 1), numbers(144, 2));
    let write = |storage: &mut CpuStorage| storage.write_kv((), 1, CpuTensor::new(&k, KV), CpuTensor::new(&v, KV));
    assert_eq!(write(&mut storage), Err(StorageError::NotPrepared));

    // Block 5, which the prompt is then written to, gets the bytes of block 0.
    storage.prepare((), &prompt(&[BlockCopy { src: BlockId::new(0), dst: BlockId::new(5) }]), 1).unwrap();
    assert_eq!(write(&mut storage), Err(StorageError::CopiesPending { copies: 1 }));
    let mut out = [0.0; 288];
    let attend = storage.attend((), 1, CpuTensor::new(&numbers(288, 3), Q), CpuTensorMut::new(&mut out, Q), &quarter());
    assert_eq!(attend, Err(StorageError::CopiesPending { copies: 1 }));
    storage.copy_blocks(()).unwrap();
    write(&mut storage).unwrap();
    let memory = bits(&storage);
    storage.copy_blocks(()).unwrap();
    assert_eq!(bits(&storage), memory, "a second call copies nothing over the writes");
}

/// The copies of a step that was replaced are no longer due.
#[test]
fn a_new_step_forgets_the_copies_of_the_one_before() {
    let mut storage = written(DType::F32);
    let memory = bits(&storage);
    storage.prepare((), &prompt(&[BlockCopy { src: BlockId::new(5), dst: BlockId::new(0) }]), 1).unwrap();
    storage.prepare((), &prompt(&[]), 1).unwrap();
    attended(&storage, CpuTensor::new(&numbers(288, 3), Q));
    storage.copy_blocks(()).unwrap();
    assert_eq!(bits(&storage), memory);
}
