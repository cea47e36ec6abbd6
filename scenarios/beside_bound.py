#!/usr/bin/env python3
"""What no scheduler can exceed that lets work run during bursts on SMs of its own, pair by pair (docs/simulator.md).

A kernel of class k on a part w of the SMs makes a service's kernels of class j longer by contention[j][k] * w; over a burst that
is c_k * w, of its kernels by their time. If a burst may become longer by D, w is at most D / c_k, and at most what the service's
kernels leave free. The training then runs at full speed in the time that bursts leave, and at speed w beside them.

Assumed, all in the scheduler's favour: it knows every c_k from the start, which needs trials; what is in flight when a burst begins
costs nothing; each burst may lose all of D, so that mean and p99 are one; kernels can be cut anywhere and cost nothing to confine.

--in-order: less in its favour. A training's kernels run one after the other, so one that may hardly run beside a request holds up what
follows until that has ended; and a kernel of n waves takes ceil(n / w) of them on a part w.

--in-flight: still less. Between bursts, too, a kernel either keeps to the SMs that the service leaves free, or fills the GPU, and then a burst
waits for one of its blocks: what that takes is off what the burst may lose. The better of both for each class of each pair.
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
    fill = times(service)[2]
    return {k: min(1 - fill, may_lose / cost) for k, cost in costs(service, contention).items()}


def costs(service, contention):
    """{class of a neighbour: by how much it makes this service's bursts longer, per GPU of width}"""
    of_class = times(service)[0]
    return {k: sum(of_class[j] * contention[j][k] for j in CLASSES) / sum(of_class.values()) for k in CLASSES}


def speed(waves, width):
    """Of a kernel on a part of the SMs, against all of them."""
    return waves / math.ceil(waves / width - 1e-9) if width > 0 else 0


def widths_in_flight(service, training, contention, may_lose, left):
    """({class: width between bursts}, {class: beside them}), the better of both ways."""
    of_class, _, fill = times(service)
    burst_us = sum(of_class.values()) / max(1, sum(s.get("repeat", 1) for s in service["step"] if s.get("gap_us")))
    between, beside = {}, {}
    for k, cost in costs(service, contention).items():
        kernels = [kernel for step in training["step"] for kernel in step["segment"] if kernel["class"] == k]
        block_us = max(kernel["block_us"] for kernel in kernels)
        waves = max(1, round(max(kernel["us"] for kernel in kernels) / block_us))
        ways = [(w, min(1 - fill, max(0, may_lose - waits_us / burst_us) / cost))
                for w, waits_us in ((1, block_us), (1 - fill, 0)) if waits_us / burst_us <= may_lose]
        between[k], beside[k] = max(ways, key=lambda way: left * speed(waves, way[0]) + (1 - left) * speed(waves, way[1]))
    return between, beside


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


def share_in_order(service, training, width, left, between=None):
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
            rate = speed(waves, (width if beside else between or {}).get(kind, 1))
            done_us = min(rest_us, (until_us - now_us) * rate)
            if rate == 0:
                now_us = until_us
                break
            now_us += done_us / rate
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
    parser.add_argument("--in-flight", action="store_true", help="and what is in flight when a burst begins counts")
    args = parser.parse_args()
    left = args.left
    workloads = load("tally_workloads.toml")["workload"]
    services = [w for w in workloads if w["name"].endswith("_inference")]
    trainings = [w for w in workloads if w["name"].endswith("_training")]
    print("contention    may lose   share, mean   per service")
    for name, file in (("shipped", "a100.toml"), ("two thirds", "contention_two_thirds.toml"), ("disjoint", "contention_disjoint.toml")):
        contention = load(file)["contention_disjoint"]
        for may_lose in (0, 0.03, 0.0375, 0.05):
            if args.in_flight:
                pairs = [[(s, t, *reversed(widths_in_flight(s, t, contention, may_lose, left))) for t in trainings] for s in services]
                shares = [[share_in_order(s, t, beside, left, between) for s, t, beside, between in row] for row in pairs]
            else:
                pairs = [[(s, t, widths(s, contention, may_lose), left) for t in trainings] for s in services]
                shares = [[share_in_order(*pair) if args.in_order else share(*pair[1:]) for pair in row] for row in pairs]
            means = [sum(row) / len(row) for row in shares]
            print(f"{name:12} {may_lose:9.2%} {sum(means) / len(means):13.3f}   {', '.join(f'{m:.3f}' for m in means)}")


if __name__ == "__main__":
    main()
