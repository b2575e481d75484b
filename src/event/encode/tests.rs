//! What goes onto the wire, byte by byte from the msgpack specification:
//! ```text
//! 0x..7f number    8x map of x    9x array of x    ax text of x    c0 nil    c4 xx bytes of xx    cb f64
//! cc/cd/ce/cf number of 1, 2, 4, 8 bytes    d9 xx text of xx    ff −1
//! ```

use alloc::sync::Arc;
use alloc::vec;

use super::*;

const ONE_AND_A_HALF: &[u8] = b"\xcb\x3f\xf8\0\0\0\0\0\0";

fn stored(identity: u8, parent: Option<u8>, scope: &Arc<Scope>, start: u32, tokens: &[u32]) -> Event {
    let parent = parent.map(|parent| [parent; 32]);
    Event::Stored(Stored::new([identity; 32], parent, scope.clone(), start, tokens.into()))
}

fn removed(identity: u8) -> Event {
    Event::Removed { identity: [identity; 32] }
}

fn encoded(encoder: &EventEncoder, events: &[Event]) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.encode_batch(1.5, events, &mut out);
    out
}

fn hash(identity: u8) -> Vec<u8> {
    [b"\xc4\x20", &[identity; 32][..]].concat()
}

#[test]
fn a_batch_of_all_events_has_these_bytes() {
    let scope = Arc::new(Scope::default().with_model(b"m").with_adapter(b"sql", 9).with_salt(b"s"));
    let extras: Box<[Extra]> = [Extra::new(1..3, [0xab; 32])].into();
    let block = |identity, parent: Option<u8>, start, tokens: [u32; 2]| {
        let parent = parent.map(|parent| [parent; 32]);
        let stored = Stored::new([identity; 32], parent, scope.clone(), start, tokens.into());
        Event::Stored(stored.with_extras(extras.clone()))
    };
    let events =
        [block(0x11, None, 0, [1, 200]), block(0x22, Some(0x11), 2, [70_000, 3]), removed(0x22), Event::Cleared];
    let digest = "ab".repeat(32);
    let expected = [
        &b"\x93"[..],
        ONE_AND_A_HALF,
        b"\x93",
        // The two blocks chain, so they are one event: the type, seven fields, extra keys.
        b"\x89\xa4type\xabBlockStored",
        b"\xacblock_hashes\x92",
        &hash(0x11),
        &hash(0x22),
        b"\xb1parent_block_hash\xc0",
        // 200 is c8; 70,000 is 0x11170.
        b"\xa9token_ids\x94\x01\xcc\xc8\xce\x00\x01\x11\x70\x03",
        b"\xaablock_size\x02",
        b"\xa7lora_id\xc0",
        b"\xa6medium\xa3GPU",
        b"\xa9lora_name\xa3sql",
        // The extra begins at 1: one behind the first block's start, one before the second's. Only the first is salted.
        b"\xaaextra_keys\x92",
        b"\x93\xa3sql\x92\xd9\x40",
        digest.as_bytes(),
        b"\x01\xa1s",
        b"\x92\xa3sql\x92\xd9\x40",
        digest.as_bytes(),
        b"\xff",
        b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91",
        &hash(0x22),
        b"\xa6medium\xa3GPU",
        b"\x81\xa4type\xb0AllBlocksCleared",
        b"\x00",
    ]
    .concat();
    assert_eq!(encoded(&EventEncoder::new().with_data_parallel_rank(0), &events), expected);
}

#[test]
fn the_positional_form_has_the_same_values_without_names() {
    let scope = Arc::new(Scope::default());
    let events = [stored(0x33, Some(0x11), &scope, 4, &[5, 6]), removed(0x44), Event::Cleared];
    let encoder = EventEncoder::new().with_form(EventForm::Positional).with_medium(None);
    let block_stored =
        [&b"\xabBlockStored\x91"[..], &hash(0x33), &hash(0x11), b"\x92\x05\x06\x02\xc0\xc0\xc0"].concat();
    let block_removed = [&b"\xacBlockRemoved\x91"[..], &hash(0x44), b"\xc0"].concat();
    let cleared = b"\x91\xb0AllBlocksCleared";
    // No rank, so the batch is an array of two. A stored event is its type and seven values, a removed one two.
    let expected =
        [&b"\x92"[..], ONE_AND_A_HALF, b"\x93\x98", &block_stored, b"\x93", &block_removed, cleared].concat();
    assert_eq!(encoded(&encoder, &events), expected);

    // A group is behind the extra keys, so these are nil; what is behind the group and absent is not there.
    let expected =
        [&b"\x92"[..], ONE_AND_A_HALF, b"\x93\x9a", &block_stored, b"\xc0\x07\x94", &block_removed, b"\x07", cleared]
            .concat();
    assert_eq!(encoded(&encoder.with_group(7, None, None), &events), expected);
}

