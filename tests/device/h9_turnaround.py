#!/usr/bin/env python3
"""H9: turnaround by kernel length, in one regime: time slices, or --mps. A protected client launches a short kernel every few
milliseconds and waits for it; a best-effort client fills the device with kernels of 0.2 to 10 ms and eight waves, which can
gain by being cut (they come as PTX). What the protected one waits beyond being alone is the turnaround, with a daemon of our
own in a private folder."""
import argparse
import sys

import lab

WAVES = 8


def questions(args, environment):
    latency = ("--role", "latency", "--seconds", args.seconds, "--rounds", lab.rounds(0.05, environment))
    with lab.Daemon(args.tessera, args.tesserad) as daemon:
        def start(priority, *arguments):
            command = lab.sharer(*arguments)
            return lab.started(daemon.client(args.gpu, priority, *command) if priority else command, environment)

        report = {"waves": WAVES, "alone": lab.result(start("high", *latency)), "beside": []}
        alone_us = report["alone"].get("latency_us_p50", 0)
        for kernel_ms in map(float, args.kernels_ms.split(",")):
            kernel = lab.calibrated(kernel_ms, environment, WAVES)
            hog = ("--role", "hog", "--seconds", args.seconds + 2, "--rounds", kernel["rounds"], "--waves", WAVES)
            row = {"wanted_ms": kernel_ms, "kernel_ms": kernel["kernel_ms"]}
            for name, priorities in (("unmanaged", (None, None)), ("tessera", ("best-effort", "high"))):
                neighbour = start(priorities[0], *hog)
                daemon.await_clients()
                own = start(priorities[1], *latency)
                result = lab.result(own)
                row[f"{name}_kernels_per_s"] = lab.end(neighbour).get("kernels_per_s")
                for quantile in ("p50", "p99"):
                    key = f"latency_us_{quantile}"
                    if key in result:
                        row[f"{name}_turnaround_us_{quantile}"] = round(max(0.0, result[key] - alone_us), 1)
            daemon.check()
            report["beside"].append(row)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True, help="the tessera program")
    parser.add_argument("--tesserad", required=True, help="the daemon")
    parser.add_argument("--gpu", default="auto", choices=("auto", "soft"))
    parser.add_argument("--mps", action="store_true", help="under an MPS of our own")
    parser.add_argument("--seconds", type=float, default=4, help="per kernel length")
    parser.add_argument("--kernels-ms", default="0.2,1,10", help="lengths of the best-effort kernels")
    args = parser.parse_args()
    report = {**lab.info(), "question": "H9"}
    report.update(lab.with_mps(lambda environment, _: questions(args, environment), args.seconds) if args.mps else questions(args, {}))
    return lab.tell(report)


if __name__ == "__main__":
    sys.exit(main())
