//! The real model against the golden file: what a float64 program computed from the same weights.

use std::path::PathBuf;
use std::time::Instant;

use serde::Deserialize;
use serve::download::{SMOLLM2_135M, models_dir};
use serve::model::{Gguf, Model, WeightFormat};
use serve::sampling::argmax;
use serve::tokenizer::Tokenizer;

use crate::dense::Dense;

#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) prompt: String,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) first_top10: Vec<(u32, f64)>,
}

#[derive(Debug, Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

/// The golden cases, or `None`, said aloud, where `PAGED_KV_DATA` names no folder with them.
pub(crate) fn cases() -> Option<Vec<Case>> {
    let Some(data) = std::env::var_os("PAGED_KV_DATA") else {
        eprintln!("SKIPPED: PAGED_KV_DATA is not set, no golden values");
        return None;
    };
    let path = PathBuf::from(data).join("model/smollm2_135m_greedy_f64.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) => {
            eprintln!("SKIPPED: {}: {e}", path.display());
            return None;
        }
    };
    Some(serde_json::from_str::<Golden>(&text).unwrap().cases)
}

/// The real model's file, fetched where it is missing.
pub(crate) fn model_path() -> PathBuf {
    SMOLLM2_135M
        .find_or_fetch(&models_dir(&SMOLLM2_135M).unwrap())
        .unwrap()
}

#[test]
fn greedy_tokens_through_dense_attention_equal_the_golden_ones() {
    let Some(cases) = cases() else { return };
    let t = Instant::now();
    let path = model_path();
    eprintln!("found in {:?}", t.elapsed());
    let t = Instant::now();
    let model = Model::open(&path, WeightFormat::F32).unwrap();
    eprintln!("loaded in {:?}", t.elapsed());
    for case in cases {
        let mut dense = Dense::new(&model, 1);
        let mut logits = dense.step(&model, &[(0, &case.prompt_ids)]);
        for &(id, want) in &case.first_top10 {
            let got = f64::from(logits.row(0)[usize::try_from(id).unwrap()]);
            assert!((got - want).abs() < 1e-3, "{id}: {got} {want}");
        }
        let t = Instant::now();
        let mut tokens = vec![];
        for _ in 0..case.tokens.len() {
            let token = argmax(logits.row(0));
            tokens.push(token);
            logits = dense.step(&model, &[(0, &[token])]);
        }
        eprintln!(
            "{:.1} tokens/s",
            tokens.len() as f64 / t.elapsed().as_secs_f64()
        );
        assert_eq!(tokens, case.tokens);
    }
}

#[test]
fn prompt_ids_equal_the_golden_ones() {
    let Some(cases) = cases() else { return };
    let gguf = Gguf::open(&model_path()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    for case in cases {
        assert_eq!(tokenizer.encode(&case.prompt).unwrap(), case.prompt_ids);
        let mut stream = tokenizer.stream();
        let mut text: String = case.tokens.iter().map(|&id| stream.push(id)).collect();
        text += &stream.finish();
        assert_eq!(text, case.text.trim_end_matches("<|im_end|>"));
        assert_eq!(text, tokenizer.decode(&case.tokens));
    }
}
