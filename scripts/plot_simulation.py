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
from matplotlib import ticker  # noqa: E402


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        results = json.load(file)
    os.makedirs(sys.argv[2], exist_ok=True)
    figure, axis = plt.subplots(figsize=(9, 5))
    colours = plt.get_cmap("tab20" if len(results["policies"]) > 10 else "tab10").colors
    for n, (name, policy) in enumerate(results["policies"].items()):
        colour = colours[n % len(colours)]
        estimates = policy["estimates"]
        tail, share = estimates["p99_mean_over_alone"], estimates["be_share"]
        error = [[max(0, e["mean"] - e["ci95"][0])] for e in (tail, share)]
        axis.errorbar(tail["mean"], share["mean"], xerr=error[0], yerr=error[1], fmt="o", capsize=3, color=colour,
                      label=name)
        cells = [(p["p99_over_alone"], c["be_share"]) for c in policy["cells"] for p in c.get("protected", [])]
        axis.scatter([c[0] for c in cells], [c[1] for c in cells], s=8, alpha=0.35, color=colour)
    axis.set_xscale("log")
    # A log axis over less than a decade labels 1.1 as powers of ten otherwise.
    low, high = axis.get_xlim()
    decades = high / max(low, 1e-9) >= 20
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if decades else ticker.MaxNLocator(8))
    axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.xaxis.set_minor_formatter(ticker.NullFormatter())
    axis.set_ylim(bottom=0)
    axis.set_xlabel("protected p99 over alone (mean over cells; small dots: cells)")
    axis.set_ylabel("best-effort share of alone")
    axis.set_title(f"{results['scenario']}: simulated")
    axis.grid(alpha=0.3)
    # Beside the axes: policies that are close would write over each other.
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    path = os.path.join(sys.argv[2], "simulation.png")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(path)


if __name__ == "__main__":
    main()
