//! Files that must not run: each is refused with its reason by name, and none brings the program down.

use candle_core::quantized::gguf_file::Value;
use serve::error::Error;
use serve::loaded::Loaded;
use serve::options::{Command, Options};

use crate::crafted::{Crafted, Written, text};

/// Loads a file as the program does, for the raw prompt "hello".
fn load(file: &Written) -> Result<Loaded, Error> {
    let path = file.path.to_str().unwrap();
    let arguments = ["serve", "--raw", "--prompt", "hello", "--max-tokens", "8", "--model", path];
    match Options::parse(arguments.map(Into::into)).unwrap() {
        Command::Run(options) => Loaded::open(&options),
        Command::Show(text) => panic!("{text}"),
    }
}

/// Loads a file that must be refused, and checks that the message is one line and names `what`.
#[track_caller]
fn refused(file: &Written, what: &str) {
    let message = load(file).unwrap_err().to_string();
    assert!(message.contains(what), "{message:?} does not name {what:?}");
    assert_eq!(message.lines().count(), 1, "{message:?}");
    assert!(message.starts_with(file.path.to_str().unwrap()), "{message:?}");
}

#[test]
fn whole_model_is_accepted() {
    let loaded = load(&Crafted::new().write()).unwrap();
    // 3 special tokens, 256 bytes, then `he` and `ll`; `o` is wherever the alphabet has it.
    assert_eq!(loaded.requests[0].prompt[..2], [259, 260]);
    assert_eq!(loaded.requests[0].prompt.len(), 3);
    assert!(loaded.model.config().tied_output);
}

#[test]
fn anything_unsupported_is_refused_by_name() {
    let scaling = |kind| Crafted::new().set("llama.rope.scaling.type", text(kind));
    let cases = [
        (Crafted::new().set("general.architecture", text("qwen2")), "qwen2"),
        (scaling("yarn"), "yarn"),
        (scaling("linear").set("llama.rope.scaling.factor", Value::F32(4.0)), "rope scaling"),
        (Crafted::new().set("llama.rope.scaling.factor", Value::F32(2.0)), "rope scaling"),
        (Crafted::new().set("llama.rope.scale_linear", Value::F32(2.0)), "rope scaling"),
        (Crafted::new().tensor("rope_freqs.weight", &[4]), "rope_freqs.weight"),
        (Crafted::new().set("llama.rope.dimension_count", Value::U32(4)), "llama.rope.dimension_count"),
        (Crafted::new().set("llama.expert_count", Value::U32(8)), "llama.expert_count"),
        (Crafted::new().tensor("blk.0.ffn_gate_inp.weight", &[4, 16]), "mixture of experts"),
        (Crafted::new().tensor("blk.1.attn_q.bias", &[16]), "blk.1.attn_q.bias"),
        (Crafted::new().tensor("blk.1.attn_q_norm.weight", &[8]), "blk.1.attn_q_norm.weight"),
        (Crafted::new().tensor("blk.2.attn_q.weight", &[16, 16]), "blk.2.attn_q.weight"),
        (Crafted::new().set("llama.attention.sliding_window", Value::U32(32)), "sliding window"),
        (Crafted::new().set("llama.attention.causal", Value::Bool(false)), "causal"),
        (Crafted::new().set("llama.logit_scale", Value::F32(0.5)), "llama.logit_scale"),
        (Crafted::new().set("llama.attention.value_length", Value::U32(16)), "value heads of 16"),
        (Crafted::new().set("llama.attention.key_length", Value::U32(12)), "heads of 12"),
        (Crafted::new().set("tokenizer.ggml.model", text("bert")), "bert"),
        (Crafted::new().set("tokenizer.ggml.pre", text("default")), "default"),
        (Crafted::new().set("tokenizer.ggml.add_space_prefix", Value::Bool(true)), "add_space_prefix"),
    ];
    for (crafted, what) in cases {
        let message = load(&crafted.write()).unwrap_err().to_string();
        assert!(message.contains("not supported"), "{message}");
        refused(&crafted.write(), what);
    }
}

#[test]
fn plain_rope_scaling_is_accepted() {
    let none = Crafted::new().set("llama.rope.scaling.type", text("none"));
    let none = none.set("llama.rope.scaling.factor", Value::F32(4.0));
    let one = Crafted::new().set("llama.rope.scaling.type", text("linear"));
    let one = one.set("llama.rope.scaling.factor", Value::F32(1.0));
    assert!(load(&none.write()).is_ok());
    assert!(load(&one.write()).is_ok());
}

