#!/usr/bin/env python3
"""Programs and daemons with few descriptors, little address space, or no /proc. Found: a program that fails, hangs or
computes something else although it runs so without Tessera; a daemon without /proc that does not serve.
"""
import os
import resource
import signal
import subprocess

from frame import BEST_EFFORT, PATIENCE_S, Clients, Daemon, Run, eventually

# Address space that Tessera may need beyond the program's own: its libraries and regions, the stack of its thread, and the
# arena that malloc makes for that thread once the driver allocates there, of which 128 MiB are mapped to keep 64.
OURS_BYTES = 160 << 20
NO_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"']


def runs_bare(run, clients, limits):
    name, bare = clients.start(BEST_EFFORT, 2, limits, bare=True)
    try:
        return bare.wait(PATIENCE_S) == 0 and clients.checksum(name) == clients.expect(BEST_EFFORT)
    except subprocess.TimeoutExpired:
        bare.kill()
        bare.wait()
        return False
    finally:
        run.children.remove(bare)


def few_descriptors(run, clients):
    n = run.random.randint(8, 40)
    if runs_bare(run, clients, [(resource.RLIMIT_NOFILE, n)]):
        limited(run, clients, [(resource.RLIMIT_NOFILE, n + 4)], f"{n + 4} descriptors")


def little_memory(run, clients):
    n = int(2 ** run.random.uniform(26, 32))
    if runs_bare(run, clients, [(resource.RLIMIT_AS, n)]):
        limited(run, clients, [(resource.RLIMIT_AS, n + OURS_BYTES)], f"{(n + OURS_BYTES) >> 20} MiB of addresses")


def limited(run, clients, limits, what):
    run.notes["limited"] = run.notes.get("limited", 0) + 1
    priority = run.random.choice(["best-effort", "high"])
    name, process = clients.start(BEST_EFFORT, 20, limits, priority=priority)
    clients.verify(name, process, BEST_EFFORT, f"{priority} program with {what}")


def no_proc(run, clients):
    command = clients.command(BEST_EFFORT, 20)
    at = run.random.choice([0, command.index("--") + 1])  # `tessera run` itself, or the program alone
    name = f"noproc{run.runs}"
    run.notes["no_proc"] = run.notes.get("no_proc", 0) + 1
    process = run.start(command[:at] + NO_PROC + command[at:], clients.gpu, name)
    clients.verify(name, process, BEST_EFFORT, "program without /proc")


def main():
    run = Run("limits")
    may_unmount = os.geteuid() == 0 and subprocess.run([*NO_PROC, "true"], capture_output=True).returncode == 0
    daemon = Daemon(run, "[policy]\nquantum_us = 2000\n")
    clients = Clients(run, daemon.socket)
    clients.expect(BEST_EFFORT)
    # Keeps the software GPU there, so that no limited program has to start it; and somebody to share with.
    keeper = clients.start(BEST_EFFORT, 0)
    attacks = [few_descriptors, little_memory] + ([no_proc] if may_unmount else [])
    if not may_unmount:
        print("attack_limits: without /proc nothing is tried, that needs root and mount namespaces")
    while run.goes_on():
        without = may_unmount and run.random.random() < 0.3
        daemon.wrapper = NO_PROC if without else []
        if not daemon.start():
            run.found(f"the daemon does not start {'without /proc' if without else ''}: {run.text('daemon')[-500:]}")
            break
        if not eventually(lambda: any(c["pid"] == keeper[1].pid for c in (daemon.ask() or {"clients": []})["clients"])):
            run.found("a program does not attach to a daemon without /proc")
        for _ in range(4):
            if run.goes_on():
                run.random.choice(attacks)(run, clients)
                run.runs += 1
        if daemon.end(signal.SIGTERM) != 0:
            run.found("SIGTERM does not end the daemon: " + run.text("daemon")[-500:])
    keeper[1].send_signal(signal.SIGTERM)
    clients.verify(*keeper, BEST_EFFORT, "that daemons came and went for")
    run.finish()


main()
