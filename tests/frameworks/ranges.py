"""Runs JAX and PyTorch from PyPI, unmodified, as services whose requests are ranges of NVTX, and looks whether tesserad counts
them (docs/requests.md): ranges.py [jax] [torch]. Environments are those of run.py; PyTorch's has 5 GB."""
import argparse
import pathlib
import sys
import tempfile

from run import ENVIRONMENTS, HERE, Bench, Unavailable, add_places, end, result_of

REQUESTS = 20
RANGES = {"jax": "TSL/XlaModule:#hlo_module=jit_step,*", "torch": "step of torch"}


def count(bench, name):
    daemon = bench.daemon()
    try:
        program = bench.start(name, ["--priority", "high", "--request-range", RANGES[name]], [HERE / "ranged.py", name, str(REQUESTS)])
        try:
            return result_of(program)
        finally:
            end(program)
    finally:
        end(daemon)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RANGES))
    add_places(parser)
    options = parser.parse_args()
    if unknown := set(options.names) - set(RANGES):
        parser.error(f"ranges of {', '.join(sorted(unknown))} are not tried; those of {', '.join(RANGES)} are")
    outcomes = set()
    for name in options.names or RANGES:
        with tempfile.TemporaryDirectory(prefix="tessera-ranges-") as scratch:
            bench = Bench(options.build.resolve(), options.folder.resolve(), pathlib.Path(scratch), ENVIRONMENTS[name].capability)
            try:
                counted = count(bench, name)
            except Unavailable as why:
                print(f"{name}: skipped, {why}")
                outcomes.add(77)
                continue
        right = counted.get(RANGES[name]) == REQUESTS
        print(f"{name}: {'as many' if right else 'WRONG'}: {REQUESTS} requests, counted {counted}", flush=True)
        outcomes.add(0 if right else 1)
    sys.exit(max(outcomes - {77}, default=77))


if __name__ == "__main__":
    main()
