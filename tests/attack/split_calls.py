#!/usr/bin/env python3
"""Calls of cuBLAS, cuBLASLt and cuDNN whole and in pieces (split_calls_child.cc), on libraries that compute on the host
(tests/loader/split) and on the software GPU's.
"""
import collections
import subprocess

import frame

FOLDER = frame.BIN / "loader/split"
LIB = frame.BIN.parent / "lib"
LIBRARIES = {"host": (FOLDER, 6), "soft": (LIB / "softgpu", 1)}  # where they are, and rounds of one child
CHILD_S = 300  # tells a hang from slowness, on a machine that does much else
NEVER_ASKED = {"product/batch"}


def one_child(run, libraries, bits, cut):
    folder, rounds = LIBRARIES[libraries]
    environment = {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": f"{FOLDER}/reader.so:{LIB}/libtessera_ops.so",
                   "TESSERA_SPLIT_OPERATIONS": "1", "TESSERA_BIT_STABILITY": bits,
                   "XDG_CACHE_HOME": str(run.folder / f"cache{run.runs}")}  # what was proven before is proven again
    seed = run.random.randrange(1 << 31)
    what = f"{libraries}, {bits}: split_calls_child {seed} {rounds}"
    child = run.start([str(FOLDER / "split_calls_child"), str(seed), str(rounds)], environment, "child")
    try:
        status = child.wait(CHILD_S)
    except subprocess.TimeoutExpired:
        run.found(f"{what} hangs")
        child.kill()
        status = child.wait()
    run.children.remove(child)
    if status != 0:
        run.found(f"{what}: status {status}: {run.text('child')[-1500:]}")
    for line in run.text("child").splitlines():
        if line.startswith("cut "):
            _, sizes, calls = line.split()
            cut[sizes] += int(calls)


def main():
    run = frame.Run("split_calls")
    tries = [(libraries, bits) for libraries in LIBRARIES for bits in ("relaxed", "strict")]
    cut = collections.Counter()
    while run.runs < len(tries) or run.goes_on():  # each once, however slow the machine is
        one_child(run, *tries[run.runs % len(tries)], cut)
        run.runs += 1
    never = sorted(sizes for sizes in cut if cut[sizes] == 0 and sizes not in NEVER_ASKED)
    if never and not run.findings:
        run.found(f"it tries nothing: no call went out in pieces of {never}")
    run.notes = dict(cut)
    run.finish()


main()
