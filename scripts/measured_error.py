#!/usr/bin/env python3
"""The simulator beside what a GPU answered: runs scenarios/measured_h200.toml and prints, for every row that it names, the figures
simulated and measured, and the error. Where the same was measured on several occasions the error counts from the nearer end of
what they say. Rows with `fits` were there when parameters were chosen; by the others none was."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHOLE = {"p50": "p50_over_alone", "p99": "p99_over_alone"}  # of requests; other figures are of their steps
FIGURES = ("p50", "p99", "first_p99", "further_p99", "share")
GOAL_PERCENT = 15


def simulate(options):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "report.json"
        command = [options.tessera, "simulate", str(options.scenario), "--json", str(out)]
        if options.seeds:
            command += ["--seeds", str(options.seeds)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(out.read_text())


def simulated(report, row, figure):
    cells = [c for c in report["policies"][row["run"]]["cells"] if c["cell"] == row["cell"]]
    if figure == "share":
        return statistics.mean(c["be_share"] for c in cells)
    services = [c["protected"][0] for c in cells]
    return statistics.mean(s[WHOLE[figure]] if figure in WHOLE else s["steps_over_alone"][figure] for s in services)


def occasions(rows, row, figure):
    def programs(r):
        return r["cell"].split(",")[0], r["run"]

    return [r[figure] for r in rows if programs(r) == programs(row)]


def error_percent(value, found):
    least, most = min(found), max(found)
    return 100 * ((value - least) / least if value < least else (value - most) / most if value > most else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", default=str(ROOT / "build/release/bin/tessera"), help="the program")
    parser.add_argument("--scenario", default=ROOT / "scenarios/measured_h200.toml", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=0, help="0: as the scenario says")
    parser.add_argument("--least", type=int, default=0, metavar="PERCENT",
                        help="fail if fewer figures of either kind, fit or held out, are within the goal")
    options = parser.parse_args()
    rows = tomllib.loads(options.scenario.read_text())["measured"]
    report = simulate(options)
    print("| pair | run | | simulated / measured, error in % |\n|---|---|---|---|")
    errors = {True: [], False: []}
    for row in rows:
        cells = []
        for figure in (f for f in FIGURES if f in row):
            value = simulated(report, row, figure)
            error = error_percent(value, occasions(rows, row, figure))
            errors[row["fits"]].append((abs(error), f"{row['cell']}, {row['run']}, {figure}"))
            cells.append(f"{figure} {value:.2f} / {row[figure]:.2f} ({error:+.0f})")
        print(f"| {row['cell']} | `{row['run']}` | {'fit' if row['fits'] else 'held out'} | {', '.join(cells)} |")
    least = 100
    for fits, found in errors.items():
        within = sum(e <= GOAL_PERCENT for e, _ in found)
        least = min(least, 100 * within / len(found))
        middle, (worst, where) = statistics.median(e for e, _ in found), max(found)
        print(f"\n{'Fit' if fits else 'Held out'}: {within} of {len(found)} figures within {GOAL_PERCENT} %, median {middle:.0f} %, "
              f"worst {worst:.0f} % ({where}).", end="")
    print()
    return 0 if least >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
