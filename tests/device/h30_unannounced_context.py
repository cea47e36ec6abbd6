#!/usr/bin/env python3
"""H30: does the daemon manage a program whose context no call through the library made or made current, as a library can by tables that the
driver exports? Such a program (--launch) gets its context from the driver's own functions, and launches through the library."""
import argparse
import ctypes
import json
import os
import select
import subprocess
import sys
import time

import lab

IMAGE = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\n  ret;\n}\n\0"
PATIENCE_S = 10


def launch():
    """Until standard input ends."""
    def check(result):
        if result != 0:
            raise SystemExit(f"the driver answered {result}")

    library = ctypes.CDLL("libcuda.so.1")
    check(library.cuInit(0))
    with open("/proc/self/maps") as maps:
        driver = ctypes.CDLL(next(line.split()[-1] for line in maps if "/libcuda.so" in line))
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(driver.cuCtxSetCurrent(context))
    check(library.cuModuleLoadData(ctypes.byref(module), IMAGE))
    check(library.cuModuleGetFunction(ctypes.byref(function), module, b"nothing"))
    launches = 0
    while not select.select([0], [], [], 0)[0]:
        check(library.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
        check(library.cuCtxSynchronize())
        launches += 1
    print(json.dumps({"launches": launches}))


def managed(daemon, gpu):
    """What the daemon says of the program once it knows its GPU and counts its launches, or in the end."""
    process = subprocess.Popen(daemon.client(gpu, "best-effort", sys.executable, __file__, "--launch"), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, preexec_fn=lab.dies_with_us)
    end_s, client = time.monotonic() + PATIENCE_S, {}
    while not (client.get("gpu") and client.get("launches")) and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.05)
        client = next((c for c in daemon.state()["clients"] if c["pid"] == process.pid), {})
    process.stdin.close()
    process.stdin = None
    return lab.result(process), client


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launch", action="store_true", help="be the program")
    parser.add_argument("--tessera", help="the tessera program")
    parser.add_argument("--tesserad", help="the daemon")
    parser.add_argument("--gpu", default="auto", choices=("auto", "soft"))
    args = parser.parse_args()
    if args.launch:
        return launch()
    with lab.Daemon(args.tessera, args.tesserad) as daemon:
        program, client = managed(daemon, args.gpu)
        daemon.check()
    known = {key: client.get(key) for key in ("gpu", "state", "launches", "unmanaged_launches")}
    return lab.tell({**lab.info(), "question": "H30", "program": program, "client": known, "managed": bool(known["gpu"] and known["launches"])})


if __name__ == "__main__":
    sys.exit(main())
