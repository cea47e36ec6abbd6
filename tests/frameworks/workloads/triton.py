"""Kernels that Triton compiles, as PTX and launched through the driver: torch, which Triton's own launcher wants, is not
needed so."""
import ctypes
import importlib.metadata

import numpy
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

VERSION = importlib.metadata.version("triton")


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + i, i < n, other=-float("inf"))
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * n + i, e / tl.sum(e, 0), i < n)


@triton.jit
def product(a, b, out, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, n, BLOCK):
        inner = k + tl.arange(0, BLOCK)
        sums += tl.dot(tl.load(a + rows[:, None] * n + inner[None, :]), tl.load(b + inner[:, None] * n + columns[None, :]))
    tl.store(out + rows[:, None] * n + columns[None, :], sums.to(tl.float16))


class Kernel:
    """A compiled kernel of one capability in the current context."""
    image = "ptx"  # which of what Triton made is loaded

    def __init__(self, driver, function, signature, constants, capability):
        source = triton.compiler.ASTSource(fn=function, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        self.threads = compiled.metadata.num_warps * 32
        self.shared = compiled.metadata.shared
        self.driver, module, self.handle = driver, ctypes.c_void_p(), ctypes.c_void_p()
        image = compiled.asm[self.image]
        image = image.encode() + b"\0" if isinstance(image, str) else image
        check(driver.cuModuleLoadData(ctypes.byref(module), image))
        check(driver.cuModuleGetFunction(ctypes.byref(self.handle), module, compiled.metadata.name.encode()))
        if self.shared > 48 * 1024:
            check(driver.cuFuncSetAttribute(self.handle, 8, self.shared))  # largest dynamic shared memory

    def __call__(self, grid, *values):
        # Behind the arguments come two of Triton's own: scratch memory, which these kernels need none of.
        held = [v if isinstance(v, ctypes._SimpleCData) else ctypes.c_int32(v) for v in values] + [ctypes.c_uint64(0)] * 2
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in held))
        check(self.driver.cuLaunchKernel(self.handle, *grid, self.threads, 1, 1, self.shared, None, pointers, None))


def check(result):
    assert result == 0, f"the driver answered {result}"


def work(steps):
    driver = ctypes.CDLL("libcuda.so.1")
    context, device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    check(driver.cuInit(0))
    check(driver.cuDeviceGet(ctypes.byref(device), 0))
    check(driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device))
    check(driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(driver.cuCtxSetCurrent(context))
    capability = major.value * 10 + minor.value

    def on_device(array):
        address = ctypes.c_uint64()
        check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(array.nbytes)))
        check(driver.cuMemcpyHtoD_v2(address, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes)))
        return address

    n, size = 128, 1 << 14
    random = numpy.random.default_rng(1)
    halves = [random.standard_normal((n, n)).astype(numpy.float16) for _ in range(2)]
    floats = [random.standard_normal(size).astype(numpy.float32) for _ in range(2)]
    a, b, c = on_device(halves[0]), on_device(halves[1]), on_device(numpy.zeros_like(halves[0]))
    x, y, z = on_device(floats[0]), on_device(floats[1]), on_device(numpy.zeros_like(floats[0]))
    kernels = (
        Kernel(driver, add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 256},
               capability),
        Kernel(driver, softmax, {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 256},
               capability),
        Kernel(driver, product, {"a": "*fp16", "b": "*fp16", "out": "*fp16", "n": "i32", "BLOCK": "constexpr"},
               {"BLOCK": 32}, capability))
    for _ in range(steps):
        kernels[0]((size // 256, 1, 1), x, y, z, size)
        kernels[1]((size // 200, 1, 1), z, x, 200)
        kernels[2]((n // 32, n // 32, 1), a, b, c, n)
        a, c = c, a
    results = [numpy.zeros_like(floats[0]), numpy.zeros_like(halves[0])]
    check(driver.cuCtxSynchronize())
    for array, address in zip(results, (x, a)):
        check(driver.cuMemcpyDtoH_v2(array.ctypes.data_as(ctypes.c_void_p), address, ctypes.c_size_t(array.nbytes)))
    return results
