#!/usr/bin/env python3
"""Recorded programs beside each other (scenarios/traced*.toml): every policy, with shipped and with disjoint contention.

Prints one Markdown table per scenario: p99 over alone (its mean over the pairs, the worst), best-effort share; then the
pairs of the plain scenario in which a plainer policy has a tail at most 2 points worse and 0.08 more share than `tessera`.
Needs the data set beside the checkout (docs/traces.md).

usage: traced_report.py [--seeds N] [--first-seed S] [--duration-ms MS] [--only NAME,...] [--tessera BIN]
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCENARIOS = ["traced", "traced_0.2", "traced_0.8", "traced_bursty", "traced_bursty_0.2", "traced_bursty_0.8"]
CONTENTION = {"shipped": None, "disjoint": "contention_disjoint.toml"}
POLICIES = ["mps_priority", "tally", "orion", "temporal", "tessera", "tessera_device"]
SIMILAR_TAIL, MORE_SHARE = 0.02, 0.08


def simulate(args, name, contention):
    """{policy: {cell: (p99 over alone, share)}}, means over seeds."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(ROOT / f"scenarios/{name}.toml")] + ([str(ROOT / "scenarios/parts" / contention)] if contention else [])
        scenario, out = pathlib.Path(folder) / f"{name}.toml", pathlib.Path(folder) / "results.json"
        scenario.write_text(f"include = {json.dumps(files)}\n")
        command = [args.tessera, "simulate", str(scenario), "--seeds", str(args.seeds), "--first-seed", str(args.first_seed),
                   "--policy", ",".join(POLICIES), "--json", str(out)]
        command += ["--duration-ms", str(args.duration_ms)] if args.duration_ms else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        results = json.loads(out.read_text())["policies"]
    cells = {}
    for policy in POLICIES:
        of = collections.defaultdict(list)
        for row in results[policy]["cells"]:
            of[row["cell"]].append((row["protected"][0]["p99_over_alone"], row["be_share"]))
        cells[policy] = {cell: tuple(statistics.mean(v) for v in zip(*rows)) for cell, rows in of.items()}
    return cells


def table(name, ranges):
    print(f"\n`{name}`: p99 over alone, mean / worst / best-effort share\n\n| policy | " + " | ".join(ranges) + " |\n|---|" + "---|" * len(ranges))
    for policy in POLICIES:
        texts = []
        for cells in ranges.values():
            tails, shares = zip(*cells[policy].values())
            texts.append(f"{statistics.mean(tails):.3f} / {max(tails):.2f} / {statistics.mean(shares):.3f}")
        print(f"| `{policy}` | " + " | ".join(texts) + " |")


def pairs(name, contention, cells):
    print(f"\n`{name}`, {contention} contention, by pair: p99 over alone / share\n\n| pair | " + " | ".join(f"`{p}`" for p in POLICIES) +
          " | `tessera` is dominated by |\n|---|" + "---|" * (len(POLICIES) + 1))
    for cell, (tail, share) in cells["tessera"].items():
        better = [p for p in POLICIES if cells[p][cell][0] <= tail + SIMILAR_TAIL and cells[p][cell][1] >= share + MORE_SHARE
                  and not p.startswith("tessera")]
        print(f"| {cell} | " + " | ".join("{:.3f} / {:.3f}".format(*cells[p][cell]) for p in POLICIES) + f" | {', '.join(better)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--duration-ms", type=int, default=0)
    parser.add_argument("--only", type=lambda s: s.split(","), default=SCENARIOS)
    parser.add_argument("--tessera", default=str(ROOT / "build/release/bin/tessera"))
    args = parser.parse_args()
    for name in args.only:
        ranges = {contention: simulate(args, name, file) for contention, file in CONTENTION.items()}
        table(name, ranges)
        if name == SCENARIOS[0]:
            for contention, cells in ranges.items():
                pairs(name, contention, cells)


if __name__ == "__main__":
    main()
