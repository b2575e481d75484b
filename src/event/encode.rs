//! Events in msgpack, as vLLM publishes them.
//!
//! Floor 1. A batch is one value; `|` stands between what a msgpack array or map holds:
//! ```text
//! batch     [ seconds | [ event | event ... ] | data-parallel rank ]       the rank only where there is one
//!
//! event     Form::Map (vLLM 0.33): a map, "type" first, the names below. Form::Positional (vLLM before maps came): an
//!           array, the type first, the values in this order.
//!
//! "BlockStored"       block_hashes | parent_block_hash | token_ids | block_size | lora_id | medium | lora_name
//!                     then, where given: extra_keys | group_idx | kv_cache_spec_kind | kv_cache_spec_sliding_window
//! "BlockRemoved"      block_hashes | medium     then, where given: group_idx
//! "AllBlocksCleared"
//!
//! extra_keys          per block nil, or [ lora_name | [ digest | offset ] ... | salt ], the salt in a first block only
//! ```
//! What is not given is left out of a map; of an array, from the end. Stored events that chain (each the parent of the
//! next, in one scope) are one `BlockStored`. Its numbers always agree: as many `token_ids` as hashes × `block_size`.
//!
//! vLLM's events have no field for a model or for the version of an adapter's content; the hashes cover both.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::{fmt, mem, str};

use rmp::encode::{self, ByteBuf};

use super::{Event, Stored};
use crate::id::len32;
use crate::prefix::hash::Digest;
use crate::prefix::{Extra, Scope};

/// How an event is written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum EventForm {
    /// A map from names: vLLM 0.33.
    #[default]
    Map,
    /// An array by position: vLLM before that.
    Positional,
}

/// How an identity is written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum HashForm {
    /// All 32 bytes.
    #[default]
    Bytes,
    /// The low 64 bits, as an unsigned number: what vLLM writes under `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`.
    Low64,
}

/// What the events of one cache have in common: how they are written, where the blocks are.
///
/// # Example
/// ```
/// use std::sync::Arc;
///
/// use paged_kv::Scope;
/// use paged_kv::event::{Event, EventEncoder, Stored};
///
/// let scope = Arc::new(Scope::default());
/// let stored = Event::Stored(Stored::new([7; 32], None, scope, 0, [1, 2, 3, 4].into()));
/// let mut batch = Vec::new();
/// EventEncoder::new().with_data_parallel_rank(1).encode_batch(1_700_000_000.5, &[stored], &mut batch);
/// assert_eq!(batch[..2], [0x93, 0xcb]); // An array of three; a float of 64 bits.
/// ```
pub struct EventEncoder {
    form: EventForm,
    hashes: HashForm,
    medium: Option<Box<str>>,
    data_parallel_rank: Option<u32>,
    group: Option<u32>,
    spec_kind: Option<Box<str>>,
    sliding_window: Option<u32>,
    lora_id: Option<Box<LoraId>>,
}

type LoraId = dyn Fn(&Scope) -> Option<u64> + Send + Sync;

impl EventEncoder {
    /// Maps, whole identities, medium "GPU", nothing that is optional.
    pub fn new() -> Self {
        Self {
            form: EventForm::Map,
            hashes: HashForm::Bytes,
            medium: Some("GPU".into()),
            data_parallel_rank: None,
            group: None,
            spec_kind: None,
            sliding_window: None,
            lora_id: None,
        }
    }

    /// The same in another form.
    pub fn with_form(self, form: EventForm) -> Self {
        Self { form, ..self }
    }

    /// The same with identities in another form.
    pub fn with_hashes(self, hashes: HashForm) -> Self {
        Self { hashes, ..self }
    }

    /// The same for another medium; vLLM knows "GPU", "CPU" and "STORAGE".
    pub fn with_medium(self, medium: Option<&str>) -> Self {
        Self { medium: medium.map(Into::into), ..self }
    }

    /// The same as one rank of several.
    pub fn with_data_parallel_rank(self, rank: u32) -> Self {
        Self { data_parallel_rank: Some(rank), ..self }
    }

    /// The same for a group of layers: its number, its kind in vLLM's words ("`full_attention`"), and its window in
    /// tokens.
    pub fn with_group(self, group: u32, kind: Option<&str>, sliding_window: Option<u32>) -> Self {
        Self { group: Some(group), spec_kind: kind.map(Into::into), sliding_window, ..self }
    }

    /// The same with a number for the adapter of a scope. vLLM calls the field deprecated; `lora_name` has the name.
    pub fn with_lora_id(self, lora_id: impl Fn(&Scope) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { lora_id: Some(Box::new(lora_id)), ..self }
    }

