"""What service.py and trainer.py share: commands as JSON lines on standard input, one JSON line as the answer to each.

  {"do": "load", "what": NAME}                   makes it ready, from its seed again
  {"do": "run", "what": NAME, "at_s": T, "seconds": S, ...}   T on the monotonic clock
  {"do": "unload"}, {"do": "quit"}

The first line says that the program has started. An answer has "done", or "error"."""
import argparse
import contextlib
import ctypes
import hashlib
import json
import sys
import time
import traceback


def say(answers, **answer):
    print(json.dumps(answer), file=answers, flush=True)


def digest(values):
    return hashlib.md5(json.dumps(values).encode()).hexdigest()[:12]


def options(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--rehearse", action="store_true", help="speak the protocol without PyTorch")
    return parser


def run(doc, stand_in, with_torch):
    """The whole program. `with_torch(cpu)` imports PyTorch, makes the workload and says which version it is."""
    given = options(doc).parse_args()
    began_s = time.monotonic()
    workload, version = (stand_in(), "none") if given.rehearse else with_torch(given.cpu)
    obey(workload, torch=version, import_s=round(time.monotonic() - began_s, 2))


def obey(workload, commands=sys.stdin, answers=sys.stdout, one_loads=contextlib.nullcontext(), **started):
    """Does what `commands` say until they end. Roles of one process load one after the other: `one_loads`."""
    say(answers, done="start", **started)
    for line in commands:
        try:
            command = json.loads(line)
            do = command.pop("do")
            if do == "quit":
                return
            if do not in ("load", "run", "unload", "target", "kernels", "algorithm"):
                raise ValueError(f"no such command: {do}")
            began_s = time.monotonic()
            with contextlib.nullcontext() if do == "run" else one_loads:
                answer = getattr(workload, do)(**command)
            say(answers, done=do, took_s=round(time.monotonic() - began_s, 3), **(answer or {}))
        except Exception as error:  # the program goes on: one start serves many runs
            traceback.print_exc()
            say(answers, error=repr(error)[-300:])


def wait_until(due_s):
    while (left_s := due_s - time.monotonic()) > 0:
        if left_s > 0.0008:
            time.sleep(left_s - 0.0005)


class StandIn:
    """Computes nothing. Where a driver is found it asks the GPU for a little: to fill memory, asynchronously."""

    def __init__(self, priority=0):
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
                 lambda: driver.cuStreamCreateWithPriority(ctypes.byref(self.stream), 1, priority))
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

    def read(self):
        """What fill() left, as host memory; nothing where there is no driver."""
        host = bytearray(self.N_BYTES)
        if self.driver is not None:
            target = (ctypes.c_ubyte * self.N_BYTES).from_buffer(host)
            if result := self.driver.cuMemcpyDtoH_v2(target, self.memory, ctypes.c_size_t(self.N_BYTES)):
                raise RuntimeError(f"the driver said {result}")
        return host