#[test]
fn a_group_says_its_number_kind_and_window() {
    let scope = Arc::new(Scope::default());
    let encoder = EventEncoder::new().with_group(1, Some("sliding_window"), Some(4096)).with_lora_id(|_| Some(300));
    let expected = [
        &b"\x92"[..],
        ONE_AND_A_HALF,
        b"\x91\x8b\xa4type\xabBlockStored\xacblock_hashes\x91",
        &hash(1),
        b"\xb1parent_block_hash\xc0\xa9token_ids\x91\x08\xaablock_size\x01\xa7lora_id\xcd\x01\x2c\xa6medium\xa3GPU",
        b"\xa9lora_name\xc0\xa9group_idx\x01\xb2kv_cache_spec_kind\xaesliding_window",
        b"\xbckv_cache_spec_sliding_window\xcd\x10\x00",
    ]
    .concat();
    assert_eq!(encoded(&encoder, &[stored(1, None, &scope, 0, &[8])]), expected);
}

#[test]
fn low_64_bits_are_the_last_bytes_as_an_unsigned_number() {
    let encoder = EventEncoder::new().with_form(EventForm::Positional).with_hashes(HashForm::Low64);
    let removed = |low: u64| {
        let mut identity = [0xee; 32];
        identity[24..].copy_from_slice(&low.to_be_bytes());
        Event::Removed { identity }
    };
    for (low, written) in [
        (5, &b"\x05"[..]),
        (0x80, b"\xcc\x80"),
        (0x0102_0304_0506_0708, b"\xcf\x01\x02\x03\x04\x05\x06\x07\x08"),
        (u64::MAX - 1, b"\xcf\xff\xff\xff\xff\xff\xff\xff\xfe"),
    ] {
        let expected = [b"\x92", ONE_AND_A_HALF, b"\x91\x93\xacBlockRemoved\x91", written, b"\xa3GPU"].concat();
        assert_eq!(encoded(&encoder, &[removed(low)]), expected);
    }
    // A parent too: cf, all ones but the last byte's.
    let scope = Arc::new(Scope::default());
    let bytes = encoded(&encoder, &[stored(0xff, Some(0xff), &scope, 1, &[1])]);
    assert!(bytes.ends_with(
        b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x91\x01\x01\xc0\xa3GPU\xc0"
    ));
}

/// How many events are on the wire: the byte behind the seconds, for fewer than 16.
fn num_events(events: &[Event]) -> u8 {
    encoded(&EventEncoder::new(), events)[10] & 0x0f
}

#[test]
fn only_blocks_that_follow_one_another_in_one_scope_are_one_event() {
    let scope = Arc::new(Scope::default());
    let equal = Arc::new(Scope::default());
    let salted = Arc::new(Scope::default().with_salt(b"s"));
    let first = || stored(1, None, &scope, 0, &[1, 2]);
    assert_eq!(num_events(&[]), 0);
    assert_eq!(
        num_events(&[first(), stored(2, Some(1), &equal, 2, &[3, 4]), stored(3, Some(2), &scope, 4, &[5, 6])]),
        1
    );
    // Another branch, a first block, another scope, another number of tokens, something between.
    assert_eq!(
        num_events(&[first(), stored(2, Some(1), &scope, 2, &[3, 4]), stored(3, Some(1), &scope, 2, &[5, 6])]),
        2
    );
    assert_eq!(num_events(&[first(), stored(2, None, &scope, 0, &[3, 4])]), 2);
    assert_eq!(num_events(&[first(), stored(2, Some(1), &salted, 2, &[3, 4])]), 2);
    assert_eq!(num_events(&[first(), stored(2, Some(1), &scope, 2, &[3])]), 2);
    assert_eq!(num_events(&[first(), Event::Cleared, stored(2, Some(1), &scope, 2, &[3, 4])]), 3);
    // One removal per identity.
    assert_eq!(num_events(&[removed(1), removed(2)]), 2);
}

#[test]
fn bytes_that_are_no_text_are_written_so_that_readers_take_them() {
    let scope = Arc::new(Scope::default().with_adapter(&[0xff, 0x0a], 0).with_salt(&[0xfe]));
    let bytes = encoded(&EventEncoder::new().with_form(EventForm::Positional), &[stored(1, None, &scope, 0, &[])]);
    // No tokens, a block size of 0; the name as text, in the extra keys too; the salt as bytes.
    let tail = b"\x90\x00\xc0\xa3GPU\xa8hex:ff0a\x91\x92\xa8hex:ff0a\xc4\x01\xfe";
    assert!(bytes.ends_with(tail));
}

#[test]
fn a_batch_is_appended() {
    let mut out = vec![42];
    EventEncoder::default().encode_batch(1.5, &[], &mut out);
    assert_eq!(out, [&b"\x2a\x92"[..], ONE_AND_A_HALF, b"\x90"].concat());
}
