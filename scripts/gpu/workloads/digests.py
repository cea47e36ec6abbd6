#!/usr/bin/env python3
"""Results of frameworks as digests, so that runs can be compared. Told by JSON lines what to run (protocol.py).

load: torch, compile, triton, jax, cupy; answers with the digests of one pass, or says what is not installed. run: passes from "at_s" on for
"seconds"; answers with how many there were and which results were not always those of load."""
import hashlib
import importlib.util
import time

import protocol

NEEDS = {"torch": ("torch",), "compile": ("torch", "triton"), "triton": ("torch", "triton"), "jax": ("jax",), "cupy": ("cupy",)}


def digest(array):
    return hashlib.md5(array if isinstance(array, bytearray) else array.tobytes()).hexdigest()[:12]


class Digests:
    """make(what) returns a function that computes everything and returns host arrays by name."""

    def __init__(self):
        self.compute, self.first = {}, {}

    def load(self, what):
        missing = [name for name in NEEDS[what] if importlib.util.find_spec(name) is None]
        if missing and not isinstance(self, StandInDigests):
            return {"what": what, "absent": missing}
        self.compute[what] = self.make(what)
        self.first[what] = self.once(what)
        return {"what": what, "digests": self.first[what]}

    def once(self, what):
        return {name: digest(array) for name, array in self.compute[what]().items()}

    def run(self, what, at_s, seconds):
        protocol.wait_until(at_s)
        passes, differ = 0, set()
        while passes == 0 or time.monotonic() < at_s + seconds:
            differ |= {name for name, value in self.once(what).items() if value != self.first[what][name]}
            passes += 1
        return {"what": what, "passes": passes, "differ": sorted(differ)}

    def unload(self):
        self.compute.clear()


class StandInDigests(Digests):
    def __init__(self):
        super().__init__()
        self.gpu = protocol.StandIn()

    def make(self, what):
        def compute():
            self.gpu.fill(5)
            return {"filled": self.gpu.read()}
        return compute


def torch_digests(cpu):
    import torch
    import torch.nn.functional as F

    device, size = ("cpu", 64) if cpu else ("cuda", 2048)

    def host(tensor):
        return tensor.detach().float().cpu().numpy() if tensor.is_floating_point() else tensor.cpu().numpy()

    class FrameworkDigests(Digests):
        def make(self, what):
            return {"torch": self.torch, "compile": self.compile, "triton": self.triton, "jax": self.jax, "cupy": self.cupy}[what]()

        def inputs(self):
            source = torch.Generator().manual_seed(1)  # of the CPU: no kernel of ours makes it
            return [torch.randn(size, size, generator=source).to(device) for _ in range(2)]

        def torch(self):
            a, b = self.inputs()
            image = a[:64, :].reshape(2, 64, -1)[..., :1024].reshape(2, 64, 32, 32) if not cpu else a.reshape(1, 4, 32, 32)
            weight = b.flatten()[:image.shape[1] * 64 * 9].reshape(64, image.shape[1], 3, 3) if not cpu else b[:, :36].reshape(64, 4, 3, 3)
            q = a.flatten()[:1 << (12 if cpu else 20)].reshape(2, 8, -1, 64).to(torch.bfloat16)

            def compute():
                return {"product": host(a @ b), "product_bf16": host(a.bfloat16() @ b.bfloat16()), "convolution": host(F.conv2d(image, weight, padding=1)),
                        "softmax": host(a.softmax(-1)), "sort": host(a.sort(-1)[1]), "sum": host(a.cumsum(0)),
                        "attention": host(F.scaled_dot_product_attention(q, q, q, is_causal=True))}
            return compute

        def compile(self):
            config = torch._inductor.config
            if hasattr(config, "deterministic"):
                config.deterministic = True  # no choice of configurations by timing, which could sum in another order
            a, b = self.inputs()
            functions = {"pointwise": lambda x, y: torch.sin(x) * torch.cos(y) + torch.exp(-x * x), "softmax": lambda x, y: torch.softmax(x + y, -1),
                         "sum": lambda x, y: (x * y).sum(-1)}
            compiled = {name: torch.compile(function) for name, function in functions.items()}
            return lambda: {name: host(function(a, b)) for name, function in compiled.items()}

        def triton(self):
            import kernels_of_triton
            a, b = self.inputs()
            return lambda: {name: host(value) for name, value in kernels_of_triton.results(a, b).items()}

        def jax(self):
            import jax
            import jax.numpy as jnp
            import numpy as np
            a = jax.random.normal(jax.random.PRNGKey(0), (size, size))
            functions = {"softmax": jax.jit(lambda x: jax.nn.softmax(jnp.sin(x) @ x.T, -1)), "sort": jax.jit(lambda x: jnp.sort(x, -1))}
            return lambda: {name: np.asarray(function(a)) for name, function in functions.items()}

        def cupy(self):
            import cupy
            a = cupy.arange(size * size, dtype=cupy.float32).reshape(size, size) / 1e6
            square = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x + 1", "square")
            return lambda: {name: cupy.asnumpy(value) for name, value in
                            {"kernel": square(a), "product": a @ a, "fft": cupy.abs(cupy.fft.fft(a[0])), "sort": cupy.sort(a.ravel()[::-1])}.items()}

    torch.backends.cudnn.deterministic = True
    return FrameworkDigests(), torch.__version__


if __name__ == "__main__":
    protocol.run(__doc__, StandInDigests, torch_digests)
