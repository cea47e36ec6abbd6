#!/usr/bin/env python3
"""What no scheduler can exceed that neither knows when bursts come nor stops blocks (docs/policy.md).

Blocks of length L on a part w of the GPU slow the burst that meets them by c * w until they end. If it may lose D,
w is at most D / (c * (min(L, burst) - D)), and 1 where L is at most D. The share is the time that bursts leave, weighted
by how much longer the programs of tally_workloads.toml take so. Slicing, waking and noticing cost nothing here.
"""
import argparse
import math
import pathlib
import random
import tomllib

BURST_US = 4230  # BERT's request
CONTENTION = {"compute": 0.75, "memory": 0.3}  # of compute beside that, as in parts/a100.toml
JOBS = 60


def lognormal(draw: random.Random, cv: float) -> float:
    variance = math.log(1 + cv * cv)
    return math.exp(draw.gauss(-variance / 2, math.sqrt(variance)))


def width(block_us: float, contention: float, may_lose_us: float) -> float:
    if block_us <= may_lose_us:
        return 1
    return min(1, may_lose_us / (contention * (min(block_us, BURST_US) - may_lose_us)))


def share(workload: dict, may_lose_us: float, tails_cv: float, left: float) -> float:
    draw, alone_us, bounded_us = random.Random(1), 0.0, 0.0
    for step in workload["step"] * JOBS:
        alone_us += step["gap_us"]
        bounded_us += step["gap_us"]
        for kernel in step["segment"]:
            waves = max(1, round(kernel["us"] / kernel["block_us"]))
            for _ in range(kernel["count"]):
                block_us = kernel["us"] / waves * lognormal(draw, kernel["cv"]) * lognormal(draw, tails_cv)
                alone_us += waves * block_us
                bounded_us += waves * block_us / width(block_us, CONTENTION[kernel["class"]], may_lose_us)
    return left * alone_us / bounded_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--left", type=float, default=0.516, help="of the time, by bursts (default: %(default)s)")
    left = parser.parse_args().left
    file = pathlib.Path(__file__).parent / "parts" / "tally_workloads.toml"
    trainings = [w for w in tomllib.loads(file.read_text())["workload"] if w["name"].endswith("_training")]
    print("may lose   kernel_cv   share")
    for may_lose in (0.036, 0.05, 0.08):
        for tails_cv in (0, 1.5):
            shares = [share(w, may_lose * BURST_US, tails_cv, left) for w in trainings]
            print(f"{may_lose:8.1%} {tails_cv:11} {sum(shares) / len(shares):7.3f}")


if __name__ == "__main__":
    main()
