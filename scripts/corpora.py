#!/usr/bin/env python3
"""How many kernels of stock compilers are cut under strict bit stability, and why the others are not. No GPU is used.

Compiles kernels of stock compilers, with the ptxas of each, for sm_80, sm_90a, sm_100a and sm_120a, all through
`tessera-ptxas`. Prints each kernel that is not cut with its reason, then a table: the share of each family and target that is cut,
without proofs and now. What is needed is fetched into build/corpora and made once; nothing of it is committed. Exit status 1
if less than 80 % of the kernels that would last over 100 us at usual sizes are cut, if one of them is not proved, if a family
has no kernel, or if a file could not be looked at. To make a family anew, delete its build/corpora/FAMILY.made.

usage: scripts/corpora.py [FAMILY...] [--ptxas RELEASE...] [--every N] [--time | --decoder | --faults]
  FAMILY     triton, tree (CUDA sources of this tree); these two if none is named
             inductor (torch.compile of models; 3 GB are fetched, an hour of a processor), jax (XLA; some minutes a target),
             cupy (kernels after its patterns, by NVRTC), llama (llama.cpp's CUDA sources), flash (FlashAttention's)
  --ptxas    other compilers for everything, each with tables of its own: releases that are fetched (12.8, 12.9, 13.0), or paths.
             PTX that is newer than the release is called as old as that
  --every    only each N-th file of a family and target
  --time     also: CPU time and size beside the plain ptxas, the least of three runs
  --decoder  instead: compare what each instruction reads and writes with nvdisasm's life ranges (some minutes)
  --faults   instead: spoil the arithmetic of proved variants, and tell whether the proof finds it (some minutes)"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/corpora"))
import planted_faults  # noqa: E402
WORK = ROOT / "build" / "corpora"
BUILD = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build" / "release"))
CUDA = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
TARGETS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a", 120: "sm_120a"}
GPUS = {80: "a100", 90: "h100", 100: "b200", 120: "rtx5090"}
SOURCES = ["kernels/samples/batch_trainer", "kernels/samples/latency_service", "kernels/samples/eager_trainer",
           "tests/unit/softgpu_algorithms/own", "tests/device/h11_kernels", "tests/device/h18_kernels"]
LLAMA = ["norm", "quantize", "rope", "scale", "softmax", "sum", "unary"]
FLASH = {"flash_fwd_hdim64_bf16_sm80": (80, 90), "flash_bwd_hdim64_bf16_sm80": (80, 90), "flash_fwd_hdim128_bf16_sm80": (90,),
         "flash_fwd_split_hdim64_fp16_sm80": (90,)}
FAULTY_FILES = 8  # of a family and target
# nvdisasm's life ranges have more than is so (docs/notes/machine-code.md): of what is written (0) or read (1), registers of a file.
SEEN_MORE = {"LDGSTS": (0, "P"), "HGMMA": (1, "UR")}
LONG_US = 100
LONG, ALL = f"over {LONG_US} us", "of all"
WANTED = 0.8
TIMED_RUNS = 3


def run(*command, **more):
    return subprocess.run([str(c) for c in command], check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def install(*packages):
    """Into the environment of the corpora. Its site-packages."""
    python = WORK / "venv" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", WORK / "venv")
    if packages:
        run(python, "-m", "pip", "install", "-q", *packages)
    return next(WORK.glob("venv/lib/*/site-packages"))


def on_software_gpu(script, *arguments, gpu="h100", **environment):
    """A Python program that finds a GPU, which executes nothing of it that it has no PTX of."""
    run("cmake", "--build", BUILD, "--target", "quickstart")
    library = BUILD / "lib" / "softgpu"
    print(run(WORK / "venv/bin/python", ROOT / "tests/corpora" / script, *arguments, env=os.environ | {
        "TESSERA_SOFTGPU_GPU": str(ROOT / f"profiles/gpus/{gpu}.toml"), "TESSERA_SOFTGPU_DIR": str(WORK / f"gpu-{gpu}"),
        "LD_LIBRARY_PATH": str(library), "TRITON_CACHE_DIR": str(WORK / "triton")} | environment), end="")


def once(folder, make):
    """What is written into a folder, whole or not at all."""
    if not folder.exists():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        make(partial)
        partial.rename(folder)
    return folder


def fetched_sources(package, *options):
    """A source package from PyPI, unpacked."""
    def fetch(folder):
        run(WORK / "venv/bin/python", "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", *options, "-d", folder,
            package, env=os.environ | {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"})
        for archive in folder.glob("*.tar.gz"):
            shutil.unpack_archive(archive, folder)
    folder = once(WORK / "sources" / package, fetch)
    return next(path for path in folder.iterdir() if path.is_dir())


def by_nvcc(family, source, *options, targets=TARGETS):
    for sm, target in targets.items():
        out = WORK / "ptx" / f"{family}.{pathlib.Path(source).stem}.sm_{sm}.ptx"
        if not out.exists() or family == "tree":
            run(CUDA / "bin/nvcc", "-std=c++17", "-O2", "-ptx", f"-arch={target.replace('sm', 'compute')}", *options, source,
                "-o", out, stderr=subprocess.DEVNULL)


def make_triton():
    print(run(WORK / "venv/bin/python", ROOT / "tests/corpora/triton_kernels.py", WORK / "ptx", *TARGETS,
              env=os.environ | {"TRITON_CACHE_DIR": str(WORK / "triton")}), end="")


def make_tree():
    for source in SOURCES:
        by_nvcc("tree", ROOT / f"{source}.cu", f"-I{ROOT}")


def make_inductor():
    install("torch==2.11.0", "torchvision", "transformers")
    runtime = {"LD_PRELOAD": str(BUILD / "lib/softgpu/libcudart.so.13")}
    sources = once(WORK / "inductor", lambda folder: on_software_gpu("inductor_kernels.py", "sources", folder, **runtime))
    on_software_gpu("inductor_kernels.py", "ptx", sources, WORK / "ptx", *TARGETS, **runtime)


def make_jax():
    install("jax==0.9.2", "jax-cuda13-plugin==0.9.2", "jax-cuda13-pjrt==0.9.2")
    for sm, gpu in GPUS.items():
        dump = once(WORK / f"xla.sm_{sm}", lambda folder: on_software_gpu(
            "jax_kernels.py", gpu=gpu, XLA_FLAGS=f"--xla_dump_to={folder} --xla_gpu_cuda_data_dir={CUDA}"))
        for path in dump.glob("*.ptx"):
            shutil.copy(path, WORK / "ptx" / f"jax.{path.stem.split('.jit_')[1]}.sm_{sm}.ptx")


def make_cupy():
    """Of CuPy only the headers; NVRTC compiles."""
    site = install("cupy-cuda13x==14.2.0", "nvidia-cuda-nvrtc==13.0.88")  # of the ptxas: a newer one writes newer PTX
    print(run(WORK / "venv/bin/python", ROOT / "tests/corpora/cupy_kernels.py", site / "cupy/_core/include", CUDA / "include",
              WORK / "ptx", *TARGETS, env=os.environ | {"LD_LIBRARY_PATH": str(site / "nvidia/cu13/lib")}), end="")


def make_llama():
    sources = fetched_sources("llama-cpp-python") / "vendor/llama.cpp/ggml"
    for name in LLAMA:
        by_nvcc("llama", sources / f"src/ggml-cuda/{name}.cu", "-use_fast_math", f"-I{sources}/include", f"-I{sources}/src")


def make_flash():
    # pip asks the package what it is, and that imports torch.
    site = install("torch==2.11.0", "packaging", "ninja", "wheel", "setuptools")
    sources = fetched_sources("flash-attn", "--no-build-isolation") / "csrc"
    include = [f"-I{path}" for path in (sources / "flash_attn", sources / "flash_attn/src", sources / "cutlass/include",
                                        site / "torch/include", site / "torch/include/torch/csrc/api/include",
                                        sysconfig.get_path("include"))]
    for name, sms in FLASH.items():
        by_nvcc("flash", sources / f"flash_attn/src/{name}.cu", "-use_fast_math", "--expt-relaxed-constexpr",
                "--expt-extended-lambda", *include, targets={sm: f"sm_{sm}" for sm in sms})


FAMILIES = {"triton": make_triton, "tree": make_tree, "inductor": make_inductor, "jax": make_jax, "cupy": make_cupy, "llama": make_llama,
            "flash": make_flash}


def fetched_ptxas(release):
    """The ptxas of a release of CUDA, and the newest PTX that it reads; of a path: that, and None."""
    if not re.fullmatch(r"\d+\.\d+", release):
        return pathlib.Path(release), None
    major, minor = map(int, release.split("."))
    package = "nvidia-cuda-nvcc-cu12" if major == 12 else "nvidia-cuda-nvcc"
    install()
    folder = once(WORK / f"ptxas-{release}", lambda into: run(
        WORK / "venv/bin/python", "-m", "pip", "install", "-q", "--no-deps", "--target", into, f"{package}=={release}.*"))
    return next(folder.glob("nvidia/*/bin/ptxas")), (8, minor - 1) if major == 12 else (major - 4, minor)


def target_of(path):
    return re.search(r"^\.target (\w+)", path.read_text(), re.MULTILINE)[1]


def readable(path, newest):
    """PTX of a version that a compiler reads. It refuses what that version does not have."""
    text = path.read_text()
    version = re.search(r"^\.version (\d+)\.(\d+)", text, re.MULTILINE)
    if newest is None or (int(version[1]), int(version[2])) <= newest:
        return path
    older = WORK / "older" / path.name
    older.parent.mkdir(exist_ok=True)
    older.write_text(text[:version.start()] + f".version {newest[0]}.{newest[1]}" + text[version.end():])
    return older


def texts(families, newest=None, every=1):
    """PTX files: path, target, microseconds at a usual size (0: not said), the ptxas of their compiler."""
    triton = install("triton==3.6.0") / "triton/backends/nvidia/bin"
    (WORK / "ptx").mkdir(exist_ok=True)
    for family in families:
        made = WORK / f"{family}.made"
        if family == "tree" or not made.exists():
            FAMILIES[family]()
            made.touch()
        of_target = lambda sm: sorted((WORK / "ptx").glob(f"{family}.*.sm_{sm}.ptx"))[::every]
        for path, sm in [(path, sm) for sm in TARGETS for path in of_target(sm)]:
            us = path.with_suffix(".us")
            brought = triton / ("ptxas-blackwell" if sm >= 100 else "ptxas")
            own = brought if family in ("triton", "inductor") else CUDA / "bin/ptxas"
            yield readable(path, newest), sm, int(us.read_text()) if us.exists() else 0, own


def cpu_seconds(runs, *command, **more):
    """The least of several runs on one core, not by the clock: other work of the machine would count."""
    core = lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    of = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    times = []
    for _ in range(runs):
        begin = of()
        run(*command, stderr=subprocess.DEVNULL, preexec_fn=core, **more)
        times.append(of() - begin)
    return min(times)


def look(path, sm, ptxas, runs):
    """One file: its kernels with outcome before and now, and time and size of both compilations, the plain one only to be timed."""
    plain, ours = WORK / "plain.cubin", WORK / "ours.fatbin"
    environment = os.environ | {"TESSERA_PTXAS": str(ptxas), "TESSERA_CACHE_DIR": str(WORK / "cache")}
    arguments = [f"-arch={target_of(path)}", "-lineinfo", path, "-o"]
    times = [cpu_seconds(runs, ptxas, *arguments, plain) if runs else 0,
             cpu_seconds(runs or 1, BUILD / "bin/tessera-ptxas", *arguments, ours, env=environment)]
    tessera = lambda *a: json.loads(run(BUILD / "bin/tessera", *a, env=environment))
    before = {k["name"]: k["can_be_cut"] and k["bit_stable_when_recompiled"]
              for e in tessera("inspect", "--json", path)["entries"] for k in e["kernels"]}
    now = {k["name"]: k["outcome"] for k in tessera("inspect", "--json", "--gpu", f"sm_{sm}", ours)["kernels"]}
    why = {}
    if any(outcome != "can_be_cut" for outcome in now.values()):
        why = {k["name"]: k["why_not"] for k in tessera("prepare", "--json", ours)["kernels"]}
    sizes = [plain.stat().st_size + path.stat().st_size, ours.stat().st_size] if runs else [0, 0]
    return [(name, before.get(name, False), outcome == "can_be_cut", why.get(name) or outcome)
            for name, outcome in now.items()], times, sizes


def table(families, n, which, release):
    """Cut kernels of all, by family and target, as docs/slicing.md has them."""
    row = lambda cells: print("| " + " | ".join(map(str, cells)) + " |")
    row([f"cut {which}, ptxas {release or 'of each'}", *TARGETS.values(), "all", "without proofs", "refused by a rule", "not proved"])
    row(["---"] * (len(TARGETS) + 5))
    for family in [*families, "all"]:
        share = lambda sm: f"{n[which, family, sm, 'cut']} of {n[which, family, sm]}" if n[which, family, sm] else "-"
        row([family, *map(share, TARGETS), share("all")] + [n[which, family, "all", what] for what in ("before", "rule", "not proved")])


def figure(options, release):
    ptxas, newest = fetched_ptxas(release) if release else (None, None)
    n, sums, left_out, families = collections.Counter(), [0, 0, 0, 0], 0, options.families
    for path, sm, us, own in texts(families, newest, options.every):
        try:
            kernels, times, sizes = look(path, sm, ptxas or own, TIMED_RUNS if options.time and us else 0)
        except subprocess.CalledProcessError as why:
            print(f"  {path.stem}: left out, {why.cmd[0]} ended with status {why.returncode}")
            left_out += 1
            continue
        sums = [a + b for a, b in zip(sums, times + sizes)]
        of = path.name.split(".")[0]
        for name, before, cut, why in kernels:
            # A difference of machine code begins with its place.
            outcome = "cut" if cut else "not proved" if re.match(r"(variant |the variant |0x)", why) else "rule"
            for key in [(which, family, target) for which in [ALL] + [LONG] * (us > LONG_US) for family in (of, "all")
                        for target in (sm, "all")]:
                n[key] += 1
                n[*key, outcome] += 1
                n[*key, "before"] += before
            if not cut:
                print(f"  {path.stem} {name}: {why}{', long' * (us > LONG_US)}")
    for which in LONG, ALL:
        table(families, n, which, release)
    if sums[0]:
        print(f"tessera ptxas takes {sums[1] / sums[0]:.2f} times the CPU time of the plain ptxas; its files are "
              f"{sums[3] / sums[2]:.2f} times machine code and PTX")
    print(f"{left_out} files are left out")
    missing = [family for family in families if not n[ALL, family, "all"]]
    for family in missing:
        print(f"no kernel of {family}")
    cut, unproved = (n[LONG, "all", "all", what] for what in ("cut", "not proved"))
    return 1 if left_out or missing or unproved or cut < WANTED * n[LONG, "all", "all"] else 0


def life_ranges(nvdisasm, cubin):
    """By kernel and offset: registers written, registers read. Empty where this release does not analyse the file."""
    names, out, section, files, columns = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}, {}, None, [], None
    made = subprocess.run([nvdisasm, "-c", "-plr", "-lrm", "narrow", cubin], capture_output=True, text=True)
    for line in made.stdout.splitlines() if made.returncode == 0 else []:
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


def check_decoder(options, release):
    ptxas, newest = fetched_ptxas(release) if release else (None, None)
    nvdisasm = install("nvidia-cuda-nvdisasm") / "nvidia/cu13/bin/nvdisasm"
    wrong, n = collections.Counter(), collections.Counter()
    for path, sm, _, own in texts(options.families, newest, options.every):
        cubin = WORK / "decoded.cubin"
        run(ptxas or own, f"-arch={target_of(path)}", path, "-o", cubin, stderr=subprocess.DEVNULL)
        brought = [path for path in (own.parent / "nvdisasm", nvdisasm) if path.exists()]
        ranges = next(filter(None, (life_ranges(program, cubin) for program in brought)), {})
        n["files that nvdisasm fails on"] += not ranges
        for line in run(BUILD / "bin/sass_tool", "decode", cubin).splitlines():
            kernel, at, text = line.split(" ", 2)
            if (kernel, int(at)) not in ranges:
                continue
            fields = [set(f.split()) for f in text.split("|")]
            name = text.split(" ")[0]
            n["unknown" if name == "?" else "compared"] += 1
            # nvdisasm has no columns for uniform registers above 62, and leaves out predicates that are named by a mask. What a
            # call does, the function says.
            shown = tuple({r for r in f if not re.match(r"UR(6[3-9]|[7-9]\d|\d{3})$", r)} for f in fields[1:3])
            theirs = list(ranges[kernel, int(at)])
            if name in SEEN_MORE:
                which, file = SEEN_MORE[name]
                theirs[which] = {r for r in theirs[which] if r in shown[which] or not r.startswith(file)}
            if name not in ("?", "P2R", "R2P", "UP2UR", "CALL") and shown != tuple(theirs):
                wrong[name] += 1
                print(f"  {path.stem} {kernel} {int(at):#06x}: {text}, not {ranges[kernel, int(at)]}")
    print(f"{n['compared']} instructions compared, {sum(wrong.values())} differ, {n['unknown']} are not known; nvdisasm fails on "
          f"{n['files that nvdisasm fails on']} files")
    return 1 if wrong or not n["compared"] else 0


def check_faults(options, release):
    """Of each family and target some files, evenly spread; in each proved kernel one fault of each kind."""
    ptxas, newest = fetched_ptxas(release) if release else (None, None)
    n, files = collections.Counter(), collections.defaultdict(list)
    for path, sm, _, own in texts(options.families, newest, options.every):
        files[path.name.split(".")[0], sm].append((path, ptxas or own))
    both, faulty, cubins = WORK / "both.ptx", WORK / "faulty.ptx", (WORK / "both.cubin", WORK / "faulty.cubin")
    compiled = lambda of, path, out: subprocess.run([of, f"-arch={target_of(path)}", path, "-o", out],
                                                    capture_output=True).returncode == 0
    for (family, sm), some in files.items():
        for path, own in some[::max(1, -(-len(some) // FAULTY_FILES))]:
            both.write_text(run(BUILD / "bin/tessera", "inspect", "--emit-slice", path))
            if not compiled(own, both, cubins[0]):
                continue
            for kind in planted_faults.KINDS:
                text = planted_faults.planted(both.read_text(), kind, random.Random(path.stem + kind))
                if text is None or (faulty.write_text(text) and not compiled(own, faulty, cubins[1])):
                    n[family, "not planted", kind] += text is not None
                    continue
                for line in run(BUILD / "bin/sass_tool", "faults", path, *cubins).splitlines():
                    kernel, what, why = line.split(" ", 2)
                    n[family, what, kind] += 1
                    if what == "missed":
                        print(f"  {path.stem} {kernel}: {kind} is missed")
    for family in options.families:
        for kind in planted_faults.KINDS:
            found, missed, unchanged, none = (n[family, what, kind] for what in ("found", "missed", "unchanged", "not planted"))
            print(f"{family}, {kind}: {found} found, {missed} missed; {unchanged} kernels have no place that changes their code, "
                  f"{none} files did not compile")
    counts = collections.Counter({what: sum(n[key] for key in n if key[1] == what) for what in ("found", "missed")})
    print(f"{counts['found']} faults found, {counts['missed']} missed")
    return 0 if counts["found"] and not counts["missed"] else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES])
    parser.add_argument("--ptxas", metavar="RELEASE", nargs="+", default=[None])
    parser.add_argument("--every", metavar="N", type=int, default=1)
    parser.add_argument("--time", action="store_true")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--decoder", dest="what", action="store_const", const=check_decoder, default=figure)
    instead.add_argument("--faults", dest="what", action="store_const", const=check_faults)
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    run("cmake", "--build", BUILD, "--target", "tessera", "sass_tool")
    options.families = options.families or ["triton", "tree"]
    sys.exit(max([options.what(options, release) for release in options.ptxas]))


if __name__ == "__main__":
    main()
