"""The trainer of `tessera demo --workload jax`: kernels/samples/batch_trainer.cu in JAX, with the same options, files and
output. XLA launches its steps as CUDA graphs; at most two are queued ahead."""
import argparse
import collections
import signal

import clock
import jax_on_softgpu  # noqa: F401: before jax
import jax
import jax.numpy as jnp
import numpy

ROWS, FEATURES, HIDDEN, CLASSES = 512, 64, 128, 64
QUEUED_STEPS = 2


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
        self.queued = collections.deque()

    def step(self):
        """Queues one; how many ended of those before it."""
        self.parameters = step(self.parameters, self.x, self.y)
        self.queued.append(self.parameters)
        return self.wait() if len(self.queued) > QUEUED_STEPS else 0

    def wait(self):
        jax.block_until_ready(self.queued.popleft())
        return 1

    def checksum(self):
        checksum = clock.Checksum()
        for array in jax.tree.leaves(self.parameters):
            checksum.add(numpy.asarray(array))
        return checksum


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--checksum-steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--stretch", type=float, default=1)
    options = parser.parse_args()
    clock.stretch = options.stretch
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))  # ends after the present step, with the report
    trainer = Trainer(options.seed)
    for _ in range(options.checksum_steps):
        trainer.step()
    checksum = trainer.checksum()
    while trainer.queued:
        trainer.wait()
    with open(options.csv, "w", buffering=1) as file:  # whoever watches the file sees the training progress
        file.write("step,start_ns,end_ns\n")
        ended, last = options.checksum_steps, clock.now_ns()
        deadline = last + int(options.seconds * 1e9)
        while not over and clock.now_ns() < deadline:
            if trainer.step():
                now = clock.now_ns()
                file.write(f"{ended},{last},{now}\n")
                ended, last = ended + 1, now
    while trainer.queued:
        trainer.wait()
    print(f"steps={ended} checksum_steps={options.checksum_steps} checksum={checksum}")


if __name__ == "__main__":
    main()
