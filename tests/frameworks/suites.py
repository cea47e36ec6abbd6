"""Runs the tests that frameworks bring along, on the software GPU: bare, and those that passed again under Tessera.

  bare            on the software GPU, without Tessera
  under Tessera   best-effort beside a protected service of another framework, slices of 20 us on four SMs

A test that passes bare must pass under Tessera: one that does not is told first and ends in exit status 1. Where the process
dies or hangs, or a test failed, the rest goes on in another one."""
import argparse
import collections
import dataclasses
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

import run

QUIET_S = 900  # a test that takes longer hangs, also on a busy machine
THINK_S = 0.2  # between requests of the service: thousands of launches are to find their way between them


@dataclasses.dataclass
class Suite:
    home: str  # of run.FRAMEWORKS: packages and environment
    modules: str  # pattern of their files, below the folder of the tests
    package: str = ""  # what the names of modules begin with, "" where the folder is in the path
    installed: str = ""  # folder of the tests in site-packages; else they come with the source package:
    source: str = ""
    folder: str = ""
    compared_with: str = ""  # a module that Debian has


SUITES = {
    "numba": Suite("numba", "*/test_*.py", package="numba.cuda.tests.", installed="numba_cuda/numba/cuda/tests"),
    "tinygrad": Suite("tinygrad_0_12", "test_ops.py", source="tinygrad==0.12.0", folder="test",
                      compared_with="torch"),
}


def fetched_tests(bench, suite):
    """Folder of the tests of a source package, unpacked beside the environment."""
    folder = bench.folder / f"{suite.home}_tests"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=bench.folder) as scratch:
            download = [bench.python(suite.home), "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                        "--no-binary=:all:", "-d", scratch, suite.source]
            got = subprocess.run(download, capture_output=True, text=True)
            if got.returncode:
                raise run.Unavailable(got.stderr.strip().split("\n")[-1])
            with tarfile.open(next(pathlib.Path(scratch).glob("*.tar.gz"))) as archive:
                archive.extractall(scratch, filter="data")
            next(pathlib.Path(scratch).glob(f"*/{suite.folder}")).rename(folder)
    return folder


def modules_of(bench, suite, pattern):
    """Names of modules that match, and the folder in which they are found."""
    site = next((bench.home(suite.home) / "lib").glob("python*/site-packages"))
    folder = site / suite.installed if suite.installed else fetched_tests(bench, suite)
    names = sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.glob(suite.modules))
    names = [name.replace("/", ".") for name in names]
    return [suite.package + name for name in names if fnmatch.fnmatch(name, pattern)], folder


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def outcomes(path):
    """{test: (outcome, why)}; what has begun and not ended has died."""
    return {test: ("died" if outcome == "begun" else outcome, why) for test, outcome, why in lines_of(path)
            if outcome != "counted"}


def counted(path):
    """What daemons counted of the processes that ran tests: of each client what was counted last, added up. And how many
    modules ran tests, and behind how many of them the process was a client."""
    found = [counters for _, outcome, counters in lines_of(path) if outcome == "counted"]
    clients = {(counters["pid"], counters["id"]): counters for counters in found if counters}
    sums = {k: sum(c[k] for c in clients.values()) for k in ("launches", "slices", "cut_kernels")}
    return {**sums, "modules": len(found), "modules_attached": sum(bool(counters) for counters in found)}


def wait_while_it_works(process, path):
    """Until the process has ended; one that writes nothing for long is killed, and the test that it was in said to hang."""
    size, since = -1, time.monotonic()
    while True:
        try:
            return process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            present = path.stat().st_size if path.exists() else 0
            if present != size:
                size, since = present, time.monotonic()
            elif time.monotonic() - since > QUIET_S:
                process.kill()
                hanging = [test for test, (outcome, _) in outcomes(path).items() if outcome == "died"][-1:]
                with path.open("a") as file:
                    file.writelines(json.dumps([test, "hung", ""]) + "\n" for test in hanging)


def run_tests(bench, suite, modules_and_folder, path, run_options, progress, only=None):
    """Outcomes of the tests of modules_of(). `path`: where outcomes are written to, and perhaps are of a run before. `only`:
    ids of the tests, else all."""
    modules, folder = modules_and_folder
    arguments = [path, *modules]
    if only is not None:
        (bench.scratch / "only").write_text("\n".join(only))
        arguments += ["--only", bench.scratch / "only"]
    more = {} if suite.package else {"PYTHONPATH": folder}
    done = False
    while not done:
        before = len(outcomes(path))
        process = bench.start(suite.home, run_options, [run.HERE / "suite_client.py", *arguments], CI="1", **more)
        out, errors = wait_while_it_works(process, path)
        found = outcomes(path)
        progress(f"{len(passed(found))} of {len(found)} pass")
        if process.returncode == 0 and out.strip():
            done = json.loads(out)["done"]
        if len(found) == before and not done:
            raise RuntimeError(f"no test begins: exit {process.returncode}: {errors.strip()[-2000:]}")
    return found


