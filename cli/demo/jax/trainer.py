"""The trainer of `tessera demo --workload jax`: kernels/samples/batch_trainer.cu in JAX. XLA launches its steps as CUDA
graphs."""
import programs
import jax_on_softgpu  # noqa: F401: before jax
import jax
import jax.numpy as jnp
import numpy

ROWS, FEATURES, HIDDEN, CLASSES = 512, 64, 128, 64


def loss(parameters, x, y):
    (a, b), (c, d) = parameters
    return jnp.mean((jnp.tanh(x @ a + b) @ c + d - y) ** 2)


@jax.jit
def step(parameters, x, y):
    return jax.tree.map(lambda p, g: p - 0.05 * g, parameters, jax.grad(loss)(parameters, x, y))


class Trainer:
    def __init__(self, seed):
        numbers = numpy.random.default_rng(seed)
        normal = lambda *shape: jnp.asarray(numbers.standard_normal(shape).astype(numpy.float32) * numpy.float32(0.1))
        self.parameters = ((normal(FEATURES, HIDDEN), normal(HIDDEN)), (normal(HIDDEN, CLASSES), normal(CLASSES)))
        self.x, self.y = normal(ROWS, FEATURES), normal(ROWS, CLASSES)

    def step(self):
        after = self.parameters = step(self.parameters, self.x, self.y)
        return lambda: jax.block_until_ready(after)

    def arrays(self):
        return [numpy.asarray(array) for array in jax.tree.leaves(self.parameters)]


if __name__ == "__main__":
    programs.train(Trainer, __doc__)
