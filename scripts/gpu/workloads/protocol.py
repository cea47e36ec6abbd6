"""What service.py and trainer.py share: commands as JSON lines on standard input, one JSON line as the answer to each.

  {"do": "load", "what": NAME}                   makes it ready, from its seed again
  {"do": "run", "what": NAME, "at_s": T, "seconds": S, ...}   T on the monotonic clock
  {"do": "unload"}, {"do": "quit"}

The first line says that the program has started. An answer has "done", or "error"."""
import argparse
import ctypes
import hashlib
import json
import sys
import time
import traceback


def say(**answer):
    print(json.dumps(answer), flush=True)


def digest(values):
    return hashlib.md5(json.dumps(values).encode()).hexdigest()[:12]


def options(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--rehearse", action="store_true", help="speak the protocol without PyTorch")
    return parser.parse_args()


def run(doc, stand_in, with_torch):
    """The whole program. `with_torch(cpu)` imports PyTorch, makes the workload and says which version it is."""
    given = options(doc)
    began_s = time.monotonic()
    workload, version = (stand_in(), "none") if given.rehearse else with_torch(given.cpu)
    obey(workload, torch=version, import_s=round(time.monotonic() - began_s, 2))


def obey(workload, **started):
    """Does what standard input says until it ends."""
    say(done="start", **started)
    for line in sys.stdin:
        try:
            command = json.loads(line)
            do = command.pop("do")
            if do == "quit":
                return
            if do not in ("load", "run", "unload"):
                raise ValueError(f"no such command: {do}")
            began_s = time.monotonic()
            answer = getattr(workload, do)(**command)
            say(done=do, took_s=round(time.monotonic() - began_s, 3), **(answer or {}))
        except Exception as error:  # the program goes on: one start serves many runs
            traceback.print_exc()
            say(error=repr(error)[-300:])


def wait_until(due_s):
    while (left_s := due_s - time.monotonic()) > 0:
        if left_s > 0.0008:
            time.sleep(left_s - 0.0005)


class StandIn:
    """Computes nothing. Where a driver is found it asks the GPU for a little: to fill memory, asynchronously."""

    def __init__(self):
        self.driver = None
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.memory, self.stream = ctypes.c_uint64(), ctypes.c_void_p()
        calls = (lambda: driver.cuInit(0), lambda: driver.cuDeviceGet(ctypes.byref(device), 0),
                 lambda: driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
                 lambda: driver.cuCtxSetCurrent(context),
                 lambda: driver.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(self.N_BYTES)),
                 lambda: driver.cuStreamCreate(ctypes.byref(self.stream), 1))
        if all(call() == 0 for call in calls):
            self.driver = driver

    N_BYTES = 1 << 16

    def fill(self, times):
        if self.driver is None:
            time.sleep(0.001)
            return
        results = [self.driver.cuMemsetD8Async(self.memory, ctypes.c_ubyte(1), ctypes.c_size_t(self.N_BYTES), self.stream)
                   for _ in range(times)]
        results.append(self.driver.cuStreamSynchronize(self.stream))
        if any(results):
            raise RuntimeError(f"the driver said {results}")
