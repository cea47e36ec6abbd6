#!/usr/bin/env python3
"""Products and convolutions of cuBLAS, cuBLASLt and cuDNN through PyTorch, by class of shape. Told by JSON lines what to run (protocol.py).

load: a class of CLASSES; answers with the result's digest and the median time of a call. run: calls from "at_s" on for "seconds"; answers
with how many results were another one. target: products of cuBLAS by how many SMs its handle is told to use. kernels: what the device does
for a call of the loaded class, in order. algorithm: lt_algorithm.py for a class of products."""
import ctypes
import hashlib
import statistics
import time

import lt_algorithm
import protocol

# Name: how it is made, sizes. product: m, n, k, type, with bias (cuBLASLt); batch: count, m, n, k; convolution: images, channels, side, filters.
CLASSES = {
    "square_fp32": ("product", 8192, 8192, 2048, "float32", False), "square_bf16": ("product", 8192, 8192, 8192, "bfloat16", False),
    "tall_fp16": ("product", 65536, 1024, 1024, "float16", False), "wide_bf16": ("product", 1024, 65536, 1024, "bfloat16", False),
    "deep_bf16": ("product", 1024, 1024, 131072, "bfloat16", False), "odd_fp32": ("product", 8191, 4093, 2039, "float32", False),
    "bias_bf16": ("product", 16384, 8192, 2048, "bfloat16", True), "batch_bf16": ("batch", 256, 1024, 1024, 128, "bfloat16"),
    "batch_fp32": ("batch", 64, 1024, 1024, 256, "float32"), "convolution_bf16": ("convolution", 256, 256, 56, 256, "bfloat16"),
    "convolution_fp32": ("convolution", 64, 128, 56, 128, "float32"),
}


class Operations:
    """make(what) returns a function that computes and waits, and one that returns the result's bytes."""

    N_ALONE, ALONE_S = 20, 0.3

    def __init__(self):
        self.call, self.result, self.first = None, None, None

    def load(self, what):
        self.unload()
        self.call, self.result = self.make(what)
        self.call()
        self.first = self.digest()
        times_s = []
        while len(times_s) < 3 or (len(times_s) < self.N_ALONE and sum(times_s) < self.ALONE_S):
            times_s.append(self.timed())
        return {"what": what, "digest": self.first, "call_ms": 1e3 * statistics.median(times_s)}

    def timed(self):
        began_s = time.monotonic()
        self.call()
        return time.monotonic() - began_s

    def digest(self):
        return hashlib.md5(self.result()).hexdigest()[:12]

    def run(self, what, at_s, seconds):
        protocol.wait_until(at_s)
        times_s, others = [], 0
        while not times_s or time.monotonic() < at_s + seconds:
            times_s.append(self.timed())
            others += self.digest() != self.first
        return {"what": what, "calls": len(times_s), "others": others, "call_ms": 1e3 * statistics.median(times_s)}

    def algorithm(self, what):
        _, m, n, k, type_name, _ = CLASSES[what]
        try:
            return lt_algorithm.checked(m, n, k, type_name)
        except RuntimeError as refused:
            return {"refused": str(refused)}

    def unload(self):
        self.call = self.result = None


class Matrices(protocol.StandIn):
    """Room for A, B and C of 128 x 512 x 64 numbers."""

    N_BYTES = 1 << 19
    M, N, K, B_AT, C_AT = 128, 512, 64, 1 << 16, 1 << 18


