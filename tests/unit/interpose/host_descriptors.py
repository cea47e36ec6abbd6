#!/usr/bin/env python3
"""A host that closes every descriptor and reuses the numbers: nothing of it is touched, and the client reconnects.

host_descriptors.py TESSERAD SHIM NULL_DRIVER [FIRST] runs it at both priorities, with the library FIRST preloaded
before the shim; the host itself is this file with --host.
"""
import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time


def eventually(condition, what):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def our_sockets():
    """Sockets that this process holds beyond the ones it was started with: the library's."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + fd).startswith("socket:") and int(fd) > 2:
                names.append(os.readlink("/proc/self/fd/" + fd))
        except FileNotFoundError:
            pass
    return set(names)


def others_sleep():
    """The library's thread waits for something, so it is not between opening a descriptor and closing it."""
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/stat") as stat:
            if int(thread) != threading.get_native_id() and stat.read().rpartition(")")[2].split()[0] != "S":
                return False
    return True


def host():
    inherited = our_sockets()
    cu = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert cu.cuInit(0) == 0 and cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cu.cuCtxSetCurrent(context) == 0

    def work(n):
        for _ in range(n):
            assert cu.cuLaunchKernel(ctypes.c_void_p(0x5000), 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
            assert cu.cuStreamSynchronize(None) == 0

    eventually(lambda: our_sockets() - inherited, "never attached")
    first = our_sockets()
    work(100)
    # Whoever closes all descriptors while another thread uses one takes it from that thread, with any library.
    eventually(lambda: all(others_sleep() for _ in range(20)), "the library's thread never sleeps")
    os.closerange(3, 1024)
    folder = tempfile.mkdtemp()
    files = [os.open(f"{folder}/{i}", os.O_RDWR | os.O_CREAT) for i in range(32)]
    work(2000)
    eventually(lambda: our_sockets() - first, "never reconnected")
    work(100)
    for i, fd in enumerate(files):  # still open, still ours, nothing written
        assert os.fstat(fd).st_size == 0 and os.readlink(f"/proc/self/fd/{fd}") == f"{folder}/{i}"
    child = os.fork()
    if child == 0:
        os._exit(0 if cu.cuLaunchKernel(ctypes.c_void_p(0x5000), 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0 else 3)
    assert os.waitpid(child, 0)[1] == 0
    work(10)


def main():
    daemon, shim, driver = sys.argv[1:4]
    preload = ":".join(sys.argv[4:] + [shim])
    with tempfile.TemporaryDirectory() as folder:
        socket = folder + "/tesserad.sock"
        server = subprocess.Popen([daemon, "--socket", socket, "--foreground"], stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: os.path.exists(socket), "tesserad does not listen")
            for priority in ("0", "5"):
                environment = dict(os.environ, TESSERA_SOCKET=socket, TESSERA_PRIORITY=priority,
                                   TESSERA_DRIVER=driver, LD_PRELOAD=preload,
                                   ASAN_OPTIONS="detect_leaks=0")
                subprocess.run([sys.executable, __file__, "--host"], env=environment, check=True, timeout=50)
        finally:
            server.terminate()
            server.wait()
    print("host_descriptors: ok")


if __name__ == "__main__":
    host() if sys.argv[1] == "--host" else main()
