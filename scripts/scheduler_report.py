#!/usr/bin/env python3
"""The shipped scheduler against peers on every registered scenario, over the range of contention.

Each scenario runs as it is, and once more per range of CONTENTION with that file included after it (NAME.two_thirds,
NAME.disjoint). Prints Markdown: goals beside results, every scenario, every cell, and which cells are dominated.

JSON: {"scenarios": {NAME: {POLICY: {"p99_mean_over_alone", "p99_worst_over_alone", "be_share"}}},
       "dominated": [{"scenario", "cell", "baseline", "p99_over_alone", "be_share", "tessera": {...}}],
       "cells": {NAME: {CELL: {POLICY: {"p99_over_alone", "be_share", "away_from_weights"}}}},
       "goals": [{"name", "scenario", "goal", "result", "met"}], "settings": {...}}

usage: scheduler_report.sh --first-seed S --json FILE [--seeds N] [--duration-ms MS] [--only NAME,...] [--tessera BIN]
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCENARIOS = ["tally_grid", "stock_grid", "variable_requests", "long_blocks", "many", "tiny_requests", "narrow_best_effort", "on_off",
             "saturated"]
CONTENTION = {"": None, ".two_thirds": "contention_two_thirds.toml", ".disjoint": "contention_disjoint.toml"}
OURS = "tessera"
AT_ONCE = 2  # scenarios: the last runs of one leave cores idle, which the next one uses
SIMILAR_TAIL, MORE_SHARE = 0.02, 0.08  # a cell is dominated by a baseline with such a tail and that much more share
ROUNDING = 1e-9


def registered_runs():
    """The names of scenarios/parts/report_runs.toml."""
    return [run["name"] for run in tomllib.loads((ROOT / "scenarios/parts/report_runs.toml").read_text())["run"]]


def simulate(args, name, contention):
    """The simulator's JSON of one scenario; `contention`: a file of scenarios/parts, or None."""
    scenario = ROOT / f"scenarios/{name}.toml"
    with tempfile.TemporaryDirectory() as folder:
        if contention:
            both = [str(scenario), str(ROOT / "scenarios/parts" / contention)]
            scenario = pathlib.Path(folder) / f"{name}.toml"
            scenario.write_text(f"include = {json.dumps(both)}\n")
        out = pathlib.Path(folder) / "results.json"
        command = [args.tessera, "simulate", str(scenario), "--seeds", str(args.seeds), "--first-seed", str(args.first_seed),
                   "--policy", ",".join(registered_runs()), "--json", str(out)]
        if args.duration_ms:
            command += ["--duration-ms", str(args.duration_ms)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads(out.read_text())


def weights(name):
    """{cell: weights of its best-effort clients} of the cells where they differ."""
    found = {}
    for cell in tomllib.loads((ROOT / f"scenarios/{name}.toml").read_text()).get("cell", []):
        own = [c.get("weight", 100) for c in cell["client"] if c.get("priority", 0) == 0 for _ in range(c.get("count", 1))]
        if len(set(own)) > 1:
            found[cell["name"]] = own
    return found


def away_from_weights(shares, own_weights):
    """How far the share per weight of any client is from their mean: 0.1 = within 10 %."""
    each = [share / weight for share, weight in zip(shares, own_weights)]
    mean = sum(each) / len(each)
    return max(abs(x - mean) for x in each) / mean if mean > 0 else 1.0


def means(columns):
    return [sum(column) / len(column) for column in zip(*columns)]


def per_cell(result, own_weights):
    """{cell: {policy: row}}, means over seeds; the tail is the mean over the cell's protected clients."""
    cells = {}
    for policy, summary in result["policies"].items():
        rows = {}
        for row in summary["cells"]:
            tails = [p["p99_over_alone"] for p in row.get("protected", [])]
            rows.setdefault(row["cell"], []).append([sum(tails) / max(1, len(tails)), row["be_share"], *row["be_shares"]])
        for cell, columns in rows.items():
            tail, share, *shares = means(columns)
            found = {"p99_over_alone": tail, "be_share": share}
            if cell in own_weights:
                found["away_from_weights"] = away_from_weights(shares, own_weights[cell])
            cells.setdefault(cell, {})[policy] = found
    return cells


def short_tails(result):
    """{policy: (mean, worst)} over cells and seeds of the shortest requests' own p99 over alone, where requests have several lengths."""
    found = {}
    for policy, summary in result["policies"].items():
        tails = [p["short_p99_over_alone"] for row in summary["cells"] for p in row.get("protected", []) if p["short_p99_over_alone"] > 0]
        if tails:
            found[policy] = (sum(tails) / len(tails), max(tails))
    return found


def dominated(cells):
    """Cells where a baseline has a tail at most SIMILAR_TAIL worse and MORE_SHARE more."""
    found = []
    for scenario, of_scenario in cells.items():
        for cell, policies in of_scenario.items():
            ours = policies[OURS]
            for baseline, row in policies.items():
                similar = row["p99_over_alone"] <= ours["p99_over_alone"] + SIMILAR_TAIL + ROUNDING
                if baseline != OURS and similar and row["be_share"] >= ours["be_share"] + MORE_SHARE - ROUNDING:
                    found.append({"scenario": scenario, "cell": cell, "baseline": baseline, **row, OURS: ours})
    return found


def goals(scenarios, cells):
    """Every goal with its result, for the scenarios that were run."""
    rows = []

    def add(name, scenario, goal, result, met):
        rows.append({"name": name, "scenario": scenario, "goal": goal, "result": result, "met": bool(met)})

    def bounds(name, scenario, row, tail, share, worst=None):
        limits = [f"tail <= {tail}"] + ([f"worst <= {worst}"] if worst else []) + [f"share >= {share}"]
        own_tail = row.get("p99_mean_over_alone", row.get("p99_over_alone"))
        result = f"{own_tail:.3f}" + (f" / {row['p99_worst_over_alone']:.2f}" if worst else "") + f" / {row['be_share']:.3f}"
        met = own_tail <= tail and row["be_share"] >= share and (not worst or row["p99_worst_over_alone"] <= worst)
        add(name, scenario, ", ".join(limits), result, met)

    for scenario, policies in scenarios.items():
        name, _, contention = scenario.partition(".")
        disjoint = contention == "disjoint"
        of = {cell: row for cell, row in cells[scenario].items()}
        if name == "tally_grid":
            tail, worst, share = (1.05, 1.10, 0.60) if disjoint else (1.03, 1.08, 0.46)
            bounds("grid", scenario, policies[OURS], tail, share, worst)
        elif name == "stock_grid":
            tail, worst, share = (1.05, 1.12, 0.50) if disjoint else (1.05, 1.15, 0.42)
            bounds("stock grid", scenario, policies[OURS], tail, share, worst)
        elif name == "variable_requests":
            for cell, row in of.items():
                best = min((r for p, r in row.items() if p != OURS), key=lambda r: r["p99_over_alone"])
                bounds(f"requests that vary, {cell}", scenario, row[OURS], round(best["p99_over_alone"] + 0.01, 3), round(best["be_share"], 3))
        elif name == "long_blocks":
            bounds("long blocks of 10 ms, load 0.1", scenario, of["blocks of 10 ms, load 0.1"][OURS], 1.25, 0.45)
        elif name == "tiny_requests":
            bounds("tiny requests", scenario, policies[OURS], 1.25, 0.40)
        elif name == "many":
            row = of["weights 8:4:2:1"][OURS]
            away = row["away_from_weights"]
            add("weights 8:4:2:1", scenario, "kept within 10 %, share >= 0.6", f"{100 * away:.0f} % / {row['be_share']:.3f}",
                away <= 0.1 and row["be_share"] >= 0.6)
    n = len(dominated(cells))
    add("dominated cells", "all", "0", str(n), n == 0)
    return rows


def table(head, rows):
    return ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(row) + " |" for row in rows]


