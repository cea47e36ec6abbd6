#!/usr/bin/env python3
"""Programs are started, stopped and killed at any moment beside others whose results are verified. Found: one of those
fails, hangs or computes something else; a daemon that ends, grows, keeps descriptors or remembers the dead.
"""
import signal
import time

from frame import BEST_EFFORT, PROTECTED, Clients, Daemon, Run, descriptors, eventually, resident_kib

AT_ONCE = 4


def main():
    run = Run("client_storm")
    daemon = Daemon(run, "[policy]\nquantum_us = 2000\nmin_share_percent = 20\ndrain_timeout_ms = 100\n")
    clients = Clients(run, daemon.socket)
    for load in (BEST_EFFORT, PROTECTED):
        clients.expect(load)
    if not daemon.start():
        run.found("the daemon does not start: " + run.text("daemon"))
    lasting = [(*clients.start(BEST_EFFORT, 0), BEST_EFFORT),
               (*clients.start(PROTECTED, 0, gap_us=2000, priority="high"), PROTECTED)]
    pids = {process.pid for _, process, _ in lasting}

    def alone():
        answer = daemon.ask()
        return answer is not None and {c["pid"] for c in answer["clients"]} == pids
    if not eventually(alone):
        run.found("programs do not attach")
    fds, kib, storm = 0, 0, []
    while run.goes_on() and daemon.is_up():
        load, priority = run.random.choice([(BEST_EFFORT, "best-effort"), (PROTECTED, "high")])
        storm.append(clients.start(load, 0, priority=priority))
        run.runs += 1
        time.sleep(run.random.uniform(0, 0.2))
        victim = run.random.choice(storm)
        if run.random.random() < 0.3:
            victim[1].send_signal(signal.SIGSTOP)
        while len(storm) >= AT_ONCE or (storm and not run.goes_on()):
            name, process = storm.pop(run.random.randrange(len(storm)))
            process.kill()
            process.wait()
            run.children.remove(process)
            for end in (".out", ".err"):
                (run.folder / (name + end)).unlink()
        if run.runs == 20:  # what is allocated once has been
            fds, kib = descriptors(daemon.process.pid), resident_kib(daemon.process.pid)
    if not daemon.is_up():
        run.found("the daemon ended: " + run.text("daemon")[-500:])
    elif not eventually(alone):
        run.found("the daemon remembers the dead")
    if fds and not eventually(lambda: descriptors(daemon.process.pid) <= fds):
        run.found(f"the daemon keeps descriptors: {descriptors(daemon.process.pid)} instead of {fds}")
    if kib and resident_kib(daemon.process.pid) > kib + 4096:
        run.found(f"the daemon grew from {kib} to {resident_kib(daemon.process.pid)} KiB")
    for name, process, load in lasting:
        process.send_signal(signal.SIGTERM)
        clients.verify(name, process, load, "beside programs that are killed")
    run.finish()


main()
