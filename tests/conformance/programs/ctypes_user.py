"""The driver through ctypes, by both names, and then a chain of programs: this one starts the given command."""
import ctypes
import subprocess
import sys

for name in ("libcuda.so.1", "libcuda.so"):
    cuda = ctypes.CDLL(name)
    count, version = ctypes.c_int(-1), ctypes.c_int(-1)
    print(name, cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
    print(cuda.cuDriverGetVersion(ctypes.byref(version)), version.value)
    buffer = ctypes.create_string_buffer(64)
    print(cuda.cuDeviceGetName(buffer, 64, 0), buffer.value)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context))
    print(cuda.cuStreamCreate(ctypes.byref(stream), 1), cuda.cuStreamSynchronize(stream))
    print(cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, stream, None, None))
    print(hasattr(cuda, "cuNoSuchFunction"))
sys.stdout.flush()
if len(sys.argv) > 1:
    sys.exit(subprocess.run(sys.argv[1:]).returncode)
