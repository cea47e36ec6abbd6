"""Collects the PTX that frameworks of run.py hand to the driver, and asks reader, slicer and ptxas what they make of it.

For each image: `tessera inspect` reads it, `--emit-slice` prints its cut variants, and ptxas compiles both. An image that
ptxas takes and one of ours does not, or whose cut variants ptxas refuses, is told and ends in exit status 1. Nothing of what
is collected is kept without --keep."""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import run


def compiles(ptxas, path):
    """What ptxas says against the file, None if it takes it."""
    target = re.search(r"^\s*\.target\s+(sm_\w+)", path.read_text(errors="replace"), re.MULTILINE)
    done = subprocess.run([ptxas, f"-arch={target[1] if target else 'sm_90'}", "-o", os.devnull, path],
                          capture_output=True, text=True)
    return (done.stderr or done.stdout).strip().split("\n")[0] if done.returncode else None


def look(tessera, ptxas, path):
    """One image: its kernels as `tessera inspect` lists them, and what went wrong."""
    refused_by_ptxas = compiles(ptxas, path)
    problem = lambda text: ([], None if refused_by_ptxas else text)
    read = subprocess.run([tessera, "inspect", "--json", path], capture_output=True, text=True)
    if read.returncode:
        return problem(f"not read: {read.stderr.strip()}")
    kernels = [kernel for entry in json.loads(read.stdout)["entries"] for kernel in entry["kernels"]]
    if not any(kernel["can_be_cut"] for kernel in kernels):
        return kernels, None
    cut = path.with_suffix(".cut.ptx")
    emitted = subprocess.run([tessera, "inspect", "--emit-slice", path], capture_output=True, text=True)
    cut.write_text(emitted.stdout)
    if emitted.returncode:
        return problem(f"no variants printed: {emitted.stderr.strip()}")
    refused = compiles(ptxas, cut)
    return kernels, f"ptxas on the cut variants: {refused}" if refused and not refused_by_ptxas else None


def collect(bench, name, ptxas, folder):
    folder.mkdir(parents=True, exist_ok=True)
    steps = ["--steps", str(run.FRAMEWORKS[name].steps)]
    run.result_of(bench.client(name, ["--passthrough"], steps, TESSERA_SOFTGPU_TRACE=folder))
    images, problems, kernels, reasons = sorted(folder.glob("image-*.ptx")), {}, [], collections.Counter()
    for image in images:
        found, wrong = look(bench.bin / "tessera", ptxas, image)
        kernels += found
        if wrong:
            problems[image.name] = wrong
    for kernel in kernels:
        if not kernel["can_be_cut"]:
            reasons[kernel["refusal"]] += 1
    return {"images": len(images), "kernels": len(kernels), "can_be_cut": sum(k["can_be_cut"] for k in kernels),
            "refused": dict(reasons), "problems": problems}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(run.FRAMEWORKS))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="leave the images there, a folder per framework")
    parser.add_argument("--ptxas", default=shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas")
    run.add_places(parser)
    options = parser.parse_args()
    rows = {}
    for name in run.chosen(parser, options.names):
        with tempfile.TemporaryDirectory(prefix="tessera-") as scratch:
            scratch = pathlib.Path(scratch)
            try:
                bench = run.Bench(options.build.resolve(), options.folder.resolve(), scratch, run.FRAMEWORKS[name].capability)
                rows[name] = collect(bench, name, options.ptxas, (options.keep.resolve() if options.keep else scratch) / name)
                row = rows[name]
                print(f"{name}: {row['images']} images, {row['kernels']} kernels, {row['can_be_cut']} can be cut, refused "
                      f"{row['refused'] or 'none'}, {len(row['problems'])} problems", flush=True)
                for image, problem in row["problems"].items():
                    print(f"  {image}: {problem}", flush=True)
            except run.Unavailable as why:
                print(f"{name}: skipped: {why}", flush=True)
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                rows[name] = {"problems": {"run": str(why)}}
                print(f"{name}: FAILED: {why}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["problems"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
