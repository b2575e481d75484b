//! What is refused, each by its own error, and changes nothing.

use super::*;
use crate::storage::QueryMask;

#[test]
fn a_step_that_is_refused_changes_nothing() {
    let mut storage = written(DType::F32);
    let q = numbers(288, 3);
    let (memory, expected) = (bits(&storage), attended(&storage, CpuTensor::new(&q, Q)));
    let row = |blocks| [TableRow { start: 0, len: 6, blocks }];
    let copy = |src, dst| BlockCopy { src: BlockId::new(src), dst: BlockId::new(dst) };
    let outside = StorageError::NoSuchBlock { block: BlockId::new(6), num_blocks: 6 };
    let cases = [
        (Step::new(), StorageError::BlockSize { step: 0, layout: 4 }),
        (Step::of_changes(), StorageError::OnlyChanges),
        (Step::from_tables(8, &row(&ids([0])), &[]).unwrap(), StorageError::BlockSize { step: 8, layout: 4 }),
        (Step::from_tables(4, &row(&ids([0, 6])), &[]).unwrap(), outside),
        // Also a block of lookahead.
        (Step::from_tables(4, &row(&ids([0, 1, 6])), &[]).unwrap(), outside),
        (prompt(&[copy(6, 0)]), outside),
        (prompt(&[copy(0, 6)]), outside),
        (prompt(&[copy(0, 1), copy(2, 1)]), StorageError::CopyOrder { block: BlockId::new(1) }),
        (prompt(&[copy(0, 1), copy(1, 2)]), StorageError::CopyOrder { block: BlockId::new(1) }),
        (prompt(&[copy(3, 3)]), StorageError::CopyOrder { block: BlockId::new(3) }),
    ];
    for (step, error) in cases {
        assert_eq!(storage.prepare((), &step, 9), Err(error));
        assert_eq!(attended(&storage, CpuTensor::new(&q, Q)), expected, "the step before is still prepared");
    }
    assert_eq!(storage.prepare((), &prompt(&[]), 0), Err(StorageError::PaddedRows { rows: 1, padded_rows: 0 }));
    let mut storage = storage.with_group(GroupId::new(1));
    assert_eq!(storage.prepare((), &prompt(&[]), 1), Err(StorageError::NoSuchGroup { group: GroupId::new(1) }));
    assert_eq!(attended(&storage, CpuTensor::new(&q, Q)), expected);
    assert_eq!(bits(&storage), memory);
}

#[test]
fn tensors_that_do_not_fit_are_refused_and_change_nothing() {
    let mut storage = written(DType::F16);
    let memory = bits(&storage);
    let data = numbers(400, 1);
    let tensor = |shape| CpuTensor::new(&data, shape);
    let fits = tensor(KV);
    for (k, v, error) in [
        (tensor([5, 2, 12]), fits, StorageError::Shape { tensor: "k", given: [5, 2, 12], expected: KV }),
        (tensor([6, 1, 12]), fits, StorageError::Shape { tensor: "k", given: [6, 1, 12], expected: KV }),
        (fits, tensor([6, 2, 8]), StorageError::Shape { tensor: "v", given: [6, 2, 8], expected: KV }),
        (fits, CpuTensor::new(&data[..143], KV), StorageError::TooShort { tensor: "v", needed: 144, given: 143 }),
        (fits.with_strides(78, 12), fits, StorageError::TooShort { tensor: "k", needed: 5 * 78 + 24, given: 400 }),
        (
            fits.with_strides(usize::MAX, 12),
            fits,
            StorageError::TooShort { tensor: "k", needed: usize::MAX, given: 400 },
        ),
    ] {
        assert_eq!(storage.write_kv((), 1, k, v), Err(error));
    }
    assert_eq!(storage.write_kv((), 2, fits, fits), Err(StorageError::NoSuchLayer { layer: 2, layers: 2 }));
    assert_eq!(bits(&storage), memory);

    let mut out = alloc::vec![7.0; 400];
    let mut attend = |layer, q, shape, token_stride, head_stride| {
        let to = CpuTensorMut::new(&mut out, shape).with_strides(token_stride, head_stride);
        storage.attend((), layer, q, to, &quarter()).unwrap_err()
    };
    let q = tensor(Q);
    assert_eq!(attend(2, q, Q, 48, 12), StorageError::NoSuchLayer { layer: 2, layers: 2 });
    let three = tensor([6, 3, 12]);
    assert_eq!(attend(1, three, [6, 3, 12], 36, 12), StorageError::QueryHeads { q_heads: 3, kv_heads: 2 });
    assert_eq!(attend(1, tensor([6, 0, 12]), Q, 48, 12), StorageError::QueryHeads { q_heads: 0, kv_heads: 2 });
    let five = StorageError::Shape { tensor: "q", given: [5, 4, 12], expected: Q };
    assert_eq!(attend(1, tensor([5, 4, 12]), Q, 48, 12), five);
    let two = StorageError::Shape { tensor: "out", given: KV, expected: Q };
    assert_eq!(attend(1, q, KV, 24, 12), two);
    for (token_stride, head_stride) in [(47, 12), (48, 11), (12, 60), (0, 12), (12, 12)] {
        assert_eq!(attend(1, q, Q, token_stride, head_stride), StorageError::Overlap { token_stride, head_stride });
    }
    let short = StorageError::TooShort { tensor: "out", needed: 5 * 100 + 48, given: 400 };
    assert_eq!(attend(1, q, Q, 100, 12), short);
    assert!(out.iter().all(|x| *x == 7.0));
}

