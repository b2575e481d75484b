//! The forms of a trace, a request at a time: JSON lines and CSV.

mod quotes;

use std::collections::VecDeque;
use std::io::{self, BufRead};

use serde::Deserialize;

use super::{Content, Line, TraceError};
use quotes::Quotes;

/// Fields that say what a prompt was, one of them in each request.
const FIELDS: [(&str, Content); 3] =
    [("hash_ids", Content::Ids), ("tokens", Content::Tokens), ("token_ids", Content::Tokens)];

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Calls `push` with the number of each line, from 1, and the request it holds or what is wrong with it.
pub(super) fn each(
    mut input: impl BufRead,
    mut push: impl FnMut(u64, Result<Line, String>) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let (mut line, mut number) = (Vec::new(), 0);
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        number += 1;
        if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        match line.trim_ascii().first() {
            None => {}
            Some(b'{') => break,
            Some(_) => match Columns::of(&line, number) {
                Ok(columns) => return rows(line, input, number, columns, push),
                // Whoever skips what is broken may find a header behind it.
                Err(refused) => push(number, Err(refused.to_string())).map_err(|_| refused)?,
            },
        }
    }
    loop {
        if !line.trim_ascii().is_empty() {
            push(number, object(line.trim_ascii()))?;
        }
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        number += 1;
    }
}

/// What is read of a line of JSON.
#[derive(Deserialize)]
struct Fields {
    hash_ids: Option<Vec<u64>>,
    tokens: Option<Vec<u64>>,
    token_ids: Option<Vec<u64>>,
    input_length: Option<u64>,
}

fn object(line: &[u8]) -> Result<Line, String> {
    // An array would be read as the fields in order.
    if !line.starts_with(b"{") {
        return Err("no JSON object".to_owned());
    }
    let fields: Fields = serde_json::from_slice(line).map_err(|error| {
        // It counts lines too, of what is one; and it quotes what it does not like, however long.
        error.to_string().replace(" at line 1 column ", " at column ").chars().take(200).collect::<String>()
    })?;
    let units = [fields.hash_ids, fields.tokens, fields.token_ids];
    let mut found = FIELDS.iter().zip(units).filter_map(|(&(_, content), units)| Some((content, units?)));
    match (found.next(), found.next()) {
        (Some((content, units)), None) => Ok(Line { content, units, input_length: fields.input_length }),
        (None, _) => Err(format!("none of {}", names())),
        _ => Err(format!("more than one of {}", names())),
    }
}

fn names() -> String {
    FIELDS.map(|(name, _)| format!("`{name}`")).join(", ")
}

/// Where a CSV has what a request is.
#[derive(Clone, Copy)]
struct Columns {
    /// How many there are.
    len: usize,
    at: usize,
    content: Content,
    length_at: Option<usize>,
}

impl Columns {
    /// Reads a header, which is this line.
    fn of(header: &[u8], line: u64) -> Result<Self, TraceError> {
        let headers = records(header).next().unwrap_or_else(|| Ok(csv::StringRecord::new()));
        let headers = headers.map_err(|error| TraceError::Line { line, what: broken(error) })?;
        let column = |name: &str| headers.iter().position(|header| header == name);
        let mut contents = FIELDS.iter().filter_map(|&(name, content)| Some((column(name)?, content)));
        let (at, content) = match (contents.next(), contents.next()) {
            (Some(found), None) => found,
            (None, _) => {
                let found = headers.iter().collect::<Vec<_>>().join(",").chars().take(80).collect();
                return Err(TraceError::Header { line, found });
            }
            _ => return Err(TraceError::Line { line, what: format!("more than one of {}", names()) }),
        };
        let mut quotes = Quotes::new(headers.len());
        quotes.follow(header);
        if !quotes.is_whole() {
            return Err(TraceError::Line { line, what: OPEN_QUOTE.to_owned() });
        }
        let length_at = column("input_length").filter(|_| content == Content::Ids);
        Ok(Self { len: headers.len(), at, content, length_at })
    }

    fn request(&self, row: &[&str]) -> Result<Line, String> {
        if row.len() != self.len {
            return Err(format!("{} fields under a header of {}", row.len(), self.len));
        }
        let units = numbers(row.get(self.at).unwrap_or(&""))?;
        let length = self.length_at.and_then(|at| row.get(at)).filter(|length| !length.is_empty());
        Ok(Line { content: self.content, units, input_length: length.map(|length| number(length)).transpose()? })
    }
}

