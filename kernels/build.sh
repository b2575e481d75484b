#!/usr/bin/env bash
# build.sh [--check]: compiles the kernels to `ptx/`, or checks that what is there is what would come out. See build.py.
#
# Needs python3 and, the first time, a package index for pip; no CUDA and no GPU. The compilers go to
# `$CARGO_TARGET_DIR/kernels` (`target/kernels`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=${CARGO_TARGET_DIR:-../target}
mkdir -p "$target/kernels"
target=$(cd "$target/kernels" && pwd)
venv=$target/venv

# PTX comes from the oldest compiler of CUDA 12, because a driver takes no PTX that is newer than itself; 12.0 is that
# of driver 525. What assembles it here for the figures is one that knows all architectures of the list.
packages=("nvidia-cuda-nvrtc-cu12==12.0.140" "nvidia-cuda-nvcc-cu12==12.9.86")

if ! [ -f "$venv/complete" ]; then
    python3 -m venv "$venv"
    for try in 1 2 3; do
        if "$venv/bin/pip" install --quiet --retries 10 --timeout 60 "${packages[@]}"; then
            touch "$venv/complete"
            break
        fi
        echo "build.sh: try $try of 3 to install the compilers failed" >&2
        sleep 5
    done
    [ -f "$venv/complete" ] || exit 1
fi
exec "$venv/bin/python" build.py --target "$target" "$@"
