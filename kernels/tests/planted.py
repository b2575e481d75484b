#!/usr/bin/env python3
"""planted.py TEST [NAME...]: plants bugs in the decode kernel, one at a time, and sees whether the tests object.

TEST is the test program `decode` of the package `cuda-emulator`, as `cargo test -p cuda-emulator --test decode
--no-run` leaves it. Each bug is a replacement in one source; the kernels are built for the host with it, on the emulator,
and the test `what_planted_bugs_meet` must fail. A bug whose text is not in the source any more is an error: it is to be
planted again where the text went. With names, only those bugs.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import typing

KERNELS = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", KERNELS.parent / "target")).resolve() / "kernels" / "planted"
FLAGS = "-std=c++17 -O1 -g -fPIC -DPK_HOST_EMU -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off".split()

class Bug(typing.NamedTuple):
    """A replacement in a source; `pool` is the type of a pool that shows it."""

    name: str
    source: str
    there: str
    bug: str
    pool: str = "f16"


BUGS = [
    Bug(
        "no wait for copies",
        "decode_ring.cuh",
        there="pk_cp_async_wait<1>();",
        bug="",
    ),
    Bug(
        "a wait that is too lax",
        "decode_ring.cuh",
        there="pk_cp_async_wait<1>();",
        bug="pk_cp_async_wait<2>();",
    ),
    Bug(
        "no __syncwarp behind the wait",
        "decode_ring.cuh",
        there="        __syncwarp();\n",
        bug="",
    ),
    Bug(
        "no __syncwarp before a slot is filled again",
        "decode.cuh",
        there="        __syncwarp();\n        left--;",
        bug="        left--;",
    ),
    Bug(
        "no __syncthreads before the warps join",
        "decode.cuh",
        there="        __syncthreads();\n        for",
        bug="        for",
    ),
    Bug(
        "no __syncthreads behind it",
        "decode.cuh",
        there="i % PAIRS * 2);\n        }\n        __syncthreads();",
        bug="i % PAIRS * 2);\n        }",
    ),
    Bug(
        "no __syncthreads behind the columns",
        "decode_columns.cuh",
        there="    }\n    __syncthreads();\n    constexpr",
        bug="    }\n    constexpr",
    ),
    Bug(
        "no __syncthreads behind the queries",
        "decode_columns.cuh",
        there="= pair;\n    }\n    __syncthreads();",
        bug="= pair;\n    }",
    ),
    Bug(
        "a barrier that half of a warp meets",
        "decode.cuh",
        there="        __syncthreads();\n        for",
        bug="        if (threadIdx.x % 32 < 16) __syncthreads();\n        for",
    ),
    Bug(
        "a transpose without one lane",
        "decode_page.cuh",
        there="    weights[0] = pk_movmatrix",
        bug="    if (threadIdx.x % 32 != 5) weights[0] = pk_movmatrix",
    ),
    Bug(
        "softmaxes beyond the shared memory",
        "decode.cuh",
        there="threadIdx.x / PK_WARP_LANES * 16;",
        bug="threadIdx.x / PK_WARP_LANES * 28;",
    ),
    Bug(
        "table entries behind the row are read",
        "decode_ring.cuh",
        there="if (begin < end && ",
        bug="if (",
    ),
    Bug(
        "table entries are followed unasked",
        "decode_ring.cuh",
        there="pk_is_block(entry, p.num_blocks) ? entry : -1",
        bug="entry",
    ),
    Bug(
        "tokens behind the row are read",
        "decode_ring.cuh",
        there="token >= first && token < end ? 16 : 0",
        bug="token >= first ? 16 : 0",
    ),
    Bug(
        "tokens before the window are read",
        "decode_ring.cuh",
        there="token >= first && token < end ? 16 : 0",
        bug="token < end ? 16 : 0",
    ),
    Bug(
        "a query sees one key too many",
        "decode_columns.cuh",
        there="column.end = column.position + 1;",
        bug="column.end = column.position + 2;",
    ),
    Bug(
        "a window is one key too wide",
        "decode_columns.cuh",
        there="- p.variant.window + 1;",
        bug="- p.variant.window;",
    ),
    Bug(
        "a part has heads of the next group",
        "decode_columns.cuh",
        there="of_group >= group || ",
        bug="",
    ),
    Bug(
        "the merge takes the wrong partial first",
        "merge.cu",
        there="pk_partial(p, item.owner, p.slots - 1)",
        bug="pk_partial(p, item.owner, 0)",
    ),
    Bug(
        "the merge leaves out the last partial",
        "merge.cu",
        there="cta <= last; cta++",
        bug="cta < last; cta++",
    ),
    Bug(
        "the merge joins splits that were joined",
        "merge.cu",
        there="if (cta != item.owner) {",
        bug="if (true) {",
    ),
    Bug(
        "the merge writes over whole items",
        "merge.cu",
        there="    if (last == item.owner) {",
        bug="    if (false) {",
    ),
    Bug(
        "the merge leaves out who sees nothing",
        "merge.cu",
        there="|| p.plan.spans[number].num_tiles == 0) {",
        bug="|| p.plan.spans[number].num_tiles == 0) {\n        return;",
    ),
    Bug(
        "padding is left out",
        "merge.cu",
        there="            write_padding(p, token, head, d);",
        bug="",
    ),
    Bug(
        "sinks are counted in every partial",
        "decode.cuh",
        there="        softmaxes[S::COLUMNS] = softmax.sum;",
        bug=(
            "        softmaxes[S::COLUMNS] = softmax.sum + pk_exp2(p.variant.sinks[who.head] * PK_LOG2_E - "
            "softmax.max);"
        ),
    ),
    Bug(
        "sinks are left out",
        "output.cuh",
        there="if (variant.has_sinks) {",
        bug="if (false) {",
    ),
    Bug(
        "V is read where it was not stored",
        "decode_page.cuh",
        there="lane % 8 + lane / 16 * 8, pair * 2",
        bug="lane % 8 + lane / 16 * 8, pair * 2 ^ 1 ^ pair % 2",
    ),
    Bug(
        "K is stored without turns",
        "decode_shape.cuh",
        there="((chunk ^ (row & 7)) << 4)",
        bug="(chunk << 4)",
    ),
    Bug(
        "rows of 64 bytes turn like wider ones",
        "decode_shape.cuh",
        there="((row >> 1) * 8 + (row & 1) * 4 + (chunk ^ (row >> 1 & 3))) << 4",
        bug="(row * 4 + (chunk ^ (row & 3))) << 4",
        pool="e4m3",
    ),
    Bug(
        "even and odd elements of V are not put back",
        "decode_page.cuh",
        there="return S::IS_BYTES ? step / 2",
        bug="return S::IS_BYTES && row < 0 ? step / 2",
        pool="e4m3",
    ),
    Bug(
        "queries are not in the order of keys",
        "decode_columns.cuh",
        there="S::IS_BYTES ? lane % 4 * 2 : lane % 4",
        bug="lane % 4",
        pool="e4m3",
    ),
    Bug(
        "sums keep their old maximum",
        "decode_page.cuh",
        there="softmax[0].sum * factor0",
        bug="softmax[0].sum",
    ),
    Bug(
        "values keep their old maximum",
        "decode_page.cuh",
        there="gathered.values[n][step][2] *= factor0;",
        bug="",
    ),
    Bug(
        "minus infinity from itself, in factors",
        "score.cuh",
        there="from == pk_minus_infinity() ? 0.0f : ",
        bug="",
    ),
    Bug(
        "minus infinity from itself, in weights",
        "score.cuh",
        there="max == pk_minus_infinity() ? 0.0f : max",
        bug="max",
    ),
    Bug(
        "a second split forgets the first",
        "decode.cuh",
        there="stretch.resumed = stretch.begun;",
        bug="stretch.resumed = false;",
    ),
    Bug(
        "an earlier piece is forgotten in its sums",
        "decode.cuh",
        there="        softmax = all;\n",
        bug="",
    ),
    Bug(
        "shares overlap",
        "decode_items.cuh",
        there="all_tiles * cta / shares;",
        bug="(all_tiles * cta + shares - 1) / shares;",
    ),
    Bug(
        "a split is cut where a share begins",
        "decode_items.cuh",
        there="if (p.split_tiles == 0 || number == all_tiles) {",
        bug="if (true) {",
    ),
    Bug(
        "spans are counted one too few",
        "plan.cu",
        there="(columns + p.columns - 1) / p.columns",
        bug="columns / p.columns",
    ),
    Bug(
        "a span ends with its first token",
        "plan.cu",
        there="end = row.start + last_token + 1;",
        bug="end = row.start + first_token + 1;",
    ),
]


def compiler():
    return os.environ.get("CXX", "c++").split()


def compile_all(sources, folder, flags):
    objects = []
    for source in sources:
        made = folder / (source.name + ".o")
        subprocess.run([*compiler(), *FLAGS, *flags, "-x", "c++", "-c", str(source), "-o", str(made)], check=True)
        objects.append(made)
    return objects


def library(folder, objects):
    made = folder / "libcuda.so"
    command = [*compiler(), "-shared", "-Wl,-soname,libcuda.so", *map(str, objects), "-o", str(made)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return made


def passes(test, made, pool):
    """Whether the test finds nothing, and what the emulator or the test said first."""
    environment = {**os.environ, "PAGED_KV_EMULATOR_LIBRARY": str(made), "PK_PLANTED_POOL": pool, "RUST_BACKTRACE": "0"}
    command = [test, "--exact", "what_planted_bugs_meet", "--nocapture"]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return False, "no end"
    about = ("note:", "Case", "thread")
    said = [line for line in run.stderr.splitlines() if line.strip() and not line.startswith(about)]
    return run.returncode == 0, said[0][:110] if said else ""


def main():
    test, names = sys.argv[1], set(sys.argv[2:])
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    processor = pathlib.Path("/proc/cpuinfo")
    if processor.exists() and "f16c" in processor.read_text():
        FLAGS.append("-march=x86-64-v3")
    FLAGS.append(f"-I{KERNELS}")
    emulator = sorted((KERNELS / "emulator").glob("d*/*.cpp"))
    own = compile_all(emulator, TARGET, [])
    missed = []
    unharmed = [Bug("no bug", "", "", "", pool) for pool in ["f16", "e4m3"]]
    for name, source, there, bug, pool in [*unharmed, *BUGS]:
        if names and name not in names:
            continue
        folder = TARGET / "with_bug"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in [*KERNELS.glob("*.cuh"), *KERNELS.glob("*.cu")]:
            shutil.copy(path, folder)
        (folder / "emulator").symlink_to(KERNELS / "emulator")
        if source:
            text = (folder / source).read_text()
            if there not in text:
                sys.exit(f"{name}: {source} has no such text")
            (folder / source).write_text(text.replace(there, bug, 1))
        sources = [folder / "plan.cu", folder / f"decode_{pool}.cu", folder / "merge.cu"]
        made = library(folder, [*own, *compile_all(sources, folder, ["-fsanitize=thread", "-w"])])
        fine, said = passes(test, made, pool)
        right = fine != bool(source)
        print(f"{'ok    ' if right else 'MISSED'} {name}: {'nothing' if fine else said}", flush=True)
        if not right:
            missed.append(name)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