/// Reads CSV from its header on, which is line `number`.
///
/// A row may have several lines, if a field in quotes has. If that does not make a request, its first line alone is
/// broken, and what follows is read again: a quote that was left open takes no other row along.
fn rows(
    header: Vec<u8>,
    mut input: impl BufRead,
    mut number: u64,
    columns: Columns,
    mut push: impl FnMut(u64, Result<Line, String>) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let (mut text, mut is_header) = (header, true);
    let mut ahead = VecDeque::new();
    loop {
        let (mut quotes, mut behind) = (Quotes::new(columns.len), Vec::new());
        let mut goes_on = quotes.follow(&text);
        while goes_on {
            let Some(line) = next_line(&mut ahead, &mut input)? else { break };
            text.extend_from_slice(&line);
            goes_on = quotes.follow(&line);
            behind.push(line);
        }
        let mut requests = vec![Err(OPEN_QUOTE.to_owned())];
        if quotes.is_whole() {
            // None of an empty line; several where rows end in a carriage return only.
            requests = match simple(&text).filter(|_| !is_header) {
                Some(row) => vec![columns.request(&row)],
                None => records(&text)
                    .skip(usize::from(is_header))
                    .map(|row| columns.request(&row.map_err(broken)?.iter().collect::<Vec<_>>()))
                    .collect(),
            };
        }
        if let Some(at) = requests.iter().position(Result::is_err).filter(|_| !behind.is_empty()) {
            requests = vec![requests.swap_remove(at)];
            behind.drain(..).rev().for_each(|line| ahead.push_front(line));
        }
        for request in requests {
            push(number, request)?;
        }
        number += 1 + behind.len() as u64;
        is_header = false;
        match next_line(&mut ahead, &mut input)? {
            Some(line) => text = line,
            None => return Ok(()),
        }
    }
}

const OPEN_QUOTE: &str = "a quote that is not closed";

fn next_line(ahead: &mut VecDeque<Vec<u8>>, input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    if let Some(line) = ahead.pop_front() {
        return Ok(Some(line));
    }
    let mut line = Vec::new();
    Ok((input.read_until(b'\n', &mut line)? > 0).then_some(line))
}

/// The one row of most lines, which needs no reader; making one takes ten times as long as this.
fn simple(line: &[u8]) -> Option<Vec<&str>> {
    let row = std::str::from_utf8(line).ok()?;
    let row = row.strip_suffix('\n').unwrap_or(row);
    let row = row.strip_suffix('\r').unwrap_or(row);
    (!row.is_empty() && !row.contains(['"', '\r', '\n'])).then(|| row.split(',').map(str::trim).collect())
}

/// The rows of a text, whatever the number of their fields.
fn records(text: &[u8]) -> impl Iterator<Item = Result<csv::StringRecord, csv::Error>> {
    let mut builder = csv::ReaderBuilder::new();
    builder.has_headers(false).flexible(true).trim(csv::Trim::All).buffer_capacity(text.len());
    builder.from_reader(text).into_records()
}

/// What is wrong with a row in memory, which the reader refuses for one reason only.
fn broken(error: csv::Error) -> String {
    match error.into_kind() {
        csv::ErrorKind::Utf8 { .. } => "not UTF-8".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Numbers with spaces between, or as a list: `[1, 2]`, which may have several lines.
fn numbers(field: &str) -> Result<Vec<u64>, String> {
    let list = field.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if list.is_none() && field.contains('\n') {
        return Err("numbers on several lines without `[` and `]`, or a quote that is not closed".to_owned());
    }
    let parts = list.unwrap_or(field).split(|c: char| c.is_whitespace() || (c == ',' && list.is_some()));
    parts.filter(|part| !part.is_empty()).map(number).collect()
}

fn number(text: &str) -> Result<u64, String> {
    let shown = || text.chars().take(40).collect::<String>();
    text.parse().map_err(|_| format!("`{}` is no number from 0 to 2^64 - 1", shown()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simple_row_is_the_readers() {
        for line in ["1,2\n", " 1 2 ,\u{a0}x\r\n", ",", " \n", "é"] {
            let mut rows = records(line.as_bytes());
            let row = rows.next().unwrap().unwrap();
            assert_eq!((simple(line.as_bytes()).unwrap(), rows.count()), (row.iter().collect(), 0), "{line:?}");
        }
        for line in [&b"\n"[..], b"\r\n", b"1\r2\n", b"\"1\"", b"\xff", b"1\n\n"] {
            assert_eq!(simple(line), None, "{line:?}");
        }
    }
}
