"""Runs frameworks from PyPI, unmodified, on the software GPU in four regimes and compares what they compute.

  alone       without Tessera
  beside      best-effort beside a protected service of another framework, slices of 20 us on four SMs
  uncut       the same with TESSERA_SLICE=0
  restarted   as beside, while tesserad is killed and started again

Wrong results are told before anything else, and end in exit status 1. Each framework has a virtual environment of its own in
--folder (default: TESSERA_FRAMEWORKS, else ~/.cache/tessera-frameworks), with the versions in FRAMEWORKS."""
import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 300  # tells a hang


@dataclasses.dataclass
class Framework:
    packages: list
    environment: dict = dataclasses.field(default_factory=dict)  # {site}: its packages; {driver}: the library of the driver
    options: list = dataclasses.field(default_factory=list)  # of tessera run
    capability: str = "9, 0"
    steps: int = 8
    light: bool = False
    partner: str = "drjit"  # whose program is the service
    home: str = ""  # the environment of another one, which has the same packages


JAX = ["jax==0.9.2", "jax-cuda13-plugin==0.9.2", "jax-cuda13-pjrt==0.9.2"]
FRAMEWORKS = {
    "cuda_core": Framework(["cuda-core==1.2.2", "cuda-bindings==13.0.3", "nvidia-cuda-nvrtc==13.0.88", "numpy==2.4.6"],
                           steps=40),
    "drjit": Framework(["drjit==1.5.0", "numpy==2.4.6"], steps=20, light=True, partner="halide"),
    "halide": Framework(["halide==21.0.0", "numpy==2.4.6"], steps=20, light=True),
    "jax": Framework(JAX, steps=20, capability="12, 0", options=["--keep-ptx"]),
    "jax_transformer": Framework(JAX, steps=8, capability="12, 0", options=["--keep-ptx"], home="jax"),
    "numba": Framework(["numba-cuda==0.15.2", "numba==0.61.2", "numpy==2.2.6"], steps=40, environment={
        # PTX for the driver, as where nvJitLink is not installed
        "NUMBA_CUDA_ENABLE_PYNVJITLINK": "0", "NUMBA_CUDA_USE_NVIDIA_BINDING": "0"}),
    "openmm": Framework(["OpenMM==8.6.1", "OpenMM-CUDA-13==8.6.1", "numpy==2.4.6"], steps=40, light=True),
    "taichi": Framework(["taichi==1.7.4"], steps=40),
    "tinygrad": Framework(["tinygrad==0.14.0", "nvidia-cuda-nvrtc==13.0.88", "numpy==2.4.6"], steps=12, environment={
        # It opens the driver by its path (docs/driver_api.md): this is the one that passes through.
        "CUDA_PATH": "{driver}", "NVRTC_PATH": "{site}/nvidia/cu13/lib/libnvrtc.so.13"}),
    "triton": Framework(["triton==3.9.0", "numpy==2.4.6"], steps=20, environment={"TRITON_DEFAULT_FP_FUSION": "1"}),
}


class Unavailable(Exception):
    """The packages cannot be had here."""


