#!/usr/bin/env python3
"""H5: how long are the driver's time slices between processes, and what does a switch cost? Two processes keep the
device full with short kernels; each sees its own runs and the gaps in between. Throughput of two long-kernel
processes together against one alone gives the share lost to switching."""
import argparse
import sys

import lab


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="per measurement")
    parser.add_argument("--kernel-ms", type=float, default=0.1, help="length of one short kernel")
    args = parser.parse_args()
    report = {**lab.info(), "question": "H5"}

    long, short = lab.rounds(5), lab.rounds(args.kernel_ms)
    hog = ("--role", "hog", "--seconds", args.seconds, "--kernel-ms", 5, "--rounds", long)
    pulse = ("--role", "pulse", "--seconds", args.seconds, "--kernel-ms", args.kernel_ms, "--rounds", short)
    report["alone"] = lab.result(lab.start(*hog))
    hogs = [lab.start(*hog) for _ in range(2)]
    report["together"] = [lab.result(process) for process in hogs]
    pulses = [lab.start(*pulse) for _ in range(2)]
    report["pulses"] = [lab.result(process) for process in pulses]

    alone, both = report["alone"].get("kernels_per_s"), [h.get("kernels_per_s") for h in report["together"]]
    if alone and all(both):
        report["share_lost_to_switching"] = round(1 - sum(both) / alone, 4)
    cycles = [p["run_ms_p50"] + p["gap_ms_p50"] + args.kernel_ms for p in report["pulses"] if p.get("gaps")]
    if cycles and "share_lost_to_switching" in report:
        # One cycle is two slices and two switches; the share that both together lose is the switches'.
        half_ms = sum(cycles) / len(cycles) / 2
        report["switch_us"] = round(half_ms * max(0.0, report["share_lost_to_switching"]) * 1000, 1)
        report["slice_ms"] = round(half_ms - report["switch_us"] / 1000, 4)
    return lab.tell(report)


if __name__ == "__main__":
    sys.exit(main())
