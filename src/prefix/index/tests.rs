//! What the index promises beside what lookups see: memory, marks, and the comparison that every hit rests on.

use alloc::collections::VecDeque;

use super::*;
use crate::list::Links;
use crate::prefix::change::Event;
use crate::prefix::hash::{BlockHasher, Digest, Hashed};

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

/// A node under a parent, with this block, which is computed where `step` is 0; without one it is only promised.
fn node(index: &mut PrefixIndex, parent: Parent, token: TokenId, block: Option<(u32, u64)>, links: &mut Links) -> u32 {
    let node = index.promise(parent, &[token; 4], SharedExtras::default()).node;
    if let Some((block, step)) = block {
        index.fill(node, BlockId::new(block), step, links);
    }
    node
}

#[test]
fn what_goes_for_a_block_is_below_it_though_nodes_between_have_no_block() {
    // A parent with three children: one that waits for its block, one that has lost it and has a child, and another.
    let (mut index, scope) = index(8);
    let mut links = Links::new(8).unwrap();
    let top = node(&mut index, scope, 0, Some((0, 0)), &mut links);
    let promised = node(&mut index, Parent::Node(top), 1, None, &mut links);
    let between = node(&mut index, Parent::Node(top), 2, Some((2, 0)), &mut links);
    node(&mut index, Parent::Node(between), 3, Some((3, 0)), &mut links);
    node(&mut index, Parent::Node(top), 4, Some((4, 0)), &mut links);
    index.vacate(between, BlockId::new(2), &mut links);
    assert_eq!((index.entry(promised), index.entry(between)), (None, None));
    let below = |may: fn(u32) -> bool| index.last_below(top, |block| may(block.get())).map(BlockId::get);
    assert_eq!(below(|_| true), Some(4));
    assert_eq!(below(|block| block != 4), Some(3));
    assert_eq!(below(|_| false), None);
}

#[test]
fn a_part_is_of_a_child_that_agrees_for_a_token_and_is_found_among_64() {
    // Children of equal tokens with an extra each, which the prompt does not have. Where it begins the content differs:
    // for `none` children at position 0, and for one at position 2. A missing extra reads as zeros, so that those at 0
    // come nearer and are looked at first.
    for (none, expected) in [(0, Some(2)), (1, Some(2)), (63, Some(2)), (64, None)] {
        let (mut index, scope) = index(80);
        let mut links = Links::new(80).unwrap();
        let mut add = |position, digest: u32| {
            let extra = Extra::new(position..4, [u8::try_from(digest).unwrap(); 32]);
            let extras = SharedExtras { all: Some(Arc::new([extra])), run: 0..1 };
            let promise = index.promise(scope, &[5; 4], extras);
            index.fill(promise.node, BlockId::new(digest), 0, &mut links);
            promise.node
        };
        (0..none).for_each(|at| _ = add(0, at));
        let partly = add(2, 79);
        let found = index.best_part(scope, &Key { tokens: &[5; 4], extras: &[] }, 0);
        assert_eq!(found, expected.map(|len| (partly, len)), "{none}");
        // Among blocks from position 2 on even that one agrees for nothing.
        assert_eq!(index.best_part(scope, &Key { tokens: &[5; 4], extras: &[] }, 2), None);
    }
}

/// Names a block by its position and first token.
struct Name;

impl BlockHasher for Name {
    fn identity(&self, block: &Hashed<'_>) -> Digest {
        let mut digest = [0; 32];
        digest[..4].copy_from_slice(&block.start.to_le_bytes());
        digest[4..8].copy_from_slice(&block.tokens[0].to_le_bytes());
        digest
    }
}

#[test]
fn what_was_never_announced_is_not_withdrawn() {
    // The second block is computed while a step still computes the first: nobody finds it, and it goes untold.
    let (mut index, scope) = index(4);
    let mut links = Links::new(4).unwrap();
    let mut identities = Identities::new(Arc::new(Name));
    identities.events = Some(VecDeque::new());
    index.identities = Some(identities);
    let first = node(&mut index, scope, 7, Some((0, 1)), &mut links);
    let second = node(&mut index, Parent::Node(first), 8, Some((1, 0)), &mut links);
    index.vacate(second, BlockId::new(1), &mut links);
    index.set_computed(first, BlockId::new(0), &mut links);
    index.vacate(first, BlockId::new(0), &mut links);
    let events: Vec<_> = index.identities.unwrap().events.unwrap().into();
    let [Event::Stored(stored), Event::Removed { identity }] = &events[..] else { panic!("{events:?}") };
    let name = Name.identity(&Hashed::new(None, &crate::Scope::default(), 0, &[7]));
    assert_eq!((stored.identity, *identity), (name, name));
}

