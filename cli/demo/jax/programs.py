"""The demo's two programs, whatever they compute: kernels/samples/latency_service.cu and batch_trainer.cu in Python, with the
same options, files and output. Used by service.py and trainer.py, and by tests/frameworks/program.py."""
import argparse
import collections
import random
import signal
import statistics

import clock


def arrivals(seed, rate, seconds):
    """Nanoseconds after the start."""
    draws, at, result = random.Random(seed), 0.0, []
    while (at := at + draws.expovariate(rate)) < seconds:
        result.append(int(at * 1e9))
    return result


INPUTS = 8  # which requests use in turn; made before the clock starts
GRACE_SHARE = 0.25  # a service works off what has waited for this part of the time in which requests arrive


class Answers:
    """What the inputs lead to, and whether every request of one input led to the same."""

    def __init__(self):
        self.first, self.checksum = {}, clock.Checksum()

    def add(self, index, answer):
        if self.first.setdefault(index % INPUTS, answer.tobytes()) != answer.tobytes():
            self.checksum.add(answer)

    def __str__(self):
        for index in sorted(self.first):
            self.checksum.digest.update(self.first[index])
        return str(self.checksum)


def timed_ms(service, inputs, count, answers):
    """Milliseconds of each of N requests, back to back."""
    times = []
    for index in range(count):
        begin = clock.now_ns()
        answer = service.request(inputs[index % INPUTS])
        times.append((clock.now_ns() - begin) / 1e6)
        answers.add(index, answer)
    return times


def serve(make, description, words=None):
    """Requests arrive at random; each counts from its intended arrival to the result on the host. `make(seed)` has input(), and
    request(input), which answers with an array on the host."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rate", type=float, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--calibrate", type=int, metavar="N")
    parser.add_argument("--csv")
    parser.add_argument("--stretch", type=float, default=1)
    options = parser.parse_args(words)
    clock.stretch = options.stretch
    service = make(options.seed)
    inputs, answers = [service.input() for _ in range(INPUTS)], Answers()
    timed_ms(service, inputs, options.warmup, answers)  # compiles
    if options.calibrate:
        print(f"service_p50_ms={statistics.median(timed_ms(service, inputs, options.calibrate, answers)):.4f}")
        return
    rows, schedule = [], arrivals(options.seed, options.rate, options.seconds)
    begin = clock.now_ns()
    end = begin + int(options.seconds * (1 + GRACE_SHARE) * 1e9)
    for index, after in enumerate(schedule):
        clock.sleep_until_ns(begin + after)
        start = clock.now_ns()
        if start >= end:
            break
        answer = service.request(inputs[index % INPUTS])
        rows.append((index, begin + after, start, clock.now_ns()))
        answers.add(index, answer)
    with open(options.csv, "w") as file:
        file.write("request,intended_ns,start_ns,end_ns\n")
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    print(f"requests={len(rows)} lost={len(schedule) - len(rows)} checksum={answers}")


def train(make, description, words=None, queued_steps=2):
    """At most `queued_steps` steps are queued ahead. `make(seed)` has step(), which queues one and answers with a function that
    waits for it; and arrays(), what the steps so far left."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--checksum-steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--stretch", type=float, default=1)
    options = parser.parse_args(words)
    clock.stretch = options.stretch
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))  # ends after the present step, with the report
    trainer, queued, checksum = make(options.seed), collections.deque(), clock.Checksum()
    for _ in range(options.checksum_steps):
        trainer.step()()
    for array in trainer.arrays():
        checksum.add(array)
    with open(options.csv, "w", buffering=1) as file:  # whoever watches the file sees the training progress
        file.write("step,start_ns,end_ns\n")
        ended, last = options.checksum_steps, clock.now_ns()
        deadline = last + int(options.seconds * 1e9)
        while not over and clock.now_ns() < deadline:
            queued.append(trainer.step())
            if len(queued) > queued_steps:
                queued.popleft()()
                now = clock.now_ns()
                file.write(f"{ended},{last},{now}\n")
                ended, last = ended + 1, now
    for wait in queued:
        wait()
    print(f"steps={ended} checksum_steps={options.checksum_steps} checksum={checksum}")
