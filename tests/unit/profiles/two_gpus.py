"""Launches kernels through ctypes on every GPU, some once, and then starts a child that launches another one."""
import ctypes
import subprocess
import sys

PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry once() { ret; }
.visible .entry often() { ret; }
.visible .entry of_the_child() { ret; }
"""
cuda = ctypes.CDLL("libcuda.so.1")


def check(status):
    if status != 0:
        sys.exit(f"the driver returned {status}")


def launch(device, kernel, times):
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, kernel))
    for _ in range(times):
        check(cuda.cuLaunchKernel(function, 8, 1, 1, 64, 1, 1, 0, None, None, None))
    check(cuda.cuCtxSynchronize())


check(cuda.cuInit(0))
if sys.argv[1:] == ["child"]:
    launch(0, b"of_the_child", 2)
    sys.exit(0)
count = ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
for gpu in range(count.value):
    launch(gpu, b"once", 1)
    launch(gpu, b"often", 5)
sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
