//! Tensors with strides and of any element type.

use half::{bf16, f16};

use super::*;

/// Spreads a dense tensor over a larger slice with these strides; gaps are NaN.
fn spread(dense: &[f32], [tokens, heads, dim]: [usize; 3], token_stride: usize, head_stride: usize) -> Vec<f32> {
    let mut data = alloc::vec![f32::NAN; tokens * token_stride + heads * head_stride];
    for (index, head) in dense.chunks_exact(dim).enumerate() {
        data[index / heads * token_stride + index % heads * head_stride..][..dim].copy_from_slice(head);
    }
    data
}

#[test]
fn strides_of_tensors_change_nothing() {
    let q = numbers(288, 3);
    let dense = attended(&written(DType::F32), CpuTensor::new(&q, Q));
    // Token-major with gaps, and head-major.
    for (token_stride, head_stride) in [(70, 13), (12, 6 * 12)] {
        let mut storage = storage(DType::F32);
        storage.prepare((), &prompt(&[]), 1).unwrap();
        let k = spread(&numbers(144, 1), KV, token_stride, head_stride);
        let v = spread(&numbers(144, 2), KV, token_stride, head_stride);
        let tensor = |data| CpuTensor::new(data, KV).with_strides(token_stride, head_stride);
        storage.write_kv((), 1, tensor(&k), tensor(&v)).unwrap();
        let q = spread(&q, Q, token_stride, head_stride);
        let q = CpuTensor::new(&q, Q).with_strides(token_stride, head_stride);
        assert_eq!(attended(&storage, q), dense);

        let mut out = alloc::vec![7.0; 6 * token_stride + 4 * head_stride];
        let to = CpuTensorMut::new(&mut out, Q).with_strides(token_stride, head_stride);
        storage.attend((), 1, q, to, &quarter()).unwrap();
        let mut gaps = alloc::vec![true; out.len()];
        for (index, want) in dense.chunks_exact(12).enumerate() {
            let at = index / 4 * token_stride + index % 4 * head_stride;
            assert!(out[at..][..12].iter().zip(want).all(|(got, want)| got.to_bits() == *want));
            gaps[at..][..12].fill(false);
        }
        assert!(out.iter().zip(gaps).all(|(x, gap)| !gap || *x == 7.0), "gaps of the output are left alone");
    }
}

#[test]
fn tensors_of_any_element_type_are_taken() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8] {
        let (k, v, q) = (numbers(144, 1), numbers(144, 2), numbers(288, 3));
        let wide = written(dtype);
        let expected = attended(&wide, CpuTensor::new(&q, Q));
        let half = |x: &[f32]| x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
        let brain = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
        let mut narrow = storage(dtype);
        narrow.prepare((), &prompt(&[]), 1).unwrap();
        narrow.write_kv((), 1, CpuTensor::new(&half(&k), KV), CpuTensor::new(&brain(&v), KV)).unwrap();
        assert_eq!(bits(&narrow), bits(&wide), "the numbers are exact in all formats of tensors");
        assert_eq!(attended(&narrow, CpuTensor::new(&half(&q), Q)), expected);
        assert_eq!(attended(&narrow, CpuTensor::new(&brain(&q), Q)), expected);
    }
}

/// No strides overflow where there is nothing that they could separate.
#[test]
fn tensors_of_no_tokens_may_have_any_strides() {
    let mut storage = storage(DType::F32);
    storage.prepare((), &Step::from_tables(4, &[], &[]).unwrap(), 0).unwrap();
    for heads in [4, usize::MAX - 1] {
        for stride in [0, 1, usize::MAX] {
            let shape = [0, heads, 12];
            let q = CpuTensor::new::<f32>(&[], shape).with_strides(stride, stride);
            let to = CpuTensorMut::new(&mut [], shape).with_strides(stride, stride);
            assert_eq!(storage.attend((), 1, q, to, &quarter()), Ok(()));
        }
    }
}

/// Outputs that are taken are in bounds and disjoint, by marking every element: all small shapes and strides.
#[test]
fn outputs_that_are_taken_have_disjoint_heads() {
    const LEN: usize = 30;
    let mut taken = 0;
    for at in 0..4 * 4 * 3 * 12 * 12 {
        let shape @ [tokens, heads, dim] = [at % 4, at / 4 % 4, 1 + at / 16 % 3];
        let (token_stride, head_stride) = (at / 48 % 12, at / 576);
        let mut data = [0.0; LEN];
        let out = CpuTensorMut::new(&mut data, shape).with_strides(token_stride, head_stride);
        if out.share("out", shape).is_err() {
            continue;
        }
        taken += 1;
        let mut marks = [false; LEN];
        for index in 0..tokens * heads * dim {
            let (token, head, d) = (index / dim / heads, index / dim % heads, index % dim);
            let mark = &mut marks[token * token_stride + head * head_stride + d];
            assert!(!*mark, "{shape:?} with strides {token_stride} and {head_stride}");
            *mark = true;
        }
    }
    assert!(taken > 1000, "{taken}");
}
