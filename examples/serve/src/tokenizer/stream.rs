//! Text from tokens as they come, never cut inside a character.

use super::Tokenizer;

/// Decodes one token after the other.
///
/// A character may be spread over tokens; its first bytes wait for the rest. What comes out, put together, equals
/// [`Tokenizer::decode`] of all tokens. (The stream of the `tokenizers` crate decodes a growing window of ids and gives
/// an error where sampled bytes never become a character.)
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The start of a character, at most three bytes between calls.
    pending: Vec<u8>,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, pending: Vec::new() }
    }

    /// Takes a token and returns the text that is now certain, often all of it, sometimes none.
    pub fn push(&mut self, id: u32) -> String {
        self.pending.extend_from_slice(self.tokenizer.token_bytes(id));
        drain(&mut self.pending)
    }

    /// Ends the stream: bytes that still wait never became a character and show as U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Takes from `pending` everything but an unfinished character at its end.
fn drain(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in pending.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let at_end = taken + invalid.len() == pending.len();
        // Without `error_len` more bytes could still complete the character.
        if at_end && core::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none()) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        taken += invalid.len();
    }
    pending.drain(..taken);
    text
}

#[cfg(test)]
mod tests {
    use super::drain;

    #[test]
    fn text_in_pieces_equals_the_text_at_once() {
        let texts: [&[u8]; 6] = [
            b"plain",
            "Grüße, 世界 🦀!".as_bytes(),
            b"\xF0\x9F\xA6",
            b"a\xFFb\xC3\xC3\xA9",
            b"\xE4\xB8\xE4\xB8\x96",
            b"\xF0\x9F\xA6\x80\xF0",
        ];
        for text in texts {
            for size in 1..=5 {
                let (mut pending, mut out) = (Vec::new(), String::new());
                for piece in text.chunks(size) {
                    pending.extend_from_slice(piece);
                    out += &drain(&mut pending);
                    assert!(pending.len() < 4, "more than one character waits");
                }
                out += &String::from_utf8_lossy(&pending);
                assert_eq!(out, String::from_utf8_lossy(text), "{text:?} by {size}");
            }
        }
    }
}
