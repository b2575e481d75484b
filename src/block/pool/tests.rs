//! The laws of the pool, one test each.

use core::num::NonZeroU32;

use super::*;

fn identity(number: u32) -> Identity {
    Identity::new(NonZeroU32::new(number).unwrap())
}

#[test]
fn a_fresh_pool_hands_out_ascending_ids_and_then_nothing() {
    let mut pool = BlockPool::with_reserved(4, 1, false, Lru::new()).unwrap();
    let blocks: Vec<_> = core::iter::from_fn(|| pool.alloc()).collect();
    assert!(blocks.iter().map(|block| block.id().get()).eq([1, 2, 3]));
    assert_eq!((pool.available(), pool.capacity()), (0, 3));
}

#[test]
fn the_last_release_makes_a_block_idle_and_not_one_before() {
    let mut pool = BlockPool::new(2).unwrap();
    let first = pool.alloc().unwrap();
    let second = pool.share(&first);
    assert_eq!(pool.refs(first.id()), 2);
    pool.release(first);
    assert_eq!((pool.refs(second.id()), pool.available()), (1, 1));
    pool.release(second);
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_block_shared_more_often_than_can_be_counted_is_never_released() {
    let mut pool = BlockPool::new(2).unwrap();
    let block = pool.alloc().unwrap();
    // One short of the most that are counted: to share a block 2^31 times takes a while.
    pool.records[block.id().index()].refs = MOST_REFS - 1;
    let shared = [(); 3].map(|()| pool.share(&block));
    assert_eq!(pool.refs(block.id()), MOST_REFS);
    for reference in shared {
        pool.release(reference);
    }
    assert_eq!((pool.refs(block.id()), pool.available()), (MOST_REFS, 1));
}

#[test]
fn blocks_with_identity_are_taken_last_and_in_order_of_release() {
    let mut pool = BlockPool::new(3).unwrap();
    let [a, b, c] = [(); 3].map(|()| pool.alloc().unwrap());
    pool.set_identity(&a, Some(identity(1)));
    pool.set_identity(&b, Some(identity(2)));
    let ids = [a.id(), b.id(), c.id()];
    for block in [b, a, c] {
        pool.release(block);
    }
    // c has no identity; then b, released before a.
    let (first, lost) = pool.take().unwrap();
    assert_eq!((first.id(), lost), (ids[2], None));
    let (second, lost) = pool.take().unwrap();
    assert_eq!((second.id(), lost), (ids[1], Some(identity(2))));
}

#[test]
fn revive_wants_the_identity_that_the_block_still_has() {
    let mut pool = BlockPool::new(1).unwrap();
    let block = pool.alloc().unwrap();
    let id = block.id();
    pool.set_identity(&block, Some(identity(7)));
    pool.release(block);
    assert!(pool.revive(id, identity(8)).is_none());
    let block = pool.revive(id, identity(7)).unwrap();
    assert_eq!((pool.refs(id), pool.available()), (1, 0));
    pool.release(block);
    let (block, lost) = pool.take().unwrap();
    assert_eq!(lost, Some(identity(7)));
    assert!(pool.revive(id, identity(7)).is_none(), "the content is gone with the identity");
    pool.release(block);
}

#[test]
fn withheld_blocks_come_back_when_their_step_is_retired() {
    let mut pool = BlockPool::with_reserved(2, 0, true, Lru::new()).unwrap();
    let [a, b] = [(); 2].map(|()| pool.alloc().unwrap());
    assert!(!pool.release_after(a, 2));
    assert!(!pool.release_after(b, 1));
    assert_eq!((pool.available(), pool.pending()), (0, 2));
    pool.retire(1);
    assert_eq!((pool.available(), pool.pending()), (1, 1));
    pool.retire(2);
    assert_eq!((pool.available(), pool.pending()), (2, 0));
}

#[test]
fn a_reference_of_another_pool_neither_panics_nor_frees() {
    let mut large = BlockPool::new(9).unwrap();
    let blocks: Vec<_> = core::iter::from_fn(|| large.alloc()).collect();
    let mut small = BlockPool::new(2).unwrap();
    for block in blocks {
        small.release(block);
    }
    assert_eq!(small.available(), 2);
}

#[test]
fn a_reference_of_another_pool_neither_names_nor_holds_an_idle_block() {
    let mut other = BlockPool::new(2).unwrap();
    let foreign = other.alloc().unwrap();
    let mut pool = BlockPool::new(2).unwrap();
    pool.set_identity(&foreign, Some(identity(1)));
    let shared = pool.share(&foreign);
    assert_eq!((pool.identity(foreign.id()), pool.refs(foreign.id())), (None, 0));
    let (block, lost) = pool.take().unwrap();
    assert_eq!((block.id(), lost), (foreign.id(), None));
    pool.release(shared);
    pool.release(block);
    assert_eq!((pool.available(), pool.cached()), (2, 0));
    pool.check(|_| (0, 0)).unwrap();
}

#[test]
fn pools_without_a_block_or_beyond_memory_are_refused() {
    assert_eq!(BlockPool::new(0).unwrap_err(), ConfigError::NoUsableBlock { num_blocks: 0 });
    assert_eq!(
        BlockPool::with_reserved(1, 1, false, Lru::new()).unwrap_err(),
        ConfigError::NoUsableBlock { num_blocks: 1 }
    );
    assert!(BlockPool::new(u32::MAX).is_err());
}

#[test]
fn a_pool_that_contradicts_itself_is_found_out() {
    // Block 0 is reserved, 1 held once, 2 twice and once of these displaced, 3 cached, 4 withheld, 5 to 7 blank.
    let sound = || {
        let mut pool = BlockPool::with_reserved(8, 1, true, Lru::new()).unwrap();
        let [_, held, named, withheld] = [(); 4].map(|()| pool.alloc().unwrap());
        let _shared = pool.share(&held);
        pool.displace(held.id(), 0);
        pool.set_identity(&named, Some(identity(1)));
        pool.release(named);
        pool.release_after(withheld, 1);
        pool
    };
    let check = |pool: &BlockPool| {
        pool.check(|block| match block.get() {
            1 => (1, 0),
            2 => (2, 1),
            _ => (0, 0),
        })
    };
    assert_eq!(check(&sound()), Ok(()));
    type Harm = fn(&mut BlockPool);
    let harms: [(Harm, &str); 18] = [
        (|pool| pool.withheld = pool.blank, "a block is on two lists, or a list is longer than it says"),
        // A copy of the list, changed behind its back.
        (
            |pool| { pool.blank }.push_back(&mut pool.links, 1),
            "a block is on two lists, or a list is longer than it says",
        ),
        (|pool| { pool.blank }.remove(&mut pool.links, 7), "a list is shorter than it says"),
        (|pool| pool.cached += 1, "the number of cached blocks is wrong"),
        (|pool| pool.cached -= 1, "the number of cached blocks is wrong"),
        (|pool| pool.shared += 1, "the number of shared blocks is wrong"),
        (|pool| pool.shared -= 1, "the number of shared blocks is wrong"),
        (|pool| pool.records[2].refs += 1, "a reference count is not the number of holders"),
        (|pool| _ = pool.displace(BlockId::new(1), 0), "a reference count is not the number of holders"),
        (|pool| pool.records[0].refs = LISTED, "a reserved block is in use"),
        (|pool| pool.records[1].refs |= LISTED, "a block is neither held nor idle, or both"),
        (|pool| pool.records[7].refs = 0, "a block is neither held nor idle, or both"),
        (
            |pool| {
                pool.records[7].identity = Some(identity(2));
                pool.cached += 1;
            },
            "an idle block is on the wrong list",
        ),
        (
            |pool| {
                pool.records[3].identity = None;
                pool.cached -= 1;
            },
            "an idle block is on the wrong list",
        ),
        (|pool| _ = pool.displace(BlockId::new(8), 0), "a block waits for a holder that does not come back"),
        (
            |pool| _ = pool.displaced.insert(1, Displaced::default()),
            "a block waits for a holder that does not come back",
        ),
        (|pool| pool.available += 1, "the number of available blocks is wrong"),
        (|pool| pool.available -= 1, "the number of available blocks is wrong"),
    ];
    for (at, (harm, found)) in harms.into_iter().enumerate() {
        let mut pool = sound();
        harm(&mut pool);
        assert_eq!(check(&pool), Err(found), "harm {at}");
    }
}
