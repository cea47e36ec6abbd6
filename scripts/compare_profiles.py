#!/usr/bin/python3
"""What moved between two profiles (two versions of a program, or two GPUs): durations, time, classes.

usage: compare_profiles.py OLD_JSON NEW_JSON [OUT.png|OUT.svg] [--by image|name] [--old-gpu NAME] [--new-gpu NAME]
Kernels are matched by name, block, grid bucket and shared memory, with --by image also by the program's text. A file with
several GPUs is read for one of them by --old-gpu and --new-gpu (part of the name); OLD and NEW may then be the same file.
"""
import argparse
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (backend first)
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

import profile_common as common  # noqa: E402


def of_gpu(path, part):
    kernels = [k for k in common.load(path) if part.lower() in k["gpu"].lower()]
    if not kernels:
        sys.exit(f"{path}: holds no kernel of a GPU whose name contains '{part}'")
    return kernels


def gpus(table):
    return ", ".join(sorted({k["gpu"] or "unknown GPU" for k in table.values()}))


def keyed(kernels, by):
    table = {}
    for k in kernels:
        key = (k["kernel"], tuple(k["block_threads"]), k["grid_bucket"], k["dynamic_shared_bytes"])
        # Several GPUs or origins in one file: the record with most samples speaks for the key.
        key += (k["image_hash"],) if by == "image" else ()
        if key not in table or table[key]["duration"]["samples"] < k["duration"]["samples"]:
            table[key] = k
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--by", choices=("image", "name"), default="name")
    parser.add_argument("--old-gpu", default="")
    parser.add_argument("--new-gpu", default="")
    options = parser.parse_args()
    old, new = (keyed(of_gpu(path, part), options.by)
                for path, part in ((options.old, options.old_gpu), (options.new, options.new_gpu)))
    print(f"old: {gpus(old)}\nnew: {gpus(new)}")
    both = sorted(set(old) & set(new), key=lambda key: -old[key]["duration"]["total_ns"])
    print(f"{'KERNEL':<36} {'OLD p50 ms':>11} {'NEW p50 ms':>11} {'NEW/OLD':>8}  CLASS")
    ratios = []
    for key in both:
        a, b = old[key], new[key]
        ratios.append(common.median_ms(b) / common.median_ms(a))
        classes = a["class"] if a["class"] == b["class"] else f"{a['class']} -> {b['class']}"
        print(f"{a['label']:<36} {common.median_ms(a):>11.4f} {common.median_ms(b):>11.4f} {ratios[-1]:>8.3g}  {classes}")
    for title, only in (("only in the old one", set(old) - set(new)), ("only in the new one", set(new) - set(old))):
        for key in sorted(only):
            print(f"{title}: {(old.get(key) or new[key])['label']}")
    if not options.out or not both:
        return
    figure, axes = plt.subplots(figsize=(9, 1.8 + 0.38 * len(both)))
    colours = [common.COLOURS[new[key]["class"]] for key in both]
    axes.barh(range(len(both)), [r - 1 for r in ratios], left=1, color=colours)
    for place, ratio in enumerate(ratios):
        axes.text(ratio, place, f" {ratio:.3g} ", va="center",
                  ha="left" if ratio >= 1 else "right", fontsize=8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    narrow = max(ratios + [1]) / min(ratios + [1]) < 20
    room = 1.6 if narrow else 3
    axes.set_xlim(min(ratios + [1]) / room, max(ratios + [1]) * room)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if narrow else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(both)), [old[key]["label"] for key in both], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("median duration, new over old (left of 1 is faster)")
    axes.set_title(f"what moved: {gpus(old)} to {gpus(new)}" if gpus(old) != gpus(new) else f"what moved on {gpus(new)}")
    common.save(figure, options.out)


if __name__ == "__main__":
    main()
