#!/usr/bin/env python3
"""Does the software GPU execute kernels as early as it can? Reads the traces of a demo (docs/softgpu-timing.md).

usage: softgpu_lead.py [DEMO_FOLDER]   (default build/demo, as `tessera demo --gpu soft` leaves it)

For each process of each regime, in modelled microseconds:
  ahead    share of the kernels whose execution began before their modelled start
  waited   from when a kernel could be executed (given, and its stream's previous one executed) until it was: p50, p99
  execute  how long it took: p50
  given    from when it was given until its modelled end: p50, p1
  lag      sum of lag over sum of modelled durations
"""
import csv
import pathlib
import sys


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] / 1e3


def row(path):
    executed, ahead, waited, execute, given, lag, duration = {}, 0, [], [], [], 0, 0
    with open(path, newline="") as file:
        for r in csv.DictReader(file):
            if r["kind"] != "kernel" or r["functional_end_ns"] == "0":
                continue
            enqueued, start, end = (int(r[k]) for k in ("enqueued_ns", "start_ns", "end_ns"))
            begun, ended = int(r["functional_start_ns"]), int(r["functional_end_ns"])
            waited.append(begun - max(enqueued, executed.get(r["stream"], 0)))
            executed[r["stream"]] = ended
            ahead += begun < start
            execute.append(ended - begun)
            given.append(end - enqueued)
            lag += int(r["lag_ns"])
            duration += end - start
    if not waited:
        return None
    return (f"{len(waited):8} {ahead / len(waited):7.3f} {at(waited, .5):10.1f} {at(waited, .99):8.1f} {at(execute, .5):9.1f} "
            f"{at(given, .5):11.1f} {at(given, .01):9.1f} {lag / max(1, duration):9.5f}")


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo")
    traces = sorted(folder.glob("*/trace/softgpu-*.csv"))
    if not traces:
        print(f"no traces under {folder}: run tessera demo --gpu soft --out {folder}", file=sys.stderr)
        return 1
    print(f"{'regime':22} {'process':>8} {'kernels':>8} {'ahead':>7} {'waited p50':>10} {'p99':>8} {'execute':>9} {'given p50':>11} "
          f"{'p1':>9} {'lag':>9}")
    for path in traces:
        text = row(path)
        if text:
            print(f"{path.parts[-3]:22} {path.stem.split('-')[1]:>8} {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
