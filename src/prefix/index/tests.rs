//! What the index promises beside what lookups see: memory, marks, and the comparison that every hit rests on.

use super::*;

/// Bytes of a node beside its tokens, and of a block: the file's head says so.
const NODE_BYTES: u64 = 28;
const BLOCK_BYTES: u64 = 4;

/// An index of blocks of 4 tokens, with a scope.
fn index(num_blocks: u32) -> (PrefixIndex, Parent) {
    let mut index = PrefixIndex::new(num_blocks, 4, 0).unwrap();
    let scope = index.scopes.acquire(&crate::Scope::default());
    (index, Parent::Scope(scope))
}

/// Promises first blocks, of content number `from`, `from + 1` and so on, into room that is there already.
fn promise(index: &mut PrefixIndex, parent: Parent, numbers: Range<u32>, promises: &mut Vec<Promise>) {
    for number in numbers {
        promises.push(index.promise(parent, &[number, 1, 2, 3], SharedExtras::default()));
    }
}

#[test]
fn an_index_takes_its_memory_when_it_is_made() {
    // As many nodes as blocks and as many to spare, up to 4,096.
    for (num_blocks, nodes) in [(1, 2), (8, 16), (4_096, 8_192), (5_000, 9_096)] {
        let mut made = None;
        let info = allocation_counter::measure(|| made = PrefixIndex::new(num_blocks, 4, 0).ok());
        let bytes = u64::from(num_blocks) * BLOCK_BYTES + u64::from(nodes) * (NODE_BYTES + 16);
        assert_eq!(u64::try_from(info.bytes_current).unwrap(), bytes);
        let (mut index, parent) = index(num_blocks);
        let mut promises = Vec::with_capacity(ix(nodes) + 1);
        let info = allocation_counter::measure(|| {
            index.trim();
            promise(&mut index, parent, 0..nodes, &mut promises);
        });
        assert_eq!(info.count_total, 0);
        let info = allocation_counter::measure(|| promise(&mut index, parent, nodes..nodes + 1, &mut promises));
        assert!(info.count_total > 0);
    }
}

#[test]
fn more_nodes_than_there_is_room_for_take_an_eighth_more_and_give_it_back() {
    // Room for 16. Node 17 brings room for 8 more, as many as there are blocks; from 64 on growth is by an eighth: 6 steps
    // to 64, and ln(2000 / 64) / ln(9 / 8) = 29.2 more to 2,000, each of them for nodes, tokens and forks.
    let (mut index, parent) = index(8);
    let mut promises = Vec::with_capacity(2_000);
    promise(&mut index, parent, 0..16, &mut promises);
    let info = allocation_counter::measure(|| {
        let info = allocation_counter::measure(|| promise(&mut index, parent, 16..17, &mut promises));
        assert_eq!(u64::try_from(info.bytes_current).unwrap(), 8 * (NODE_BYTES + 16));
        let info = allocation_counter::measure(|| promise(&mut index, parent, 17..24, &mut promises));
        assert_eq!(info.count_total, 0);
        let info = allocation_counter::measure(|| promise(&mut index, parent, 24..2_000, &mut promises));
        assert!(info.count_total <= 3 * 36, "{info:?}");
        assert!(u64::try_from(info.bytes_current).unwrap() <= 2_000 * 9 / 8 * (NODE_BYTES + 16), "{info:?}");
        promises.drain(1..).rev().for_each(|promise| index.unpromise(promise));
        index.trim();
    });
    assert_eq!(info.bytes_current, 0, "{info:?}");
    let info = allocation_counter::measure(|| promise(&mut index, parent, 1..16, &mut promises));
    assert_eq!(info.count_total, 0, "the places are vacant, and their memory was kept");
}

#[test]
fn the_mark_of_a_step_is_that_of_no_computed_block_and_not_its_neighbours() {
    // 2^32 - 2 marks, from 1 on.
    let turn = (1 << 32) - 2;
    for (step, expected) in [(1, 2), (2, 3), (turn - 1, 0xffff_fffe), (turn, 1), (turn + 1, 2), (2 * turn, 1)] {
        assert_eq!(mark(step), expected);
        assert!(![ALONE, COMPANY].contains(&mark(step)));
    }
}

#[test]
fn tokens_are_the_same_only_if_each_of_them_is() {
    // Lengths around the eight that are compared at once. One token differs in one bit, or two do in the same bit.
    for len in 0..20 {
        let held: Vec<TokenId> = (0..len).collect();
        assert!(same_tokens(&held, &held));
        for (first, second) in (0..ix(len)).flat_map(|first| (first..ix(len)).map(move |second| (first, second))) {
            let mut wanted = held.clone();
            wanted[first] ^= 64;
            assert!(!same_tokens(&held, &wanted));
            wanted[second] ^= if first == second { 0 } else { 64 };
            assert!(!same_tokens(&held, &wanted), "{first} and {second} of {len}");
        }
        for shorter in 0..ix(len) {
            assert!(!same_tokens(&held, &held[..shorter]) && !same_tokens(&held[..shorter], &held));
        }
    }
}