class Bench:
    """Where everything is: the build, the environments, and one scratch folder per run."""

    def __init__(self, build, folder, scratch, capability):
        self.gpu = scratch / "gpu.toml"
        few_sms = (HERE.parent.parent / "profiles/gpus/test4.toml").read_text()
        self.gpu.write_text(few_sms.replace("compute_capability = [9, 0]", f"compute_capability = [{capability}]"))
        self.bin, self.lib = build / "bin", build / "lib"
        self.folder, self.scratch = folder, scratch
        self.config = scratch / "tesserad.toml"
        self.config.write_text("[policy]\nslice_us = 20\n")

    def home(self, name):
        return self.folder / (FRAMEWORKS[name].home or name)

    def python(self, name):
        framework, home = FRAMEWORKS[name], self.home(name)
        python, done = home / "bin/python", home / "packages"
        if not done.exists() or done.read_text().split("\n") != framework.packages:
            shutil.rmtree(home, ignore_errors=True)
            made = subprocess.run([sys.executable, "-m", "venv", home], capture_output=True, text=True)
            install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries=1", "--timeout=10",
                       "--no-compile", *framework.packages]
            got = made if made.returncode else subprocess.run(install, capture_output=True, text=True)
            if got.returncode:
                shutil.rmtree(home, ignore_errors=True)
                raise Unavailable((got.stderr or got.stdout).strip().split("\n")[-1])
            done.write_text("\n".join(framework.packages))
        return python

    def environment(self, **more):
        return {**os.environ, "TESSERA_SOFTGPU_DIR": str(self.scratch / "gpu"), "TESSERA_SOFTGPU_GPU": str(self.gpu),
                "TESSERA_SOCKET": str(self.scratch / "socket"), "TESSERA_COMMAND": str(self.bin / "tessera"),
                "TESSERA_PROFILES": "off", **{k: str(v) for k, v in more.items()}}

    def client(self, name, run_options, arguments, **more):
        python = self.python(name)
        site = next((self.home(name) / "lib").glob("python*/site-packages"))
        driver = self.lib / ("softgpu/libcuda.so.1" if "--passthrough" in run_options else "libtessera.so")
        own = {k: v.format(site=site, driver=driver) for k, v in FRAMEWORKS[name].environment.items()}
        command = [self.bin / "tessera", "run", "--gpu", "soft", *FRAMEWORKS[name].options, *run_options, "--",
                   python, HERE / "client.py", name, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment(**own, **more))

    def daemon(self):
        socket = self.scratch / "socket"
        process = subprocess.Popen([self.bin / "tesserad", "--config", self.config, "--socket", socket],
                                   stderr=subprocess.PIPE, text=True, env=self.environment())
        wait_for(socket.exists, process)
        return process


def wait_for(condition, process):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{process.args[0]} ended or hangs: {process.communicate()[1][-2000:]}")
        time.sleep(0.02)


def result_of(process):
    out, errors = process.communicate(timeout=LIMIT_S)
    if process.returncode or not out.strip():
        raise RuntimeError(f"exit {process.returncode}: {errors.strip()[-2000:]}")
    return json.loads(out.strip().split("\n")[-1])


def end(process):
    process.kill()
    process.communicate()


class Restarts:
    """tesserad, killed and started again until the with block ends; without `often` it just runs."""

    def __init__(self, bench, often):
        self.bench, self.often, self.over = bench, often, threading.Event()

    def __enter__(self):
        self.daemon = self.bench.daemon()
        self.thread = threading.Thread(target=self.kill_and_start)
        if self.often:
            self.thread.start()
        return self

    def kill_and_start(self):
        while not self.over.wait(0.3):
            end(self.daemon)
            self.daemon = self.bench.daemon()

    def __exit__(self, *_):
        self.over.set()
        if self.often:
            self.thread.join()
        end(self.daemon)


def percentile_99(milliseconds):
    return statistics.quantiles(milliseconds, n=100, method="inclusive")[98]


def serve(bench, name, until, work):
    """Runs work() while `name` serves under protection: the answer of work, and what the service measured."""
    until.unlink(missing_ok=True)
    ready = pathlib.Path(f"{until}.ready")
    ready.unlink(missing_ok=True)
    service = bench.client(name, ["--priority", "high", "--name", "service"], ["--serve", until, "--steps", "1"])
    try:
        wait_for(ready.exists, service)
        answer = work()
        until.touch()
        return answer, result_of(service)
    finally:
        end(service)


def refusals(counters):
    return {k.removeprefix("refused_"): v for k, v in counters.items()
            if k.startswith("refused_") and v and k != "refused_kernels"}


