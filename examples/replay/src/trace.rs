//! Traces: what the prompts of requests were, in order.
//!
//! | form | a request |
//! |---|---|
//! | Mooncake's JSON lines | `{"hash_ids": [0, 1, 2], "input_length": 1100}`, an id for each block of the prompt |
//! | JSON lines of tokens | `{"tokens": [9906, 11]}` or `{"token_ids": [9906, 11]}` |
//! | CSV with a header | a column `tokens`, `token_ids` or `hash_ids` of numbers with spaces between; `input_length` |
//!
//! In a CSV numbers may also be a list, `"[9906, 11]"`, and fields in quotes may have several lines, numbers only in such
//! a list. A quote that is not closed breaks its own line and no other.
//!
//! Other fields and columns are skipped, as are empty lines. What a trace is, its first character says: `{` for JSON
//! lines. Ids and tokens are any unsigned numbers of 64 bits; only whether they are the same matters. `input_length`,
//! which goes with ids and need not be there, is the tokens of the prompt: the last block of n ids counts
//! `input_length - (n - 1) * block size` of them, the others a block each.

mod lines;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Tokens that an id of Mooncake's stands for.
const IDS_BLOCK_SIZE: u32 = 512;
/// Tokens in a block, where nothing else is said.
const TOKENS_BLOCK_SIZE: u32 = paged_kv::cache::DEFAULT_BLOCK_SIZE;

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A line is not a request.
    #[error("line {line}: {what}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The header of a CSV names no contents.
    #[error(
        "line {line}: neither JSON lines nor CSV with a column `hash_ids`, `tokens` or `token_ids`: {found}; lengths \
         alone do not say what is found again"
    )]
    Header {
        /// Its number, from 1.
        line: u64,
        /// The line.
        found: String,
    },
    /// There is no request.
    #[error("holds no request{}", if *.skipped > 0 { format!(" ({skipped} lines skipped)") } else { String::new() })]
    Empty {
        /// Lines that could not be read.
        skipped: u64,
    },
    /// More different ids or tokens than the cache can tell apart.
    #[error("more than 2^32 - 2 different ids")]
    TooManyIds,
}

/// What the numbers of a trace stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Each for the content of a block.
    Ids,
    /// Each for a token.
    Tokens,
}

/// A request, as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its ids or tokens, numbered in the order in which the trace first has them.
    pub units: &'a [u32],
    /// Blocks of its prompt, the last partly filled one included.
    pub blocks: u32,
    /// Tokens of its prompt.
    pub tokens: u32,
}

/// A trace in memory; holds at least one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    content: Content,
    block_size: u32,
    /// The units of all requests, one behind the other.
    units: Vec<u32>,
    /// Where the units of each request end, and its tokens.
    ends: Vec<(usize, u32)>,
    blocks: u64,
    skipped: u64,
    mismatched: u64,
}

impl Trace {
    /// Reads a trace from a file, or from standard input for `-`. `block_size` is 512 for ids and 16 for tokens unless
    /// given. With `lenient`, lines that are no requests are skipped and counted.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn open(path: &Path, block_size: Option<u32>, lenient: bool) -> Result<Self, TraceError> {
        if path == Path::new("-") {
            return Self::read(io::stdin().lock(), block_size, lenient);
        }
        Self::read(BufReader::new(File::open(path)?), block_size, lenient)
    }

    /// Reads a trace: see [`open`](Self::open).
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn read(input: impl BufRead, block_size: Option<u32>, lenient: bool) -> Result<Self, TraceError> {
        let mut builder = Builder { block_size, ..Builder::default() };
        lines::each(input, |line, request| match request.map(|request| builder.push(request)) {
            Ok(Ok(())) => Ok(()),
            Err(what) | Ok(Err(Refusal::Line(what))) if !lenient => Err(TraceError::Line { line, what }),
            Err(_) | Ok(Err(Refusal::Line(_))) => {
                builder.skipped += 1;
                Ok(())
            }
            Ok(Err(Refusal::TooManyIds)) => Err(TraceError::TooManyIds),
        })?;
        builder.finish()
    }

    /// What its numbers stand for.
    pub fn content(&self) -> Content {
        self.content
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Requests.
    #[expect(clippy::len_without_is_empty, reason = "it holds at least one")]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Blocks of all requests.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Lines that could not be read.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Requests whose `input_length` is not that of as many blocks as they have ids.
    pub fn mismatched(&self) -> u64 {
        self.mismatched
    }

    /// The requests in order.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&(end, tokens)| {
            let units = &self.units[start..end];
            start = end;
            let len = len32(units.len());
            let blocks = if self.content == Content::Ids { len } else { len.div_ceil(self.block_size) };
            Request { units, blocks, tokens }
        })
    }
}

