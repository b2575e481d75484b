//! What can be asked.

use std::path::PathBuf;
use std::str::FromStr;

use paged_kv::layout::DType;

/// One line.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    Prepare(Prepare),
    Threads(usize),
    Run(u32),
    Output(PathBuf),
}

/// What to fill a storage with.
#[derive(Debug, PartialEq)]
pub(crate) struct Prepare {
    pub(crate) dtype: DType,
    /// Sequences.
    pub(crate) batch: u32,
    /// Tokens of each.
    pub(crate) context: u32,
    /// Of those the queries, the last ones.
    pub(crate) tokens: u32,
    pub(crate) layers: u32,
    pub(crate) seed: u64,
    /// Queries, K and V.
    pub(crate) path: PathBuf,
}

impl FromStr for Request {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        // A path comes last and may have spaces.
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "prepare" => {
                let words: Vec<&str> = rest.splitn(7, ' ').collect();
                let [dtype, batch, context, tokens, layers, seed, path] = words[..] else {
                    return Err("prepare takes seven words".to_owned());
                };
                let dtype = match dtype {
                    "f32" => DType::F32,
                    "f16" => DType::F16,
                    "bf16" => DType::BF16,
                    other => return Err(format!("{other} is no element type")),
                };
                let [batch, context, tokens, layers] =
                    [number(batch)?, number(context)?, number(tokens)?, number(layers)?];
                if tokens > context {
                    return Err(format!("{tokens} queries are more than {context} tokens"));
                }
                let seed = seed.parse().map_err(|_| format!("{seed} is no seed"))?;
                Ok(Self::Prepare(Prepare { dtype, batch, context, tokens, layers, seed, path: path.into() }))
            }
            "threads" => Ok(Self::Threads(usize::try_from(number(rest)?).map_err(|error| error.to_string())?)),
            "run" => Ok(Self::Run(number(rest)?)),
            "output" if !rest.is_empty() => Ok(Self::Output(rest.into())),
            _ => Err(format!("{line} is no request")),
        }
    }
}

fn number(word: &str) -> Result<u32, String> {
    let parsed = word.parse().ok().filter(|number| (1..=1 << 20).contains(number));
    parsed.ok_or_else(|| format!("{word} is no number from 1 to 1048576"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_words_and_a_path_at_the_end() {
        let prepare =
            Prepare { dtype: DType::BF16, batch: 8, context: 1024, tokens: 1, layers: 4, seed: 7, path: "/a b".into() };
        assert_eq!("prepare bf16 8 1024 1 4 7 /a b".parse(), Ok(Request::Prepare(prepare)));
        assert_eq!("threads 2".parse(), Ok(Request::Threads(2)));
        assert_eq!("run 3".parse(), Ok(Request::Run(3)));
        assert_eq!("output /a b".parse(), Ok(Request::Output("/a b".into())));
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for line in [
            "",
            "stop",
            "run",
            "run 0",
            "run -1",
            "threads x",
            "output",
            "prepare bf16 8",
            "prepare f64 1 1 1 1 1 x",
            "prepare f32 1 16 17 1 1 x",
            "prepare f32 1 16 16 1 x y",
        ] {
            assert!(line.parse::<Request>().is_err(), "{line}");
        }
    }
}
