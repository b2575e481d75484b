//! Any events are a batch that a reader who knows only msgpack walks to its end, and whose numbers agree.
#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use paged_kv::event::{Event, EventEncoder, EventForm, HashForm, Stored};
use paged_kv::{Extra, Scope};

#[derive(Arbitrary, Debug)]
struct Input {
    positional: bool,
    low_64: bool,
    rank: Option<u32>,
    group: Option<(u32, Option<String>, Option<u32>)>,
    medium: Option<String>,
    lora_id: Option<u64>,
    seconds: f64,
    scopes: Vec<(Vec<u8>, u64, Vec<u8>, Vec<u8>)>,
    events: Vec<Wanted>,
}

#[derive(Arbitrary, Debug)]
enum Wanted {
    Stored { identity: u8, follows: bool, parent: Option<u8>, scope: u8, start: u32, tokens: Vec<u32>, extras: Vec<(u32, u32, u8)> },
    Removed { identity: u8 },
    Cleared,
}

fuzz_target!(|input: Input| {
    let mut encoder = EventEncoder::new().with_medium(input.medium.as_deref());
    if input.positional {
        encoder = encoder.with_form(EventForm::Positional);
    }
    if input.low_64 {
        encoder = encoder.with_hashes(HashForm::Low64);
    }
    if let Some(rank) = input.rank {
        encoder = encoder.with_data_parallel_rank(rank);
    }
    if let Some((group, kind, window)) = &input.group {
        encoder = encoder.with_group(*group, kind.as_deref(), *window);
    }
    if let Some(id) = input.lora_id {
        encoder = encoder.with_lora_id(move |_| Some(id));
    }
    let events = events(&input);
    let mut out = Vec::new();
    encoder.encode_batch(input.seconds, &events, &mut out);

    let mut rest = &out[..];
    let batch = value(&mut rest);
    assert!(rest.is_empty(), "nothing behind the batch");
    let batch = batch.array();
    assert_eq!(batch.len(), 2 + usize::from(input.rank.is_some()));
    assert!(matches!(batch[0], Value::Float(bits) if bits == input.seconds.to_bits()));
    if let Some(rank) = input.rank {
        assert_eq!(batch[2], Value::Number(rank.into()));
    }
    let identity = |identity: &[u8; 32]| match input.low_64 {
        true => Value::Number(u64::from_be_bytes(identity[24..].try_into().unwrap()).into()),
        false => Value::Bytes(identity.to_vec()),
    };
    // What was said, block by block, is what went in.
    let mut left = events.iter();
    for event in batch[1].array() {
        match (event.text("type", 0), event.get("block_hashes", 1)) {
            ("AllBlocksCleared", None) => assert_eq!(left.next(), Some(&Event::Cleared)),
            ("BlockRemoved", Some(hashes)) => {
                let Some(Event::Removed { identity: removed }) = left.next() else { panic!("removed") };
                assert_eq!(hashes.array(), [identity(removed)]);
            }
            ("BlockStored", Some(hashes)) => {
                let block_size = event.get("block_size", 4).expect("required").number() as usize;
                let tokens = event.get("token_ids", 3).expect("required").array();
                assert_eq!(tokens.len(), hashes.array().len() * block_size);
                if let Some(Value::Array(keys)) = event.get("extra_keys", 8) {
                    assert_eq!(keys.len(), hashes.array().len());
                }
                let mut parent = event.get("parent_block_hash", 2).expect("required").clone();
                for (at, hash) in hashes.array().iter().enumerate() {
                    let Some(Event::Stored(stored)) = left.next() else { panic!("stored") };
                    assert_eq!(*hash, identity(&stored.identity));
                    assert_eq!(parent, stored.parent.as_ref().map_or(Value::Nil, &identity));
                    assert_eq!(stored.tokens.len(), block_size);
                    let said = tokens[at * block_size..][..block_size].iter().map(Value::number);
                    assert!(said.eq(stored.tokens.iter().map(|&token| token.into())));
                    parent = hash.clone();
                }
            }
            (other, _) => panic!("{other}"),
        }
    }
    assert_eq!(left.next(), None);
});

