//! Byte-level BPE, `tokenizer.ggml.model = gpt2`: text is split by a pattern, then bytes are merged by rank.
//!
//! The patterns are those that the models' own `tokenizer.json` files have; `tokenizer.ggml.pre` names them.

use std::collections::HashMap;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::vocabulary::{TokenKind, Vocabulary};
use super::{Parts, TokenizerError};
use crate::model::gguf::{Gguf, required};

/// Llama 3: up to three digits together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen2: the same with digits one by one.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's Tekken: words end where small letters are followed by a capital one.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How one family of models treats text before merging.
struct Rules {
    pre_tokenizer: PreTokenizerWrapper,
    /// Text is brought into Unicode normal form C first.
    nfc: bool,
    /// A piece that is a token as a whole is that token, whatever the merges say.
    ignore_merges: bool,
    /// Whether prompts start with the start token where the file does not say.
    add_bos: bool,
}

impl Rules {
    /// # Errors
    /// [`TokenizerError::Unsupported`] for a name whose rules are not known here.
    fn by_name(pre: &str) -> Result<Self, TokenizerError> {
        // Byte-level without the space that GPT-2's first tokeniser put before a text; its own pattern or none.
        let gpt2 = ByteLevel::new(false, true, true);
        let plain = ByteLevel::new(false, true, false);
        let split = |pattern: &str| -> Result<PreTokenizerWrapper, TokenizerError> {
            let pattern = SplitPattern::Regex(pattern.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
            Ok(Sequence::new(vec![split.into(), plain.into()]).into())
        };
        let (pre_tokenizer, nfc, ignore_merges, add_bos) = match pre {
            "gpt-2" => (gpt2.into(), false, false, false),
            "smollm" | "starcoder" | "refact" => {
                let digits = Digits::new(true);
                let steps = Sequence::new(vec![digits.into(), gpt2.into()]);
                (steps.into(), false, false, false)
            }
            "llama-bpe" | "llama3" | "llama-v3" => (split(LLAMA3)?, false, true, true),
            "qwen2" => (split(QWEN2)?, true, false, false),
            "tekken" => (split(TEKKEN)?, false, true, true),
            other => {
                let what = format!("the pre-tokenizer `{other}` (`tokenizer.ggml.pre`)");
                return Err(TokenizerError::Unsupported(what));
            }
        };
        Ok(Self { pre_tokenizer, nfc, ignore_merges, add_bos })
    }
}

/// Builds the tokeniser.
pub(super) fn build(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Parts, TokenizerError> {
    const PRE: &str = "tokenizer.ggml.pre";
    const MERGES: &str = "tokenizer.ggml.merges";
    let rules = Rules::by_name(required(PRE, gguf.text(PRE)?)?)?;
    if gguf.bool("tokenizer.ggml.add_space_prefix")? == Some(true) {
        let what = "`tokenizer.ggml.add_space_prefix` with byte-level BPE".into();
        return Err(TokenizerError::Unsupported(what));
    }
    let merges = required(MERGES, gguf.texts(MERGES)?)?;
    let merges: Result<Vec<(String, String)>, TokenizerError> = merges
        .iter()
        .map(|merge| match merge.split_once(' ') {
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
            None => Err(TokenizerError::Inconsistent(format!("the merge {merge:?} has one part"))),
        })
        .collect();

    let alphabet = alphabet();
    let (bytes, known) = token_bytes(vocabulary, &alphabet);
    let bpe = BPE::builder().vocab_and_merges(vocabulary.ids(), merges?).ignore_merges(rules.ignore_merges).build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    if rules.nfc {
        tokenizer.with_normalizer(Some(NFC))?;
    }
    tokenizer.with_pre_tokenizer(Some(rules.pre_tokenizer));
    Ok(Parts { tokenizer, bytes, known: Some(known), add_bos: rules.add_bos })
}

/// The byte that each character of byte-level text stands for.
///
/// Bytes that are printable in Latin-1 stand for themselves; the others take the characters from U+0100 on, in order.
fn alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = u32::from('\u{100}');
    let characters = (0..=u8::MAX).map(|byte| {
        if printable(byte) {
            return (char::from(byte), byte);
        }
        let character = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
        next += 1;
        (character, byte)
    });
    characters.collect()
}

/// The bytes of each token, and for each byte whether it has a token of its own.
fn token_bytes(vocabulary: &Vocabulary, alphabet: &HashMap<char, u8>) -> (Vec<Vec<u8>>, [bool; 256]) {
    let mut known = [false; 256];
    let mut all = Vec::with_capacity(vocabulary.len());
    for (text, kind) in vocabulary.iter() {
        let bytes = match kind {
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => Vec::new(),
            TokenKind::UserDefined => text.as_bytes().to_vec(),
            TokenKind::Normal | TokenKind::Byte => {
                // A token that is no byte-level text cannot come from a merge; shown, it is what it says.
                let bytes: Option<Vec<u8>> = text.chars().map(|c| alphabet.get(&c).copied()).collect();
                let bytes = bytes.unwrap_or_else(|| text.as_bytes().to_vec());
                if let [byte] = bytes[..] {
                    known[usize::from(byte)] = true;
                }
                bytes
            }
        };
        all.push(bytes);
    }
    (all, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_the_one_the_library_encodes_with() {
        let ours = alphabet();
        let theirs = ByteLevel::alphabet();
        assert_eq!(ours.len(), 256);
        assert!(theirs.iter().all(|c| ours.contains_key(c)));
        // GPT-2 writes a space as Ġ and a line break as Ċ.
        assert_eq!((ours[&'Ġ'], ours[&'Ċ'], ours[&'é']), (b' ', b'\n', 0xE9));
    }

    #[test]
    fn unknown_pre_tokenizer_is_refused_by_name() {
        let error = Rules::by_name("kimi-k2").err().unwrap().to_string();
        assert!(error.contains("kimi-k2"), "{error}");
    }

    /// The pieces that a rule makes of a text, in byte-level characters.
    fn pieces(pre: &str, text: &str) -> Vec<String> {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
        let mut split = PreTokenizedString::from(text);
        Rules::by_name(pre).unwrap().pre_tokenizer.pre_tokenize(&mut split).unwrap();
        let parts = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        parts.into_iter().map(|(text, _, _)| text.to_owned()).collect()
    }

    #[test]
    fn pieces_follow_each_models_pattern() {
        let text = "It's 12345 fooBar";
        let smollm = ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġfoo", "Bar"];
        let gpt2 = ["It", "'s", "Ġ12345", "ĠfooBar"];
        let llama3 = ["It", "'s", "Ġ", "123", "45", "ĠfooBar"];
        let qwen2 = ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠfooBar"];
        // Tekken has no contractions: the apostrophe is the one character that may lead a word.
        let tekken = ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġfoo", "Bar"];
        // Of the first row: GPT-2's pattern has no rule for capitals, so `fooBar` stays one piece.
        let smollm: Vec<&str> = smollm[..8].iter().copied().chain(["ĠfooBar"]).collect();
        assert_eq!(pieces("smollm", text), smollm);
        assert_eq!(pieces("gpt-2", text), gpt2);
        assert_eq!(pieces("llama-bpe", text), llama3);
        assert_eq!(pieces("qwen2", text), qwen2);
        assert_eq!(pieces("tekken", text), tekken);
    }
}
