#!/usr/bin/env python3
"""How many kernels of stock compilers are cut under strict bit stability, and why the others are not. No GPU is used.

Compiles Triton's kernels (tests/corpora) with the ptxas that Triton brings and those of CUDA sources of this tree with the
toolkit's, for sm_80, sm_90a, sm_100a and sm_120a, all through `tessera ptxas`. Prints the share now and without proofs,
time and size beside the plain ptxas, and each refusal. Triton is fetched into build/corpora; nothing of it is committed.
Exit status 1 if less than 80 % of the kernels that would last over 100 us at usual sizes are cut.

usage: scripts/corpora.py [--ptxas PATH] [--decoder]
  --ptxas    another compiler for everything
  --decoder  instead: compare what each instruction reads and writes with nvdisasm's life ranges (some minutes)"""
import argparse
import collections
import json
import os
import pathlib
import re
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "corpora"
BUILD = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release"))
CUDA = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
TARGETS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a", 120: "sm_120a"}
SOURCES = ["kernels/samples/batch_trainer", "kernels/samples/latency_service", "kernels/samples/eager_trainer",
           "tests/unit/softgpu_algorithms/own", "tests/device/h11_kernels", "tests/device/h18_kernels"]
LONG_US = 100
WANTED = 0.8


def run(*command, **more):
    return subprocess.run([str(c) for c in command], check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def fetch():
    python = WORK / "venv" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", WORK / "venv")
    run(python, "-m", "pip", "install", "-q", "--no-deps", "triton==3.6.0")
    return python, next(WORK.glob("venv/lib/*/site-packages/triton/backends/nvidia/bin"))


def texts(python):
    """PTX files: path, target, microseconds at a usual size (0: not said)."""
    folder = WORK / "ptx"
    folder.mkdir(exist_ok=True)
    print(run(python, ROOT / "tests/corpora/triton_kernels.py", folder, *TARGETS,
              env=os.environ | {"TRITON_CACHE_DIR": str(WORK / "triton")}), end="")
    for sm, target in TARGETS.items():
        for source in SOURCES:
            out = folder / f"nvcc.{pathlib.Path(source).name}.sm_{sm}.ptx"
            run(CUDA / "bin/nvcc", "-std=c++17", "-O2", "-ptx", f"-arch={target.replace('sm', 'compute')}", f"-I{ROOT}",
                ROOT / f"{source}.cu", "-o", out, stderr=subprocess.DEVNULL)
    for path in sorted(folder.glob("*.ptx")):
        us = path.with_suffix(".us")
        yield path, int(re.search(r"sm_(\d+)$", path.stem)[1]), int(us.read_text()) if us.exists() else 0


def cpu_seconds(*command, **more):
    """Not by the clock: other work of the machine would count."""
    of = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    begin = of()
    run(*command, stderr=subprocess.DEVNULL, **more)
    return of() - begin


def look(path, sm, ptxas):
    """One file: its kernels with outcome before and now, and time and size of both compilations."""
    plain, ours = WORK / "plain.cubin", WORK / "ours.fatbin"
    environment = os.environ | {"TESSERA_PTXAS": str(ptxas), "TESSERA_CACHE_DIR": str(WORK / "cache")}
    arguments = [f"-arch={TARGETS[sm]}", "-lineinfo", path, "-o"]
    times = [cpu_seconds(ptxas, *arguments, plain),
             cpu_seconds(BUILD / "bin/tessera", "ptxas", *arguments, ours, env=environment)]
    tessera = lambda *a: json.loads(run(BUILD / "bin/tessera", *a, env=environment))
    before = {k["name"]: k["can_be_cut"] and k["bit_stable_when_recompiled"]
              for e in tessera("inspect", "--json", path)["entries"] for k in e["kernels"]}
    now = {k["name"]: k["outcome"] for k in tessera("inspect", "--json", "--gpu", f"sm_{sm}", ours)["kernels"]}
    why = {}
    if any(outcome != "can_be_cut" for outcome in now.values()):
        why = {k["name"]: k["why_not"] for k in tessera("prepare", "--json", ours)["kernels"]}
    sizes = [plain.stat().st_size + path.stat().st_size, ours.stat().st_size]
    return [(name, before.get(name, False), outcome == "can_be_cut", why.get(name) or outcome)
            for name, outcome in now.items()], times, sizes


def figure(ptxas):
    python, triton = fetch()
    n, sums = collections.Counter(), [0, 0, 0, 0]
    for path, sm, us in texts(python):
        own = triton / ("ptxas-blackwell" if sm >= 100 else "ptxas") if path.name.startswith("triton") else CUDA / "bin/ptxas"
        kernels, times, sizes = look(path, sm, ptxas or own)
        if us:  # nvcc calls no ptxas of ours
            sums = [a + b for a, b in zip(sums, times + sizes)]
        for name, before, now, why in kernels:
            for which in ["all"] + (["long"] if us > LONG_US else []):
                n[which] += 1
                n[which, "before"] += before
                n[which, "now"] += now
            if not now:
                print(f"  {path.stem} {name}: {why}")
    for which, what in ("long", f"that would last over {LONG_US} us"), ("all", "of all"):
        print(f"{n[which, 'now']} of {n[which]} kernels {what} are cut under strict bit stability "
              f"({n[which, 'before']} without proofs)")
    print(f"For Triton tessera ptxas takes {sums[1] / sums[0]:.2f} times the CPU time of the plain ptxas; its files are "
          f"{sums[3] / sums[2]:.2f} times machine code and PTX")
    return 0 if n["long", "now"] >= WANTED * n["long"] else 1


def life_ranges(nvdisasm, cubin):
    """By kernel and offset: registers written, registers read."""
    names, out, section, files, columns = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}, {}, None, [], None
    for line in run(nvdisasm, "-c", "-plr", "-lrm", "narrow", cubin, stderr=subprocess.DEVNULL).splitlines():
        if found := re.match(r"\s*\.section\s+\.text\.([^,\s]+)", line):
            section = found[1].strip('"')
        parts = line[line.rindex("// ") + 3:].split("|")[1:-1] if "// |" in line else []
        at = re.match(r"\s*/\*([0-9a-f]{4,})\*/", line)
        if any("GPR" in p or "PRED" in p for p in parts):
            files = [re.sub("[^A-Z]", "", p) for p in parts]
        elif at is None and any(re.match(r"\s*#\s", p) for p in parts):
            columns = [found.end() if (found := re.search(r"#\s+(?=\d)", p)) else None for p in parts]
        elif at and columns:
            marks = [(names[f] + str(k), c) for f, p, first in zip(files, parts, columns) if first is not None
                     for k, c in enumerate(p[first:])]
            out[section, int(at[1], 16)] = {r for r, c in marks if c in "^x"}, {r for r, c in marks if c in "vx"}
    return out


