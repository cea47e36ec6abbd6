"""Kernels that numba compiles: a stencil in many passes, sums in shared memory, a histogram by atomics."""
import importlib.metadata

import numpy
from numba import cuda, uint32

VERSION = importlib.metadata.version("numba-cuda")


@cuda.jit
def stencil(out, a):
    i = cuda.grid(1)
    if 0 < i < a.size - 1:
        out[i] = 0.25 * a[i - 1] + 0.5 * a[i] + 0.25 * a[i + 1]


@cuda.jit
def block_sums(out, a):
    shared = cuda.shared.array(128, uint32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = uint32(a[i] * 1000)
    cuda.syncthreads()
    n = 64
    while n > 0:
        if t < n:
            shared[t] += shared[t + n]
        cuda.syncthreads()
        n //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


@cuda.jit
def histogram(bins, a):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(bins, int(a[i] * bins.size) % bins.size, 1)


def work(steps):
    blocks = 256
    a = cuda.to_device(numpy.random.default_rng(1).random(blocks * 128, numpy.float32))
    b, sums = cuda.device_array_like(a), cuda.device_array(blocks, numpy.uint32)
    bins = cuda.to_device(numpy.zeros(64, numpy.int32))
    b.copy_to_device(a)
    for _ in range(steps):
        stencil[blocks, 128](b, a)
        a, b = b, a
        block_sums[blocks, 128](sums, a)
        histogram[blocks, 128](bins, a)
    return [a.copy_to_host(), sums.copy_to_host(), bins.copy_to_host()]
