"""Training of a small network by JAX: XLA compiles it, and launches it as CUDA graphs (command buffers)."""
import importlib.metadata
import os

# What XLA would do with libraries of machine code, which the software GPU does not execute, it does with its own kernels.
os.environ["XLA_FLAGS"] = " ".join([
    "--xla_gpu_autotune_level=0", "--xla_gpu_enable_libnvptxcompiler=false", "--xla_gpu_enable_cublaslt=false",
    "--xla_gpu_cublas_fallback=false", "--xla_gpu_triton_gemm_any=true", os.environ.get("XLA_FLAGS", "")])
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ.update(JAX_PLATFORMS="cuda", XLA_PYTHON_CLIENT_PREALLOCATE="false")

from jax._src import hardware_utils  # noqa: E402

hardware_utils.has_visible_nvidia_gpu = lambda: True  # it looks for a device file, which the software GPU has not
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

VERSION = importlib.metadata.version("jax")


def loss(parameters, x, y):
    (a, b), (c, d) = parameters
    hidden = jnp.tanh(x @ a + b)
    return jnp.mean((hidden @ c + d - y) ** 2)


@jax.jit
def step(parameters, x, y):
    return jax.tree.map(lambda p, g: p - 0.05 * g, parameters, jax.grad(loss)(parameters, x, y))


def work(steps):
    random = numpy.random.default_rng(1)
    normal = lambda *shape: jnp.asarray(random.standard_normal(shape).astype(numpy.float32) * 0.1)
    parameters = ((normal(64, 96), normal(96)), (normal(96, 16), normal(16)))
    x, y = normal(128, 64), normal(128, 16)
    for _ in range(steps):
        parameters = step(parameters, x, y)
    return [numpy.asarray(p) for p in jax.tree.leaves(parameters)]
