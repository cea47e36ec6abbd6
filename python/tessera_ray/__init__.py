"""Ray actors, tasks and Serve replicas that share a GPU through Tessera.

Ray places jobs by fractions of a GPU, Tessera protects on the node: `options()` gives what `@ray.remote`, `.options()` and
Serve's `ray_actor_options` take, so that the worker is started by `tessera run`. Nothing of the job changes.

    @ray.remote(**tessera_ray.options("best-effort"))
    class Trainer: ...

    Service.options(**tessera_ray.options("high", slo_ms=20)).remote()

    @serve.deployment(ray_actor_options=tessera_ray.options("high", slo_ms=20, gpu=0.4))

Give them to a task's `@ray.remote`, not to its `.options()`: only there Ray sees that the task uses a GPU, and ends its
worker with it. Otherwise the idle worker stays, with its memory on the GPU.

Each node runs tesserad and has `tessera` in its PATH (docs/running.md).
"""
from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["node_resources", "options"]
__version__ = "0.2.0"  # of the project; tests/tessera_ray_test.py compares

HIGH, BEST_EFFORT, HIGHEST = "high", "best-effort", 7


def _level(priority: str | int) -> int:
    """0 (best effort) to 7; names as `tessera run --priority` takes them."""
    named = {HIGH: 5, BEST_EFFORT: 0}
    if isinstance(priority, str) and priority in named:
        return named[priority]
    if isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= HIGHEST:
        return priority
    raise ValueError(f"priority {priority!r}: give 'high', 'best-effort', or a level from 0 (best effort) to {HIGHEST}")


def _within(name: str, value: float, least: float, most: float, unit: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{name} {value!r}: give a number from {least:g} to {most:g}{unit}")


def resource_of(priority: str | int) -> str:
    """The custom resource of a level, as node_resources() offers it."""
    return "tessera_high" if _level(priority) else "tessera_best_effort"


def node_resources(gpus: int = 1, *, high: int = 1, best_effort: int = 3) -> dict[str, float]:
    """Custom resources of a node, for `ray.init(resources=...)` or, as JSON, `ray start --resources`.

    high, best_effort: how many jobs of either kind may share one GPU.
    """
    for name, value in (("gpus", gpus), ("high", high), ("best_effort", best_effort)):
        _within(name, value, 0, 1000)
    return {"tessera_high": float(gpus * high), "tessera_best_effort": float(gpus * best_effort)}


def options(priority: str | int = BEST_EFFORT, *, slo_ms: float | None = None, weight: int | None = None,
            name: str | None = None, gpu: float = 0.5, by_level: bool = False, python: str = "python",
            run: Sequence[str] = (), runtime_env: Mapping[str, Any] | None = None,
            resources: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What `ray.remote` takes for a job that shares its GPU.

    priority  'high', 'best-effort', or 0 (best effort) to 7
    slo_ms    latency objective of a protected job, milliseconds, more than 0
    weight    share among jobs of one level, 1 to 10000; 100 if not given
    name      shown by `tessera ps`; the command if not given
    gpu       fraction of a GPU that Ray counts for it, more than 0, at most 1
    by_level  also take one of node_resources(), of which the cluster's nodes must have some
    python    interpreter of the worker, on the node
    run       further options of `tessera run`
    runtime_env, resources   what else the job needs; `py_executable` is Tessera's

    Raises ValueError with what to do about it.
    """
    level = _level(priority)
    words = ["tessera", "run", "--priority", str(priority)]
    if slo_ms is not None:
        _within("slo_ms", slo_ms, 0.001, 60_000, " ms")
        if level == 0:
            raise ValueError("slo_ms is for protected jobs: give priority='high' with it, or leave it out")
        words += ["--slo", f"{slo_ms:g}ms"]
    if weight is not None:
        _within("weight", weight, 1, 10_000)
        words += ["--weight", str(weight)]
    if name is not None:
        words += ["--name", name]
    if not 0 < gpu <= 1:
        raise ValueError(f"gpu {gpu!r}: give the part of one GPU that Ray is to count for the job, e.g. 0.5")
    environment = dict(runtime_env or {})
    if "py_executable" in environment:
        raise ValueError("runtime_env has a py_executable, which Tessera needs: give the interpreter as python=...")
    # Ray joins it to a line of the shell.
    environment["py_executable"] = shlex.join([*words, *run, "--", python])
    needs = dict(resources or {})
    if by_level:
        needs[resource_of(priority)] = 1.0
    return {"num_gpus": gpu, "runtime_env": environment} | ({"resources": needs} if needs else {})
