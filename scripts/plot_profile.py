#!/usr/bin/python3
"""Time shares and durations of a profile's kernels, coloured by what bounds them.

usage: plot_profile.py PROFILE_JSON OUT.png|OUT.svg [--top N]
"""
import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (backend first)
from matplotlib.patches import Patch  # noqa: E402

import profile_common as common  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile")
    parser.add_argument("out")
    parser.add_argument("--top", type=int, default=20)
    options = parser.parse_args()
    kernels = common.load(options.profile)
    total = sum(k["duration"]["total_ns"] for k in kernels) or 1
    kernels = sorted(kernels, key=lambda k: -k["duration"]["total_ns"])[:options.top]
    colours = [common.COLOURS[k["class"]] for k in kernels]
    places = range(len(kernels))

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 1.8 + 0.38 * len(kernels)), sharey=True)
    shares = [k["duration"]["total_ns"] / total * 100 for k in kernels]
    left.barh(places, shares, color=colours)
    for place, share, kernel in zip(places, shares, kernels):
        left.text(share + 1, place, f"{share:.1f} %  ({kernel['duration']['samples']} launches)", va="center", fontsize=8)
    left.set_yticks(list(places), [f"{k['label']}  {'x'.join(map(str, k['block_threads']))}" for k in kernels], fontsize=8)
    left.invert_yaxis()
    left.set_xlim(0, max(shares) * 1.4)
    left.set_xlabel("share of kernel time, %")
    left.set_title("where the time goes")
    for place, kernel, colour in zip(places, kernels, colours):
        d = kernel["duration"]
        right.plot([d["min_ns"] / 1e6, d["max_ns"] / 1e6], [place, place], color=colour, linewidth=1)
        right.plot([d["p50_ns"] / 1e6, d["p99_ns"] / 1e6], [place, place], color=colour, linewidth=5, alpha=0.5)
        right.plot(d["p50_ns"] / 1e6, place, "o", color=colour)
    right.set_xscale("log")
    right.grid(axis="x", which="both", linewidth=0.3)
    right.set_xlabel("duration, ms: dot p50, thick to p99, thin min to max")
    right.set_title("how long a launch takes")
    used = [c for c in common.CLASSES if any(k["class"] == c for k in kernels)]
    right.legend(handles=[Patch(color=common.COLOURS[c], label=c) for c in used], fontsize=8, title="bound by")
    figure.suptitle(", ".join(sorted({k["gpu"] or "unknown GPU" for k in kernels})), fontsize=10)
    common.save(figure, options.out)


if __name__ == "__main__":
    main()
