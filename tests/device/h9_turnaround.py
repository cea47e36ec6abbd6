#!/usr/bin/env python3
"""H9: turnaround by kernel length and regime. A protected client launches a short kernel every few milliseconds and
waits for it; a best-effort client fills the device with kernels of 0.1 to 100 ms. What the protected one waits beyond
being alone is the turnaround, for cut kernels (they come as PTX), with a daemon of our own in a private folder."""
import argparse
import json
import sys

import lab


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True, help="the tessera program")
    parser.add_argument("--tesserad", required=True, help="the daemon")
    parser.add_argument("--gpu", default="auto", choices=("auto", "soft"))
    parser.add_argument("--seconds", type=float, default=4, help="per kernel length")
    parser.add_argument("--kernels-ms", default="0.1,1,10,100", help="lengths of the best-effort kernels")
    args = parser.parse_args()
    report = {"question": "H9", **{k: v for k, v in lab.info().items() if k != "question"}}
    short = lab.rounds(0.05)
    latency = ("--role", "latency", "--seconds", args.seconds, "--rounds", short)
    with lab.Daemon(args.tessera, args.tesserad) as daemon:
        def start(priority, *arguments):
            command = lab.sharer(*arguments)
            return lab.started(daemon.client(args.gpu, priority, *command) if priority else command)

        report["alone"] = lab.result(start("high", *latency))
        alone_us = report["alone"].get("latency_us_p50", 0)
        report["beside"] = []
        for kernel_ms in map(float, args.kernels_ms.split(",")):
            hog = ("--role", "hog", "--seconds", args.seconds + 2, "--rounds", lab.rounds(kernel_ms))
            row = {"kernel_ms": kernel_ms}
            for name, priorities in (("unmanaged", (None, None)), ("tessera", ("best-effort", "high"))):
                neighbour, own = start(priorities[0], *hog), start(priorities[1], *latency)
                result = lab.result(own)
                lab.end(neighbour)
                for quantile in ("p50", "p99"):
                    key = f"latency_us_{quantile}"
                    if key in result:
                        row[f"{name}_turnaround_us_{quantile}"] = round(max(0.0, result[key] - alone_us), 1)
            daemon.check()
            report["beside"].append(row)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
