//! Two prompts have one identity if, and only if, a cache would find the one for the other.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use paged_kv::prefix::hash::{Blake3, BlockHasher, Digest, Sha256Cbor, identities};
use paged_kv::{Extra, Scope};

/// A prompt of small parts, so that two are often nearly the same.
#[derive(Arbitrary, Clone, PartialEq, Debug)]
struct Prompt {
    model: Vec<u8>,
    adapter: Vec<u8>,
    version: u64,
    salt: Vec<u8>,
    tokens: Vec<u32>,
    /// Lengths of gap and range, and a byte of the digest.
    extras: Vec<(u8, u8, u8)>,
}

/// How the second prompt comes from the first.
#[derive(Arbitrary, Debug)]
enum Change {
    None,
    Other(Prompt),
    Model(Vec<u8>),
    Adapter(Vec<u8>),
    Version(u64),
    Salt(Vec<u8>),
    /// Bytes that move from the end of a field to the start of the next.
    Move { from_adapter: bool, count: u8 },
    Token { at: u8, token: u32 },
    Tokens(Vec<u32>),
    Extras(Vec<(u8, u8, u8)>),
}

#[derive(Arbitrary, Debug)]
struct Input {
    block_size: u8,
    first: Prompt,
    change: Change,
}

fuzz_target!(|input: Input| {
    let second = changed(&input.first, input.change);
    let block_size = u32::from(input.block_size % 8) + 1;
    let (one, other) = (Content::new(&input.first, block_size), Content::new(&second, block_size));
    for (hasher, ends) in hashers() {
        let (a, b) = (one.last(hasher), other.last(hasher));
        let same = if ends { one.whole() == other.whole() } else { one.without_ends() == other.without_ends() };
        assert_eq!(a == b, same, "{one:?}\n{other:?}");
    }
});

fn hashers() -> [(&'static dyn BlockHasher, bool); 3] {
    use std::sync::LazyLock;
    static HASHERS: LazyLock<(Sha256Cbor, Sha256Cbor, Blake3)> =
        LazyLock::new(|| (Sha256Cbor::new(), Sha256Cbor::new().with_ends(), Blake3::new()));
    [(&HASHERS.0, false), (&HASHERS.1, true), (&HASHERS.2, true)]
}

fn changed(first: &Prompt, change: Change) -> Prompt {
    let mut second = first.clone();
    match change {
        Change::None => {}
        Change::Other(prompt) => second = prompt,
        Change::Model(model) => second.model = model,
        Change::Adapter(adapter) => second.adapter = adapter,
        Change::Version(version) => second.version = version,
        Change::Salt(salt) => second.salt = salt,
        Change::Move { from_adapter, count } => {
            let Prompt { model, adapter, salt, .. } = &mut second;
            let (from, to) = if from_adapter { (adapter, salt) } else { (model, adapter) };
            let moved = from.split_off(from.len().saturating_sub(count.into()));
            to.splice(0..0, moved);
        }
        Change::Token { at, token } => {
            let at = usize::from(at) % second.tokens.len().max(1);
            if let Some(old) = second.tokens.get_mut(at) {
                *old = token;
            }
        }
        Change::Tokens(tokens) => second.tokens = tokens,
        Change::Extras(extras) => second.extras = extras,
    }
    second
}

/// What a cache compares of a prompt's full blocks.
#[derive(Debug)]
struct Content {
    scope: Scope,
    block_size: u32,
    tokens: Vec<u32>,
    extras: Vec<Extra>,
    /// Those that overlap a full block.
    seen: usize,
}

impl Content {
    fn new(prompt: &Prompt, block_size: u32) -> Self {
        let (mut at, mut end) = (0, 0);
        let mut extras = Vec::new();
        for &(gap, len, digest) in prompt.extras.iter().take(64) {
            at += u32::from(gap % 8);
            end = end.max(at + 1 + u32::from(len % 8));
            extras.push(Extra::new(at..end, [digest; 32]));
        }
        let full = prompt.tokens.len() / block_size as usize * block_size as usize;
        Self {
            scope: Scope::default()
                .with_model(&prompt.model)
                .with_adapter(&prompt.adapter, prompt.version)
                .with_salt(&prompt.salt),
            block_size,
            tokens: prompt.tokens[..full].to_vec(),
            seen: extras.iter().filter(|extra| extra.range.start < full as u32).count(),
            extras,
        }
    }

    fn last(&self, hasher: &dyn BlockHasher) -> Option<Digest> {
        identities(hasher, &self.scope, &self.tokens, self.block_size, &self.extras).expect("in order").last()
    }

    fn whole(&self) -> Option<(&Scope, &[u32], &[Extra])> {
        (!self.tokens.is_empty()).then_some((&self.scope, &self.tokens[..], &self.extras[..self.seen]))
    }

    /// An extra's last block shows that it reaches so far, and not where in the block it ends.
    fn without_ends(&self) -> Option<(&Scope, &[u32], Vec<(u32, u32, [u8; 32])>)> {
        let (scope, tokens, extras) = self.whole()?;
        let last_block = (tokens.len() as u32 / self.block_size) - 1;
        let shown = |extra: &Extra| {
            (extra.range.start, ((extra.range.end - 1) / self.block_size).min(last_block), extra.digest)
        };
        Some((scope, tokens, extras.iter().map(shown).collect()))
    }
}