    /// Appends one batch to `out`. `seconds` is the time of the batch, since 1970.
    ///
    /// # Complexity
    /// Linear in the bytes written; allocates only in `out`, and for names of adapters that are no text.
    pub fn encode_batch(&self, seconds: f64, events: &[Event], out: &mut Vec<u8>) {
        let runs = || events.chunk_by(chains);
        let mut pack = Pack(ByteBuf::from_vec(mem::take(out)));
        pack.array(if self.data_parallel_rank.is_some() { 3 } else { 2 });
        pack.float(seconds);
        pack.array(len32(runs().count()));
        for run in runs() {
            self.run(&mut pack, run);
        }
        if let Some(rank) = self.data_parallel_rank {
            pack.uint(rank.into());
        }
        *out = pack.0.into_vec();
    }

    /// One event on the wire: of a run, only stored ones are longer than one.
    fn run(&self, pack: &mut Pack, run: &[Event]) {
        match run {
            [Event::Stored(first), ..] => self.stored(pack, first, run),
            [Event::Removed { identity }, ..] => {
                let mut fields = self.open(pack, "BlockRemoved", 2, [self.group.is_some()]);
                fields.required("block_hashes").array(1);
                fields.pack.hash(identity, self.hashes);
                fields.required("medium").text_or_nil(self.medium.as_deref());
                fields.optional("group_idx", self.group, |pack, group| pack.uint(group.into()));
            }
            [Event::Cleared, ..] => drop(self.open(pack, "AllBlocksCleared", 0, [])),
            [] => pack.nil(),
        }
    }

    fn stored(&self, pack: &mut Pack, first: &Stored, run: &[Event]) {
        let scope = &*first.scope;
        let lora_name = (!scope.adapter.is_empty()).then(|| name(&scope.adapter));
        let blocks =
            || run.iter().filter_map(|event| if let Event::Stored(block) = event { Some(block) } else { None });
        let extra_keys = blocks().any(|block| num_keys(block) > 0).then_some(());
        let given =
            [extra_keys.is_some(), self.group.is_some(), self.spec_kind.is_some(), self.sliding_window.is_some()];

        let mut fields = self.open(pack, "BlockStored", 7, given);
        fields.required("block_hashes").array(len32(run.len()));
        blocks().for_each(|block| fields.pack.hash(&block.identity, self.hashes));
        match &first.parent {
            Some(parent) => fields.required("parent_block_hash").hash(parent, self.hashes),
            None => fields.required("parent_block_hash").nil(),
        }
        // A run is a part of what a cache holds, whose tokens are at most `u32::MAX`.
        fields.required("token_ids").array(len32(run.len() * first.tokens.len()));
        blocks().flat_map(|block| &block.tokens).for_each(|&token| fields.pack.uint(token.into()));
        fields.required("block_size").uint(len32(first.tokens.len()).into());
        match self.lora_id.as_ref().and_then(|lora_id| lora_id(scope)) {
            Some(id) => fields.required("lora_id").uint(id),
            None => fields.required("lora_id").nil(),
        }
        fields.required("medium").text_or_nil(self.medium.as_deref());
        fields.required("lora_name").text_or_nil(lora_name.as_deref());
        fields.optional("extra_keys", extra_keys, |pack, ()| {
            pack.array(len32(run.len()));
            blocks().for_each(|block| keys(pack, block, lora_name.as_deref()));
        });
        fields.optional("group_idx", self.group, |pack, group| pack.uint(group.into()));
        fields.optional("kv_cache_spec_kind", self.spec_kind.as_deref(), |pack, kind| pack.text_or_nil(Some(kind)));
        fields.optional("kv_cache_spec_sliding_window", self.sliding_window, |pack, window| pack.uint(window.into()));
    }

    /// The head of an event with so many required fields and these optional ones.
    fn open<'a, const N: usize>(&self, pack: &'a mut Pack, tag: &str, required: u32, given: [bool; N]) -> Fields<'a> {
        let positional = self.form == EventForm::Positional;
        let written = if positional {
            given.iter().rposition(|&given| given).map_or(0, |last| last + 1)
        } else {
            given.iter().filter(|&&given| given).count()
        };
        let len = 1 + required + len32(written);
        if positional {
            pack.array(len);
        } else {
            pack.map(len);
            pack.text("type");
        }
        pack.text(tag);
        Fields { pack, positional, left: written }
    }
}

