"""The service of `tessera demo --workload jax`: kernels/samples/latency_service.cu in JAX, with the same options, files and
output. Requests arrive at random; each is a forward pass, and counts from its intended arrival to the result on the host."""
import argparse
import random

import clock
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

    def request(self, x):
        return numpy.asarray(forward(self.parameters, x))

    def calibrate(self, count):
        """Seconds of each of so many requests, back to back."""
        times = []
        for _ in range(count):
            x, begin = self.normal(ROWS, FEATURES), clock.now_ns()
            self.request(x)
            times.append((clock.now_ns() - begin) / 1e9)
        return times


def arrivals(seed, rate, seconds):
    """Nanoseconds after the start."""
    draws, at, result = random.Random(seed), 0.0, []
    while (at := at + draws.expovariate(rate)) < seconds:
        result.append(int(at * 1e9))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--calibrate", type=int, metavar="N")
    parser.add_argument("--csv")
    parser.add_argument("--stretch", type=float, default=1)
    options = parser.parse_args()
    clock.stretch = options.stretch
    network = Network(options.seed)
    network.calibrate(options.warmup)  # compiles
    if options.calibrate:
        print(f"service_p50_ms={numpy.median(network.calibrate(options.calibrate)) * 1e3:.4f}")
        return
    rows, checksum = [], clock.Checksum()
    begin = clock.now_ns() + 20_000_000  # the first input is ready by then
    for index, after in enumerate(arrivals(options.seed, options.rate, options.seconds)):
        x = network.normal(ROWS, FEATURES)
        clock.sleep_until_ns(begin + after)
        start = clock.now_ns()
        answer = network.request(x)
        rows.append((index, begin + after, start, clock.now_ns()))
        checksum.add(answer)
    with open(options.csv, "w") as file:
        file.write("request,intended_ns,start_ns,end_ns\n")
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    print(f"requests={len(rows)} checksum={checksum}")


if __name__ == "__main__":
    main()
