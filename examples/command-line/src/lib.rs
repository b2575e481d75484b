//! What the command lines of the examples share: what they refuse, in a line, and what they write.

mod plot;

pub use plot::{PlotFile, WriteError};

/// clap's message without its heading, hints and usage: one line.
pub fn usage_line(message: &str) -> String {
    // A list of missing or allowed values follows on indented lines of its own; it is part of the sentence.
    let paragraph = message.lines().take_while(|line| !line.trim().is_empty());
    let line: Vec<&str> = paragraph.map(str::trim).collect();
    line.join(" ").trim_start_matches("error: ").to_owned()
}

/// The first of the values that is there before.
pub fn repeated<T: PartialEq>(values: &[T]) -> Option<&T> {
    values.iter().enumerate().find(|(index, value)| values[..*index].contains(value)).map(|(_, value)| value)
}

/// A whole number with a comma between each three digits.
pub fn grouped(number: impl core::fmt::Display) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_clap_becomes_one_line() {
        let message = "error: invalid value 'f8' for '--kv-dtype <T>'\n  [possible values: f32, f16]\n\nFor more, try";
        let line = "invalid value 'f8' for '--kv-dtype <T>' [possible values: f32, f16]";
        assert_eq!(usage_line(message), line);
    }

    #[test]
    fn what_stands_twice_is_found_where_it_stands_again() {
        assert_eq!(repeated(&[3, 1, 1, 3]), Some(&1));
        assert_eq!(repeated(&[3, 1]), None);
    }

    #[test]
    fn digits_are_grouped_from_the_right() {
        assert_eq!(["0", "999", "1000", "1234567"].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
