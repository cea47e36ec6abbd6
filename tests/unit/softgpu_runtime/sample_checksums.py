#!/usr/bin/env python3
"""sample_checksums.py BIN_FOLDER: the samples' checksums depend on seed and sizes only: not on how long they ran, nor on
sharing the device; SIGTERM ends the trainer with its report; bad options are refused with a message."""
import re
import signal
import subprocess
import sys
import tempfile

BIN = sys.argv[1]
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)


def start(name, *options):
    return subprocess.Popen([f"{BIN}/{name}", "--preset", "soft", *map(str, options)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def checksum(process):
    out, err = process.communicate(timeout=60)
    found = re.search(r"\bchecksum=([0-9a-f]{16})\b", out)
    expect(process.returncode == 0 and found, f"no checksum (exit {process.returncode}): {out}{err}")
    return found and found.group(1)


def main():
    trainer_sizes = ("--m", 64, "--n", 64, "--parameters", 4096)
    alone = checksum(start("batch_trainer", *trainer_sizes, "--steps", 5))
    expect(checksum(start("batch_trainer", *trainer_sizes, "--steps", 12)) == alone, "depends on the number of steps")
    expect(checksum(start("batch_trainer", *trainer_sizes, "--steps", 5, "--seed", 3)) != alone, "ignores the seed")
    expect(checksum(start("batch_trainer", *trainer_sizes, "--steps", 5, "--checksum-steps", 4)) != alone,
           "does not depend on the steps that it covers")

    service_options = ("--rows", 32, "--requests", 10, "--rate", 100)
    service_alone = checksum(start("latency_service", *service_options))
    trainer = start("batch_trainer", *trainer_sizes, "--seconds", 30)
    trainer.stdout.readline()  # the sizes: past the warm-up, in the loop
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as csv:
        shared = checksum(start("latency_service", *service_options, "--csv", csv.name))
        rows = [line.strip().split(",") for line in csv]
    expect(shared == service_alone, "the service's results depend on sharing")
    expect(rows and rows[0] == ["request", "intended_ns", "start_ns", "end_ns"] and len(rows) == 11, f"csv: {rows[:2]}")
    expect(all(int(r[1]) <= int(r[2]) < int(r[3]) for r in rows[1:]), "a request began before it was meant to")
    trainer.send_signal(signal.SIGTERM)
    expect(checksum(trainer) == alone, "the trainer's result depends on sharing")

    eager_sizes = ("--layers", 1, "--rows", 32, "--columns", 32, "--product-rows", 32, "--depth", 16, "--parameters", 1024)
    eager = checksum(start("eager_trainer", *eager_sizes, "--steps", 5))
    expect(checksum(start("eager_trainer", *eager_sizes, "--steps", 9, "--busy", 0.9)) == eager,
           "the eager trainer's result depends on the number of steps, or on its CPU time")
    expect(checksum(start("eager_trainer", *eager_sizes, "--steps", 5, "--cpu-us", 1)) == eager,
           "the eager trainer's result depends on its CPU time")
    expect(checksum(start("eager_trainer", *eager_sizes, "--steps", 5, "--seed", 3)) != eager,
           "the eager trainer ignores the seed")
    expect(checksum(start("latency_service", *service_options[:2], "--requests", 20, "--rate", 1000)) == service_alone,
           "the service's result depends on the number of its requests")
    # Nobody could keep up: it ends a quarter of its time later, and says how many were lost.
    overloaded = start("latency_service", *service_options[:2], "--seconds", 0.05, "--rate", 100000)
    out, _ = overloaded.communicate(timeout=60)
    found = re.search(r"requests=(\d+) lost=(\d+)", out)
    expect(found and int(found[2]) > 0 and 4000 < int(found[1]) + int(found[2]) < 6000, f"nothing was lost: {out}")

    for name, options in {"latency_service": ["--rate", "nan"], "batch_trainer": ["--steps", "x"], "eager_trainer": ["--busy", "2"]}.items():
        refused = start(name, *options)
        _, err = refused.communicate(timeout=60)
        expect(refused.returncode == 1 and err.startswith("error: "), f"{name} {options}: {refused.returncode} {err}")

    print("\n".join(failures) or "checksums equal")
    return 1 if failures else 0


sys.exit(main())