def markdown(report):
    policies = registered_runs()
    lines = table(["goal", "scenario", "wanted", "`tessera`", "met"],
                  [[g["name"], f"`{g['scenario']}`", g["goal"], g["result"], "yes" if g["met"] else "no"] for g in report["goals"]])
    lines += table(["scenario (p99 mean / worst / share)"] + [f"`{p}`" for p in policies],
                   [[f"`{name}`"] + [f"{r['p99_mean_over_alone']:.3f} / {r['p99_worst_over_alone']:.2f} / {r['be_share']:.3f}"
                                     for r in map(of.get, policies)] for name, of in report["scenarios"].items()])
    with_lengths = {name: of for name, of in report["scenarios"].items() if "short_p99_mean_over_alone" in of[OURS]}
    lines += table(["shortest requests by themselves (p99 mean / worst)"] + [f"`{p}`" for p in policies],
                   [[f"`{name}`"] + [f"{r['short_p99_mean_over_alone']:.3f} / {r['short_p99_worst_over_alone']:.2f}"
                                     for r in map(of.get, policies)] for name, of in with_lengths.items()])
    lines += table(["scenario", "cell (p99 / share)"] + [f"`{p}`" for p in policies],
                   [[f"`{name}`", cell] + [f"{r['p99_over_alone']:.3f} / {r['be_share']:.3f}" for r in map(row.get, policies)]
                    for name, of in report["cells"].items() if name not in ("tally_grid", "stock_grid") and "." not in name
                    for cell, row in of.items()])
    lines += table(["dominated: scenario", "cell", "baseline", "its p99 / share", "`tessera`"],
                   [[f"`{d['scenario']}`", d["cell"], f"`{d['baseline']}`", f"{d['p99_over_alone']:.3f} / {d['be_share']:.3f}",
                     f"{d[OURS]['p99_over_alone']:.3f} / {d[OURS]['be_share']:.3f}"] for d in report["dominated"]])
    return "\n".join(lines[1:])


