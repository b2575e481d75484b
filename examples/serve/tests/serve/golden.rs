//! The real model against the golden file: what a float64 program computed from the same weights.

use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Instant;

use serde::Deserialize;
use serve::download::{SMOLLM2_135M, models_dir};
use serve::model::{AttentionError, Batch, Gguf, LayerAttention, Model, WeightFormat};
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
        return skip("PAGED_KV_DATA is not set");
    };
    let path = PathBuf::from(data).join("model/smollm2_135m_greedy_f64.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) => return skip(&format!("{}: {e}", path.display())),
    };
    Some(serde_json::from_str::<Golden>(&text).unwrap().cases)
}

/// Says so past the test runner, which keeps to itself what a passing test prints.
fn skip<T>(reason: &str) -> Option<T> {
    let _ = writeln!(std::io::stderr(), "SKIPPED, no golden values: {reason}");
    None
}

/// The real model's file, fetched once where it is missing.
pub(crate) fn model_path() -> PathBuf {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir = models_dir(&SMOLLM2_135M).unwrap();
        SMOLLM2_135M.find_or_fetch(&dir).unwrap()
    });
    PATH.clone()
}

/// The real model with f32 weights, loaded once: it takes half a gigabyte.
pub(crate) fn model() -> &'static Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| Model::open(&model_path(), WeightFormat::F32).unwrap());
    &MODEL
}

#[test]
fn greedy_tokens_through_dense_attention_equal_the_golden_ones() {
    let Some(cases) = cases() else { return };
    let model = model();
    for case in cases {
        let mut dense = Dense::new(model, 1);
        let mut logits = dense.step(model, &[(0, &case.prompt_ids)]);
        for &(id, want) in &case.first_top10 {
            let got = f64::from(logits.row(0)[usize::try_from(id).unwrap()]);
            // f32 against f64 over 30 layers; the closest race in the file is decided by 0.048.
            assert!((got - want).abs() < 1e-3, "{id}: {got} against {want}");
        }
        let mut tokens = vec![];
        let start = Instant::now();
        while tokens.len() < case.tokens.len() {
            let token = argmax(logits.row(0));
            tokens.push(token);
            logits = dense.step(model, &[(0, &[token])]);
        }
        let seconds = start.elapsed().as_secs_f64();
        let per_second = f64::from(u32::try_from(tokens.len()).unwrap()) / seconds;
        eprintln!("{per_second:.1} tokens per second, {:?}", case.prompt);
        assert_eq!(tokens, case.tokens);
    }
}

/// Forgets every key and value.
struct Zeros;

impl LayerAttention for Zeros {
    fn attend(&mut self, _: u32, _: &[f32], _: &[f32], _: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        out.fill(0.0);
        Ok(())
    }
}

#[test]
fn golden_tokens_need_attention() {
    let Some(cases) = cases() else { return };
    for case in cases {
        let positions: Vec<u32> = (0..).take(case.prompt_ids.len()).collect();
        let batch = Batch { tokens: &case.prompt_ids, positions: &positions, logit_rows: &[positions.len() - 1] };
        let logits = model().forward(batch, &mut Zeros).unwrap();
        assert_ne!(argmax(logits.row(0)), case.tokens[0]);
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