def run(bench, name, timed):
    framework, until = FRAMEWORKS[name], bench.scratch / "until"
    steps = ["--steps", str(framework.steps)]
    alone = result_of(bench.client(name, ["--passthrough"], steps))
    runs, quiet = {}, None
    if timed:
        with Restarts(bench, often=False):
            quiet = serve(bench, framework.partner, until, lambda: time.sleep(3))[1]
    for regime, more in (("beside", {}), ("uncut", {"TESSERA_SLICE": "0"}), ("restarted", {})):
        with Restarts(bench, often=regime == "restarted"):
            work = lambda: result_of(bench.client(name, [], steps, **more))
            runs[regime], service = serve(bench, framework.partner, until, work)
        runs[regime]["service"] = service
    beside = runs["beside"]
    counted, times = beside["counters"] or {}, beside["service"]["ms"]
    same_service = len({r["service"]["hash"] for r in runs.values()}) == 1
    return {
        "version": alone["version"],
        "equal": same_service and all(r["hash"] == alone["hash"] for r in runs.values()),
        "hashes": {"alone": alone["hash"], **{regime: r["hash"] for regime, r in runs.items()}},
        "launches": counted.get("launches", 0), "slices": counted.get("slices", 0), "holds": counted.get("holds", 0),
        "kernels_cut": counted.get("cut_kernels", 0), "refused": refusals(counted),
        "service": framework.partner, "requests": len(times),
        "p99_over_alone": round(percentile_99(times) / percentile_99(quiet["ms"]), 2) if quiet else None,
    }


def say(name, row):
    if "problem" in row:
        return print(f"{name}: {row['problem']}", flush=True)
    verdict = "equal" if row["equal"] else f"WRONG RESULTS {row['hashes']}"
    print(f"{name} {row['version']}: {verdict}, {row['launches']} launches, {row['slices']} slices, {row['holds']} holds, "
          f"{row['kernels_cut']} kernels cut, refused {row['refused'] or 'none'}"
          + (f"; service p99 {row['p99_over_alone']} of alone" if row["p99_over_alone"] else ""), flush=True)


def add_places(parser):
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build/release")
    cache = os.environ.get("TESSERA_FRAMEWORKS", pathlib.Path.home() / ".cache/tessera-frameworks")
    parser.add_argument("--folder", type=pathlib.Path, default=cache)


def chosen(parser, names, light=False):
    if unknown := set(names) - set(FRAMEWORKS):
        parser.error(f"no framework is called {', '.join(sorted(unknown))}; there are {', '.join(FRAMEWORKS)}")
    return names or [n for n, f in FRAMEWORKS.items() if f.light or not light]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FRAMEWORKS))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--light", action="store_true", help="those that are small, and no latencies")
    add_places(parser)
    options = parser.parse_args()
    rows = {}
    for name in chosen(parser, options.names, options.light):
        with tempfile.TemporaryDirectory(prefix="tessera-") as scratch:
            try:
                bench = Bench(options.build.resolve(), options.folder.resolve(), pathlib.Path(scratch),
                              FRAMEWORKS[name].capability)
                rows[name] = run(bench, name, timed=not options.light)
            except Unavailable as why:
                rows[name] = {"problem": f"skipped, its packages cannot be fetched: {why}", "skipped": True}
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                rows[name] = {"problem": f"FAILED: {why}"}
            say(name, rows[name])
    wrong = [name for name, row in rows.items() if not row.get("equal", True)]
    failed = [name for name, row in rows.items() if "problem" in row and not row.get("skipped")]
    if options.json:
        options.json.write_text(json.dumps({"wrong": wrong, "frameworks": rows}, indent=1) + "\n")
    skipped = sum(row.get("skipped", False) for row in rows.values())
    if wrong:
        print(f"WRONG RESULTS: {', '.join(wrong)}")
    print(f"{len(rows) - len(wrong) - len(failed) - skipped} passed, {len(wrong) + len(failed)} failed, {skipped} skipped")
    return 1 if wrong or failed else 77 if skipped == len(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