def add_scenario(report, name, suffix, result):
    scenario = {policy: {key: row[key] for key in ("p99_mean_over_alone", "p99_worst_over_alone", "be_share")}
                for policy, row in result["policies"].items()}
    for policy, (mean, worst) in short_tails(result).items():
        scenario[policy] |= {"short_p99_mean_over_alone": mean, "short_p99_worst_over_alone": worst}
    report["scenarios"][name + suffix] = scenario
    report["cells"][name + suffix] = per_cell(result, weights(name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, required=True)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--duration-ms", type=int, default=0, help="of every scenario; 0: as the scenarios say")
    parser.add_argument("--only", type=lambda s: s.split(","), default=SCENARIOS, help="names of scenarios, without a range")
    parser.add_argument("--tessera", default=str(ROOT / "build/release/bin/tessera"))
    args = parser.parse_args()
    if unknown := set(args.only) - set(SCENARIOS):
        parser.error(f"not registered: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    began = time.monotonic()
    report = {"scenarios": {}, "dominated": [], "cells": {}, "goals": []}
    todo = [(name, suffix) for name in args.only for suffix in CONTENTION]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for (name, suffix), result in zip(todo, pool.map(lambda one: simulate(args, one[0], CONTENTION[one[1]]), todo)):
            add_scenario(report, name, suffix, result)
            print(f"{name + suffix}: {args.seeds} seeds from {args.first_seed} of {result['duration_ms']:g} ms", file=sys.stderr)
    report["dominated"] = dominated(report["cells"])
    report["goals"] = goals(report["scenarios"], report["cells"])
    used = os.times()
    report["settings"] = {"seeds": args.seeds, "first_seed": args.first_seed, "cpu_seconds": used.children_user + used.children_system}
    args.json.write_text(json.dumps(report, indent=2) + "\n")
    print(markdown(report))
    print(f"{used.children_user + used.children_system:.0f} CPU-seconds, {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
