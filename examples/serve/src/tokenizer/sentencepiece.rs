//! `SentencePiece` BPE, `tokenizer.ggml.model = llama`: spaces become ▁, pairs are merged by the score of what they form,
//! and what is not in the vocabulary falls back to bytes.

use std::collections::HashSet;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};

use super::vocabulary::{TokenKind, Vocabulary};
use super::{Parts, TokenizerError};
use crate::model::gguf::{Gguf, required};

/// `SentencePiece`'s mark for a space.
const SPACE: &str = "\u{2581}";

/// Builds the tokeniser.
pub(super) fn build(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Parts, TokenizerError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    const TRIMS: &str = "tokenizer.ggml.remove_extra_whitespaces";
    const MAPS: &str = "tokenizer.ggml.precompiled_charsmap";
    // Both rewrite the text before it is split, in ways that the normaliser below does not.
    let (trims, maps) = (gguf.bool(TRIMS)? == Some(true), !gguf.keys(MAPS).is_empty());
    if trims || maps {
        let key = if trims { TRIMS } else { MAPS };
        return Err(TokenizerError::Unsupported(format!("`{key}`")));
    }
    let scores = required(SCORES, gguf.floats(SCORES)?)?;
    if scores.len() != vocabulary.len() {
        return Err(TokenizerError::Inconsistent(format!("{} tokens have {} scores", vocabulary.len(), scores.len())));
    }
    let has_all_bytes = vocabulary.iter().filter(|&(_, kind)| kind == TokenKind::Byte).count() == 256;
    let unknown = vocabulary.iter().find(|&(_, kind)| kind == TokenKind::Unknown);
    let mut builder = BPE::builder()
        .vocab_and_merges(vocabulary.ids(), merges(vocabulary, &scores))
        .byte_fallback(has_all_bytes)
        .fuse_unk(true);
    if let Some((unknown, _)) = unknown {
        builder = builder.unk_token(unknown.into());
    } else if !has_all_bytes {
        // The library would drop what it has no token for, without a word.
        let what = "neither 256 byte tokens nor an unknown token are there".into();
        return Err(TokenizerError::Inconsistent(what));
    }

    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if gguf.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true) {
        // Also after each special token: the reader of this format does it so, and so did the first Llama tokeniser.
        steps.push(Prepend::new(SPACE.into()).into());
    }
    steps.push(Replace::new(" ", SPACE)?.into());
    let mut tokenizer = tokenizers::Tokenizer::new(builder.build()?);
    tokenizer.with_normalizer(Some(Sequence::new(steps)))?;
    Ok(Parts { tokenizer, bytes: token_bytes(vocabulary)?, known: None, add_bos: true })
}

/// The merges that a scored vocabulary implies: every way to cut a token into two others, best score first.
///
/// `SentencePiece` joins the pair whose result scores highest; the library joins the pair of lowest rank. Ranks in the
/// order of scores make them agree.
fn merges(vocabulary: &Vocabulary, scores: &[f32]) -> Vec<(String, String)> {
    let normal = vocabulary.iter().filter(|&(_, kind)| kind == TokenKind::Normal);
    let known: HashSet<&str> = normal.map(|(text, _)| text).collect();
    let mut scored = Vec::new();
    for ((text, kind), &score) in vocabulary.iter().zip(scores) {
        if kind != TokenKind::Normal {
            continue;
        }
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if known.contains(left) && known.contains(right) {
                scored.push((score, left, right));
            }
        }
    }
    // Stable: among equal scores the order of the vocabulary stays.
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let merges = scored.into_iter();
    merges.map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
}

fn token_bytes(vocabulary: &Vocabulary) -> Result<Vec<Vec<u8>>, TokenizerError> {
    let bytes = vocabulary.iter().map(|(text, kind)| match kind {
        TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => Ok(Vec::new()),
        TokenKind::Normal | TokenKind::UserDefined => Ok(text.replace(SPACE, " ").into_bytes()),
        TokenKind::Byte => {
            let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            byte.map(|byte| vec![byte])
                .ok_or_else(|| TokenizerError::Inconsistent(format!("the byte token {text:?} names no byte")))
        }
    });
    bytes.collect()
}
