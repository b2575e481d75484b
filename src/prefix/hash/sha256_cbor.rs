//! Identities with the values of vLLM's `sha256_cbor`.
//!
//! Floor 1. What is hashed is the canonical CBOR (RFC 8949, section 4.2.1) of one array:
//! ```text
//! [ parent, [token, token, ...], extras ]
//!
//! parent   byte string of 32: the parent's identity, or for a first block the root, sha256(cbor(seed))
//! extras   null if there are none, else an array of tagged arrays, in this order:
//!          ["lora", name, version]     in every block, if the scope has an adapter
//!          ["mm", digest, offset]      per extra; offset is its start less the block's, negative if it began before
//!          ["cache_salt", salt]        in the first block, if the scope has a salt
//!          ["model", model]            in the first block, if the scope has a model
//! ```
//! Bytes of the scope are text where they are UTF-8, else a byte string; a digest is text, 64 lower-case hexadecimal
//! digits; a version is text, decimal. vLLM has the adapter's path where the version stands, and no model: leave the
//! model empty where its values are wanted.
//!
//! Source: the layout is vLLM's (0.33, `hash_block_tokens`), which names it in its documentation of prefix caching.

use core::str;

use sha2::{Digest as _, Sha256};

use super::feed::{Absorb, Feed, len64};
use super::{BlockHasher, Digest, Hashed};
use crate::prefix::{Extra, Scope};

/// SHA-256 over canonical CBOR: the values of vLLM's `sha256_cbor`, one router reads both.
///
/// A process of vLLM has the same seed, so the same root, unless `PYTHONHASHSEED` sets another; then give that text to
/// [`with_seed`](Self::with_seed).
///
/// vLLM's values do not say where an extra ends: they take it that the digest of an image decides how many tokens stand
/// for it. Where yours does not, use [`with_ends`](Self::with_ends), or `Blake3`: else contents that differ in where an
/// image ends have one identity, a sink is told of them as of one, and a router takes either for the other. The cache never
/// does.
///
/// # Example
/// ```
/// use paged_kv::Scope;
/// use paged_kv::prefix::hash::{BlockHasher, Hashed, Sha256Cbor};
///
/// let hasher = Sha256Cbor::with_seed("0");
/// let first = hasher.identity(&Hashed::new(None, &Scope::default(), 0, &[100, 101, 102, 103]));
/// assert_eq!(first[..4], [0x71, 0xf4, 0x0f, 0x56]);
/// ```
#[derive(Clone, Debug)]
pub struct Sha256Cbor {
    root: Digest,
    ends: bool,
}

impl Sha256Cbor {
    /// With the seed that vLLM has by default, `vllm-none-hash`.
    pub fn new() -> Self {
        Self::with_seed("vllm-none-hash")
    }

    /// With the root that follows from this seed.
    pub fn with_seed(seed: &str) -> Self {
        let mut cbor = Feed::new(Sha256::new());
        text(&mut cbor, seed.as_bytes());
        Self { root: cbor.finish(), ends: false }
    }

    /// The same, with the end of every extra behind its offset, `["mm", digest, offset, end]`, counted like the offset
    /// from the block's start. Blocks with extras then have other values than vLLM's.
    pub const fn with_ends(self) -> Self {
        Self { ends: true, ..self }
    }

    /// What stands for the parent of a first block.
    pub const fn root(&self) -> &Digest {
        &self.root
    }
}

impl Default for Sha256Cbor {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockHasher for Sha256Cbor {
    fn identity(&self, block: &Hashed<'_>) -> Digest {
        let mut cbor = Feed::new(Sha256::new());
        head(&mut cbor, ARRAY, 3);
        head(&mut cbor, BYTES, 32);
        cbor.put(block.parent.unwrap_or(&self.root));
        head(&mut cbor, ARRAY, len64(block.tokens.len()));
        for &token in block.tokens {
            head(&mut cbor, UNSIGNED, token.into());
        }
        self.extras(&mut cbor, block);
        cbor.finish()
    }

    fn leaves_out_ends(&self) -> bool {
        !self.ends
    }
}

impl Sha256Cbor {
    fn extras(&self, cbor: &mut Cbor, block: &Hashed<'_>) {
        let Scope { model, adapter, adapter_version, salt } = block.scope;
        let first = block.parent.is_none();
        let (adapted, salted, modelled) =
            (!adapter.is_empty() || *adapter_version != 0, first && !salt.is_empty(), first && !model.is_empty());
        let around = u64::from(adapted) + u64::from(salted) + u64::from(modelled);
        let count = around.saturating_add(len64(block.extras.len()));
        if count == 0 {
            return cbor.put(&[NULL]);
        }
        head(cbor, ARRAY, count);
        if adapted {
            tagged(cbor, 3, b"lora");
            text_or_bytes(cbor, adapter);
            decimal(cbor, *adapter_version);
        }
        for Extra { range, digest } in block.extras {
            tagged(cbor, if self.ends { 4 } else { 3 }, b"mm");
            text(cbor, &hex(digest));
            signed(cbor, i64::from(range.start) - i64::from(block.start));
            if self.ends {
                signed(cbor, i64::from(range.end) - i64::from(block.start));
            }
        }
        if salted {
            tagged(cbor, 2, b"cache_salt");
            text_or_bytes(cbor, salt);
        }
        if modelled {
            tagged(cbor, 2, b"model");
            text_or_bytes(cbor, model);
        }
    }
}

// As much of CBOR as an identity needs: definite lengths, shortest heads.

type Cbor = Feed<Sha256>;

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

/// A major type and its argument, in the shortest of the five forms.
#[inline]
fn head(cbor: &mut Cbor, major: u8, argument: u64) {
    let bytes = argument.to_be_bytes();
    let (info, width) = match argument {
        0..=23 => (bytes[7], 0),
        24..=0xff => (24, 1),
        0x100..=0xffff => (25, 2),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 8),
    };
    cbor.put(&[major << 5 | info]);
    cbor.put(&bytes[8 - width..]);
}

fn text(cbor: &mut Cbor, utf8: &[u8]) {
    head(cbor, TEXT, len64(utf8.len()));
    cbor.put(utf8);
}

/// The two major types keep a text apart from bytes that are none.
fn text_or_bytes(cbor: &mut Cbor, bytes: &[u8]) {
    if str::from_utf8(bytes).is_ok() {
        return text(cbor, bytes);
    }
    head(cbor, BYTES, len64(bytes.len()));
    cbor.put(bytes);
}

/// CBOR writes a negative n as the unsigned −1 − n.
fn signed(cbor: &mut Cbor, value: i64) {
    let major = if value < 0 { NEGATIVE } else { UNSIGNED };
    head(cbor, major, if value < 0 { !value } else { value }.unsigned_abs());
}

fn tagged(cbor: &mut Cbor, len: u64, tag: &[u8]) {
    head(cbor, ARRAY, len);
    text(cbor, tag);
}

/// At most the 20 digits of 2⁶⁴ − 1.
fn decimal(cbor: &mut Cbor, mut value: u64) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    while at == digits.len() || value > 0 {
        at -= 1;
        digits[at] += (value % 10).to_be_bytes()[7];
        value /= 10;
    }
    text(cbor, &digits[at..]);
}

fn hex(digest: &Digest) -> [u8; 64] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 64];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    hex
}

impl Absorb for Sha256 {
    fn absorb(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }

    fn digest(self) -> Digest {
        self.finalize().into()
    }
}