def passed(results):
    return {test for test, (outcome, _) in results.items() if outcome == "passed"}


def run_suite(bench, name, pattern, results, progress):
    suite = SUITES[name]
    python = bench.python(suite.home)
    if suite.compared_with and subprocess.run([python, "-c", f"import {suite.compared_with}"], capture_output=True).returncode:
        raise run.Unavailable(f"{suite.compared_with} is not here: scripts/setup.sh --suites")
    modules = modules_of(bench, suite, pattern)
    results.mkdir(parents=True, exist_ok=True)
    bare = run_tests(bench, suite, modules, results / f"{name}.bare.jsonl", ["--passthrough"],
                     lambda text: progress(f"{name} bare: {text}"))
    path = results / f"{name}.under.jsonl"
    with run.Restarts(bench, often=False):
        again = lambda: run_tests(bench, suite, modules, path, [], lambda text: progress(f"{name} under Tessera: {text}"),
                                  sorted(passed(bare)))
        under, _ = run.serve(bench, run.ENVIRONMENTS[suite.home].partner, bench.scratch / "until", again, THINK_S)
    lost = {test: under.get(test, ("died", "")) for test in sorted(passed(bare) - passed(under))}
    return {"version": suite.source or run.ENVIRONMENTS[suite.home].packages[0], "modules": pattern, "tests": len(bare),
            "outcomes_bare": dict(collections.Counter(outcome for outcome, _ in bare.values())),
            "pass_bare": len(passed(bare)), "pass_under": len(passed(under)), "equal": not lost, "lost": lost,
            "counted": counted(path),
            "fail_bare": {test: why for test, (outcome, why) in bare.items() if outcome not in ("passed", "skipped")}}


def not_under_tessera(row):
    return bool(row.get("pass_under")) and not row["counted"]["launches"]


def sentence(name, row):
    if "problem" in row:
        return f"{name}: {row['problem']}"
    there = row["counted"]
    text = (f"{name} {row['version']}: {row['tests']} tests, {row['pass_bare']} pass bare {row['outcomes_bare']}, "
            f"{row['pass_under']} of them under Tessera ({there['launches']} launches, {there['slices']} slices; a client "
            f"behind {there['modules_attached']} of {there['modules']} modules)")
    return text + "; FAILED: tesserad counted no launch of theirs" * not_under_tessera(row)


def report(rows):
    """Tells tests that Tessera breaks, then the rest; the exit status, and the tests."""
    lost = {f"{name}: {test}": why for name, row in rows.items() for test, why in row.get("lost", {}).items()}
    failed = [name for name, row in rows.items() if not_under_tessera(row) or "problem" in row and not row.get("skipped")]
    for test, (outcome, why) in lost.items():
        print(f"PASSES BARE, NOT UNDER TESSERA: {test}: {outcome}\n{why}")
    for name, row in rows.items():
        print(sentence(name, row))
    return (1 if lost or failed else 77 if all(row.get("skipped") for row in rows.values()) else 0), sorted(lost)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--modules", default="*", metavar="PATTERN", help="of tests: those that match; cudadrv.*, say")
    parser.add_argument("--results", type=pathlib.Path, metavar="FOLDER",
                        help="where outcomes are kept; called again with it, what they have is not run again")
    run.add_places(parser)
    options = parser.parse_args()
    if unknown := set(options.names) - set(SUITES):
        parser.error(f"no tests are known of {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    rows = {}
    for name in options.names or SUITES:
        with tempfile.TemporaryDirectory(prefix="tessera-") as scratch:
            try:
                bench = run.Bench(options.build.resolve(), options.folder.resolve(), pathlib.Path(scratch),
                                  run.ENVIRONMENTS[SUITES[name].home].capability)
                results = options.results.resolve() if options.results else bench.scratch
                rows[name] = run_suite(bench, name, options.modules, results, lambda text: print(text, file=sys.stderr, flush=True))
            except run.Unavailable as why:
                rows[name] = {"problem": f"skipped, its tests cannot be fetched: {why}", "skipped": True}
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                rows[name] = {"problem": f"FAILED: {why}"}
    status, lost = report(rows)
    if options.json:
        options.json.write_text(json.dumps({"lost": lost, "suites": rows}, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
