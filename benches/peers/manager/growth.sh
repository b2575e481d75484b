#!/usr/bin/env bash
# Instructions per operation in pools of several sizes, and whether they grow: at most 1.3 times from the first pool to
# any other. Usage: growth.sh [POOL ...]; without pools 1,024 and 100,000 blocks; 4194304 takes some minutes more.
# Environment: POLICY (lru), ITERATIONS (32), OPS (all).
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v valgrind >/dev/null 2>&1; then
    echo "SKIPPED: instructions per operation (no valgrind)"
    exit 0
fi

pools=("$@")
[ ${#pools[@]} -gt 0 ] || pools=(1024 100000)
policy=${POLICY:-lru}
iterations=${ITERATIONS:-32}
read -r -a ops <<< "${OPS:-admit admit-evicting append free peek adopt allocate decode fork}"
most=1.3

cargo build --locked --release -q -p peers-manager
target=$(cargo metadata --locked --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
program=$target/release/peers-manager

# Instructions of one operation: those inside of the function `counted`, all callees included, over how many there were.
instructions() { # OP POOL
    local log done_ collected
    log=$(mktemp)
    done_=$(valgrind --tool=callgrind --toggle-collect='*counted*' --callgrind-out-file=/dev/null --log-file="$log" \
        "$program" count "$1" "$2" "$iterations" --policy "$policy")
    collected=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$log")
    rm -f "$log"
    [ "${collected:-0}" -gt 0 ] || { echo "nothing was counted for $1" >&2; return 1; }
    awk -v a="$collected" -v n="$done_" 'BEGIN { printf "%.1f", a / n }'
}

printf '%-16s' "$policy"
for pool in "${pools[@]}"; do printf '%24s' "$pool blocks"; done
printf '\n'
failed=0
for op in "${ops[@]}"; do
    printf '%-16s' "$op"
    first=
    for pool in "${pools[@]}"; do
        count=$(instructions "$op" "$pool")
        first=${first:-$count}
        ratio=$(awk -v a="$count" -v b="$first" 'BEGIN { printf "%.2f", a / b }')
        printf '%24s' "$count ($ratio x)"
        awk -v r="$ratio" -v m="$most" 'BEGIN { exit !(r > m) }' && failed=1
    done
    printf '\n'
done
if [ "$failed" -ne 0 ]; then
    echo "FAILED: an operation takes more than $most times as many instructions in a larger pool"
    exit 1
fi
