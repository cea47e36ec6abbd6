#!/usr/bin/env python3
"""Every header compiles alone: include it in an empty file and check the syntax. Exit 1 with the compiler's first error.

usage: check_headers.py [--root DIR] [--compiler g++] [--include DIR ...] [--jobs 2] [--cache DIR] [--built FILE]

With --cache, a folder for what is compiled, and ccache installed, headers that did not change are not compiled again.
--built names the compile_commands.json of a tree that was built: a header that one of its files includes before
anything else has compiled alone already.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

TOP = ("admission", "base", "driver_api", "ipc", "interpose", "kernels", "operations", "scheduler_daemon", "simulator",
       "profiles", "softgpu", "cli", "tests")
# Compiled by nvcc only, or by nobody here.
SKIP = ("kernels/samples/", "tests/device/")
# The build's definitions for the files that include some headers: one of several compilations, folders as text.
DEFINES = ("-DTS_ISA=128", "-DTS_ISA_NAMESPACE=isa128", "-DTESSERA_SOURCE_DIR=\"\"", "-DTESSERA_PREFIX=\"\"",
           "-DFIXTURES=\"\"")


def check(header, options):
    command = [options.compiler, "-std=c++20", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]
    command += [*DEFINES, f"-I{options.root}"]
    command += [f"-isystem{d}" for d in options.include] + ["-include", header]
    if options.cache and shutil.which("ccache"):  # which keeps no syntax checks, but objects
        output = options.cache / (header.replace("/", "_") + ".o")
        command = ["ccache", *command, "-O0", "-c", str(options.cache / "empty.cc"), "-o", str(output)]
    else:
        command += ["-fsyntax-only", "-x", "c++", os.devnull]
    run = subprocess.run(command, cwd=options.root, capture_output=True, text=True)
    errors = [line for line in run.stderr.splitlines() if "error" in line] or run.stderr.splitlines()
    return None if run.returncode == 0 else f"{header}: {errors[0] if errors else 'compiler failed'}"


def first_include(file):
    line = re.search(r"^\s*#.*", file.read_text(), re.MULTILINE)
    found = line and re.fullmatch(r'\s*#\s*include\s+"([^"]+)".*', line[0])
    return found[1] if found else None


def included_first(database):
    """The headers that a compiled file includes before anything else; the first file of those that are compiled together."""
    found = set()
    for entry in json.loads(database.read_text()):
        first = first_include(pathlib.Path(entry["file"]))
        if first and first.endswith(".cc"):
            first = first_include(pathlib.Path(first))
        found.add(first)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=pathlib.Path)
    parser.add_argument("--built", type=pathlib.Path)
    options = parser.parse_args()
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)
        (options.cache / "empty.cc").touch()
    headers = sorted(str(p.relative_to(options.root)) for top in TOP for p in (options.root / top).rglob("*.h"))
    headers = [h for h in headers if not h.startswith(SKIP)]
    built = included_first(options.built) if options.built else set()
    alone = [h for h in headers if h not in built]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = [problem for problem in pool.map(lambda h: check(h, options), alone) if problem]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"headers: {len(headers)}, {len(alone)} compiled alone here, {len(found)} problems")
    return 1 if found or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
