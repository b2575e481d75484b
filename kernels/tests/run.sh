#!/usr/bin/env bash
# run.sh [TEST...]: builds the kernels for the host, on the emulator's device, and runs the tests of this folder: in the
# order of threads and blocks, in reverse, and in one drawn from a seed. SANITIZE=address builds with AddressSanitizer
# and UndefinedBehaviorSanitizer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${CARGO_TARGET_DIR:-../target}/kernels/tests${SANITIZE:+-$SANITIZE}
mkdir -p "$out"
flags=(-std=c++17 -O2 -g -Wall -Wextra -Wno-unknown-pragmas -DPK_HOST_EMU)
# As the emulator is built: bytes are read as what they hold, and no product is fused that does not say so.
flags+=(-fno-strict-aliasing -ffp-contract=off)
if [ "${SANITIZE:-}" = address ]; then
    flags+=(-fsanitize=address,undefined -fno-sanitize-recover=undefined)
fi
if grep -qw f16c /proc/cpuinfo 2>/dev/null && grep -qw avx2 /proc/cpuinfo; then
    # Only for speed.
    flags+=(-march=x86-64-v3)
fi
kernel_flags=()
if [ -z "${SANITIZE:-}" ]; then
    # The emulator has what the compiler then calls at every access; ThreadSanitizer itself is not linked.
    kernel_flags=(-fsanitize=thread)
fi
objects=()
for source in emulator/device/*.cpp tests/launch.cpp *.cu; do
    object=$out/${source//\//-}.o
    # Headers are not followed: all is built anew, in less time than the tests take.
    case $source in
    *.cu) "${CXX:-c++}" "${flags[@]}" "${kernel_flags[@]}" -x c++ -c "$source" -o "$object" ;;
    *) "${CXX:-c++}" "${flags[@]}" -c "$source" -o "$object" ;;
    esac
    objects+=("$object")
done
tests=("$@")
if [ ${#tests[@]} = 0 ]; then
    tests=(tests/*_test.cpp)
fi
for test in "${tests[@]}"; do
    name=$(basename "$test" .cpp)
    "${CXX:-c++}" "${flags[@]}" "tests/$name.cpp" "${objects[@]}" -o "$out/$name" -ldl -lpthread
    for order in 0 1 77; do
        PK_ORDER=$order "$out/$name"
    done
done
