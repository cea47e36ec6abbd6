#!/usr/bin/env python3
"""Runs every attack program one after another and adds up what they found. Exit status 0 if that is nothing.

usage: run_all.py --folder DIR [--minutes N] [--seed N] [--only NAME] [--json FILE]
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

GRACE_S = 300  # beyond its time, for what it is in the middle of, on a machine that does much else


def run_one(program, seconds, seed):
    """The program's report. That it hangs, crashes or writes none is a finding."""
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch) / "report.json"
        command = [str(program), "--seconds", str(seconds), "--seed", str(seed), "--json", str(report)]
        problem = None
        try:
            status = subprocess.run(command, timeout=seconds + GRACE_S).returncode
            if status not in (0, 1):
                problem = f"the attack program itself ended with status {status}"
        except subprocess.TimeoutExpired:
            status, problem = None, f"the attack program hung for {GRACE_S} s"
        try:
            result = json.loads(report.read_text())
        except (OSError, ValueError) as error:
            result = {"name": program.name.removeprefix("attack_"), "seed": seed, "runs": 0, "findings": []}
            problem = problem or f"no report: {error}"
    if status == 1 and not result["findings"]:
        problem = "exit status 1 without a finding"
    if problem:
        result["findings"].append(problem)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the programs are")
    parser.add_argument("--minutes", type=float, default=10, help="that all of them share")
    parser.add_argument("--seed", type=int, default=None, help="of all of them; without it a random one")
    parser.add_argument("--only", help="those whose name contains this")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    programs = [p for p in sorted(options.folder.glob("attack_*")) if (options.only or "") in p.name]
    if not programs:
        sys.exit("run_all.py: no attack programs")
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    seconds = max(1, round(options.minutes * 60 / len(programs)))
    results = []
    for program in programs:
        print(f"== {program.name}: {seconds} s, seed {seed}", flush=True)
        results.append(run_one(program, seconds, seed))
    n_findings = sum(len(r["findings"]) for r in results)
    if options.json:
        summary = {"minutes": options.minutes, "findings": n_findings, "programs": results}
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    for result in results:
        for text in result["findings"]:
            print(f"{result['name']}: {text}")
    print(f"{len(results)} attacks, {sum(r['runs'] for r in results)} runs, {n_findings} findings")
    return 1 if n_findings else 0


if __name__ == "__main__":
    sys.exit(main())
