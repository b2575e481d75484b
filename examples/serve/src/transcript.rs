//! The texts of several requests on one output, while they come.
//!
//! Every line starts with the number of its request, and of the sample or hypothesis where there are several. A line is
//! written when it is complete: at a line break in the text, or when it is as wide as a terminal. So lines of requests
//! that run at the same time alternate and never mix, in a pipe as in a terminal. Where there is only one output, its text
//! is written token by token.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::engine::Event;
use crate::options::{Decoding, Options};
use crate::tokenizer::{TextStream, Tokenizer};

/// Characters of a line, its number left out.
const WIDTH: usize = 92;

/// Writes texts line by line.
#[derive(Debug)]
pub struct Transcript<'a, W> {
    out: W,
    tokenizer: &'a Tokenizer,
    /// What each request asks, on one line.
    questions: Vec<String>,
    outputs: Outputs,
    lines: HashMap<(usize, usize), Line<'a>>,
}

/// How many outputs share the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outputs {
    /// One of one request.
    One,
    /// One of each request.
    OneEach,
    /// Several of each request: they have numbers of their own.
    Several,
}

/// The text of one output that is not written yet.
#[derive(Debug)]
struct Line<'a> {
    stream: TextStream<'a>,
    text: String,
}

impl<'a, W: Write> Transcript<'a, W> {
    /// A transcript of the requests of a command line.
    pub fn new(options: &Options, tokenizer: &'a Tokenizer, out: W) -> Self {
        let question = |text: &str| {
            let mut line = printable(&text.split_whitespace().collect::<Vec<_>>().join(" "));
            if let Some((at, _)) = line.char_indices().nth(WIDTH - 2) {
                line.truncate(at);
                line.push('…');
            }
            line
        };
        let outputs = match options.decoding {
            Decoding::Beam { width: 2.. } => Outputs::Several,
            _ if options.n > 1 => Outputs::Several,
            _ if options.prompts.len() > 1 => Outputs::OneEach,
            _ => Outputs::One,
        };
        let questions = options.prompts.iter().map(|prompt| question(&prompt.text)).collect();
        Self { out, tokenizer, questions, outputs, lines: HashMap::new() }
    }

    /// Writes what an event completes.
    ///
    /// # Errors
    /// Those of the output.
    pub fn tell(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Started { request } => {
                let question = self.questions.get(request).map_or("", String::as_str);
                writeln!(self.out, "[{}] > {question}", request + 1)?;
            }
            Event::Token { request, output, token } => {
                let tokenizer = self.tokenizer;
                let new = || Line { stream: tokenizer.stream(), text: String::new() };
                let line = self.lines.entry((request, output)).or_insert_with(new);
                let piece = line.stream.push(token);
                if self.outputs == Outputs::One {
                    write!(self.out, "{}", printable(&piece))?;
                    return self.out.flush();
                }
                line.text.push_str(&piece);
                while let Some(at) = break_at(&line.text) {
                    let rest = line.text.split_off(at);
                    let full = core::mem::replace(&mut line.text, rest);
                    write_line(&mut self.out, self.outputs, request, output, &full)?;
                }
            }
            Event::Finished { request, output } => {
                if let Some(Line { stream, mut text }) = self.lines.remove(&(request, output)) {
                    text += &stream.finish();
                    if self.outputs == Outputs::One {
                        writeln!(self.out, "{}", printable(&text))?;
                        return self.out.flush();
                    }
                    write_line(&mut self.out, self.outputs, request, output, &text)?;
                }
            }
        }
        self.out.flush()
    }
}

/// Where the first line of a text ends, if it is complete: behind a line break, or, where it is too wide, behind the
/// last space that fits.
fn break_at(text: &str) -> Option<usize> {
    let end = text.char_indices().nth(WIDTH).map(|(end, _)| end);
    let fits = &text[..end.unwrap_or(text.len())];
    let line = fits.find('\n').map(|at| at + 1);
    line.or_else(|| end.map(|end| fits.rfind(' ').map_or(end, |space| space + 1)))
}

fn write_line(out: &mut impl Write, outputs: Outputs, request: usize, output: usize, text: &str) -> io::Result<()> {
    let text = text.trim_end();
    if text.trim().is_empty() {
        return Ok(());
    }
    let text = printable(text);
    match outputs {
        Outputs::Several => writeln!(out, "[{}.{}] {text}", request + 1, output + 1),
        Outputs::One | Outputs::OneEach => writeln!(out, "[{}] {text}", request + 1),
    }
}

/// A text without control characters, but for line breaks: a model must not steer the terminal.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() && c != '\t' && c != '\n' { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_breaks_and_before_words_that_do_not_fit() {
        assert_eq!(break_at("short"), None);
        assert_eq!(break_at("one\ntwo"), Some(4));
        let words = "word ".repeat(20);
        // 18 words of 5 characters are 90; the 19th would end at 95.
        assert_eq!(break_at(&words), Some(90));
        assert_eq!(break_at(&"x".repeat(100)), Some(WIDTH));
        assert_eq!(break_at(&(words + "\n")), Some(90));
        assert_eq!(break_at(&"é".repeat(100)), Some(2 * WIDTH));
    }

    #[test]
    fn control_characters_are_not_passed_on() {
        assert_eq!(printable("a\u{1b}[2Jb\tc"), "a\u{fffd}[2Jb\tc");
    }
}
