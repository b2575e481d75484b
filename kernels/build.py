"""Compiles kernels/*.cu to kernels/ptx/*.ptx and writes kernels/ptx/manifest.json; see build.sh, which calls it.

One module per .cu, or one for each architecture that it asks for. A source is compiled as one text with its headers in
it, so that the PTX depends on no path. The manifest says what every module was made from, and what ptxas makes of every
kernel on the architectures in use: the registers of a thread and the bytes that are spilled. `budgets` in it is written
by hand and kept: the most registers and spilled bytes of a kernel, `default` for those that have none of their own,
which says `why`.

With --check nothing is written but under the target folder; whatever is stale, spills or is over its budget is named.
"""

import argparse
import ctypes
import hashlib
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys

KERNELS = pathlib.Path(__file__).resolve().parent
PTX = KERNELS / "ptx"
MANIFEST = PTX / "manifest.json"

# Everything is compiled for sm_80, and the driver takes it from there to any later architecture. A source that has
# something else to say to a later one (fp8 conversions, from sm_90 on) names that in a line of its head and gets a
# second module.
ARCHITECTURE = "compute_80"
FLAGS = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17"]

# What a driver must know to take the modules: PTX ISA 8.0, which that of CUDA 12.0 does (525 and later).
VERSION = ".version 8.0"

# What the figures are for: A100; A10 and RTX 30; RTX 40 and L4; H100 and H200; B200; RTX 50.
MACHINES = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]

DEFAULT_BUDGETS = {"default": {"registers": 64, "spill_bytes": 0}}


def inlined(path, seen):
    """The text of a source with its own headers in place of the lines that include them, each once."""
    if path in seen:
        return ""
    seen.add(path)
    text = ""
    for line in path.read_text().splitlines(keepends=True):
        include = re.match(r'#include "(.*)"', line)
        # The emulator is what the host build has in place of the device.
        if include and not include[1].startswith("emulator/"):
            text += inlined(path.parent / include[1], seen)
        elif line != "#pragma once\n" and not include:
            text += line
    return text


def asked_for(source, what):
    """What a source asks for in a line of its head."""
    return [word for line in re.findall(rf"^// {what}: (.*)$", source, re.M) for word in line.split()]


def package_folder(package, folder):
    """Where a package of CUDA has its files."""
    root = pathlib.Path(importlib.metadata.distribution(package).locate_file("nvidia"))
    return root / folder


class Compiler:
    """NVRTC, from its package."""

    def __init__(self):
        self.version = importlib.metadata.version("nvidia-cuda-nvrtc-cu12")
        path = package_folder("nvidia-cuda-nvrtc-cu12", "cuda_nvrtc") / "lib" / "libnvrtc.so.12"
        self.library = ctypes.CDLL(str(path))

    def text_of(self, program, what):
        """The PTX or the log of a program."""
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, text)
        return text.value.decode()

    def ptx(self, name, source, architecture):
        wanted = [flag.replace(ARCHITECTURE, architecture) for flag in FLAGS] + asked_for(source, "Flags")
        program = ctypes.c_void_p()
        created = self.library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), name.encode(), 0, None, None
        )
        if created != 0:
            sys.exit(f"{name}: NVRTC cannot create a program ({created})")
        flags = (ctypes.c_char_p * len(wanted))(*[flag.encode() for flag in wanted])
        failed = self.library.nvrtcCompileProgram(program, len(wanted), flags)
        log = self.text_of(program, "ProgramLog").strip()
        if failed or log:
            sys.exit(f"{name}: {log or failed}")
        return self.text_of(program, "PTX")


class Assembler:
    """ptxas, from its package."""

    def __init__(self):
        self.version = importlib.metadata.version("nvidia-cuda-nvcc-cu12")
        self.path = package_folder("nvidia-cuda-nvcc-cu12", "cuda_nvcc") / "bin" / "ptxas"

    def figures(self, ptx, machine, output):
        """Registers and spilled bytes of each kernel of a module."""
        command = [str(self.path), "-v", f"-arch={machine}", str(ptx), "-o", str(output)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(f"{ptx.name} for {machine}: {run.stderr.strip()}")
        kernels = {}
        for report in run.stderr.split("Compiling entry function ")[1:]:
            name = re.match(r"'(\w+)'", report)[1]
            frame = int(re.search(r"(\d+) bytes stack frame", report)[1])
            stored, loaded = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report).groups()
            registers = int(re.search(r"Used (\d+) registers", report)[1])
            kernels[name] = {
                "registers": registers,
                "spill_bytes": max(int(stored), int(loaded)),
                "stack_bytes": frame,
            }
        return kernels


