#!/usr/bin/env python3
"""H5: how long are the driver's time slices between processes, and what does a switch cost? Two processes keep the
device full with short kernels; each sees its own runs and the gaps in between. A gap is the other's slice and two
switches; throughput of both together against one alone gives the share lost."""
import argparse
import json
import sys

import lab


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="per measurement")
    parser.add_argument("--kernel-ms", type=float, default=0.1, help="length of one short kernel")
    args = parser.parse_args()
    report = {"question": "H5", **{k: v for k, v in lab.info().items() if k != "question"}}

    report["alone"] = lab.result(lab.start("--role", "hog", "--seconds", args.seconds, "--kernel-ms", 5))
    hogs = [lab.start("--role", "hog", "--seconds", args.seconds, "--kernel-ms", 5) for _ in range(2)]
    report["together"] = [lab.result(hog) for hog in hogs]
    pulses = [lab.start("--role", "pulse", "--seconds", args.seconds, "--kernel-ms", args.kernel_ms) for _ in range(2)]
    report["pulses"] = [lab.result(pulse) for pulse in pulses]

    alone, both = report["alone"].get("kernels_per_s"), [h.get("kernels_per_s") for h in report["together"]]
    if alone and all(both):
        report["share_lost_to_switching"] = round(1 - sum(both) / alone, 4)
    runs = [p["run_ms_p50"] for p in report["pulses"] if p.get("gaps")]
    gaps = [p["gap_ms_p50"] for p in report["pulses"] if p.get("gaps")]
    if runs and gaps:
        report["slice_ms"] = round(sum(runs) / len(runs), 4)
        report["gap_ms"] = round(sum(gaps) / len(gaps), 4)
        report["switch_us"] = round(max(0.0, report["gap_ms"] - report["slice_ms"]) / 2 * 1000, 1)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
