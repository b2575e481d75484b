//! The program, as a person sees it, and as a subscriber in another language does.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

fn events(arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_events"));
    program.args(arguments);
    program
}

#[test]
fn what_is_wrong_with_a_command_line_is_one_line_and_exit_code_2() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp://{}", taken.local_addr().unwrap());
    for (arguments, what) in [
        (&["--requests", "many"][..], "many"),
        (&["--block-size", "0"], "block-size"),
        (&["--num-blocks", "31"], "num-blocks"),
        // 184 tokens of a chat are as many blocks, or 37 of 5, and one is for nobody.
        (&["--num-blocks", "184", "--block-size", "1"], "--num-blocks 184 is too few"),
        (&["--num-blocks", "32", "--block-size", "5"], "at least 38"),
        (&["--form", "xml"], "xml"),
        (&["--colour"], "--colour"),
        (&["stray"], "stray"),
        (&["--endpoint", "nowhere"], "--endpoint nowhere"),
        (&["--endpoint", &taken], &taken),
        (&["--endpoint", "tcp://127.0.0.1:0", "--replay", "udp://127.0.0.1:1"], "--replay udp"),
    ] {
        let output = events(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert_eq!((output.stdout.len(), error.lines().count()), (0, 1), "{arguments:?}: {error}");
        assert!(error.starts_with("events: ") && error.contains(what), "{error} does not name {what}");
    }
}

#[test]
fn the_smallest_cache_has_room_for_every_chat() {
    // 184 tokens are 184 blocks of 1, and 31 of 6 hold 186.
    let [endpoint, replay] = endpoints();
    for (num_blocks, block_size) in [("185", "1"), ("32", "6")] {
        let size = ["--num-blocks", num_blocks, "--block-size", block_size];
        let both = ["--endpoint", &endpoint, "--replay", &replay];
        let output = events(&size)
            .args(both)
            .args(["--requests", "60", "--interval-ms", "1", "--linger", "0"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{size:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn help_names_every_option() {
    let output = events(&["--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("--replay") && text.contains("--hasher"), "{text}");
}

/// Ends a program with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two endpoints that were free a moment ago.
fn endpoints() -> [String; 2] {
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    held.each_ref().map(|listener| format!("tcp://{}", listener.local_addr().unwrap()))
}

/// Both programs, with these arguments. `PAGED_KV_PYTHON` is a Python with msgspec and pyzmq; skipped without.
fn subscribed(publisher: &[&str], subscriber: &[&str]) {
    subscribed_after(Duration::ZERO, publisher, subscriber);
}

/// The same, with the subscriber so much later.
fn subscribed_after(delay: Duration, publisher: &[&str], subscriber: &[&str]) {
    let Some(python) = std::env::var_os("PAGED_KV_PYTHON") else {
        println!("SKIPPED: a subscriber in Python (PAGED_KV_PYTHON is not set)");
        return;
    };
    let [endpoint, replay] = endpoints();
    let both = ["--endpoint", &endpoint, "--replay", &replay, "--topic", "kv@host@toy"];
    let mut program = events(&both);
    program.args(["--requests", "150", "--linger", "60"]).args(publisher).stdout(Stdio::null());
    let _running = Running(program.spawn().unwrap());

    sleep(delay);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("subscriber.py");
    let output = Command::new(python).arg(script).args(both).args(subscriber).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    println!("{out}");
}

#[test]
fn a_subscriber_reads_maps_and_computes_the_names_again() {
    subscribed(&[], &["--seed", "vllm-none-hash"]);
}

#[test]
fn a_subscriber_that_comes_when_all_is_over_asks_for_a_replay() {
    // 150 chats a millisecond apart are over in a moment.
    subscribed_after(
        Duration::from_secs(3),
        &["--interval-ms", "1"],
        &["--seed", "vllm-none-hash", "--wait-ms", "500"],
    );
}

#[test]
fn a_subscriber_reads_arrays_and_numbers() {
    subscribed(&["--form", "positional", "--hashes", "low64", "--hasher", "blake3"], &["--positional"]);
}
