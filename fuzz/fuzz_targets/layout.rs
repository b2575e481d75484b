//! Any numbers make a layout that is inside its allocations, or an error.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use paged_kv::BlockId;
use paged_kv::layout::{DType, KvLayout, KvShape, LayerLayout, Plane, Scales};

#[derive(Arbitrary, Debug)]
struct Input {
    layers: u8,
    small: bool,
    numbers: [u32; 6],
    planes: Vec<([u64; 4], [u64; 4], u32, u32, u32, u32)>,
    allocations: Vec<u64>,
    budget: u64,
    ranks: u32,
}

fn plane([base_elems, block_stride_elems, head_stride_elems, token_stride_elems]: [u64; 4]) -> Plane {
    Plane { base_elems, block_stride_elems, head_stride_elems, token_stride_elems }
}

/// The last element of every plane lies inside its allocation, in arithmetic that cannot overflow.
fn check(layout: &KvLayout) {
    for layer in layout.layers() {
        let elems = u128::from(layout.allocations()[layer.allocation as usize]);
        assert_eq!(layer.scales.is_some(), layout.dtype().scale_elems() > 0);
        for (plane, dim) in layer.planes(layout.dtype()) {
            let last = |count: u32, stride: u64| u128::from(count - 1) * u128::from(stride);
            let end = u128::from(plane.base_elems)
                + last(layout.num_blocks(), plane.block_stride_elems)
                + last(layer.kv_heads, plane.head_stride_elems)
                + last(layout.block_size(), plane.token_stride_elems)
                + u128::from(dim);
            assert!(end <= elems, "{end} elements of {elems}");
            let block = BlockId::new(layout.num_blocks() - 1);
            let last = plane.elem(block, layer.kv_heads - 1, layout.block_size() - 1);
            assert_eq!(u128::from(last) + u128::from(dim), end);
        }
    }
}

fuzz_target!(|input: Input| {
    let narrow = |number: u32| if input.small { number % 64 } else { number };
    let [heads, k_dim, v_dim, num_blocks, block_size, _] = input.numbers.map(narrow);
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I8] {
        let shape = KvShape::new(input.layers.into(), heads, k_dim, dtype).with_v_dim(v_dim);
        if let Ok(bytes) = shape.bytes_per_block(block_size) {
            let blocks = shape.blocks_in(input.budget, block_size).expect("the same numbers");
            assert!(u128::from(blocks) * u128::from(bytes) <= u128::from(input.budget));
            assert!((u128::from(blocks) + 1) * u128::from(bytes) > u128::from(input.budget));
        }
        if let Ok(rank) = shape.per_rank(input.ranks) {
            assert!(u64::from(rank.kv_heads) * u64::from(input.ranks) >= u64::from(heads));
        }
        if let Ok(layout) = KvLayout::per_layer(&shape, num_blocks, block_size) {
            check(&layout);
        }
        if let Ok(layout) = KvLayout::cross_layer(&shape, num_blocks, block_size) {
            check(&layout);
        }
        let layers = input.planes.iter().take(4).map(|&(k, v, kv_heads, k_dim, v_dim, allocation)| LayerLayout {
            k: plane(k),
            v: plane(v),
            // The other way round, so that there are some and they are other planes.
            scales: (dtype == DType::I8).then(|| Scales { k: plane(v), v: plane(k) }),
            kv_heads,
            k_dim,
            v_dim,
            allocation,
        });
        if let Ok(layout) =
            KvLayout::custom(num_blocks, block_size, dtype, layers.collect(), input.allocations.clone())
        {
            check(&layout);
        }
    }
});
