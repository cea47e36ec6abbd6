#!/usr/bin/env python3
"""A program whose daemon is killed again and again does not grow.

daemon_restarts.py TESSERAD SHIM NULL_DRIVER; the program itself is this file with --host: it launches for as long as it
lives.
"""
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

SETTLED, RESTARTS = 5, 30
MOST_KIB_EACH = 2  # whatever is kept of a region or page costs at least 4


def eventually(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def host():
    cu = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert cu.cuInit(0) == 0 and cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cu.cuCtxSetCurrent(context) == 0
    while True:
        for _ in range(100):
            assert cu.cuLaunchKernel(ctypes.c_void_p(0x5000), 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
        assert cu.cuStreamSynchronize(None) == 0
        time.sleep(0.001)


def resident_kib(pid):
    """Without pages of files: which of a library's code is mapped depends on how it is laid out."""
    return sum(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith(("RssAnon:", "RssShmem:")))


def restart_until_attached(daemon, socket, log):
    """Of that daemon, when the program has been heard of."""
    log.truncate(0)
    server = subprocess.Popen([daemon, "--socket", socket], stderr=log, env=dict(os.environ, TESSERA_PROFILES="off"))
    eventually(lambda: b"attached" in open(log.name, "rb").read(), "never attached")
    return server


def main():
    daemon, shim, driver = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder, open(folder + "/log", "wb") as log:
        socket = folder + "/tesserad.sock"
        for priority in ("0", "5"):
            environment = dict(os.environ, TESSERA_SOCKET=socket, TESSERA_PRIORITY=priority, TESSERA_DRIVER=driver,
                               LD_PRELOAD=shim)
            program = subprocess.Popen([sys.executable, __file__, "--host"], env=environment)
            try:
                settled = 0
                for i in range(SETTLED + RESTARTS):
                    server = restart_until_attached(daemon, socket, log)
                    server.send_signal(signal.SIGKILL)
                    server.wait()
                    if i == SETTLED:
                        settled = resident_kib(program.pid)
                assert program.poll() is None, "the program ended"
                grown = resident_kib(program.pid) - settled
                assert grown <= RESTARTS * MOST_KIB_EACH, f"priority {priority}: grew by {grown} KiB"
                print(f"priority {priority}: grew by {grown} KiB in {RESTARTS} restarts")
            finally:
                program.kill()
                program.wait()


if __name__ == "__main__":
    host() if sys.argv[1] == "--host" else main()