fn events(input: &Input) -> Vec<Event> {
    let mut scopes: Vec<_> = input
        .scopes
        .iter()
        .map(|(adapter, version, salt, model)| {
            Arc::new(Scope::default().with_adapter(adapter, *version).with_salt(salt).with_model(model))
        })
        .collect();
    scopes.push(Arc::default());
    let mut last = None;
    let mut events = Vec::new();
    for wanted in &input.events {
        events.push(match wanted {
            Wanted::Stored { identity, follows, parent, scope, start, tokens, extras } => {
                let parent = if *follows { last } else { parent.map(|parent| [parent; 32]) };
                let scope = scopes[usize::from(*scope) % scopes.len()].clone();
                let extras = extras.iter().map(|&(start, end, digest)| Extra::new(start..end, [digest; 32])).collect();
                last = Some([*identity; 32]);
                Event::Stored(
                    Stored::new([*identity; 32], parent, scope, *start, tokens[..].into()).with_extras(extras),
                )
            }
            Wanted::Removed { identity } => Event::Removed { identity: [*identity; 32] },
            Wanted::Cleared => Event::Cleared,
        });
    }
    events
}

/// As much of msgpack as there is to read, by the first byte of a value.
#[derive(Clone, PartialEq, Debug)]
enum Value {
    Nil,
    Number(i128),
    Float(u64),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

impl Value {
    fn array(&self) -> &[Self] {
        let Self::Array(values) = self else { panic!("no array: {self:?}") };
        values
    }

    fn number(&self) -> i128 {
        let Self::Number(number) = self else { panic!("no number: {self:?}") };
        *number
    }

    /// A field by its name, or in an array by its position.
    fn get(&self, name: &str, at: usize) -> Option<&Self> {
        match self {
            Self::Array(values) => values.get(at),
            Self::Map(fields) => fields.iter().find(|(key, _)| *key == Self::Text(name.into())).map(|(_, value)| value),
            _ => panic!("no event: {self:?}"),
        }
    }

    fn text(&self, name: &str, at: usize) -> &str {
        let Some(Self::Text(text)) = self.get(name, at) else { panic!("no text: {self:?}") };
        text
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at_checked(len).expect("the batch ends early");
    *rest = left;
    taken
}

fn number(rest: &mut &[u8], width: usize) -> u64 {
    take(rest, width).iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn value(rest: &mut &[u8]) -> Value {
    let first = take(rest, 1)[0];
    let text = |rest: &mut &[u8], len| Value::Text(std::str::from_utf8(take(rest, len)).expect("text").to_owned());
    let array = |rest: &mut &[u8], len: usize| Value::Array((0..len).map(|_| value(rest)).collect());
    let map = |rest: &mut &[u8], len: usize| Value::Map((0..len).map(|_| (value(rest), value(rest))).collect());
    match first {
        0..=0x7f => Value::Number(first.into()),
        0x80..=0x8f => map(rest, (first & 0x0f).into()),
        0x90..=0x9f => array(rest, (first & 0x0f).into()),
        0xa0..=0xbf => text(rest, (first & 0x1f).into()),
        0xc0 => Value::Nil,
        0xc4..=0xc6 => {
            let len = number(rest, 1 << (first - 0xc4)) as usize;
            Value::Bytes(take(rest, len).to_vec())
        }
        0xcb => Value::Float(number(rest, 8)),
        0xcc..=0xcf => Value::Number(number(rest, 1 << (first - 0xcc)).into()),
        0xd0..=0xd3 => {
            let width = 1 << (first - 0xd0);
            let unused = 64 - 8 * width as u32;
            Value::Number(((number(rest, width) << unused) as i64 >> unused).into())
        }
        0xd9..=0xdb => {
            let len = number(rest, 1 << (first - 0xd9)) as usize;
            text(rest, len)
        }
        0xdc | 0xdd => {
            let len = number(rest, 2 << (first - 0xdc)) as usize;
            array(rest, len)
        }
        0xde | 0xdf => {
            let len = number(rest, 2 << (first - 0xde)) as usize;
            map(rest, len)
        }
        0xe0.. => Value::Number((first as i8).into()),
        _ => panic!("{first:#x} begins nothing that is needed here"),
    }
}
