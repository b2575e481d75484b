//! Tokenisers of crafted files: special tokens, start tokens, and `SentencePiece` against itself.

use candle_core::quantized::gguf_file::Value;
use serde::Deserialize;
use serve::model::Gguf;
use serve::tokenizer::{ChatTemplate, Message, Tokenizer};

use crate::crafted::{Crafted, text};
use crate::golden::model_path;

fn tokenizer(crafted: &Crafted) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(&crafted.write().path).unwrap()).unwrap()
}

#[test]
fn special_tokens_in_a_text_are_recognised() {
    let tokenizer = tokenizer(&Crafted::new());
    let ids = tokenizer.encode("<|start|>he<tool>he<|end|>").unwrap();
    assert_eq!(ids, [0, 259, 2, 259, 1]);
    // What steers the model is not shown; what a user defined is text.
    assert_eq!(tokenizer.decode(&ids), "he<tool>he");
    assert!(tokenizer.is_end(1) && !tokenizer.is_end(0));
}

#[test]
fn start_token_comes_first_once_and_only_where_the_model_wants_it() {
    let with = tokenizer(&Crafted::new().set("tokenizer.ggml.add_bos_token", Value::Bool(true)));
    assert_eq!(with.encode("he").unwrap(), [0, 259]);
    assert_eq!(with.encode("<|start|>he").unwrap(), [0, 259]);
    assert_eq!(tokenizer(&Crafted::new()).encode("he").unwrap(), [259]);
    // Llama 3 wants it where its file does not say.
    let llama3 = tokenizer(&Crafted::new().set("tokenizer.ggml.pre", text("llama-bpe")));
    assert_eq!(llama3.encode("he").unwrap(), [0, 259]);
}

#[test]
fn any_text_reads_back() {
    let tokenizer = tokenizer(&Crafted::new());
    for text in ["hello  world 123\n", "Grüße, 世界 🦀!", "\u{0}\u{7f}\u{ad}"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text);
    }
}

#[derive(Debug, Deserialize)]
struct SentencePiece {
    add_space_prefix: bool,
    pieces: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
}

/// The models in `sentencepiece.json` were trained on a few sentences by `SentencePiece` (BPE, byte fallback, 420
/// pieces, digits split, identity normalisation), which also gave the ids.
#[test]
fn sentencepiece_ids_equal_those_of_sentencepiece() {
    let models: Vec<SentencePiece> = serde_json::from_str(include_str!("sentencepiece.json")).unwrap();
    assert_eq!(models.len(), 2);
    for model in models {
        let crafted = Crafted::new()
            .set("tokenizer.ggml.model", text("llama"))
            .set("tokenizer.ggml.add_space_prefix", Value::Bool(model.add_space_prefix))
            .set("tokenizer.ggml.add_bos_token", Value::Bool(false))
            .set("tokenizer.ggml.bos_token_id", Value::U32(1))
            .set("tokenizer.ggml.eos_token_id", Value::U32(2))
            .set("tokenizer.ggml.tokens", Value::Array(model.pieces.iter().map(|p| text(p)).collect()))
            .set("tokenizer.ggml.scores", Value::Array(model.scores.iter().map(|&s| Value::F32(s)).collect()))
            .set("tokenizer.ggml.token_type", Value::Array(model.types.iter().map(|&t| Value::I32(t)).collect()));
        let tokenizer = tokenizer(&crafted);
        for case in model.cases {
            let ids = tokenizer.encode(&case.text).unwrap();
            assert_eq!(ids, case.ids, "{:?}", case.text);
            let prefix = if model.add_space_prefix { " " } else { "" };
            assert_eq!(tokenizer.decode(&ids), format!("{prefix}{}", case.text));
        }
    }
}

#[test]
fn chat_prompt_of_the_real_model_is_its_template() {
    let gguf = Gguf::open(&model_path()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let template = ChatTemplate::from_gguf(&gguf, &tokenizer).unwrap();
    let user = Message { role: "user", content: "Hi".into() };
    let system = Message { role: "system", content: "Be brief.".into() };
    // Written out from the template in the file; the default system prompt is the template's own.
    assert_eq!(
        template.render(core::slice::from_ref(&user)).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let text = template.render(&[system, user]).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = tokenizer.encode(&text).unwrap();
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 3, "three turns start");
    assert_eq!(ids.iter().filter(|&&id| id == 2).count(), 2, "two turns end");
}

#[test]
fn character_without_a_token_is_refused_and_not_dropped() {
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&model_path()).unwrap()).unwrap();
    // U+40000 starts with the byte F1, which this vocabulary has no token for.
    let error = tokenizer.encode("a\u{40000}b").unwrap_err().to_string();
    assert!(error.contains("no token"), "{error}");
}
