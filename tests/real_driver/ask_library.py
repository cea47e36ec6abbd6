#!/usr/bin/env python3
"""Asks one library that stands on the CUDA driver what it makes of this machine; prints "what<tab>answer".

usage: ask_library.py KIND PATH [...]      compare.py runs it bare and with the shim
"""
import ctypes
import os
import subprocess
import sys

BUFFER = ctypes.create_string_buffer(1 << 16)


def say(what, answer):
    print(f"{what}\t{answer}", flush=True)


def number(call):
    """What a function writes through its first argument, with its result."""
    out = ctypes.c_longlong(-1)
    return f"{call(ctypes.byref(out))}, {out.value}"


def handle(library, create):
    """The result of making a handle; its value differs from run to run."""
    out = ctypes.c_void_p()
    say(create, f"{getattr(library, create)(ctypes.byref(out))}, {'handle' if out.value else 'null'}")


def cudart(library):
    library.cudaGetErrorName.restype = ctypes.c_char_p
    for name in ("cudaRuntimeGetVersion", "cudaDriverGetVersion", "cudaGetDeviceCount", "cudaGetDevice"):
        say(name, number(getattr(library, name)))
    for error in range(0, 1000):
        say(f"cudaGetErrorName {error}", library.cudaGetErrorName(error).decode())
    say("cudaFree", library.cudaFree(None))
    say("cudaSetDevice", library.cudaSetDevice(0))
    say("cudaDeviceSynchronize", library.cudaDeviceSynchronize())
    say("cudaMalloc", number(lambda out: library.cudaMalloc(out, ctypes.c_size_t(4096))))
    handle(library, "cudaStreamCreate")
    handle(library, "cudaEventCreate")
    if hasattr(library, "cudaGetDriverEntryPoint"):
        for symbol in (b"cuInit", b"cuLaunchKernel", b"cuMemAlloc", b"cuNoSuchFunction"):
            found, status = ctypes.c_void_p(), ctypes.c_int(-1)
            result = library.cudaGetDriverEntryPoint(symbol, ctypes.byref(found), ctypes.c_ulonglong(0),
                                                     ctypes.byref(status))
            say(f"cudaGetDriverEntryPoint {symbol.decode()}", f"{result}, {status.value}, {bool(found.value)}")


def cublas(library):
    handle(library, "cublasCreate_v2")
    say("cublasGetProperty", [number(lambda out, p=p: library.cublasGetProperty(p, out)) for p in range(3)])


def cudnn(library):
    handle(library, "cudnnCreate")
    library.cudnnGetVersion.restype = ctypes.c_size_t
    say("cudnnGetVersion", library.cudnnGetVersion())


def nccl(library):
    say("ncclGetVersion", number(library.ncclGetVersion))
    say("ncclCommInitAll", library.ncclCommInitAll(BUFFER, 1, None))


def cufft(library):
    say("cufftPlan1d", number(lambda out: library.cufftPlan1d(out, 1024, 0x29, 1)).split(",")[0])


def cusolver(library):
    handle(library, "cusolverDnCreate")


def nvcuvid(library):
    say("cuvidGetDecoderCaps", library.cuvidGetDecoderCaps(BUFFER))
    say("cuvidCreateVideoParser", library.cuvidCreateVideoParser(BUFFER, BUFFER))
    say("cuvidCtxLockCreate", number(lambda out: library.cuvidCtxLockCreate(out, None)).split(",")[0])


def nvoptix(library):
    for abi in (22, 36, 41, 47, 55, 60, 68, 84, 87, 93, 105):
        say(f"optixQueryFunctionTable {abi}",
            library.optixQueryFunctionTable(abi, 0, None, None, BUFFER, ctypes.c_size_t(len(BUFFER))))


def opencl(library):
    library.clGetExtensionFunctionAddress.restype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
                                                                     ctypes.c_void_p)
    out, count = ctypes.c_void_p(), ctypes.c_uint(0)
    platforms = library.clGetExtensionFunctionAddress(b"clIcdGetPlatformIDsKHR")
    say("clIcdGetPlatformIDsKHR", platforms(1, ctypes.addressof(out), ctypes.addressof(count)))
    say("platforms", count.value)


def fbc(library):
    say("NvFBCCreateInstance", library.NvFBCCreateInstance(BUFFER))


def torch(folder):
    sys.path.insert(0, folder)
    import torch as module
    say("version", module.__version__)
    say("is_available", module.cuda.is_available())
    say("device_count", module.cuda.device_count())
    try:
        module.zeros(1, device="cuda")
    except Exception as error:  # whatever it is: the text is what is compared
        say("zeros", str(error).splitlines()[0])


def clinfo(folder, driver):
    vendors = os.path.join(os.getcwd(), "vendors")
    os.makedirs(vendors, exist_ok=True)
    with open(os.path.join(vendors, "nvidia.icd"), "w") as icd:
        icd.write(f"{driver}/libnvidia-opencl.so.1\n")
    env = dict(os.environ, OCL_ICD_VENDORS=vendors)
    env["LD_LIBRARY_PATH"] += f":{folder}/usr/lib/x86_64-linux-gnu"
    done = subprocess.run([f"{folder}/usr/bin/clinfo"], env=env, capture_output=True, text=True)
    say("(clinfo)", done.returncode)
    for i, line in enumerate(done.stdout.splitlines()):
        say(f"line {i}", line.strip())


def main():
    kind, path = sys.argv[1], sys.argv[2]
    if kind in ("torch", "clinfo"):
        globals()[kind](*sys.argv[2:])
        return
    # Global: a library finds those that stand beside it, as it would through its program's own run path.
    globals()[kind](ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL))


if __name__ == "__main__":
    main()
