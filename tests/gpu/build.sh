#!/usr/bin/env bash
# build.sh: builds what a machine with a GPU runs, where there is Rust: the crate's tests and the benchmark, stripped, and
# run.sh beside them, in target/gpu. Carry that folder over and call run.sh there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CARGO_TARGET_DIR:-target}
out=$target/gpu
rm -rf "$out"
mkdir -p "$out"
tests=$(cargo test --locked --all-features --lib --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
cargo build --locked --release -p gpu
strip -o "$out/tests" "$tests"
strip -o "$out/bench" "$target/release/gpu"
cp tests/gpu/run.sh tests/gpu/torch_sdpa.py "$out/"
du -sh "$out"
