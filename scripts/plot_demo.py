#!/usr/bin/python3
"""Plots a demo run: the service's latency distribution and the trainer's share, per regime.

usage: plot_demo.py DEMO_JSON OUT_PNG     (reads the CSV files that demo.json names, relative to it)
"""
import csv
import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (backend first)

COLOURS = {
    "alone": "#444444",
    "unmanaged_timesliced": "#c0392b",
    "unmanaged_mps": "#e67e22",
    "tessera_timesliced": "#2980b9",
    "tessera_mps": "#16a085",
}


def latencies_ms(path):
    with open(path, newline="") as file:
        return sorted((int(r["end_ns"]) - int(r["intended_ns"])) / 1e6 for r in csv.DictReader(file))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        demo = json.load(file)
    folder = os.path.dirname(os.path.abspath(sys.argv[1]))
    regimes = {k: v for k, v in demo["regimes"].items() if v.get("csv")}
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), gridspec_kw={"width_ratios": [3, 2]})
    for name, regime in regimes.items():
        values = latencies_ms(os.path.join(folder, regime["csv"]))
        share = [1 - i / len(values) for i in range(len(values))]
        left.step(values, share, where="post", label=name.replace("_", " "), color=COLOURS.get(name))
    left.set_xscale("log")
    left.set_yscale("log")
    left.axhline(0.01, color="grey", linewidth=0.6, linestyle=":")
    left.text(left.get_xlim()[0], 0.0105, " p99", color="grey", fontsize=8)
    left.set_xlabel("latency from intended arrival, ms")
    left.set_ylabel("share of requests slower")
    left.set_title(f"latency service at {demo['load']:.0%} load")
    left.legend(fontsize=8)
    names = [n for n in regimes if regimes[n].get("trainer_share") is not None]
    shares = [regimes[n]["trainer_share"] for n in names]
    ratios = [regimes[n].get("p99_over_alone") or 0 for n in names]
    bars = right.barh([n.replace("_", " ") for n in names], shares, color=[COLOURS.get(n) for n in names])
    for bar, share, ratio in zip(bars, shares, ratios):
        right.text(bar.get_width() + 0.01, bar.get_y() + bar.get_height() / 2,
                   f"{share:.2f}   p99 x{ratio:.2f}", va="center", fontsize=8)
    right.set_xlim(0, 1.5)
    right.invert_yaxis()
    right.set_xlabel("trainer, share of alone")
    right.set_title("trainer keeps, service pays")
    figure.suptitle(f"{demo['gpu']}, {demo['seconds']} s per phase, commit {demo['commit'][:12]}"
                    + ("" if demo["valid"] else "   INVALID RUN"), fontsize=10)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=120)


if __name__ == "__main__":
    main()