#[test]
fn an_index_that_contradicts_itself_is_found_out() {
    // Node 0 has block 0 and two children: 1 with blocks 1 and 2 and, from step 5 on, 3; and 2 with block 4. Node 3 has an
    // extra and block 5. Node 4 has lost its block and keeps a child, 5 with block 6. Node 6 is vacant; block 7 has no node.
    let sound = || {
        let (mut index, scope) = index(8);
        let mut links = Links::new(8).unwrap();
        node(&mut index, scope, 10, Some((0, 0)), &mut links);
        for block in [(1, 0), (2, 0), (3, 5)] {
            node(&mut index, Parent::Node(0), 1, Some(block), &mut links);
        }
        node(&mut index, Parent::Node(0), 2, Some((4, 0)), &mut links);
        let extras = SharedExtras { all: Some(Arc::new([Extra::new(0..4, [1; 32])])), run: 0..1 };
        let with_extra = index.promise(scope, &[20; 4], extras).node;
        index.fill(with_extra, BlockId::new(5), 0, &mut links);
        let without = node(&mut index, scope, 30, Some((6, 0)), &mut links);
        let child = index.promise(Parent::Node(without), &[1; 4], SharedExtras::default()).node;
        index.vacate(without, BlockId::new(6), &mut links);
        index.fill(child, BlockId::new(6), 0, &mut links);
        let vacant = index.promise(scope, &[40; 4], SharedExtras::default());
        index.unpromise(vacant);
        (index, links, [Some(0), Some(1), Some(1), Some(1), Some(2), Some(3), Some(5), None])
    };
    type Names = [Option<u32>; 8];
    type Harm = fn(&mut PrefixIndex, &mut Names);
    let check = |index: &PrefixIndex, links: &Links, names: &Names| index.check(8, links, |block| names[block.index()]);
    let (index, links, names) = sound();
    assert_eq!(check(&index, &links, &names), Ok(alloc::vec![3]));
    const EMPTY: &str = "an empty node was kept, or has twins without an entry";
    const BEHIND: &str = "a computed block stands behind one that is not";
    const ALONE_OR_NOT: &str = "a block does not know whether it is alone";
    const TREES: &str = "the trees do not hold the living nodes, or the table not their extras";
    const NAMELESS: &str = "a block without identity is being computed, or has twins";
    let harms: [(Harm, &str); 20] = [
        (|index, _| index.nodes[6].top = 6, "a node is vacant twice"),
        (|index, _| index.nodes[0].entry.set_flag(true), "a node waits for a plan that is over"),
        (|index, _| index.nodes[1].parent = Tagged::new(6, false), "a node hangs on a vacant one"),
        (|index, _| index.nodes[2].entry.set(NIL), EMPTY),
        (|index, _| index.nodes[4].twins.set(7), EMPTY),
        (|index, _| index.nodes[2].entry.set(0), "a block belongs to two nodes"),
        (|index, _| index.states[1] = mark(5), BEHIND),
        (|index, _| (index.states[2], index.states[3]) = (mark(5), COMPANY), BEHIND),
        (|index, _| index.states[0] = COMPANY, ALONE_OR_NOT),
        (|index, _| index.states[1] = ALONE, ALONE_OR_NOT),
        (|index, _| index.states[2] = ALONE, ALONE_OR_NOT),
        (|index, _| index.tokens[8..12].fill(1), "a child is not where its content leads"),
        (|index, _| index.tokens[12..16].fill(10), "a node is not found by its content"),
        (|index, _| index.nodes[2].top = 5, TREES),
        (|index, _| index.extras.clear(), TREES),
        (|index, _| _ = index.extras.insert(0, SharedExtras::default()), TREES),
        (|_, names| names[0] = None, "a block's identity is not the node that it belongs to"),
        (|_, names| names[7] = Some(0), "a block's identity is not the node that it belongs to"),
        (|index, _| index.states[7] = COMPANY, NAMELESS),
        (|index, _| index.states[7] = mark(5), NAMELESS),
    ];
    for (at, (harm, found)) in harms.into_iter().enumerate() {
        let (mut index, links, mut names) = sound();
        harm(&mut index, &mut names);
        assert_eq!(check(&index, &links, &names), Err(found), "harm {at}");
    }
}
