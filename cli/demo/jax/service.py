"""The service of `tessera demo --workload jax`: kernels/samples/latency_service.cu in JAX. A request is a forward pass."""
import programs
import jax_on_softgpu  # noqa: F401: before jax
import jax
import jax.numpy as jnp
import numpy

ROWS, FEATURES, HIDDEN, CLASSES = 128, 64, 64, 64


@jax.jit
def forward(parameters, x):
    w1, bias, w2, weight = parameters
    return jax.nn.softmax(jax.nn.gelu(x @ w1 + bias) @ w2) @ weight


class Network:
    def __init__(self, seed):
        self.numbers = numpy.random.default_rng(seed)
        self.parameters = [jnp.asarray(a) for a in (self.normal(FEATURES, HIDDEN), self.normal(HIDDEN),
                                                    self.normal(HIDDEN, CLASSES), self.normal(CLASSES))]

    def normal(self, *shape):
        return self.numbers.standard_normal(shape).astype(numpy.float32) * numpy.float32(0.1)

    def input(self):
        return self.normal(ROWS, FEATURES)

    def request(self, x):
        return numpy.asarray(forward(self.parameters, x))


if __name__ == "__main__":
    programs.serve(Network, __doc__)
