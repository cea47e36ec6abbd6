"""A loop that Dr.Jit records and compiles: points of the Mandelbrot set, and sums of random numbers."""
import importlib.metadata

import drjit as dr
from drjit.cuda import Complex2f, Float, PCG32, UInt32

VERSION = importlib.metadata.version("drjit")


@dr.syntax
def iterations(c):
    z, n = Complex2f(0), UInt32(0)
    while (n < 40) & (dr.squared_norm(z) < 4):
        z = z * z + c
        n += 1
    return n


def work(steps):
    results = []
    for step in range(steps):
        x, y = dr.meshgrid(dr.linspace(Float, -2, 1, 160), dr.linspace(Float, -1, 1 + 0.1 * step, 120))
        random = PCG32(size=160 * 120)
        results.append(iterations(Complex2f(x, y)).numpy())
        results.append((random.next_float32() * x + random.next_float32()).numpy())
    return results