/// A length that [`Builder::push`] has seen to be less than 2^32.
fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// A request as a line says it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    content: Content,
    units: Vec<u64>,
    /// Goes with ids.
    input_length: Option<u64>,
}

enum Refusal {
    Line(String),
    TooManyIds,
}

#[derive(Default)]
struct Builder {
    content: Option<Content>,
    block_size: Option<u32>,
    numbers: HashMap<u64, u32>,
    units: Vec<u32>,
    ends: Vec<(usize, u32)>,
    blocks: u64,
    skipped: u64,
    mismatched: u64,
}

impl Builder {
    fn block_size(&self, content: Content) -> u32 {
        self.block_size.unwrap_or(match content {
            Content::Ids => IDS_BLOCK_SIZE,
            Content::Tokens => TOKENS_BLOCK_SIZE,
        })
    }

    fn push(&mut self, line: Line) -> Result<(), Refusal> {
        let content = self.content.unwrap_or(line.content);
        if content != line.content {
            return Err(Refusal::Line("ids and tokens in one trace".to_owned()));
        }
        let size = self.block_size(content);
        let len =
            u32::try_from(line.units.len()).map_err(|_| Refusal::Line("more than 2^32 - 1 numbers".to_owned()))?;
        let (blocks, tokens) = match content {
            Content::Tokens => (len.div_ceil(size), len),
            Content::Ids => {
                let tokens = line.input_length.unwrap_or(u64::from(len) * u64::from(size));
                let narrow = u32::try_from(tokens);
                (len, narrow.map_err(|_| Refusal::Line(format!("{tokens} tokens are more than 2^32 - 1")))?)
            }
        };
        for unit in line.units {
            let next = self.numbers.len();
            // The largest number is kept back.
            let next = u32::try_from(next).ok().filter(|&next| next < u32::MAX).ok_or(Refusal::TooManyIds)?;
            self.units.push(*self.numbers.entry(unit).or_insert(next));
        }
        self.content = Some(content);
        self.ends.push((self.units.len(), tokens));
        self.blocks += u64::from(blocks);
        self.mismatched += u64::from(tokens.div_ceil(size) != blocks);
        Ok(())
    }

