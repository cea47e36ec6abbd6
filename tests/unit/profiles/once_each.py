"""once_each.py go FILE: launches 24 kernels once each when FILE exists, and ends; stay FILE: ends when FILE is gone.

once_each.py neighbour: launches one kernel until it is killed.
"""
import ctypes
import os
import sys
import time

KERNELS = 24
LOOP = """
.visible .entry k{n}() {{
  .reg .pred %p;
  .reg .u32 %r;
  mov.u32 %r, {rounds};
again:
  sub.u32 %r, %r, 1;
  setp.ne.u32 %p, %r, 0;
  @%p bra again;
  ret;
}}
"""
PTX = ".version 7.0\n.target sm_80\n.address_size 64\n" + "".join(
    LOOP.format(n=n, rounds=500 + 50 * n) for n in range(KERNELS))
cuda = ctypes.CDLL("libcuda.so.1")


def check(status):
    if status != 0:
        sys.exit(f"the driver returned {status}")


def launch(n):
    check(cuda.cuLaunchKernel(ctypes.c_void_p(functions[n]), 8, 1, 1, 64, 1, 1, 0, None, None, None))


context, module = ctypes.c_void_p(), ctypes.c_void_p()
functions = (ctypes.c_void_p * KERNELS)()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuModuleLoadData(ctypes.byref(module), PTX.encode()))
count = ctypes.c_uint(KERNELS)
check(cuda.cuModuleEnumerateFunctions(functions, count, module))  # a lazy driver has not loaded any of them yet
if sys.argv[1] == "neighbour":
    while True:
        launch(0)
        check(cuda.cuCtxSynchronize())
while not os.path.exists(sys.argv[2]):
    time.sleep(0.005)
for kernel in range(KERNELS):
    launch(kernel)
check(cuda.cuCtxSynchronize())
while sys.argv[1] == "stay" and os.path.exists(sys.argv[2]):
    time.sleep(0.005)
