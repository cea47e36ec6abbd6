"""Training of a small network by JAX: XLA compiles it, and launches it as CUDA graphs (command buffers)."""
import importlib.metadata
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "cli/demo/jax"))
import jax_on_softgpu  # noqa: E402, F401: before jax
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
