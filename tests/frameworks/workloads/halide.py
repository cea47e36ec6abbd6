"""A blur and a local maximum that Halide compiles to PTX."""
import functools
import importlib.metadata

import halide as hl
import numpy

VERSION = importlib.metadata.version("halide")


@functools.cache
def pipeline():
    """The input, and what is computed of it."""
    target = hl.get_host_target().with_feature(hl.TargetFeature.CUDA)
    image = hl.ImageParam(hl.Float(32), 2)
    x, y, xi, yi = hl.Var("x"), hl.Var("y"), hl.Var("xi"), hl.Var("yi")
    clamped = hl.BoundaryConditions.repeat_edge(image)
    blur, peak = hl.Func("blur"), hl.Func("peak")
    blur[x, y] = (clamped[x - 1, y] + 2 * clamped[x, y] + clamped[x + 1, y] + clamped[x, y - 1] + clamped[x, y + 1]) / 6
    peak[x, y] = hl.max(blur[x, y], hl.max(blur[x - 1, y], blur[x, y + 1]) * hl.f32(0.9))
    blur.compute_root().gpu_tile(x, y, xi, yi, 16, 8)
    peak.gpu_tile(x, y, xi, yi, 16, 8)
    peak.compile_jit(target)
    return image, peak


def work(steps):
    image, peak = pipeline()
    data = numpy.random.default_rng(1).random((192, 256), numpy.float32)
    for _ in range(steps):
        image.set(hl.Buffer(data))
        result = peak.realize([256, 192])
        result.copy_to_host()
        data = numpy.array(result)
    return [data]