#[test]
fn missing_or_impossible_keys_are_named() {
    let required = [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
    ];
    for key in required {
        refused(&Crafted::new().without(key).write(), key);
    }
    let wrong = [
        ("llama.block_count", Value::U32(0)),
        ("llama.block_count", Value::I32(-1)),
        ("llama.context_length", text("long")),
        ("llama.embedding_length", Value::U32(0)),
        ("llama.feed_forward_length", Value::Array(vec![Value::U32(24), Value::U32(24)])),
        ("llama.attention.head_count", Value::U32(0)),
        ("llama.attention.head_count", Value::U32(3)),
        ("llama.attention.head_count_kv", Value::U32(0)),
        ("llama.vocab_size", Value::U32(7)),
        ("llama.rope.freq_base", Value::F32(0.0)),
        ("llama.rope.freq_base", Value::F32(f32::NAN)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(-1.0)),
        ("tokenizer.ggml.bos_token_id", Value::U32(99_999)),
    ];
    for (key, value) in wrong {
        refused(&Crafted::new().set(key, value).write(), key);
    }
    let three = Crafted::new().set("llama.attention.head_count", Value::U32(4));
    let three = three.set("llama.attention.key_length", Value::U32(8));
    refused(&three.set("llama.attention.head_count_kv", Value::U32(3)).write(), "llama.attention.head_count_kv");
}

#[test]
fn tensors_that_are_missing_or_misshapen_are_named() {
    for name in ["token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight"] {
        refused(&Crafted::new().without_tensor(name).write(), name);
    }
    refused(&Crafted::new().tensor("blk.0.attn_k.weight", &[16, 16]).write(), "blk.0.attn_k.weight");
    refused(&Crafted::new().tensor("output_norm.weight", &[8]).write(), "output_norm.weight");
    refused(&Crafted::new().set("llama.block_count", Value::U32(4_000_000_000)).write(), "blk.2.");
}

#[test]
fn broken_vocabulary_is_refused() {
    let types = |types: Vec<i32>| {
        let types = types.into_iter().map(Value::I32).collect();
        Crafted::new().set("tokenizer.ggml.token_type", Value::Array(types)).write()
    };
    refused(&types(vec![1, 1]), "261 tokens have 2 types");
    refused(&types(vec![9; 261]), "token type 9");
    let twice = Value::Array(vec![text("a"), text("a")]);
    let twice = Crafted::new().set("tokenizer.ggml.tokens", twice);
    let kinds = Value::Array(vec![Value::I32(1), Value::I32(1)]);
    refused(&twice.set("tokenizer.ggml.token_type", kinds).write(), "twice");
    let merge = Value::Array(vec![text("zz yy")]);
    refused(&Crafted::new().set("tokenizer.ggml.merges", merge).write(), "zz");
    let merge = Value::Array(vec![text("whole")]);
    refused(&Crafted::new().set("tokenizer.ggml.merges", merge).write(), "whole");
}

#[test]
fn file_cut_anywhere_is_refused_and_never_panics() {
    let whole = std::fs::read(&Crafted::new().write().path).unwrap();
    for len in (0..whole.len()).step_by(97).chain([whole.len() - 64]) {
        let file = Written::bytes(&whole[..len]);
        let message = load(&file).unwrap_err().to_string();
        assert_eq!(message.lines().count(), 1, "{message:?}");
    }
    refused(&Written::bytes(&whole[..whole.len() - 64]), "truncated");
    refused(&Written::bytes(b""), "not a readable GGUF file");
    refused(&Written::bytes(&[0xAB; 4096]), "not a readable GGUF file");
}

#[test]
fn damaged_header_is_an_error_or_another_model_and_never_panics() {
    let whole = std::fs::read(&Crafted::new().write().path).unwrap();
    // Every byte of the first keys and, more coarsely, of the rest of the header.
    for at in (0..700).chain((700..12_000).step_by(41)).filter(|&at| at < whole.len()) {
        for value in [0x00, 0x7F, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if let Err(error) = load(&Written::bytes(&bytes)) {
                assert_eq!(error.to_string().lines().count(), 1, "byte {at}: {error}");
            }
        }
    }
    // An alignment of zero makes the reader divide by it.
    refused(&Crafted::new().set("general.alignment", Value::U32(0)).write(), "contradicts itself");
}

#[test]
fn missing_file_and_folder_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Written::bytes(b"");
    file.path = dir.path().join("nothing.gguf");
    refused(&file, "cannot be opened");
    file.path = dir.path().into();
    refused(&file, "not a file");
}
