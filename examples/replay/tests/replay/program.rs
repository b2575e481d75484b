//! The program itself: what a person or a script sees.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const GOOD: &str = "{\"hash_ids\": [1, 2, 3], \"input_length\": 1100}\n{\"hash_ids\": [1, 2, 4]}\n";

fn replay(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_replay"));
    // A backtrace must not find its way into the one line.
    program.args(arguments).env("RUST_BACKTRACE", "1").stdin(Stdio::null()).output().unwrap()
}

/// A file in a folder of its own, which goes with it.
struct Written {
    path: PathBuf,
    dir: TempDir,
}

impl Written {
    fn new(name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Self { path, dir }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn beside(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

/// A command line that must fail: exit code 2, nothing on standard output, one line on standard error.
#[track_caller]
fn fails(output: &Output, what: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{out}{err}");
    assert_eq!(out, "");
    assert_eq!(err.lines().count(), 1, "{err:?}");
    assert!(err.starts_with("replay: ") && err.contains(what), "{err:?} does not name {what:?}");
}

/// The text on standard output of a command line that must succeed and say nothing else.
#[track_caller]
fn text(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn results(output: Output) -> Vec<serde_json::Value> {
    let text = text(output);
    assert_eq!((text.lines().count(), text.ends_with('\n')), (1, true), "{text}");
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(object.as_object().unwrap().len(), 1);
    object["results"].as_array().unwrap().clone()
}

#[test]
fn wrong_options_are_one_line_and_exit_code_2() {
    let trace = Written::new("trace", GOOD);
    let cases: [(&[&str], &str); 23] = [
        (&[], "--blocks"),
        (&["--blocks"], "--blocks"),
        (&["--blocks", ""], "--blocks"),
        (&["--blocks", "0"], "--blocks 0 is out of range: it must be from 1 to 1073741824"),
        (&["--blocks", "5,0"], "--blocks 0"),
        (&["--blocks", "5,,6"], "--blocks"),
        (&["--blocks", "5,many"], "many"),
        (&["--blocks", "-5"], "--blocks -5 is out of range: it must be from 1 to 1073741824"),
        (&["--blocks", "1073741825"], "--blocks 1073741825"),
        (&["--blocks", "99999999999999999999"], "99999999999999999999"),
        (&["--blocks", "5,6,5"], "--blocks names 5 twice"),
        (&["--blocks", "5", "--blocks", "5"], "--blocks names 5 twice"),
        (&["--blocks", "5", "--policy", "lucky"], "--policy lucky is unknown: there are lru"),
        (&["--blocks", "5", "--policy", ""], "--policy  is unknown"),
        (&["--blocks", "5", "--policy", "lru,lru"], "--policy names lru twice"),
        (&["--blocks", "5", "--policy", "lru,all,lru"], "--policy names lru twice"),
        (&["--blocks", "5", "--policy", "all,all"], "--policy names all twice"),
        (&["--blocks", "4294967296"], "--blocks 4294967296 is out of range: it must be from 1 to 1073741824"),
        (&["--blocks", "5", "--block-size", "0"], "--block-size 0 is out of range: it must be from 1 to 1048576"),
        (&["--blocks", "5", "--block-size", "-1"], "--block-size -1 is out of range: it must be from 1 to 1048576"),
        (&["--blocks", "5", "--block-size", "1048577"], "--block-size 1048577"),
        (&["--blocks", "5", "--plot"], "--plot"),
        (&["--blocks", "5", "--nonsense"], "--nonsense"),
    ];
    for (arguments, what) in cases {
        fails(&replay(&[&[trace.path()], arguments].concat()), what);
    }
    fails(&replay(&["--blocks", "5"]), "<TRACE>");
    fails(&replay(&[trace.path(), trace.path(), "--blocks", "5"]), "unexpected argument");
}

#[test]
fn traces_that_cannot_be_used_are_named_with_the_line() {
    let good = GOOD;
    let cases = [
        (String::new(), "holds no request"),
        (format!("{good}{{\"hash_ids\": [1,\n"), "line 3: "),
        (format!("{good}\nlorem ipsum\n"), "line 4: no JSON object"),
        (format!("{good}{{\"tokens\": [1]}}\n"), "line 3: ids and tokens"),
        (format!("{good}{{\"hash_ids\": \"{}\"}}\n", "\u{1b}x\u{7}".repeat(5000)), "line 3: "),
        ("arrived_at,num_prefill_tokens\n0.5,374\n".to_owned(), "line 1: neither"),
        ("tokens\n1 2\n1 x\n".to_owned(), "line 3: `x`"),
        ("tokens\n1 2\n\"1 2\n1 3\n".to_owned(), "line 3: a quote that is not closed"),
    ];
    for (text, what) in cases {
        let trace = Written::new("trace", &text);
        let output = replay(&[trace.path(), "--blocks", "5", "--json"]);
        fails(&output, what);
        fails(&output, trace.path());
        assert!(output.stderr.len() < 500);
    }
    fails(&replay(&["/nonexistent/trace.jsonl", "--blocks", "5"]), "/nonexistent/trace.jsonl");
    fails(&replay(&["no\nsuch\tfile", "--blocks", "5"]), "no such file");
    fails(&replay(&[std::env::temp_dir().to_str().unwrap(), "--blocks", "5"]), "cannot be read");
    fails(&replay(&["-", "--blocks", "5"]), "-: holds no request");
}

#[test]
fn lenient_skips_broken_lines_and_counts_them() {
    let trace = Written::new("trace", format!("{GOOD}broken\n{{}}\n{GOOD}"));
    let rows = results(replay(&[trace.path(), "--blocks", "9", "--json", "--lenient"]));
    for row in &rows {
        assert_eq!((&row["requests"], &row["skipped_lines"]), (&4.into(), &2.into()));
    }
    let table = text(replay(&[trace.path(), "--blocks", "9", "--lenient"]));
    assert!(table.contains("skipped: 2"), "{table}");
    // The quote takes none of the rows behind it along.
    let open = Written::new("trace", "tokens\n1 2\n\"1 2\n1 3\n1 4\n");
    for row in results(replay(&[open.path(), "--blocks", "9", "--json", "--lenient"])) {
        assert_eq!((&row["requests"], &row["skipped_lines"]), (&3.into(), &1.into()));
    }
    let broken = Written::new("trace", "{}\n{}\n");
    fails(&replay(&[broken.path(), "--blocks", "9", "--lenient"]), "holds no request (2 lines skipped)");
    // What comes first may be broken too, whatever comes behind it.
    for (rest, requests) in [(GOOD, 2), ("tokens\n1 2\nx\n3\n", 2)] {
        let trace = Written::new("trace", format!("log of today\n\n\u{fffd} 1,2\n{rest}"));
        let skipped = 2 + u64::from(rest != GOOD);
        for row in results(replay(&[trace.path(), "--blocks", "9", "--json", "--lenient"])) {
            assert_eq!((&row["requests"], &row["skipped_lines"]), (&requests.into(), &skipped.into()));
        }
    }
}

#[test]
fn json_is_one_object_of_the_documented_shape_in_the_order_of_the_arguments() {
    let trace = Written::new("trace", GOOD);
    let arguments = [trace.path(), "--blocks", "300,4", "--policy", "belady,lru", "--json"];
    let out = text(replay(&arguments));
    let start = concat!(
        r#"{"results":[{"capacity":300,"policy":"belady","block_hit_rate":0.3333333333333333,"token_hit_rate":"#,
        // 2 × 512 of 1,100 + 3 × 512 tokens, and 2 × 512 of 3 × 512 in one of two requests.
        r#"0.3884673748103187,"request_hit_rate":0.3333333333333333,"evictions":0,"requests":2,"blocks":6,"#
    );
    assert!(out.starts_with(start), "{out}");
    let rows = results(replay(&arguments));
    let order: Vec<(u64, &str)> =
        rows.iter().map(|row| (row["capacity"].as_u64().unwrap(), row["policy"].as_str().unwrap())).collect();
    assert_eq!(order, [(300, "belady"), (300, "lru"), (4, "belady"), (4, "lru")]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let requests = (0..500).map(|i| format!("{{\"hash_ids\": [{}, {}, {}]}}\n", i % 3, i % 7, i % 11));
    let trace = Written::new("trace", requests.collect::<String>());
    let run = |threads: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_replay"));
        program.args([trace.path(), "--blocks", "5,50,7,20", "--json"]).env("RAYON_NUM_THREADS", threads);
        text(program.output().unwrap())
    };
    assert_eq!(run("1"), run("4"));
}

#[test]
fn requests_larger_than_the_cache_are_refused_and_counted() {
    let trace = Written::new("trace", GOOD);
    for row in results(replay(&[trace.path(), "--blocks", "2", "--json"])) {
        assert_eq!((&row["refused"], &row["requests"], &row["block_hit_rate"]), (&2.into(), &2.into(), &0.0.into()));
    }
    assert!(text(replay(&[trace.path(), "--blocks", "2"])).contains("Refused: "));
    assert!(!text(replay(&[trace.path(), "--blocks", "3"])).contains("Refused: "));
}

#[test]
fn empty_prompts_are_requests_and_rates_of_nothing_are_zero() {
    for line in ["{\"hash_ids\": [], \"input_length\": 0}\n", "{\"tokens\": []}\n"] {
        let trace = Written::new("trace", line);
        for row in results(replay(&[trace.path(), "--blocks", "2", "--json"])) {
            assert_eq!((&row["requests"], &row["blocks"]), (&1.into(), &0.into()));
            assert_eq!((&row["block_hit_rate"], &row["request_hit_rate"]), (&0.0.into(), &0.0.into()));
        }
    }
}

#[test]
fn a_trace_may_come_from_standard_input() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_replay"));
    program.args(["-", "--blocks", "3", "--policy", "lru", "--block-size", "2"]);
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"tokens\n1 2 3 4 5\n1 2 3 4 9\n").unwrap();
    let table = text(child.wait_with_output().unwrap());
    // Two of three blocks, in one of two requests.
    for what in ["2 requests, 6 blocks of 2 tokens, 10 tokens", "33.33 %", "40.00 %", "lru"] {
        assert!(table.contains(what), "{what}: {table}");
    }
}

#[test]
fn the_picture_names_its_axes_and_lines() {
    let trace = Written::new("trace", GOOD);
    let plot = trace.beside("hits & rates.svg");
    std::fs::write(&plot, "what was there before".repeat(10_000)).unwrap();
    text(replay(&[trace.path(), "--blocks", "2000,3,40", "--plot", &plot]));
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    for what in ["lru", "belady", "2,000", "\n40\n", "% of all prompt blocks", "size of the cache in blocks"] {
        assert!(svg.contains(what), "{what}");
    }
    let one = trace.beside("one.svg");
    text(replay(&[trace.path(), "--blocks", "1", "--policy", "lru", "--json", "--plot", &one]));
    assert!(!std::fs::read_to_string(&one).unwrap().contains("NaN"));
}

#[test]
fn a_picture_that_cannot_be_written_is_said_first_and_nothing_is_left_of_a_failed_run() {
    let trace = Written::new("trace", "broken\n");
    let run = |plot: &str| replay(&[trace.path(), "--blocks", "3", "--plot", plot]);
    fails(&run(&trace.beside("no/folder.svg")), "no/folder.svg: cannot be written");
    fails(&run(trace.dir.path().to_str().unwrap()), "cannot be written");
    fails(&run(trace.path()), "is the trace");
    assert_eq!(std::fs::read(&trace.path).unwrap(), b"broken\n");
    let plot = trace.beside("new.svg");
    fails(&run(&plot), "line 1");
    assert!(!Path::new(&plot).exists());
    let old = trace.beside("old.svg");
    std::fs::write(&old, "old").unwrap();
    fails(&run(&old), "line 1");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_too() {
    let trace = Written::new("trace", GOOD);
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_replay"));
    let output = program.args([trace.path(), "--blocks", "3"]).stdout(full()).output().unwrap();
    fails(&output, "cannot write to standard output");
    fails(&replay(&[trace.path(), "--blocks", "3", "--plot", "/dev/full"]), "/dev/full: cannot be written");
}

#[test]
fn help_and_version_go_to_standard_output() {
    for argument in ["--help", "--version"] {
        assert!(!text(replay(&[argument])).is_empty());
    }
}
