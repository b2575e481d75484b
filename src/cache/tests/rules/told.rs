//! Names that leave the process, events, counts.

use super::*;

#[cfg(feature = "sha256")]
#[test]
fn names_are_chained_hashes_of_full_blocks() {
    // R3. H_0 = h((seed, tokens, extras)), H_i = h((H_(i-1), tokens, extras)), of full blocks. The values of vLLM 0.33
    // under PYTHONHASHSEED=0, for tokens 100 to 107 in blocks of 4.
    use crate::prefix::hash::Sha256Cbor;
    let mut cache = pool(12);
    cache.set_hasher(Sha256Cbor::with_seed("0"));
    let seq = sequence_of(&mut cache, &tokens(100..110));
    let mut names = blocks_of(&cache, seq).into_iter().map(|block| cache.identity(BlockId::new(block)));
    let start = |name: Option<Option<Digest>>| name.flatten().map(|name| [0, 1, 2, 3, 4, 5, 6, 7].map(|at| name[at]));
    assert_eq!(start(names.next()), Some([0x71, 0xf4, 0x0f, 0x56, 0x3a, 0x7a, 0x25, 0x9f]));
    assert_eq!(start(names.next()).map(|name| [name[0], name[1], name[2], name[3]]), Some([0x4d, 0x6f, 0x90, 0x55]));
    assert_eq!(names.next(), Some(None), "the tail has no name");
}

#[cfg(feature = "sha256")]
#[test]
fn a_salt_is_in_the_first_name_and_reaches_the_others_through_it() {
    // R4. The salt is an extra of the first block only. (There, a key has a group's number behind the hash; here groups
    // have a cache each, so far.)
    use crate::prefix::hash::Sha256Cbor;
    let mut cache = pool(12);
    let hasher = Sha256Cbor::with_seed("0");
    cache.set_hasher(hasher.clone());
    let mut names = |scope: &Scope| {
        let seq = cache.create(scope, &tokens(0..8), Query::default()).unwrap().seq;
        run(&mut cache, seq, &tokens(0..8));
        let blocks = blocks_of(&cache, seq);
        [0, 1].map(|at| cache.identity(BlockId::new(blocks[at])).unwrap())
    };
    let (plain, salted) = (Scope::default(), Scope::default().with_salt(b"s"));
    let (own, other) = (names(&plain), names(&salted));
    assert!(own[0] != other[0] && own[1] != other[1]);
    // Behind the same parent the second block has the same name under both.
    for scope in [&plain, &salted] {
        assert_eq!(hasher.identity(&Hashed::new(Some(&own[0]), scope, 4, &tokens(4..8))), own[1]);
    }
}

#[test]
fn to_take_a_block_withdraws_its_content() {
    // R12. A block that is taken while it has a name loses it: the name is gone from the index, and its removal is told.
    let mut cache = pool(3);
    let told = Told::by(&mut cache);
    let old = sequence_of(&mut cache, &tokens(0..8));
    cache.free(old, Release::Cache).unwrap();
    let stored = told.take();
    let Event::Stored(last) = &stored[1] else { panic!("{stored:?}") };
    filler(&mut cache, 1);
    assert_eq!(told.take(), [Event::Removed { identity: last.identity }]);
    assert_eq!((cache.refs(last.block), found(&cache, &tokens(0..8))), (1, 4));
}

#[test]
fn each_block_is_announced_once_in_order_behind_its_parent() {
    // R25. There, one event for the run of blocks that one call cached, with the parent of the first, and one event for
    // each that is removed. Here one for each block, parents first, so that a sink needs no arithmetic...
    let mut cache = pool(4);
    let told = Told::by(&mut cache);
    let seq = sequence_of(&mut cache, &tokens(0..12));
    let events = told.take();
    let mut parent = None;
    for (event, at) in events.iter().zip(0..) {
        let Event::Stored(stored) = event else { panic!("{event:?}") };
        assert_eq!((stored.parent, stored.start, stored.block.get()), (parent, at * 4, at + 1));
        assert_eq!(*stored.tokens, *tokens(at * 4..at * 4 + 4));
        parent = Some(stored.identity);
    }
    assert_eq!(events.len(), 3);
    cache.free(seq, Release::Cache).unwrap();
    filler(&mut cache, 3);
    assert_eq!(told.short(), ["-", "-", "-"]);
    // ...and the encoder makes runs of them: as many times as its name stands in the batch.
    #[cfg(feature = "events")]
    {
        let mut batch = Vec::new();
        crate::event::EventEncoder::new().encode_batch(0.0, &events, &mut batch);
        assert_eq!(batch.windows(11).filter(|bytes| bytes == b"BlockStored").count(), 1);
    }
}

#[test]
fn hits_are_counted_in_tokens() {
    // R27. Queries grow by the tokens of a prompt and hits by those found, once for each request. Here too, and a lookup
    // counts nothing. That a request was preempted and comes again is not known here: it counts again.
    let mut cache = pool(12);
    let counted = |cache: &KvCache| {
        let stats = cache.stats();
        (stats.prompt_tokens, stats.hit_tokens, stats.part_tokens)
    };
    let seq = sequence_of(&mut cache, &tokens(0..13));
    assert_eq!(counted(&cache), (13, 0, 0));
    found(&cache, &tokens(0..13));
    assert_eq!(counted(&cache), (13, 0, 0));
    cache.free(seq, Release::Cache).unwrap();
    // 12 of 13, then 10 of 11, of which 2 in a part of a block.
    cache.create(&Scope::default(), &tokens(0..13), Query::default()).unwrap();
    assert_eq!(counted(&cache), (26, 12, 0));
    cache.create(&Scope::default(), &tokens(0..11), Query::default()).unwrap();
    assert_eq!(counted(&cache), (37, 22, 2));
}
