#!/usr/bin/env python3
"""What no scheduler can exceed that lets work run beside bursts on SMs of its own, pair by pair (docs/simulator.md).

A kernel of class k on a part w of the SMs makes a service's kernels of class j longer by contention[j][k] * w; over a burst that
is c_k * w, of its kernels by their time. If a burst may become longer by D, w is at most D / c_k, and at most what the service's
kernels leave free. The training then runs at full speed in the time that bursts leave, and at speed w beside them.

Assumed, all in the scheduler's favour: it knows every c_k from the start, which needs trials; what is in flight when a burst begins
costs nothing; each burst may lose all of D, so that mean and p99 are one; kernels can be cut anywhere and cost nothing to confine.

--in-order: less in its favour. A training's kernels run one after the other, so one that may hardly run beside a request holds up what
follows until that has ended; and a kernel of n waves takes ceil(n / w) of them on a part w.
"""
import argparse
import math
import pathlib
import random
import tomllib

HERE = pathlib.Path(__file__).parent
LEFT = 0.5  # of the time, by bursts: the grids' load
REQUESTS = 2000  # of --in-order
CLASSES = ("compute", "memory")


def load(name):
    return tomllib.loads((HERE / "parts" / name).read_text())


def times(workload):
    """({class: time of its kernels}, time of gaps, largest part of the GPU that a kernel fills) of one job."""
    of_class, gaps, fill = dict.fromkeys(CLASSES, 0.0), 0.0, 0.0
    for step in workload["step"]:
        repeat = step.get("repeat", 1)
        gaps += repeat * step.get("gap_us", 0)
        for kernel in step["segment"]:
            of_class[kernel["class"]] += repeat * kernel["count"] * kernel["us"]
            fill = max(fill, kernel.get("fill", 1))
    return of_class, gaps, fill


def widths(service, contention, may_lose):
    """{class of a neighbour: the widest that it may be beside this service}"""
    of_class, _, fill = times(service)
    whole = sum(of_class.values())
    cost = {k: sum(of_class[j] / whole * contention[j][k] for j in CLASSES) for k in CLASSES}
    return {k: min(1 - fill, may_lose / cost[k]) for k in CLASSES}


def share(training, width, left):
    of_class, gaps, _ = times(training)
    bounded = sum(of_class[k] / (left + (1 - left) * width[k]) for k in CLASSES)
    return (sum(of_class.values()) + gaps) / (bounded + gaps)


def phases(training):
    """[(class, waves per kernel, time of them all)] of one step, in order; class "" is host work."""
    found = []
    for step in training["step"]:
        found += [(k["class"], max(1, round(k["us"] / k["block_us"])), k["count"] * k["us"]) for k in step["segment"]]
        found.append(("", 1, step.get("gap_us", 0)))
    return found


def share_in_order(service, training, width, left):
    """As share(), with the order of the stream; requests as long as the service's, gaps that spread by cv 0.5 (burst_cv of the grid)."""
    draw, request_us = random.Random(1), sum(times(service)[0].values())
    shape = 1 / 0.5 ** 2
    alone_us, now_us, at, rest_us = 0.0, 0.0, 0, 0.0
    work = phases(training)
    rest_us = work[0][2]
    for turn in range(2 * REQUESTS):
        beside = turn % 2 == 1
        until_us = now_us + (request_us if beside else draw.gammavariate(shape, request_us * left / (1 - left) / shape))
        while now_us < until_us:
            kind, waves, whole_us = work[at]
            w = width[kind] if beside and kind else 1
            speed = waves / math.ceil(waves / w - 1e-9) if w > 0 else 0
            done_us = min(rest_us, (until_us - now_us) * speed)
            if speed == 0:
                now_us = until_us
                break
            now_us += done_us / speed
            alone_us += done_us
            rest_us -= done_us
            if rest_us <= 1e-6:
                at = (at + 1) % len(work)
                rest_us = work[at][2]
    return alone_us / now_us


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--left", type=float, default=LEFT, help="of the time, by bursts (default: %(default)s)")
    parser.add_argument("--in-order", action="store_true", help="kernels one after the other, in whole waves")
    args = parser.parse_args()
    left = args.left
    workloads = load("tally_workloads.toml")["workload"]
    services = [w for w in workloads if w["name"].endswith("_inference")]
    trainings = [w for w in workloads if w["name"].endswith("_training")]
    print("contention    may lose   share, mean   per service")
    for name, file in (("shipped", "a100.toml"), ("two thirds", "contention_two_thirds.toml"), ("disjoint", "contention_disjoint.toml")):
        contention = load(file)["contention_apart"]
        for may_lose in (0, 0.03, 0.05):
            pairs = [[(s, t, widths(s, contention, may_lose), left) for t in trainings] for s in services]
            shares = [[share_in_order(*pair) if args.in_order else share(*pair[1:]) for pair in row] for row in pairs]
            means = [sum(row) / len(row) for row in shares]
            print(f"{name:12} {may_lose:9.0%} {sum(means) / len(means):13.3f}   {', '.join(f'{m:.3f}' for m in means)}")


if __name__ == "__main__":
    main()