def check_decoder(ptxas):
    python, triton = fetch()
    wrong, n = collections.Counter(), collections.Counter()
    for path, sm, _ in texts(python):
        if not path.name.startswith("triton"):
            continue  # Triton brings ptxas and nvdisasm of one release
        cubin = WORK / "decoded.cubin"
        run(ptxas or triton / ("ptxas-blackwell" if sm >= 100 else "ptxas"), f"-arch={TARGETS[sm]}", path, "-o", cubin)
        ranges = life_ranges(triton / "nvdisasm", cubin)
        for line in run(BUILD / "bin/sass_tool", "decode", cubin).splitlines():
            kernel, at, text = line.split(" ", 2)
            if (kernel, int(at)) not in ranges:
                continue
            fields = [set(f.split()) for f in text.split("|")]
            name = text.split(" ")[0]
            n["unknown" if name == "?" else "compared"] += 1
            # nvdisasm leaves out predicates that are named by a mask; what a call does, the function says.
            if name not in ("?", "P2R", "R2P", "UP2UR", "CALL") and (fields[1], fields[2]) != ranges[kernel, int(at)]:
                wrong[name] += 1
                print(f"  {path.stem} {kernel} {int(at):#06x}: {text}, not {ranges[kernel, int(at)]}")
    print(f"{n['compared']} instructions compared, {sum(wrong.values())} differ, {n['unknown']} are not known")
    return 1 if wrong or not n["compared"] else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ptxas", type=pathlib.Path)
    parser.add_argument("--decoder", action="store_true")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    run("cmake", "--build", BUILD, "--target", "tessera", "sass_tool")
    sys.exit((check_decoder if options.decoder else figure)(options.ptxas))


if __name__ == "__main__":
    main()
