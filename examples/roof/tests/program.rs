//! The program itself: what a person or a script sees.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Small enough for a test: layers of 3 × 20 tokens, three rounds.
const TINY: [&str; 8] = ["--shapes", "3x20", "--pool-mib", "1", "--rounds", "3", "--threads", "1"];

fn roof(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_roof"));
    // A backtrace must not find its way into the one line.
    program.args(arguments).env("RUST_BACKTRACE", "1").stdin(Stdio::null()).output().unwrap()
}

/// A command line that must fail: exit code 2, nothing on standard output, one line on standard error.
#[track_caller]
fn fails(output: &Output, what: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{out}{err}");
    assert_eq!(out, "");
    assert_eq!(err.lines().count(), 1, "{err:?}");
    assert!(err.starts_with("roof: ") && err.contains(what), "{err:?} does not name {what:?}");
}

/// The text on standard output of a command line that must succeed and say nothing else.
#[track_caller]
fn text(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn wrong_options_are_one_line_and_exit_code_2() {
    let cases: [(&[&str], &str); 22] = [
        (&["--rounds", "0"], "--rounds 0"),
        (&["--rounds", "10001"], "--rounds 10001"),
        (&["--rounds", "-1"], "-1"),
        (&["--rounds", "many"], "many"),
        (&["--rounds"], "--rounds"),
        (&["--dtype", "f64"], "--dtype f64 is unknown: there are f32, f16, bf16, int8, fp8, and all"),
        (&["--dtype", ""], "--dtype  is unknown"),
        (&["--dtype", "all,f16"], "--dtype names f16 twice"),
        (&["--shapes", "8"], "--shapes 8"),
        (&["--shapes", "8x"], "--shapes 8x"),
        (&["--shapes", "0x16"], "--shapes 0x16"),
        (&["--shapes", "1x-16"], "--shapes 1x-16"),
        (&["--shapes", "4097x1"], "--shapes 4097x1"),
        (&["--shapes", "1x1048577"], "--shapes 1x1048577"),
        (&["--shapes", "4096x1048576"], "67108864 together"),
        (&["--shapes", "8x16,8x16"], "--shapes names 8x16 twice"),
        (&["--threads", "0"], "--threads 0"),
        (&["--threads", "1,some"], "--threads some"),
        (&["--pool-mib", "0"], "--pool-mib 0"),
        (&["--seed", "x"], "--seed"),
        (&["--plot"], "--plot"),
        (&["more"], "more"),
    ];
    for (arguments, what) in cases {
        fails(&roof(arguments), what);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_pool_larger_than_memory_is_refused_before_anything_is_written() {
    fails(&roof(&["--pool-mib", "1048576", "--shapes", "4096x16384", "--dtype", "f32"]), "the pool takes 1048576 MiB");
}

#[test]
fn json_is_one_object_of_the_documented_shape_in_the_order_of_the_arguments() {
    let two = ["--shapes", "2x17,1x64", "--dtype", "bf16,f32", "--threads", "2,1"];
    let out = text(roof(&[&["--json", "--pool-mib", "1", "--rounds", "2"][..], &two].concat()));
    assert_eq!((out.lines().count(), out.ends_with('\n')), (1, true), "{out}");
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&object), "load rows");
    assert_eq!((&object["load"]["pool_mib"], &object["load"]["rounds"]), (&1.into(), &2.into()));
    let rows = object["rows"].as_array().unwrap();
    let mut order = Vec::new();
    for row in rows {
        let mut names = keys(row).split(' ').map(str::to_owned).collect::<Vec<_>>();
        names.sort();
        assert_eq!(
            names.join(" "),
            "batch context dtype gb_s of_scattered of_sequential paged_over_contiguous scattered_gb_s sequential_gb_s \
             threads"
        );
        let number = |name: &str| row[name].as_f64().unwrap();
        for (ratio, roof) in [("of_sequential", "sequential_gb_s"), ("of_scattered", "scattered_gb_s")] {
            assert!((number(ratio) / (number("gb_s") / number(roof)) - 1.0).abs() < 1e-9, "{row}");
        }
        assert!(number("paged_over_contiguous") > 0.0);
        order.push(format!("{} {} {} {}", row["dtype"], row["batch"], row["context"], row["threads"]));
    }
    let expected = [
        r#""bf16" 2 17 2"#,
        r#""bf16" 2 17 1"#,
        r#""bf16" 1 64 2"#,
        r#""bf16" 1 64 1"#,
        r#""f32" 2 17 2"#,
        r#""f32" 2 17 1"#,
        r#""f32" 1 64 2"#,
        r#""f32" 1 64 1"#,
    ];
    assert_eq!(order, expected);
}

#[test]
fn the_table_has_a_row_for_each_dtype_and_says_the_load() {
    let table = text(roof(&TINY));
    for what in
        ["f32", "f16", "bf16", "int8", "fp8", "1 MiB of K and V, 3 rounds", "of sequential", "paged / contiguous", "%"]
    {
        assert!(table.contains(what), "{what}: {table}");
    }
}

#[test]
fn the_picture_is_written_and_nothing_is_left_of_a_failed_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let plot = path("roof.svg");
    text(roof(&[&TINY[..], &["--plot", &plot]].concat()));
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("bf16 3x20, 1 thread") && !svg.contains("NaN"));
    fails(&roof(&[&TINY[..], &["--plot", &path("no/folder.svg")]].concat()), "folder.svg: cannot be written");
    if cfg!(target_os = "linux") {
        let plot = path("none.svg");
        fails(&roof(&["--pool-mib", "1048576", "--shapes", "4096x16384", "--plot", &plot]), "the pool takes");
        assert!(!Path::new(&plot).exists());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_too() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_roof")).args(TINY).stdout(full).output().unwrap();
    fails(&output, "cannot write to standard output");
}

#[test]
fn help_and_version_go_to_standard_output() {
    for argument in ["--help", "--version"] {
        assert!(!text(roof(&[argument])).is_empty());
    }
}
