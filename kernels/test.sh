#!/usr/bin/env bash
# test.sh [plain|address|planted]: everything that the CUDA storage and its kernels are tested with, on the emulator: no
# GPU, no CUDA toolkit, only a C++ compiler. First as it is, then under AddressSanitizer, or one of the two; or bugs
# planted in the decode kernel, to which the tests must object (Python 3, some eight minutes).
#
# Each time: the kernels by themselves (tests/run.sh), the emulator, and the tests of `CudaStorage`. The suite of all
# storages runs once, some element types as it is and the others under AddressSanitizer. The crate is built with all
# features, as for CI's other tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Without a driver the CUDA tests must fail, not be left out.
export PAGED_KV_CUDA=required

host=$(rustc -vV | sed -n 's/^host: //p')
runner=CARGO_TARGET_$(echo "$host" | tr 'a-z-' 'A-Z_')_RUNNER
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)

# together A B: two lists of tests of the crate at once, as one emulator runs on one processor only.
together() {
    local lib=(cargo test --locked --quiet --all-features --lib)
    "${lib[@]}" --no-run
    # The lists are of several names each.
    # shellcheck disable=SC2086
    "${lib[@]}" -- $1 &
    local first=$!
    # shellcheck disable=SC2086
    "${lib[@]}" -- $2
    wait $first
}

# run FOLDER A B: an emulator that is built in that folder, its tests, and the crate's.
run() {
    CARGO_TARGET_DIR=$target kernels/tests/run.sh
    CARGO_TARGET_DIR=$1 cargo build --locked --quiet -p cuda-emulator
    # The runner is put before each test program; cargo and the compiler do without the stand-in and its sanitizer.
    export "$runner=$1/debug/cuda-emulator"
    CARGO_TARGET_DIR=$1 cargo test --locked --quiet -p cuda-emulator
    CARGO_TARGET_DIR=$target together "$2" "$3"
    unset "$runner"
}

case ${1:-both} in
plain | both)
    run "$target" "storage::cuda suite::cuda_f32 suite::cuda_decode_f16" "suite::cuda_i8 suite::cuda_balanced" ;;
esac
case ${1:-both} in
address | both)
    # An emulator of its own: one cannot be made from the other.
    export SANITIZE=address PAGED_KV_EMULATOR_SANITIZE=address
    run "$target/address" "storage::cuda suite::cuda_bf16 suite::cuda_decode_bf16" \
        "suite::cuda_f16 suite::cuda_f8e4m3 suite::cuda_decode_f8e4m3"
    ;;
esac
# Not part of both: it builds the decode kernel once for each of some forty bugs.
case ${1:-both} in
planted)
    CARGO_TARGET_DIR=$target cargo test --locked --quiet -p cuda-emulator --test decode --no-run
    tests=$(CARGO_TARGET_DIR=$target cargo test --locked -p cuda-emulator --test decode --no-run 2>&1)
    CARGO_TARGET_DIR=$target python3 kernels/tests/planted.py "$(sed -n 's/.*(\(.*\))$/\1/p' <<<"$tests")"
    ;;
esac
