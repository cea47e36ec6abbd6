#!/usr/bin/python3
"""Roofline of one GPU description with the kernels of a profile on it: operations per second over operations per byte.

usage: plot_roofline.py PROFILE_JSON GPU_TOML OUT.png|OUT.svg
Kernels of other GPUs and kernels without counted bytes or operations are named, not drawn.
"""
import argparse
import math
import sys
import tomllib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (backend first)
from matplotlib.patches import Patch  # noqa: E402

import profile_common as common  # noqa: E402


def roofs(gpu):
    """Peaks of the pipes in operations per second, by name."""
    names = {"fp64_tflops": "fp64", "fp32_tflops": "fp32", "fp16_tflops": "fp16", "tensor_tf32_tflops": "tensor tf32",
             "tensor_fp16_tflops": "tensor fp16", "tensor_fp8_tflops": "tensor fp8"}
    return {label: gpu["peak"][key] * 1e12 for key, label in names.items() if gpu["peak"].get(key)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile")
    parser.add_argument("gpu")
    parser.add_argument("out")
    options = parser.parse_args()
    with open(options.gpu, "rb") as file:
        gpu = tomllib.load(file)
    bandwidth = gpu["memory"]["gb_per_s"] * 1e9
    kernels = common.load(options.profile)
    drawn = [k for k in kernels if k["gpu"] == gpu["name"] and common.operations(k) and common.memory_bytes(k)]
    for kernel in kernels:
        if kernel not in drawn:
            print(f"not drawn: {kernel['label']} ({kernel['gpu'] or 'unknown GPU'})", file=sys.stderr)
    if not drawn:
        sys.exit(f"{options.profile}: no kernel with counted work on {gpu['name']}")

    intensity = [common.operations(k) / common.memory_bytes(k) for k in drawn]
    speed = [common.operations(k) / (k["duration"]["p50_ns"] * 1e-9) for k in drawn]
    peaks = roofs(gpu)
    low = min(intensity + [peaks["fp32"] / bandwidth]) / 4
    high = max(intensity + [max(peaks.values()) / bandwidth]) * 4
    figure, axes = plt.subplots(figsize=(9, 6))
    for label, peak in peaks.items():
        ridge = peak / bandwidth
        axes.plot([ridge, high], [peak, peak], color="black", linewidth=1.4 if label == "fp32" else 0.6)
        axes.text(high, peak, f"{label} ", ha="right", va="bottom", fontsize=8)
    top = max(peaks.values())
    axes.plot([low, top / bandwidth], [low * bandwidth, top], color="black", linewidth=1.4)
    axes.text(low, low * bandwidth, f"  {gpu['memory']['gb_per_s']:g} GB/s", ha="left", va="top", fontsize=8)
    total = sum(k["duration"]["total_ns"] for k in drawn)
    taken = []  # places of labels, in decades: right of the dot, unless that covers another
    for kernel, x, y in sorted(zip(drawn, intensity, speed), key=lambda row: row[1]):
        share = kernel["duration"]["total_ns"] / total
        area = 40 + 900 * share
        axes.scatter(x, y, s=area, color=common.COLOURS[kernel["class"]], alpha=0.6)
        here = (math.log10(x), math.log10(y))
        crowded = any(abs(here[0] - there[0]) < 0.5 and abs(here[1] - there[1]) < 0.12 for there in taken)
        taken.append(here)
        aside = math.sqrt(area) / 2 + 3
        axes.annotate(kernel["label"], (x, y), textcoords="offset points", va="center", fontsize=8,
                      ha="right" if crowded else "left", xytext=(-aside if crowded else aside, 0))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(which="both", linewidth=0.2)
    axes.set_xlabel("operations per byte of device memory")
    axes.set_ylabel("operations per second")
    axes.set_title(f"{gpu['name']}: roofline, area by share of time")
    used = [c for c in common.CLASSES if any(k["class"] == c for k in drawn)]
    axes.legend(handles=[Patch(color=common.COLOURS[c], label=c) for c in used], fontsize=8, title="bound by",
                loc="lower right")
    common.save(figure, options.out)


if __name__ == "__main__":
    main()
