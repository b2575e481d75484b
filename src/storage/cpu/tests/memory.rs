//! The memory itself: where elements lie, its bytes, what is said about it.

use half::{bf16, f16};

use super::*;
use crate::layout::{LayerLayout, Plane};

/// Strides that nothing is ever multiplied by may be any number.
#[test]
fn strides_of_single_steps_may_be_anything() {
    let plane = |base_elems| Plane {
        base_elems,
        block_stride_elems: u64::MAX,
        head_stride_elems: u64::MAX,
        token_stride_elems: u64::MAX,
    };
    let layer = LayerLayout { k: plane(3), v: plane(20), scales: None, kv_heads: 1, k_dim: 8, v_dim: 8, allocation: 0 };
    let layout = KvLayout::custom(1, 1, DType::F32, alloc::vec![layer], alloc::vec![28]).unwrap();
    let mut storage = CpuStorage::new(layout).unwrap();
    storage.write_slot(0, Slot::new(0), &[1.0; 8], &[2.0; 8]).unwrap();
    assert_eq!(storage.read_slot(0, Slot::new(0)).unwrap(), (alloc::vec![1.0; 8], alloc::vec![2.0; 8]));
    assert!(storage.read_slot(0, Slot::new(1)).is_err());
    assert!(storage.write_slot(0, Slot::new(0), &[1.0; 7], &[2.0; 8]).is_err());
}

/// A storage crosses threads like the plain memory that it is.
#[test]
fn a_storage_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<CpuStorage>();
}

/// Every element of every layer, looked up in the bytes by the layout's own planes.
#[test]
fn the_bytes_of_an_allocation_are_its_elements_in_order() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8] {
        let storage = written(dtype);
        let size = usize::try_from(dtype.bytes()).unwrap();
        let wide = |bytes: &[u8]| match dtype {
            DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()),
            DType::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
            DType::BF16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
            DType::I8 => f32::from(bytes[0].cast_signed()),
            DType::F8E4M3 => panic!("no such case"),
        };
        // K or V of a head of a token, and its scale.
        let scale_bytes = ix(dtype.scale_elems()) * size;
        for layer in 0..2 {
            let bytes = storage.allocation(layer).unwrap();
            assert_eq!(bytes.len(), 6 * 2 * 2 * 4 * (12 * size + scale_bytes)); // blocks, heads, K and V, tokens, elements
            assert_eq!(bytes.as_ptr().align_offset(64), 0);
            assert_eq!(layer == 0, bytes.iter().all(|byte| *byte == 0), "`written` wrote layer 1 alone");
            let planes = storage.layout().layers()[ix(layer)];
            for slot in 0..24 {
                let (k, v) = storage.read_slot(layer, Slot::new(slot)).unwrap();
                let scales = planes.scales.map_or([None; 2], |scales| [Some(scales.k), Some(scales.v)]);
                for (plane, scale, wanted) in [(planes.k, scales[0], k), (planes.v, scales[1], v)] {
                    for (head, wanted) in (0..).zip(wanted.chunks_exact(12)) {
                        let at = |plane: Plane| {
                            usize::try_from(plane.elem(BlockId::new(slot / 4), head, slot % 4)).unwrap() * size
                        };
                        let scale =
                            scale.map_or(1.0, |plane| f32::from_ne_bytes(bytes[at(plane)..][..4].try_into().unwrap()));
                        let got = bytes[at(plane)..].chunks_exact(size).map(|elem| wide(elem) * scale);
                        assert!(got.zip(wanted).all(|(got, wanted)| got == *wanted), "{dtype:?}, slot {slot}");
                    }
                }
            }
        }
        assert_eq!(storage.allocation(2), None);
        assert_eq!(storage.allocation(u32::MAX), None);
    }
}

#[test]
fn an_allocation_of_nothing_has_no_bytes() {
    let plane = |base_elems| Plane { base_elems, block_stride_elems: 2, head_stride_elems: 2, token_stride_elems: 2 };
    let layer = LayerLayout { k: plane(0), v: plane(1), scales: None, kv_heads: 1, k_dim: 1, v_dim: 1, allocation: 1 };
    let layout = KvLayout::custom(1, 1, DType::F16, alloc::vec![layer], alloc::vec![0, 2]).unwrap();
    let storage = CpuStorage::new(layout).unwrap();
    assert_eq!(storage.allocation(0), Some(&[][..]));
    assert_eq!(storage.allocation(1), Some(&[0; 4][..]));
}

/// What the system says is its affair; that it is about this memory, and no more than there is, is ours.
#[test]
fn stats_are_about_this_memory() {
    // 2 layers of 96 blocks × 2 heads × 2 × 16 tokens × 512 elements × 2 bytes = 6 MiB each.
    let layout = KvLayout::per_layer(&KvShape::new(2, 2, 512, DType::F16), 96, 16).unwrap();
    let mut storage = CpuStorage::new(layout).unwrap();
    storage.fill(1.0);
    let stats = storage.stats();
    std::println!("{stats:?}");
    assert_eq!(stats.bytes, 12 << 20);
    assert!([0, 6 << 20, 12 << 20].contains(&stats.huge_advised_bytes));
    assert!(stats.huge_bytes.is_none_or(|bytes| bytes <= stats.bytes));
    let small = super::storage(DType::F32).stats();
    assert_eq!((small.bytes, small.huge_advised_bytes), (2 * 1152 * 4, 0)); // 6 × 2 × 2 × 4 × 12 elements
}
