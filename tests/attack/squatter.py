#!/usr/bin/env python3
"""Another user puts folders, links, files and daemons of its own where a program looks for its own, while the machine has
a daemon. Found: the program talks to the squatter, fails, computes something else, does not come to the machine's daemon,
or says nothing. Needs root, for the users, and a mount namespace, for /run.
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

from frame import BEST_EFFORT, Clients, Daemon, Run, die_with_parent, eventually

SQUATTER = 65534
OWN_RUN = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o mode=755 none /run && exec "$0" "$@"']


def folder_with_a_daemon(place):
    place.mkdir(mode=0o755)
    return listen(place / "tesserad.sock")


def open_folder(place):
    place.mkdir()
    place.chmod(0o777)
    return listen(place / "tesserad.sock")


def link(place):
    behind = pathlib.Path(str(place) + "-behind")
    place.symlink_to(behind)
    return folder_with_a_daemon(behind)


def file(place):
    place.write_text("")
    return None


def listen(path):
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(str(path))
    path.chmod(0o666)
    server.listen()
    return server


def squat(how, place):
    """A process of the squatter, and a pipe on which it says that somebody talked to it."""
    told, tell = os.pipe()
    ready, be_ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(SQUATTER)
        os.setuid(SQUATTER)
        die_with_parent()
        server = how(place)
        os.write(be_ready, b"x")
        while server is None:
            signal.pause()
        while True:
            peer, _ = server.accept()
            if peer.recv(4096):
                os.write(tell, b"x")
    os.close(tell)
    os.close(be_ready)
    prepared = os.read(ready, 1) == b"x"
    os.close(ready)
    return (child if prepared else None), told


def main():
    if "TESSERA_ATTACK_INSIDE" not in os.environ:
        if os.geteuid() == 0 and subprocess.run([*OWN_RUN, "true"], capture_output=True).returncode == 0:
            os.environ["TESSERA_ATTACK_INSIDE"] = "1"
            os.execvp(OWN_RUN[0], [*OWN_RUN, sys.executable, *sys.argv])
        print("attack_squatter: nothing is tried, that needs root and mount namespaces")
        Run("squatter").finish()
    run = Run("squatter")
    machine = Daemon(run, '[daemon]\nsocket_mode = "0666"\n', socket=pathlib.Path("/run/tessera/tesserad.sock"))
    if not machine.start():
        run.found("the machine's daemon does not start: " + run.text("daemon"))
    clients = Clients(run, machine.socket)
    clients.expect(BEST_EFFORT)
    for name in ("TESSERA_SOCKET", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
        clients.gpu.pop(name, None)

    def at_work(pid):  # with its first burst behind it
        answer = machine.ask() or {"clients": []}
        return any(c["pid"] == pid and c["launches"] > int(BEST_EFFORT[3]) for c in answer["clients"])
    while run.goes_on():
        user = run.random.randint(50_000, 59_999)
        place = pathlib.Path(f"/tmp/tessera-{user}")
        if place.exists():
            continue
        for what in ("gpu", "cache"):
            shutil.rmtree(run.folder / what, ignore_errors=True)
            (run.folder / what).mkdir()
            os.chown(run.folder / what, user, user)
        how = run.random.choice([folder_with_a_daemon, open_folder, link, file])
        squatter, told = squat(how, place)
        try:
            name, program = f"user{run.runs}", None
            program = run.start(clients.command(BEST_EFFORT, 0), clients.gpu, name, user=user)
            if not eventually(lambda: at_work(program.pid)):
                run.found(f"{how.__name__}: a program does not come to the machine's daemon: {run.text(name)[-500:]}")
            elif "skipped" not in run.text(name):
                run.found(f"{how.__name__}: nobody is told")
            program.send_signal(signal.SIGTERM)
            clients.verify(name, program, BEST_EFFORT, how.__name__)
        finally:
            os.kill(squatter, signal.SIGKILL)
            os.waitpid(squatter, 0)
            if os.read(told, 1):
                run.found(f"{how.__name__}: a program talks to the squatter")
            os.close(told)
            for path in (place, pathlib.Path(str(place) + "-behind")):
                path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path, ignore_errors=True)
        run.runs += 1
    machine.end(signal.SIGTERM)
    run.finish()


main()