class StandInOperations(Operations):
    """Small products by the software GPU's cuBLAS, where it is: C is wide enough for pieces."""

    def __init__(self):
        super().__init__()
        self.gpu = Matrices()
        self.library, self.handle = None, ctypes.c_void_p()
        try:
            self.library = ctypes.CDLL("libcublas.so.13")
        except OSError:
            return
        self.check(self.library.cublasCreate_v2(ctypes.byref(self.handle)))

    def check(self, status):
        if status:
            raise RuntimeError(f"cuBLAS said {status}")

    def make(self, what):
        def call():
            if self.library is None:
                return self.gpu.fill(1)
            one, zero, m, n, k = ctypes.c_float(1), ctypes.c_float(0), self.gpu.M, self.gpu.N, self.gpu.K
            a, b, c = (ctypes.c_void_p(self.gpu.memory.value + at) for at in (0, self.gpu.B_AT, self.gpu.C_AT))
            return self.check(self.library.cublasSgemm_v2(self.handle, 0, 0, m, n, k, ctypes.byref(one), a, m, b, k, ctypes.byref(zero), c, m)
                              or self.gpu.driver.cuCtxSynchronize())
        self.gpu.fill(1)
        return call, self.gpu.read

    def kernels(self):
        self.call()
        return {"kernels": [["stand-in", 1.0]]}

    def algorithm(self, what):
        return lt_algorithm.checked(self.gpu.M, self.gpu.N, self.gpu.K, "float32") if self.library is not None else {"whole": {"status": 0}}

    def target(self, counts):
        rows = {}
        call, _ = self.make("square_fp32")
        for count in counts:
            if self.library is not None:
                self.check(self.library.cublasSetSmCountTarget(self.handle, ctypes.c_int(count)))
            call()
            rows[count] = 1e3 * statistics.median(self.timed_of(call) for _ in range(3))
        return {"call_ms": rows}

    @staticmethod
    def timed_of(call):
        began_s = time.monotonic()
        call()
        return time.monotonic() - began_s


def torch_operations(cpu):
    import torch
    import torch.nn.functional as F

    device = "cpu" if cpu else "cuda"

    class TorchOperations(Operations):
        def make(self, what):
            kind, *sizes = CLASSES[what]
            if cpu:
                sizes = [min(size, 16) if isinstance(size, int) and not isinstance(size, bool) else size for size in sizes]
            source = torch.Generator(device).manual_seed(3)

            def random(*shape):
                return torch.randn(*shape, device=device, generator=source).to(getattr(torch, dtype))

            if kind == "product":
                m, n, k, dtype, bias = sizes
                a, b, c = random(m, k), random(k, n), random(n)
                compute = (lambda: torch.addmm(c, a, b)) if bias else (lambda: a @ b)
            elif kind == "batch":
                count, m, n, k, dtype = sizes
                a, b = random(count, m, k), random(count, k, n)
                compute = lambda: torch.bmm(a, b)
            else:
                images, channels, side, filters, dtype = sizes
                image, weight = random(images, channels, side, side), random(filters, channels, 3, 3)
                compute = lambda: F.conv2d(image, weight, padding=1)
            held = {}

            def call():
                held["result"] = compute()
                if not cpu:
                    torch.cuda.synchronize()

            def result():
                # Sums of bits over the rows: they differ if a bit does, but for chance, and little is copied.
                bits = held["result"].contiguous().view(torch.int32 if held["result"].element_size() == 4 else torch.int16).flatten()
                whole = F.pad(bits, (0, -bits.numel() % 1024)).view(1024, -1)
                place = torch.arange(whole.shape[1], device=device) % 8191 + 1
                return (whole * place).sum(1).cpu().numpy().tobytes()
            return call, result

        def kernels(self):
            kind = torch.autograd.DeviceType.CPU if cpu else torch.autograd.DeviceType.CUDA
            activity = torch.profiler.ProfilerActivity.CPU if cpu else torch.profiler.ProfilerActivity.CUDA
            with torch.profiler.profile(activities=[activity]) as profile:
                self.call()
            events = sorted((event for event in profile.events() if event.device_type == kind), key=lambda event: event.time_range.start)
            return {"kernels": [[event.name[:100], round(event.time_range.elapsed_us(), 2)] for event in events]}

        def target(self, counts):
            library, handle = ctypes.CDLL("libcublas.so.13"), ctypes.c_void_p(torch.cuda.current_blas_handle())
            a = torch.randn(8192, 8192, device=device)
            rows = {}
            for count in counts:
                if status := library.cublasSetSmCountTarget(handle, ctypes.c_int(count)):
                    raise RuntimeError(f"cuBLAS said {status}")
                times_s = []
                for _ in range(5):
                    began_s = time.monotonic()
                    a @ a
                    torch.cuda.synchronize()
                    times_s.append(time.monotonic() - began_s)
                rows[count] = 1e3 * statistics.median(times_s)
            library.cublasSetSmCountTarget(handle, ctypes.c_int(0))
            return {"call_ms": rows}

        def unload(self):
            super().unload()
            if not cpu:
                torch.cuda.empty_cache()

    if not cpu:
        torch.backends.cudnn.deterministic = True
    return TorchOperations(), torch.__version__


if __name__ == "__main__":
    protocol.run(__doc__, StandInOperations, torch_operations)
