//! The forms of a trace, a request at a time: JSON lines and CSV.

use std::io::{BufRead, Cursor, Read};

use serde::Deserialize;

use super::{Content, Line, TraceError};

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
            Some(_) => match columns(&line, number) {
                Ok(columns) => return rows(Cursor::new(line).chain(input), number - 1, columns, push),
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
    at: usize,
    content: Content,
    length_at: Option<usize>,
}

fn reader<R: Read>(input: R) -> csv::Reader<R> {
    csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input)
}

/// Reads a header, which is this line.
fn columns(header: &[u8], line: u64) -> Result<Columns, TraceError> {
    let mut reader = reader(header);
    let headers = reader.headers().map_err(|error| broken(error, line))?;
    let column = |name: &str| headers.iter().position(|header| header == name);
    let mut contents = FIELDS.iter().filter_map(|&(name, content)| Some((column(name)?, content)));
    match (contents.next(), contents.next()) {
        (Some((at, content)), None) => {
            let length_at = column("input_length").filter(|_| content == Content::Ids);
            Ok(Columns { at, content, length_at })
        }
        (None, _) => {
            let found = headers.iter().collect::<Vec<_>>().join(",").chars().take(80).collect();
            Err(TraceError::Header { line, found })
        }
        _ => Err(TraceError::Line { line, what: format!("more than one of {}", names()) }),
    }
}

/// Reads CSV, behind so many lines, header and all.
fn rows(
    input: impl BufRead,
    before: u64,
    Columns { at, content, length_at }: Columns,
    mut push: impl FnMut(u64, Result<Line, String>) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let mut reader = reader(input);
    let mut record = csv::StringRecord::new();
    loop {
        let line = before + reader.position().line();
        match reader.read_record(&mut record) {
            Ok(false) => return Ok(()),
            Ok(true) => {
                // Lines without a field in front of the record are skipped by the reader.
                let line = record.position().map_or(line, |position| before + position.line());
                let request = numbers(record.get(at).unwrap_or("")).and_then(|units| {
                    let length = length_at.and_then(|at| record.get(at)).filter(|length| !length.is_empty());
                    Ok(Line { content, units, input_length: length.map(number).transpose()? })
                });
                push(line, request)?;
            }
            Err(error) => match broken(error, line) {
                TraceError::Line { line, what } => push(line, Err(what))?,
                fatal => return Err(fatal),
            },
        }
    }
}

fn broken(error: csv::Error, line: u64) -> TraceError {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => TraceError::Read(error),
        csv::ErrorKind::Utf8 { .. } => TraceError::Line { line, what: "not UTF-8".to_owned() },
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            TraceError::Line { line, what: format!("{len} fields under a header of {expected_len}") }
        }
        other => TraceError::Line { line, what: format!("{other:?}") },
    }
}

/// Numbers with spaces between, or as a list: `[1, 2]`.
fn numbers(field: &str) -> Result<Vec<u64>, String> {
    let list = field.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let parts = list.unwrap_or(field).split(|c: char| c.is_whitespace() || (c == ',' && list.is_some()));
    parts.filter(|part| !part.is_empty()).map(number).collect()
}

fn number(text: &str) -> Result<u64, String> {
    let shown = || text.chars().take(40).collect::<String>();
    text.parse().map_err(|_| format!("`{}` is no number from 0 to 2^64 - 1", shown()))
}
