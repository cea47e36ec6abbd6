#!/usr/bin/env python3
"""The daemon is killed, stopped, ended and reloaded at any moment, while programs run whose results are verified. Found:
a program that fails, hangs, computes something else or grows; a daemon that does not start again; a program that does
not come back to it.
"""
import signal
import time

from frame import BEST_EFFORT, PROTECTED, Clients, Daemon, Run, eventually, resident_kib

RESTARTS_TO_SETTLE = 10  # until a program has allocated what it allocates once
MOST_KIB_PER_RESTART = 3


def disturb(run, daemon):
    """One of the ways in which a daemon may go; afterwards another one serves."""
    how = run.random.choice(["kill", "kill", "stop and kill", "stop and continue", "end", "reload and kill"])
    time.sleep(run.random.uniform(0, 0.15))
    if how.startswith("stop"):
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(run.random.uniform(0, 0.4))  # answer_within_ms is 200
    if how == "stop and continue":
        daemon.process.send_signal(signal.SIGCONT)
        return how
    if how.startswith("reload"):
        daemon.process.send_signal(signal.SIGHUP)
    status = daemon.end(signal.SIGTERM if how == "end" else signal.SIGKILL)
    if how == "end" and status != 0:
        run.found(f"SIGTERM: the daemon's exit status is {status}: {run.text('daemon')[-500:]}")
    time.sleep(run.random.uniform(0, 0.1))
    if not daemon.start():
        run.found(f"no daemon starts after: {how}: {run.text('daemon')[-500:]}")
    return how


def main():
    run = Run("daemon_flapping")
    daemon = Daemon(run, "[daemon]\nanswer_within_ms = 200\n[policy]\nquantum_us = 2000\n")
    clients = Clients(run, daemon.socket)
    for load in (BEST_EFFORT, PROTECTED):
        clients.expect(load)
    if not daemon.start():
        run.found("the daemon does not start: " + run.text("daemon"))
    steps = run.folder / "steps"
    watched = clients.start(BEST_EFFORT, 0, steps=steps)  # runs all the time
    if not eventually(lambda: steps.exists() and steps.stat().st_size > 0):
        run.found("a program does not begin")
    short, restarts, settled_kib, settled_at = [], 0, 0, 0
    while run.goes_on():
        if len(short) < 2:
            load, priority = run.random.choice([(BEST_EFFORT, "best-effort"), (PROTECTED, "high")])
            short.append((*clients.start(load, run.random.randint(1, 40), gap_us=1000, priority=priority), load))
        disturb(run, daemon)
        restarts += 1
        run.runs += 1
        if restarts == RESTARTS_TO_SETTLE:
            settled_kib, settled_at = resident_kib(watched[1].pid), restarts
        for name, process, load in [s for s in short if s[1].poll() is not None]:
            clients.verify(name, process, load, "beside a flapping daemon")
        short = [s for s in short if s[1] in run.children]
    if not eventually(lambda: any(c["pid"] == watched[1].pid for c in (daemon.ask() or {"clients": []})["clients"])):
        run.found("a program does not come back to the daemon")
    if settled_kib:
        grown = resident_kib(watched[1].pid) - settled_kib
        run.notes["kib_per_restart"] = round(grown / max(1, restarts - settled_at), 1)
        if grown > 1024 + MOST_KIB_PER_RESTART * (restarts - settled_at):
            run.found(f"a program grew by {grown} KiB in {restarts - settled_at} restarts of the daemon")
    watched[1].send_signal(signal.SIGTERM)
    clients.verify(*watched, BEST_EFFORT, "after a flapping daemon")
    for name, process, load in short:
        clients.verify(name, process, load, "beside a flapping daemon")
    run.finish()


main()
