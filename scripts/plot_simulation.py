#!/usr/bin/python3
"""Plots the results of `tessera simulate`: tail against best-effort share, one point per policy, and every cell.

usage: plot_simulation.py SIMULATION_JSON OUT_FOLDER
"""
import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (backend first)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        results = json.load(file)
    os.makedirs(sys.argv[2], exist_ok=True)
    figure, axis = plt.subplots(figsize=(8, 5))
    for name, policy in results["policies"].items():
        estimates = policy["estimates"]
        tail, share = estimates["p99_mean_over_alone"], estimates["be_share"]
        error = [[max(0, e["mean"] - e["ci95"][0])] for e in (tail, share)]
        point = axis.errorbar(tail["mean"], share["mean"], xerr=error[0], yerr=error[1], fmt="o", capsize=3)
        colour = point.lines[0].get_color()
        cells = [(p["p99_over_alone"], c["be_share"]) for c in policy["cells"] for p in c.get("protected", [])]
        axis.scatter([c[0] for c in cells], [c[1] for c in cells], s=8, alpha=0.35, color=colour)
        axis.annotate(name, (tail["mean"], share["mean"]), xytext=(5, 5), textcoords="offset points", fontsize=8,
                      color=colour)
    axis.set_xscale("log")
    axis.set_xlabel("protected p99 over alone (mean over cells; small dots: cells)")
    axis.set_ylabel("best-effort share of alone")
    axis.set_title(f"{results['scenario']}: simulated")
    axis.grid(alpha=0.3)
    path = os.path.join(sys.argv[2], "simulation.png")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(path)


if __name__ == "__main__":
    main()
