#!/usr/bin/env python3
"""Honest programs that stop, sleep in host functions, wait for another process, or use many streams and threads, beside one
that always has work. Found: one of them gets next to nothing of what it gets when its neighbour is stopped or gone, twice in
a row.
"""
import signal
import time

from frame import BIN, Daemon, Run, eventually

# The least share of the steps that the steady program makes alone, on a machine that does other things. Neighbours with
# a right to work have a right to half, the others to next to nothing. In turns not all of a hundred threads are served
# within the hold limit. Those that wait for longer start beside the steady program.
LEAST_OF_STEADY = {"stopped": 1 / 3, "host": 1 / 3, "other": 1 / 3, "streams": 1 / 12, "threads": 1 / 60, "service": 1 / 12}
LEAST_OF_MANY = 1 / 60  # of launches alone, where nothing is counted; one a hold limit would be far less
WATCHED_S = 3
NEIGHBOUR_OF = {"stopped": "steady"}


class Program:
    def __init__(self, run, environment, kind, name, priority="best-effort"):
        self.file = run.folder / (name + ".steps")
        self.file.write_bytes(b"")
        command = [str(BIN / "tessera"), "run", "--gpu", "soft", "--priority", priority, "--",
                   str(BIN / "tests" / "progress_child"), kind, str(self.file)]
        self.run, self.name = run, name
        self.process = run.start(command, environment, name)

    def steps(self):
        return self.file.stat().st_size

    def begins(self):
        return eventually(lambda: self.steps() > 0 or self.process.poll() is not None) and self.process.poll() is None

    def per_second(self):
        before, began = self.steps(), time.monotonic()
        time.sleep(WATCHED_S)
        return (self.steps() - before) / (time.monotonic() - began)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.run.children.remove(self.process)


def judge(run, environment, what, least, measure, alone):
    """Twice: once may be the machine's doing."""
    for _ in range(2):
        beside = measure()
        if beside >= alone * least:
            return
    run.found(f"{what}, {environment['TESSERA_SOFTGPU_MODE']}: {beside:.1f} steps/s, {alone:.1f} alone")


def one(run, daemon, environment, kind):
    steady = Program(run, environment, "steady", "steady")
    if not steady.begins():
        return run.found("the steady program does not start: " + run.text("steady"))
    alone = steady.per_second()
    steady.process.send_signal(signal.SIGSTOP)
    priority = "high" if kind == "service" else "best-effort"
    odd = Program(run, environment, NEIGHBOUR_OF.get(kind, kind), "odd", priority)
    time.sleep(0.5)
    if kind not in ("host", "other") and not odd.begins():
        run.found(f"{kind} does not start: " + run.text("odd"))
    elif kind in ("streams", "threads"):
        odd_alone = odd.per_second()
        steady.process.send_signal(signal.SIGCONT)
        judge(run, environment, f"{kind} beside a steady program", LEAST_OF_MANY, odd.per_second, odd_alone)
    steady.process.send_signal(signal.SIGCONT)
    if kind == "stopped":
        time.sleep(run.random.uniform(0.2, 0.6))
        odd.process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)  # the first drain of who cannot drain is waited for, for a second
    judge(run, environment, f"a steady program beside: {kind}", LEAST_OF_STEADY[kind], steady.per_second, alone)
    for program in (odd, steady):
        if program.process.poll() is not None:
            run.found(f"{program.name} ended beside: {kind}: " + run.text(program.name)[-500:])
        program.end()


def main():
    run = Run("progress")
    kinds = []
    while run.goes_on():
        if not kinds:
            kinds = [(kind, mode) for kind in LEAST_OF_STEADY for mode in ("mps", "timesliced")]
            run.random.shuffle(kinds)
        kind, mode = kinds.pop()
        daemon = Daemon(run)
        if not daemon.start():
            run.found("the daemon does not start: " + run.text("daemon"))
            break
        environment = {"TESSERA_SOFTGPU_DIR": str(run.folder / f"gpu{run.runs}"), "TESSERA_SOFTGPU_MODE": mode,
                       "TESSERA_SOCKET": str(daemon.socket), "TESSERA_CACHE_DIR": str(run.folder / "cache")}
        one(run, daemon, environment, kind)
        daemon.end(signal.SIGTERM)
        run.runs += 1
    run.finish()


if __name__ == "__main__":
    main()
