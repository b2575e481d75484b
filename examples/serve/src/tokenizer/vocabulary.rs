//! The list of tokens in a GGUF, checked.

use std::collections::HashSet;

use tokenizers::models::bpe::Vocab;

use super::TokenizerError;
use crate::model::gguf::{Gguf, required};

/// What a token is for; `tokenizer.ggml.token_type` in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Text that merges can form.
    Normal,
    /// Stands for what the vocabulary cannot express.
    Unknown,
    /// Steers the model and is never shown.
    Control,
    /// Text that is found whole, before any merge.
    UserDefined,
    /// Reserved.
    Unused,
    /// One byte, `<0x00>` to `<0xFF>`.
    Byte,
}

/// Tokens by id.
#[derive(Debug)]
pub(super) struct Vocabulary {
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
}

impl Vocabulary {
    pub(super) fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const KINDS: &str = "tokenizer.ggml.token_type";
        let texts = required(TOKENS, gguf.texts(TOKENS)?)?;
        let kinds = required(KINDS, gguf.integers(KINDS)?)?;
        if texts.is_empty() || texts.len() != kinds.len() || u32::try_from(texts.len()).is_err() {
            return Err(TokenizerError::Inconsistent(format!("{} tokens have {} types", texts.len(), kinds.len())));
        }
        let mut seen = HashSet::with_capacity(texts.len());
        if let Some(twice) = texts.iter().find(|text| !seen.insert(text.as_str())) {
            return Err(TokenizerError::Inconsistent(format!("the token {twice:?} is there twice")));
        }
        let kinds: Result<Vec<TokenKind>, TokenizerError> = kinds.into_iter().map(kind).collect();
        Ok(Self { kinds: kinds?, texts })
    }

    /// Tokens in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, TokenKind)> {
        self.texts.iter().map(String::as_str).zip(self.kinds.iter().copied())
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        let index = usize::try_from(id).ok()?;
        self.texts.get(index).map(String::as_str)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The map that the `tokenizers` crate wants.
    pub(super) fn ids(&self) -> Vocab {
        self.texts.iter().cloned().zip(0..).collect()
    }
}

fn kind(code: i64) -> Result<TokenKind, TokenizerError> {
    match code {
        1 => Ok(TokenKind::Normal),
        2 => Ok(TokenKind::Unknown),
        3 => Ok(TokenKind::Control),
        4 => Ok(TokenKind::UserDefined),
        5 => Ok(TokenKind::Unused),
        6 => Ok(TokenKind::Byte),
        other => Err(TokenizerError::Unsupported(format!("the token type {other}"))),
    }
}