    fn finish(self) -> Result<Trace, TraceError> {
        let content = self.content.ok_or(TraceError::Empty { skipped: self.skipped })?;
        let block_size = self.block_size(content);
        let Self { skipped, mismatched, units, ends, blocks, .. } = self;
        Ok(Trace { content, block_size, units, ends, blocks, skipped, mismatched })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, TraceError> {
        Trace::read(text.as_bytes(), None, false)
    }

    fn requests(trace: &Trace) -> Vec<(&[u32], u32, u32)> {
        trace.requests().map(|request| (request.units, request.blocks, request.tokens)).collect()
    }

    #[test]
    fn ids_are_numbered_as_they_come_and_may_be_any_number_of_64_bits() {
        let trace = read(concat!(
            "{\"timestamp\": 0, \"input_length\": 1030, \"output_length\": 5, \"hash_ids\": [7, 18446744073709551615, 9]}\n",
            "\n",
            "  {\"hash_ids\": [7, 4]}\r\n",
            "{\"hash_ids\": [], \"input_length\": 0}"
        ))
        .unwrap();
        assert_eq!((trace.content(), trace.block_size(), trace.blocks()), (Content::Ids, 512, 5));
        let expected: [(&[u32], u32, u32); 3] = [(&[0, 1, 2], 3, 1030), (&[0, 3], 2, 1024), (&[], 0, 0)];
        assert_eq!(requests(&trace), expected);
        assert_eq!((trace.skipped(), trace.mismatched()), (0, 0));
    }

    #[test]
    fn tokens_come_as_json_lines_or_as_csv() {
        let json = read("{\"tokens\": [5, 6, 5]}\n{\"token_ids\": [6]}\n{\"tokens\": []}\n").unwrap();
        assert_eq!((json.content(), json.block_size()), (Content::Tokens, 16));
        let expected: [(&[u32], u32, u32); 3] = [(&[0, 1, 0], 1, 3), (&[1], 1, 1), (&[], 0, 0)];
        assert_eq!(requests(&json), expected);
        let csv = [
            "time,token_ids\n0,5 6 5\n1,6\n2,\n",
            "\u{feff}\n tokens ,x\n\"[5, 6, 5]\",\"a\nb\"\n6,\n,\n",
            "x,tokens\r0,5 6 5\r0,6\r0,\r",
        ];
        for text in csv {
            assert_eq!(requests(&read(text).unwrap()), expected, "{text:?}");
        }
    }

    #[test]
    fn csv_may_have_ids_with_lengths() {
        let trace = Trace::read("input_length,hash_ids\n20,3 4\n,3\n".as_bytes(), Some(16), false).unwrap();
        let expected: [(&[u32], u32, u32); 2] = [(&[0, 1], 2, 20), (&[0], 1, 16)];
        assert_eq!(requests(&trace), expected);
    }

    #[test]
    fn lengths_that_do_not_fit_their_ids_are_counted() {
        let trace = read("{\"hash_ids\":[1,2],\"input_length\":512}\n{\"hash_ids\":[],\"input_length\":9}").unwrap();
        assert_eq!(trace.mismatched(), 2);
    }

    #[test]
    fn broken_lines_are_said_with_their_number_or_skipped_and_counted() {
        let good = "{\"hash_ids\": [1]}\n";
        let cases = [
            ("{\"hash_ids\": [1}", "expected"),
            ("[[1]]", "no JSON object"),
            ("nonsense", "no JSON object"),
            ("{\"hash_ids\": [-1]}", "-1"),
            ("{\"hash_ids\": [1.5]}", "1.5"),
            ("{\"hash_ids\": [18446744073709551616]}", "e+19"),
            ("{\"hash_ids\": [1], \"input_length\": 4294967296}", "4294967296 tokens"),
            ("{\"hash_ids\": [1], \"input_length\": \"many\"}", "many"),
            ("{\"input_length\": 5}", "none of"),
            ("{\"tokens\": [1], \"hash_ids\": [1]}", "more than one of"),
            ("{\"tokens\": [1]}", "ids and tokens"),
            ("{\"hash_ids\": [1]} {", "trailing"),
        ];
        for (bad, what) in cases {
            let text = format!("{good}\n{bad}\n{good}");
            let message = read(&text).unwrap_err().to_string();
            assert!(message.starts_with("line 3: ") && message.contains(what), "{bad}: {message}");
            assert!(!message.contains("line 1"), "{message}");
            let trace = Trace::read(text.as_bytes(), None, true).unwrap();
            assert_eq!((trace.len(), trace.skipped(), trace.blocks()), (2, 1, 2), "{bad}");
        }
        let bytes = b"{\"hash_ids\": [1]}\n{\"hash_ids\": [1], \"\xff\": 1}\n";
        assert!(Trace::read(&bytes[..], None, false).unwrap_err().to_string().starts_with("line 2: "));
    }

    #[test]
    fn broken_rows_of_csv_are_said_with_their_line_too() {
        for (bad, what) in [("1", "fields"), ("1 x,0", "`x`"), ("1 -2,0", "`-2`"), ("1,2,3", "fields")] {
            let text = format!("\ntokens,time\n\"[1\n2]\",0\n{bad}\n3,0\n");
            let message = read(&text).unwrap_err().to_string();
            assert!(message.starts_with("line 5: ") && message.contains(what), "{bad}: {message}");
            let trace = Trace::read(text.as_bytes(), None, true).unwrap();
            assert_eq!((trace.len(), trace.skipped()), (2, 1), "{bad}");
        }
        let message = Trace::read(&b"tokens\n1\n\xff\n"[..], None, false).unwrap_err().to_string();
        assert!(message.starts_with("line 3: "), "{message}");
    }

    #[test]
    fn a_quote_that_is_not_closed_breaks_its_line_and_no_other() {
        // The rows, which of their lines are broken, and how many requests are left.
        let cases: [(&str, &[u64], usize); 11] = [
            // To the end of the file; of these rows, and of the last one.
            ("\"1 2,0\n3,0\n4,0\n", &[2], 2),
            ("1,0\n2,\"x\n3,0\n", &[3], 2),
            ("1,0\n2,\"", &[3], 1),
            // To the next quote, behind which there is more of its field; of that line nothing is wrong.
            ("\"1 2,0\n3,0\n\"4\",0\n5,0\n", &[2], 3),
            ("1,\"x\n3,0\n4,\"y\"\n5,0\n", &[2], 3),
            // To the next one that is not closed or was not opened: both are broken.
            ("\"1 2\n3,0\n4,\"\n5,0\n", &[2, 4], 2),
            ("\"1\n3,0\n4\",0\n5,0\n", &[2, 4], 2),
            // Numbers of several rows are no list, though each has its brackets.
            ("\"[1],0\n\"[3]\",0\n[4]\",0\n", &[2, 4], 1),
            // Each row has a quote that closes the field of the row in front and opens one.
            ("1\",\"\n2\",\"\n3\",\"\n", &[2, 3, 4], 0),
            // Fields of several lines are fine; a quote within a field is none.
            ("1,\"x\n2,0\n\"\"3\"\"\"\n\"[4\r\n5]\",\"6\n\"\n7,x\"\n", &[], 3),
            ("1,\"x\n\"\nx,0\n2,0", &[4], 2),
        ];
        for (rows, broken, requests) in cases {
            let text = format!("tokens,x\n{rows}9,0\n");
            let text = if rows.ends_with('\n') { &*text } else { text.trim_end_matches("9,0\n") };
            let requests = requests + usize::from(rows.ends_with('\n'));
            let mut lines = Vec::new();
            lines::each(text.as_bytes(), |line, request| {
                if request.is_err() {
                    lines.push(line);
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(lines, broken, "{rows:?}");
            let trace = Trace::read(text.as_bytes(), None, true).unwrap();
            assert_eq!((trace.len(), trace.skipped()), (requests, broken.len() as u64), "{rows:?}");
            if let Some(first) = broken.first() {
                let message = read(text).unwrap_err().to_string();
                assert!(message.starts_with(&format!("line {first}: ")), "{rows:?}: {message}");
            }
        }
        // Of a header too, behind which there may be another.
        let text = "tokens,\"x\ny\"\ntokens\n1\n2\n";
        assert_eq!(read(text).unwrap_err().to_string(), "line 1: a quote that is not closed");
        let trace = Trace::read(text.as_bytes(), None, true).unwrap();
        assert_eq!((trace.len(), trace.skipped()), (2, 2));
    }

    #[test]
    fn many_quotes_that_are_not_closed_are_read_in_little_time() {
        // Each line goes on in the next, as far as the number of fields lets it: two lines, not 100,000.
        let text = format!("tokens,x\n{}", "1\",\"\n".repeat(100_000));
        let skipped = Trace::read(text.as_bytes(), None, true).unwrap_err().to_string();
        assert_eq!(skipped, "holds no request (100000 lines skipped)");
    }

    #[test]
    fn a_trace_without_requests_or_contents_is_refused() {
        for text in ["", "\n \n", "tokens\n", "\u{feff}"] {
            assert_eq!(read(text).unwrap_err().to_string(), "holds no request", "{text:?}");
        }
        let skipped = Trace::read("{\"x\": 1}\n{}\n".as_bytes(), None, true).unwrap_err();
        assert_eq!(skipped.to_string(), "holds no request (2 lines skipped)");
        let lengths = read("\narrived_at,num_prefill_tokens\n0,374\n").unwrap_err().to_string();
        assert!(lengths.starts_with("line 2: ") && lengths.contains("arrived_at"), "{lengths}");
        let twice = read("tokens,hash_ids\n1,1\n").unwrap_err().to_string();
        assert!(twice.contains("more than one of"), "{twice}");
    }
}
