#!/usr/bin/python3
"""Roofline of one GPU description with the kernels of a profile on it: operations per second over operations per byte.

usage: plot_roofline.py [--operations] PROFILE_JSON GPU_TOML OUT.png|OUT.svg
Kernels of other GPUs and kernels without counted bytes or operations are named, not drawn.
--operations: what the program asked of cuBLAS instead, each by what its call says; those whose kernels were not timed are
named, not drawn.
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


MOST_NAMES = 15  # more labels cover each other; the rest are dots


def roofs(gpu):
    """Peaks of the pipes in operations per second, by name."""
    names = {"fp64_tflops": "fp64", "fp32_tflops": "fp32", "fp16_tflops": "fp16", "tensor_tf32_tflops": "tensor tf32",
             "tensor_fp16_tflops": "tensor fp16", "tensor_fp8_tflops": "tensor fp8"}
    return {label: gpu["peak"][key] * 1e12 for key, label in names.items() if gpu["peak"].get(key)}


def kernel_points(path, gpu):
    """Kernels that ran on this GPU: by what was counted, at their median time."""
    points = []
    for kernel in common.load(path):
        if kernel["gpu"] == gpu["name"] and common.operations(kernel) and common.memory_bytes(kernel):
            points.append({"label": kernel["label"], "class": kernel["class"], "total_ns": kernel["duration"]["total_ns"],
                           "intensity": common.operations(kernel) / common.memory_bytes(kernel),
                           "speed": common.operations(kernel) / (kernel["duration"]["p50_ns"] * 1e-9)})
        else:
            print(f"not drawn: {kernel['label']} ({kernel['gpu'] or 'unknown GPU'})", file=sys.stderr)
    return points


def operation_points(path):
    """Library calls: by what they say, over the time of the kernels launched below them."""
    points = []
    for call in common.load_operations(path):
        label = f"{call['name'].removeprefix('cublas').removesuffix('_v2')} {call['shape']} {call['type']}"
        if call.get("gpu_ns", 0) > 0 and call["flop"] and call["bytes"]:
            points.append({"label": label, "class": call["class"], "total_ns": call["gpu_ns"],
                           "intensity": call["flop"] / call["bytes"], "speed": call["flop"] / (call["gpu_ns"] * 1e-9)})
        else:
            print(f"not drawn: {label}: not timed, or computes nothing", file=sys.stderr)
    return points


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile")
    parser.add_argument("--operations", action="store_true")
    parser.add_argument("gpu")
    parser.add_argument("out")
    options = parser.parse_args()
    with open(options.gpu, "rb") as file:
        gpu = tomllib.load(file)
    bandwidth = gpu["memory"]["gb_per_s"] * 1e9
    drawn = operation_points(options.profile) if options.operations else kernel_points(options.profile, gpu)
    if not drawn:
        what = "timed operation" if options.operations else f"kernel with counted work on {gpu['name']}"
        sys.exit(f"{options.profile}: no {what}")

    intensity = [p["intensity"] for p in drawn]
    speed = [p["speed"] for p in drawn]
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
    total = sum(p["total_ns"] for p in drawn)
    named = sorted(drawn, key=lambda point: -point["total_ns"])[:MOST_NAMES]
    taken = []  # places of labels, in decades: right of the dot, unless that covers another
    for kernel, x, y in sorted(zip(drawn, intensity, speed), key=lambda row: row[1]):
        share = kernel["total_ns"] / total
        area = 40 + 900 * share
        axes.scatter(x, y, s=area, color=common.COLOURS[kernel["class"]], alpha=0.6)
        if kernel not in named:
            continue
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
    axes.set_title(f"{gpu['name']}: roofline, {'operations' if options.operations else 'kernels'}, area by share of time")
    used = [c for c in common.CLASSES if any(k["class"] == c for k in drawn)]
    axes.legend(handles=[Patch(color=common.COLOURS[c], label=c) for c in used], fontsize=8, title="bound by",
                loc="lower right")
    common.save(figure, options.out)


if __name__ == "__main__":
    main()
