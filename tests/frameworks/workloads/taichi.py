"""Particles that Taichi moves, in a loop of kernels with data of its own on the device."""
import importlib.metadata

import taichi as ti

VERSION = importlib.metadata.version("taichi")


def work(steps):
    ti.init(arch=ti.cuda, random_seed=1, offline_cache=False, log_level=ti.ERROR)
    n = 1 << 14
    position, speed = ti.Vector.field(2, ti.f32, n), ti.Vector.field(2, ti.f32, n)

    @ti.kernel
    def begin():
        for i in position:
            position[i] = [ti.sin(i * 0.1), ti.cos(i * 0.37)]
            speed[i] = [0.0, 0.0]

    @ti.kernel
    def step():
        for i in position:
            pull = -position[i] / (position[i].norm() + 0.1)
            speed[i] = 0.99 * speed[i] + 0.01 * pull
            position[i] += 0.01 * speed[i]

    begin()
    for _ in range(steps):
        step()
    return [position.to_numpy(), speed.to_numpy()]
