"""Inference by JAX, the service beside JAX's own training: forward passes of the demo's network (cli/demo/jax/service.py)."""
import functools
import importlib.metadata
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "cli/demo/jax"))
import service  # noqa: E402

VERSION = importlib.metadata.version("jax")


@functools.cache
def network():
    return service.Network(1), service.Network(2).input()


def work(steps):
    network_, x = network()
    return [network_.request(x) for _ in range(steps)]
