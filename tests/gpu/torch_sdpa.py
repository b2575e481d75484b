"""torch_sdpa.py OUT: decode by torch's scaled_dot_product_attention over contiguous K and V, for some of the shapes of the
benchmark: 8 KV heads, bf16, one query token a sequence. Medians of CUDA events, memory that lies in no cache."""

import json
import statistics
import sys

import torch
import torch.nn.functional as F

COLD_BYTES = 512 << 20


def seconds(batch, context, head_dim, group):
    layer_bytes = batch * context * 8 * head_dim * 2 * 2
    layers = max(1, min(32, -(-COLD_BYTES // layer_bytes)))
    q = torch.full((batch, 8 * group, 1, head_dim), 0.01, device="cuda", dtype=torch.bfloat16)
    kv = [torch.full((2, batch, 8, context, head_dim), 0.01, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]

    def work():
        for k, v in kv:
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    work()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / layers)
    return statistics.median(times)


def main():
    rows = []
    for batch, context in [(1, 1024), (1, 16384), (8, 4096), (32, 4096), (128, 4096)]:
        for head_dim, group in [(128, 8), (128, 4), (64, 4)]:
            time = seconds(batch, context, head_dim, group)
            gb_s = batch * context * 8 * head_dim * 4 / time / 1e9
            rows.append(
                {"batch": batch, "context": context, "head_dim": head_dim, "group": group, "us": time * 1e6, "gb_s": gb_s}
            )
            print(f"torch {batch}x{context} head_dim {head_dim} group {group}: {time * 1e6:.1f} us, {gb_s:.0f} GB/s")
    with open(sys.argv[1], "w") as file:
        json.dump({"torch": torch.__version__, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