def build(folder):
    """Compiles everything into a folder; returns the manifest without its budgets."""
    compiler, assembler = Compiler(), Assembler()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.ptx"):
        old.unlink()
    modules = {}
    for path in sorted(KERNELS.glob("*.cu")):
        source = inlined(path, set())
        for architecture in [ARCHITECTURE, *asked_for(source, "Also for")]:
            number = architecture.removeprefix("compute_")
            name = path.stem if architecture == ARCHITECTURE else f"{path.stem}_sm_{number}"
            text = compiler.ptx(path.name, source, architecture)
            for directive in [VERSION, f".target sm_{number}"]:
                if directive not in text.splitlines():
                    sys.exit(f"{name}: its PTX has no `{directive}`")
            if "\0" in text or str(KERNELS.parent) in text:
                sys.exit(f"{name}: its PTX holds a NUL or a path")
            ptx = folder / f"{name}.ptx"
            ptx.write_text(text)
            kernels = {}
            for machine in MACHINES:
                if int(machine.removeprefix("sm_")) < int(number):
                    continue
                for kernel, figures in assembler.figures(ptx, machine, folder / "cubin").items():
                    kernels.setdefault(kernel, {})[machine] = figures
            modules[name] = {
                "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
                "ptx_sha256": hashlib.sha256(text.encode()).hexdigest(),
                "ptx_bytes": len(text.encode()),
                "kernels": kernels,
            }
    (folder / "cubin").unlink()
    return {
        "compiler": f"NVRTC {compiler.version}",
        "flags": FLAGS,
        "assembler": f"ptxas {assembler.version}",
        "modules": modules,
    }


def over_budget(manifest):
    """What is over its budget, in words."""
    budgets = manifest["budgets"]
    names = {kernel for module in manifest["modules"].values() for kernel in module["kernels"]}
    for kernel in sorted(budgets.keys() - names - {"default"}):
        yield f"{kernel}: has a budget and is no kernel"
    for kernel in sorted(budgets.keys() - {"default"}):
        if not budgets[kernel].get("why"):
            yield f"{kernel}: its budget does not say why"
    for module in manifest["modules"].values():
        for kernel, machines in module["kernels"].items():
            budget = {**budgets["default"], **budgets.get(kernel, {})}
            for machine, figures in machines.items():
                for what in ["registers", "spill_bytes"]:
                    if figures[what] > budget[what]:
                        yield f"{kernel} on {machine}: {figures[what]} {what}, of {budget[what]}"


def stale(folder):
    """What differs between the modules and the manifest that are there and those that were just made."""
    made = {path.name for path in folder.iterdir()}
    there = {path.name for path in PTX.iterdir()} if PTX.is_dir() else set()
    for name in sorted(made | there):
        if name not in there:
            yield f"ptx/{name}: is missing"
        elif name not in made:
            yield f"ptx/{name}: has no source"
        elif (folder / name).read_bytes() != (PTX / name).read_bytes():
            yield f"ptx/{name}: is stale"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--target", type=pathlib.Path, required=True, help="where generated files may go")
    arguments.add_argument("--check", action="store_true", help="changes nothing")
    arguments = arguments.parse_args()
    folder = arguments.target / "ptx" if arguments.check else PTX
    kept = json.loads(MANIFEST.read_text())["budgets"] if MANIFEST.is_file() else DEFAULT_BUDGETS
    manifest = {**build(folder), "budgets": kept}
    (folder / MANIFEST.name).write_text(json.dumps(manifest, indent=2) + "\n")
    problems = [*(stale(folder) if arguments.check else []), *over_budget(manifest)]
    for problem in problems:
        print(f"kernels: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    count = sum(len(module["kernels"]) for module in manifest["modules"].values())
    print(f"kernels: {count} kernels in {len(manifest['modules'])} modules, nothing stale, nothing over its budget")


if __name__ == "__main__":
    main()
