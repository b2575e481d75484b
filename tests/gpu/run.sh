#!/usr/bin/env bash
# run.sh [OUT]: on a machine with an NVIDIA GPU and no Rust, from the folder that build.sh made: the tests of the CUDA
# storage on the real driver, compute-sanitizer on three of them, the benchmark, torch beside it. What it finds goes to the
# folder OUT (here, by default): tests.log, sanitizer.log, gpu.json, gpu.txt, torch.json. At most six minutes; what was left
# out is said. Fails when a test does.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here}
mkdir -p "$out"
failed=0
skipped() { printf 'SKIPPED: %s\n' "$*"; }

nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv || skipped "nvidia-smi"

# Without a driver the tests must fail, not be left out.
export PAGED_KV_CUDA=required
if timeout 130 "$here/tests" cuda > "$out/tests.log" 2>&1; then
    tail -n 2 "$out/tests.log"
else
    echo "the tests fail, or take too long:"
    grep -E '^test .*FAILED|panicked' -A 2 "$out/tests.log" | head -n 40
    failed=1
fi

# Reads of memory that nobody wrote are what an allocation is like before it is zeroed: initcheck sees the rest.
if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck initcheck; do
        timeout 25 compute-sanitizer --tool "$tool" --error-exitcode 9 "$here/tests" --test-threads 1 \
            storage::cuda::tests::streams::a_batch storage::cuda::tests::writes::tensors \
            storage::cuda::tests::records::records > "$out/sanitizer.$tool.log" 2>&1
        code=$?
        if [ $code = 124 ]; then
            skipped "the rest of $tool (no time)"
        elif [ $code != 0 ]; then
            echo "$tool objects:"
            tail -n 20 "$out/sanitizer.$tool.log"
            failed=1
        else
            echo "$tool has no objection"
        fi
    done
else
    skipped "compute-sanitizer (it is not installed)"
fi

timeout 140 "$here/bench" --seconds 110 --json "$out/gpu.json" > "$out/gpu.txt" 2>&1 || failed=1
cat "$out/gpu.txt"

if python3 -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null; then
    timeout 40 python3 "$here/torch_sdpa.py" "$out/torch.json" || skipped "the rest of torch (no time)"
else
    skipped "torch (it is not installed, or sees no GPU)"
fi
exit $failed
