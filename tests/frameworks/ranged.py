"""A service whose framework says what its requests are: ranged.py jax|torch REQUESTS. Prints how many requests of each kind
tesserad counted of the last REQUESTS, as JSON; they begin when it is seen to be attached."""
import ctypes
import json
import pathlib
import sys
import time

import client

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "cli/demo/jax"))


def jax_request():
    """XLA's plugin for CUDA has a range around each execution of a module, and others within it."""
    import jax_on_softgpu  # noqa: F401
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(x):
        return jnp.sin(x) * 2 + x

    x = jnp.ones(256)
    return lambda: step(x).block_until_ready()


def torch_request():
    """PyTorch's kernels are machine code, which the software GPU does not execute: the work is a call of the driver."""
    import torch
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        if result := getattr(driver, name)(*arguments):
            raise RuntimeError(f"{name}: {result}")

    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4096))

    def request():
        with torch.cuda.nvtx.range("step of torch"):
            call("cuMemsetD8Async", memory, ctypes.c_ubyte(1), ctypes.c_size_t(4096), None)
        call("cuCtxSynchronize")

    return request


def counted():
    told = client.counters() or {}
    return {r["kind"]: r["count"] for r in told.get("requests", [])}


def main():
    name, requests = sys.argv[1], int(sys.argv[2])
    request = {"jax": jax_request, "torch": torch_request}[name]()
    request()
    while not (client.counters() or {}).get("gpu"):
        time.sleep(0.05)
    request()
    before = counted()
    for _ in range(requests):
        request()
    print(json.dumps({kind: count - before.get(kind, 0) for kind, count in counted().items()}), flush=True)


if __name__ == "__main__":
    main()
