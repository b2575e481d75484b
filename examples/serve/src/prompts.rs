//! A file of prompts: one a line, or JSON lines.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::options::Prompt;

/// Why a file of prompts cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptsError {
    /// It cannot be read as text.
    #[error("--prompts-file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A line is not the object it should be.
    #[error("--prompts-file {}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no prompt in it.
    #[error("--prompts-file {} holds no prompt", path.display())]
    None {
        /// The file.
        path: PathBuf,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: String,
    system: Option<String>,
}

/// Reads a file of prompts. Empty lines are skipped.
///
/// Where the first line that is not empty starts with `{`, each line is an object `{"prompt": TEXT}`, with `"system"`
/// where a chat is to have its own; a prompt with line breaks needs this form. Otherwise each line is a prompt.
///
/// # Errors
/// [`PromptsError`].
pub fn read(path: &Path, system: Option<&str>, chat: bool) -> Result<Vec<Prompt>, PromptsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| PromptsError::Unreadable { path: path.into(), reason: e.to_string() })?;
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let refuse = |line, reason| PromptsError::Line { path: path.into(), line, reason };
    let lines = || (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let json = lines().next().is_some_and(|(_, line)| line.trim_start().starts_with('{'));
    let mut prompts = Vec::new();
    for (number, line) in lines() {
        let mut prompt = Prompt { text: line.into(), system: system.map(Into::into) };
        if json {
            let line: Line = serde_json::from_str(line).map_err(|e| refuse(number, e.to_string()))?;
            if line.system.is_some() && !chat {
                return Err(refuse(number, "`system` has no place with --raw".into()));
            }
            prompt.text = line.prompt;
            prompt.system = line.system.or(prompt.system);
        }
        if prompt.text.is_empty() {
            return Err(refuse(number, "the prompt is empty".into()));
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        return Err(PromptsError::None { path: path.into() });
    }
    Ok(prompts)
}

/// The requests that run when none is given: short questions under one long system prompt, so that there is something
/// to share.
pub fn built_in(system: Option<&str>) -> Vec<Prompt> {
    const SYSTEM: &str = "You are a helpful assistant in a public library. Answer each question in two or three short \
        sentences that a curious child can follow. Be friendly, give one concrete example where it helps, and say \
        plainly when you do not know the answer.";
    let questions = [
        "Why is the sky blue?",
        "What is a library catalogue for?",
        "How do bees find their way home?",
        "Why do we have leap years?",
        "What makes bread rise?",
        "How does a bicycle stay upright?",
    ];
    let system = system.unwrap_or(SYSTEM);
    let prompts = questions.map(|text| Prompt { text: text.into(), system: Some(system.into()) });
    prompts.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, system: Option<&str>) -> Vec<(String, Option<String>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts");
        std::fs::write(&path, text).unwrap();
        let prompts = read(&path, system, true).unwrap().into_iter();
        prompts.map(|prompt| (prompt.text, prompt.system)).collect()
    }

    #[test]
    fn plain_file_is_a_prompt_a_line() {
        let prompts = parse("one\r\n\n  two {\"a\"}\n", Some("s"));
        let system = Some("s".to_owned());
        assert_eq!(prompts, [("one".into(), system.clone()), ("  two {\"a\"}".into(), system)]);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        assert_eq!(parse("\u{feff}{\"prompt\": \"a\"}\n", None), [("a".into(), None)]);
    }

    #[test]
    fn json_lines_may_hold_line_breaks_and_their_own_system_prompt() {
        let text = "{\"prompt\": \"a\\nb\"}\n{\"prompt\": \"c\", \"system\": \"own\"}\n";
        let prompts = parse(text, Some("s"));
        let (s, own) = (Some("s".to_owned()), Some("own".to_owned()));
        assert_eq!(prompts, [("a\nb".into(), s), ("c".into(), own)]);
    }
}
