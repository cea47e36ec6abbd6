"""Runs frameworks from PyPI, unmodified, under `--memory-limit` on the software GPU (docs/memory.md): limited.py [jax] [torch].

  jax    twice at the same time. Each takes three quarters of its limit when it starts, as JAX does by default. What both leave must
         be what one leaves alone. The GPU has too little memory for both without a limit.
  torch  is refused an allocation, frees what its allocator kept, and goes on. PyTorch's environment has 5 GB."""
import argparse
import pathlib
import subprocess
import sys
import tempfile

from run import ENVIRONMENTS, HERE, Bench, Unavailable, add_places, end, result_of, wait_for

MIB = 1 << 20
LIMIT_MIB = 960  # two of them fit into the 2 GiB of the GPU; three quarters of the GPU, twice, do not
STEPS = 4
PREALLOCATES = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}  # JAX's default, which jax_on_softgpu changes


def used_mib(counters):
    return sum(row["used"] for row in counters["memory"]) // MIB


def both(bench):
    """What two programs leave that have their memory at the same time."""
    until = bench.scratch / "until"
    programs = []
    try:
        for which in ("first", "second"):
            go_on = pathlib.Path(f"{until}.{which}")
            limit = ["--memory-limit", f"{LIMIT_MIB}MiB", "--name", which]
            programs.append((go_on, bench.client("jax", limit, ["--serve", go_on, "--steps", str(STEPS)], **PREALLOCATES)))
        for go_on, program in programs:
            wait_for(pathlib.Path(f"{go_on}.ready").exists, program)
        for go_on, _ in programs:  # until now each has what it took
            go_on.touch()
        return [result_of(program) for _, program in programs]
    finally:
        for _, program in programs:
            end(program)


def jax(bench):
    alone = result_of(bench.client("jax", ["--passthrough"], ["--steps", str(STEPS)], **PREALLOCATES))
    daemon = bench.daemon()
    try:
        limited = both(bench)
    finally:
        end(daemon)
    equal = all(one["hash"] == alone["hash"] for one in limited)
    used = [used_mib(one["counters"]) for one in limited]
    kept = all(LIMIT_MIB // 2 < mib <= LIMIT_MIB for mib in used)  # it did take its part, and no more than its limit
    print(f"jax {alone['version']}, twice, --memory-limit {LIMIT_MIB}MiB: results {'equal' if equal else 'DIFFER'}; "
          f"used {used} MiB{'' if kept else ': WRONG'}", flush=True)
    return equal and kept


def torch(bench):
    told = result_of(bench.start("torch", ["--memory-limit", "512MiB"], [HERE / "refused.py"]))
    right = told["retries"] == 1 and told["held"] == told["reserved"] == 400 and told["total"] == 512 and told["free"] <= 112
    print(f"torch under 512 MiB: {'freed what it kept and went on' if right else 'WRONG'}: {told}", flush=True)
    return right


PROGRAMS = {"jax": jax, "torch": torch}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    add_places(parser)
    options = parser.parse_args()
    if unknown := set(options.names) - set(PROGRAMS):
        parser.error(f"{', '.join(sorted(unknown))}: not tried; there are {', '.join(PROGRAMS)}")
    outcomes = set()
    for name in options.names or PROGRAMS:
        with tempfile.TemporaryDirectory(prefix="tessera-limited-") as scratch:
            bench = Bench(options.build.resolve(), options.folder.resolve(), pathlib.Path(scratch), ENVIRONMENTS[name].capability)
            try:
                outcomes.add(0 if PROGRAMS[name](bench) else 1)
            except Unavailable as why:
                print(f"{name}: skipped, {why}")
                outcomes.add(77)
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                print(f"{name}: FAILED: {why}")
                outcomes.add(1)
    return max(outcomes - {77}, default=77)


if __name__ == "__main__":
    sys.exit(main())
