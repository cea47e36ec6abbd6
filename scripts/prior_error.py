#!/usr/bin/env python3
"""How far off the first estimate of a launch below a library call is, and how far 0.25 ms would have been.

usage: prior_error.py TRACE_JSON...          files of `tessera trace`, on any GPU
       prior_error.py --run BUILD [PROGRAMS]    takes such traces of PROGRAMS (20) programs of 20 random products each on the software GPU, not
                                              cut, beside a protected program that is idle most of the time
Of each launch shape that was measured first (a kernel's grids to within a factor of two are one): estimated over measured time,
or the other way round, whichever is more than 1. Each program knows nothing when it begins.
"""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

KNOWN_NOTHING_NS = 250_000  # admission::kUnknownKernelNs


def estimates(path):
    """(expected, took) in ns, in the order in which they were measured."""
    try:
        with open(path) as file:
            events = json.load(file)["traceEvents"]
        found = [e["args"] for e in events if e.get("cat") == "estimate" and e["args"].get("below_call")]
        return [(e["expected_ns"], e["took_ns"]) for e in found if e["took_ns"] > 0]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        sys.exit(f"{path}: not a trace of `tessera trace`: {problem}")


def report(pairs):
    if len(pairs) < 10:
        sys.exit(f"{len(pairs)} shapes were measured: too few to say anything")
    took = [t for _, t in pairs]
    print(f"{len(pairs)} shapes that took {min(took) / 1e6:.3g} to {max(took) / 1e6:.3g} ms")
    for name, estimated in (("estimates", [e for e, _ in pairs]), ("0.25 ms", [KNOWN_NOTHING_NS] * len(pairs))):
        off = [max(e / t, t / e) for e, t in zip(estimated, took)]
        print(f"{name:<9} off by a factor of {statistics.median(off):.2f} (median), {statistics.quantiles(off, n=10)[8]:.2f} (p90), "
              f"{max(off):.1f} (most)")


def wait_until(what, patience_s=60):
    end = time.monotonic() + patience_s
    while not what():
        if time.monotonic() > end:
            sys.exit("nothing happens: is the build complete?")
        time.sleep(0.05)


def take(build, n_programs, folder):
    """Traces of the products' launches."""
    programs, socket, traces = build / "bin", folder / "d.sock", []
    environment = {**os.environ, "TESSERA_SOFTGPU_DIR": str(folder / "gpu"), "TESSERA_SOFTGPU_MODE": "mps", "TESSERA_SLICE": "0"}
    (folder / "d.toml").write_text('[daemon]\nprofiles = "off"\n')
    run = [programs / "tessera", "run", "--gpu", "soft", "--socket", socket]
    others = []
    try:
        with open(folder / "log", "w") as log:
            daemon = [programs / "tesserad", "--socket", socket, "--config", folder / "d.toml"]
            others.append(subprocess.Popen(daemon, stdout=log, stderr=log, env=environment))
            wait_until(socket.exists)
            service = [programs / "sharing_load", "memory", "8", "8", "2", "0", "300000", folder / "steps"]
            others.append(subprocess.Popen([*run, "--priority", "high", "--", *service], stdout=log, stderr=log, env=environment))
            wait_until(lambda: (folder / "steps").exists() and (folder / "steps").stat().st_size > 0)
            for seed in range(n_programs):
                traces.append(folder / f"{seed}.json")
                products = [programs / "tests/operations/operations_products", "shapes", "20", str(seed)]
                words = [*run, "--trace", traces[-1], "--", *products]
                if subprocess.run(words, stdout=log, stderr=log, env=environment, check=False).returncode != 0:
                    sys.exit((folder / "log").read_text())
    finally:
        for process in reversed(others):
            process.send_signal(signal.SIGTERM)
            process.wait()
    return traces


def main():
    if len(sys.argv) in (3, 4) and sys.argv[1] == "--run":
        with tempfile.TemporaryDirectory(prefix="tessera-prior-") as folder:
            n_programs = int(sys.argv[3]) if len(sys.argv) == 4 else 20
            traces = take(pathlib.Path(sys.argv[2]), n_programs, pathlib.Path(folder))
            report([pair for trace in traces for pair in estimates(trace)])
    elif len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        report([pair for trace in sys.argv[1:] for pair in estimates(trace)])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
