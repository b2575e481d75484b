//! Text to token ids and back, by the vocabulary in the GGUF.
//!
//! The ids must be the ones the model was trained with, or its text is subtly worse and nothing says why. So a kind of
//! tokeniser is used only where its rules are known; any other is refused by name.

use std::collections::HashSet;

use tokenizers::AddedToken;

use crate::model::gguf::{Gguf, GgufError};

mod byte_level;
mod chat;
mod sentencepiece;
mod stream;
mod vocabulary;

pub use chat::{ChatTemplate, Message};
pub use stream::TextStream;

use vocabulary::{TokenKind, Vocabulary};

/// Why a tokeniser could not be built or used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The metadata is at fault.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The tokeniser is of a kind that is not implemented.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The vocabulary contradicts itself.
    #[error("the vocabulary is inconsistent: {0}")]
    Inconsistent(String),
    /// A text has a character that the vocabulary cannot express.
    #[error("the model has no token for the character {0:?}")]
    NoToken(char),
    /// The `tokenizers` crate reported an error.
    #[error("tokenising failed: {0}")]
    Library(String),
    /// A message of a chat has a special token in it, which could end its turn and begin another.
    #[error("a message contains the special token `{0}`; --raw takes prompts as they are")]
    SpecialInChat(String),
    /// The model has no chat template, or one that cannot be used.
    #[error("the chat template cannot be used ({0}); --raw takes prompts as they are")]
    Chat(String),
}

impl From<tokenizers::Error> for TokenizerError {
    fn from(error: tokenizers::Error) -> Self {
        Self::Library(crate::model::gguf::first_line(&error))
    }
}

/// What one kind of tokeniser makes of a vocabulary.
struct Parts {
    tokenizer: tokenizers::Tokenizer,
    /// What each token stands for.
    bytes: Vec<Vec<u8>>,
    /// Which bytes of a text can be expressed; `None` for all.
    known: Option<[bool; 256]>,
    /// Whether prompts start with the start token where the file does not say.
    add_bos: bool,
}

/// A model's tokeniser.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// What each token stands for; empty for tokens that steer and are never shown.
    bytes: Vec<Vec<u8>>,
    known: Option<[bool; 256]>,
    /// Tokens that steer, as they are written.
    control: Vec<String>,
    bos: Option<(u32, String)>,
    eos: Option<(u32, String)>,
    ends: HashSet<u32>,
    add_bos: bool,
}

impl Tokenizer {
    /// Builds the tokeniser that the metadata describes.
    ///
    /// # Errors
    /// [`TokenizerError`], which names the key or the kind at fault.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let kind = gguf.text("tokenizer.ggml.model")?;
        let kind = crate::model::gguf::required("tokenizer.ggml.model", kind)?;
        let vocabulary = Vocabulary::from_gguf(gguf)?;
        let Parts { tokenizer: mut inner, bytes, known, add_bos } = match kind {
            "gpt2" => byte_level::build(gguf, &vocabulary)?,
            "llama" => sentencepiece::build(gguf, &vocabulary)?,
            other => {
                return Err(TokenizerError::Unsupported(format!("the tokenizer `{other}`")));
            }
        };
        // Every token that no merge can form is looked for in the text before anything else happens to it.
        let special = vocabulary.iter().filter_map(|(text, kind)| match kind {
            TokenKind::Control | TokenKind::Unknown => Some(AddedToken::from(text, true)),
            TokenKind::UserDefined => Some(AddedToken::from(text, false).normalized(false)),
            _ => None,
        });
        inner.add_tokens(special)?;

        let named = |key| -> Result<Option<(u32, String)>, TokenizerError> {
            let Some(id) = gguf.u32(key)? else {
                return Ok(None);
            };
            match vocabulary.text(id) {
                Some(text) => Ok(Some((id, text.to_owned()))),
                None => Err(TokenizerError::Inconsistent(format!(
                    "`{key}` is {id} in a vocabulary of {}",
                    vocabulary.len()
                ))),
            }
        };
        let bos = named("tokenizer.ggml.bos_token_id")?;
        let eos = named("tokenizer.ggml.eos_token_id")?;
        let turn = named("tokenizer.ggml.eot_token_id")?;
        let message = named("tokenizer.ggml.eom_token_id")?;
        let ends = [&eos, &turn, &message].into_iter().flatten().map(|(id, _)| *id).collect();
        let add_bos = gguf.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos);
        if add_bos && bos.is_none() {
            return Err(TokenizerError::Inconsistent(
                "prompts start with a token that `tokenizer.ggml.bos_token_id` does not name".into(),
            ));
        }
        // `add_eos_token` is about training texts: a prompt that ends with the end token has nothing to continue.
        let control = vocabulary.iter().filter(|(text, kind)| *kind == TokenKind::Control && !text.is_empty());
        let control = control.map(|(text, _)| text.to_owned()).collect();
        Ok(Self { inner, bytes, known, control, bos, eos, ends, add_bos })
    }

    /// The ids of a text. Special tokens written out in it are recognised, whoever wrote them; the start token comes
    /// first where the model wants one and the text does not already have it.
    ///
    /// # Errors
    /// [`TokenizerError::NoToken`], [`TokenizerError::Library`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if let Some(known) = &self.known {
            // The library would leave such a character out without a word.
            let expressible = |c: &char| {
                let mut bytes = [0; 4];
                c.encode_utf8(&mut bytes).bytes().all(|byte| known[usize::from(byte)])
            };
            if let Some(character) = text.chars().find(|c| !expressible(c)) {
                return Err(TokenizerError::NoToken(character));
            }
        }
        let encoding = self.inner.encode_fast(text, false)?;
        let ids = encoding.get_ids();
        match &self.bos {
            Some((bos, _)) if self.add_bos && ids.first() != Some(bos) => {
                Ok(core::iter::once(*bos).chain(ids.iter().copied()).collect())
            }
            _ => Ok(ids.to_vec()),
        }
    }

    /// The text of ids, as the continuation of something: a space that the first token brings is kept. Special tokens
    /// show as nothing, bytes that are no UTF-8 as U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Decodes one token after the other.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }

    /// The first control token that is written out in a text.
    pub fn control_token_in(&self, text: &str) -> Option<&str> {
        self.control.iter().find(|token| text.contains(token.as_str())).map(String::as_str)
    }

    /// What a token stands for; nothing for special tokens and for ids outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let index = usize::try_from(id).unwrap_or(usize::MAX);
        self.bytes.get(index).map_or(&[], Vec::as_slice)
    }

    /// Whether generation stops at this token.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// The tokens at which generation stops, in order.
    pub fn ends(&self) -> Vec<u32> {
        let mut ends: Vec<u32> = self.ends.iter().copied().collect();
        ends.sort_unstable();
        ends
    }

    /// Number of entries of the vocabulary.
    pub fn vocab_len(&self) -> usize {
        self.bytes.len()
    }

    /// The text of the start token.
    pub fn bos_text(&self) -> Option<&str> {
        self.bos.as_ref().map(|(_, text)| text.as_str())
    }

    /// The text of the end token.
    pub fn eos_text(&self) -> Option<&str> {
        self.eos.as_ref().map(|(_, text)| text.as_str())
    }
}