impl Default for EventEncoder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for EventEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { form, hashes, medium, data_parallel_rank, group, spec_kind, sliding_window, lora_id } = self;
        f.debug_struct("EventEncoder")
            .field("form", form)
            .field("hashes", hashes)
            .field("medium", medium)
            .field("data_parallel_rank", data_parallel_rank)
            .field("group", group)
            .field("spec_kind", spec_kind)
            .field("sliding_window", sliding_window)
            .field("lora_id", &lora_id.is_some())
            .finish()
    }
}

/// Whether two events are one on the wire.
fn chains(a: &Event, b: &Event) -> bool {
    let (Event::Stored(a), Event::Stored(b)) = (a, b) else { return false };
    b.parent == Some(a.identity) && a.tokens.len() == b.tokens.len() && a.scope == b.scope
}

/// An adapter's name as text, which the field must be. Other bytes get a text of their own: "hex:" and their digits.
fn name(adapter: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(adapter) {
        Ok(text) => text.into(),
        Err(_) => {
            let mut text = String::from("hex:");
            adapter.iter().for_each(|&byte| text.extend(hex(byte)));
            text.into()
        }
    }
}

fn hex(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('?'))
}

/// How many extra keys a block has.
fn num_keys(block: &Stored) -> usize {
    usize::from(!block.scope.adapter.is_empty()) + block.extras.len() + usize::from(salt(block).is_some())
}

/// The salt, in the block that it goes into.
fn salt(block: &Stored) -> Option<&[u8]> {
    (block.parent.is_none() && !block.scope.salt.is_empty()).then_some(&block.scope.salt)
}

fn keys(pack: &mut Pack, block: &Stored, lora_name: Option<&str>) {
    let count = num_keys(block);
    if count == 0 {
        return pack.nil();
    }
    pack.array(len32(count));
    if let Some(name) = lora_name {
        pack.text(name);
    }
    for Extra { range, digest } in &block.extras {
        pack.array(2);
        pack.text(&digest.iter().flat_map(|&byte| hex(byte)).collect::<String>());
        pack.int(i64::from(range.start) - i64::from(block.start));
    }
    match salt(block).map(|salt| (salt, str::from_utf8(salt))) {
        Some((_, Ok(text))) => pack.text(text),
        Some((salt, Err(_))) => pack.bytes(salt),
        None => {}
    }
}

/// The fields of an event that is open.
struct Fields<'a> {
    pack: &'a mut Pack,
    positional: bool,
    /// Optional fields that the head has promised and that are not written yet.
    left: usize,
}

impl Fields<'_> {
    /// The place of a value that is always there.
    fn required(&mut self, name: &str) -> &mut Pack {
        if !self.positional {
            self.pack.text(name);
        }
        self.pack
    }

    /// A value that may be absent: then a map has nothing, and an array a nil, if anything comes behind it.
    fn optional<T>(&mut self, name: &str, value: Option<T>, write: impl FnOnce(&mut Pack, T)) {
        if let Some(value) = value {
            write(self.required(name), value);
        } else if self.positional && self.left > 0 {
            self.pack.nil();
        } else {
            return;
        }
        self.left -= 1;
    }
}

/// Values of msgpack, each in its shortest form. Nothing here can fail: a `ByteBuf` grows.
struct Pack(ByteBuf);

impl Pack {
    fn array(&mut self, len: u32) {
        let _ = encode::write_array_len(&mut self.0, len);
    }

    fn map(&mut self, len: u32) {
        let _ = encode::write_map_len(&mut self.0, len);
    }

    fn nil(&mut self) {
        let _ = encode::write_nil(&mut self.0);
    }

    fn float(&mut self, value: f64) {
        let _ = encode::write_f64(&mut self.0, value);
    }

    fn uint(&mut self, value: u64) {
        let _ = encode::write_uint(&mut self.0, value);
    }

    fn int(&mut self, value: i64) {
        let _ = encode::write_sint(&mut self.0, value);
    }

    /// A text beyond 4 GiB has no length in msgpack and is left empty.
    fn text(&mut self, text: &str) {
        let text = if u32::try_from(text.len()).is_ok() { text } else { "" };
        let _ = encode::write_str(&mut self.0, text);
    }

    fn text_or_nil(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    /// As with texts.
    fn bytes(&mut self, bytes: &[u8]) {
        let bytes = if u32::try_from(bytes.len()).is_ok() { bytes } else { &[] };
        let _ = encode::write_bin(&mut self.0, bytes);
    }

    fn hash(&mut self, identity: &Digest, form: HashForm) {
        match form {
            HashForm::Bytes => self.bytes(identity),
            HashForm::Low64 => {
                let [.., a, b, c, d, e, f, g, h] = *identity;
                self.uint(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
            }
        }
    }
}

#[cfg(test)]
mod tests;