#[test]
fn sizes_that_no_machine_has_are_refused() {
    let layout = KvLayout::per_layer(&KvShape::new(1, 1 << 10, 1 << 10, DType::F32), 1 << 20, 1 << 10).unwrap();
    let bytes = layout.bytes(); // 2^53
    assert_eq!(CpuStorage::new(layout).unwrap_err(), StorageError::OutOfMemory { allocation: 0, bytes });
    let layout = KvLayout::per_layer(&KvShape::new(1, 1, 65_537, DType::F16), 1, 1).unwrap();
    assert_eq!(CpuStorage::new(layout).unwrap_err(), StorageError::HeadTooLong { layer: 0, dim: 65_537, max: 65_536 });
}

/// Parameters that do not fit are refused, each by its own error, and nothing is written.
#[test]
fn parameters_that_do_not_fit_are_refused() {
    let storage = written(DType::F32);
    let q = numbers(288, 3);
    let (short, long) = ([1.0; 3], [1_u64; 12]);
    let plain = quarter();
    let mask = |words, words_per_token| plain.with_mask(QueryMask { words, words_per_token });
    let wrong_mask = |words, words_per_token| StorageError::Mask { words, words_per_token, tokens: 6, row_tokens: 6 };
    let cases = [
        (plain.with_window(0), StorageError::NoWindow),
        (plain.with_soft_cap(0.0), StorageError::SoftCap),
        (plain.with_soft_cap(-1.0), StorageError::SoftCap),
        (plain.with_soft_cap(f32::NAN), StorageError::SoftCap),
        (plain.with_soft_cap(f32::INFINITY), StorageError::SoftCap),
        (plain.with_soft_cap(f32::MAX), StorageError::SoftCap), // × log₂ e = 1.44 it is infinite
        (plain.with_soft_cap(1e-40), StorageError::SoftCap),    // a quarter of 10⁴⁰ is, too
        (plain.with_sinks(&short), StorageError::PerHead { param: "sinks", given: 3, q_heads: 4 }),
        (plain.with_alibi_slopes(&[]), StorageError::PerHead { param: "alibi_slopes", given: 0, q_heads: 4 }),
        (mask(&long[..5], 1), wrong_mask(5, 1)),
        (mask(&long, 1), wrong_mask(12, 1)),
        (mask(&[], 0), wrong_mask(0, 0)),
        (mask(&long, u32::MAX), wrong_mask(12, u32::MAX)),
    ];
    for (params, error) in cases {
        let mut out = alloc::vec![7.0; 288];
        let to = CpuTensorMut::new(&mut out, Q);
        assert_eq!(storage.attend((), 1, CpuTensor::new(&q, Q), to, &params), Err(error));
        assert!(out.iter().all(|x| *x == 7.0));
    }
    let (mut out, mut lse) = (alloc::vec![7.0; 288], alloc::vec![7.0; 23]);
    let to = CpuTensorMut::new(&mut out, Q).with_lse(&mut lse);
    let refused = storage.attend((), 1, CpuTensor::new(&q, Q), to, &plain);
    assert_eq!(refused, Err(StorageError::TooShort { tensor: "lse", needed: 24, given: 23 }));
    assert!(out.iter().chain(&lse).all(|x| *x == 7.0));
}
