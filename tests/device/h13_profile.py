#!/usr/bin/env python3
"""H13: what `tessera profile` finds in one piece of work (profile_work.py), with and without counters, and what observing
costs: steps per second bare and observed, in turns. The profile stays in --out. --calibrate measures the card instead."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import lab


def run(command, limit_s=600):
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    if done.returncode == 77:
        print(json.dumps({"question": "H13", "skipped": done.stderr.strip().splitlines()[-1]}))
        sys.exit(0)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-1000:]}")
    return done


def rate(done):
    return json.loads(done.stdout.strip().splitlines()[-1])["steps_per_s"]


def summary(path):
    """Time and classes of a profile, and its ten kernels with most time."""
    kernels = json.loads(path.read_text())["kernels"]
    kernels.sort(key=lambda k: -k["duration"]["total_ns"])
    total = sum(k["duration"]["total_ns"] for k in kernels) or 1
    share = {}
    for k in kernels:
        share[k["class"]] = share.get(k["class"], 0) + k["duration"]["total_ns"] / total
    return {"kernels": len(kernels), "launches": sum(k["duration"]["samples"] for k in kernels), "time_by_class": share,
            "top": [{"kernel": k["kernel"][:80], "time_share": k["duration"]["total_ns"] / total,
                     "p50_us": k["duration"]["p50_ns"] / 1e3, "class": k["class"], "reason": k["class_reason"],
                     "cut": k["cut"]} for k in kernels[:10]]}


def observe(args, work, out, options):
    out.unlink(missing_ok=True)
    done = run([args.tessera, "profile", "--gpu", args.gpu, "-o", str(out), *options, "--", *work])
    notes = [line for line in done.stderr.splitlines() if line.startswith("tessera profile: ") and " MB of " not in line]
    return done, {**summary(out), "notes": notes}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True, help="the tessera program")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for profiles and descriptions")
    parser.add_argument("--gpu", default="auto", choices=("auto", "soft"))
    parser.add_argument("--repeat", type=int, default=3, help="turns of bare and observed runs")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--work", choices=("copy", "gemm", "resnet50", "gpt2"))
    what.add_argument("--calibrate", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    report = {**lab.info(), "question": "H13"}
    if args.calibrate:
        description = args.out / "calibrated.toml"
        run([args.tessera, "calibrate", "--gpu", args.gpu, "-o", str(description)])
        print(json.dumps({**report, "description": description.name}))
        return
    work = [sys.executable, lab.program("profile_work.py"), args.work]
    soft = args.gpu == "soft"
    bare = work = work + (["--small", "--steps", "5"] if soft else [])
    if soft:
        bare = [args.tessera, "run", "--gpu", "soft", "--passthrough", "--", *work]
    timed, pairs = args.out / f"profile-{args.work}.json", []
    for _ in range(args.repeat):
        alone = rate(run(bare))
        done, report["timed"] = observe(args, work, timed, [])
        pairs.append((alone, rate(done)))
    report.update(work=args.work, bare_steps_per_s=[a for a, _ in pairs], observed_steps_per_s=[b for _, b in pairs],
                  overhead_percent=statistics.median((a / b - 1) * 100 for a, b in pairs))
    if not soft:  # there, work is counted in any case
        counted = ["--steps", "3"]  # every launch runs some seven times
        _, report["counted"] = observe(args, work + counted, args.out / f"counted-{args.work}.json", ["--metrics"])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
