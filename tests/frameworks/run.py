"""Runs frameworks from PyPI, unmodified, on the software GPU in four regimes and compares what they compute.

  alone       without Tessera
  beside      best-effort beside a protected service of another framework, slices of 20 us on four SMs
  uncut       the same with TESSERA_SLICE=0
  restarted   as beside, while tesserad is killed and started again

A fifth run measures the service: its 99th percentile beside the framework over that alone, as `tessera demo` does.
Wrong results are told before anything else, and end in exit status 1. Each framework has a virtual environment of its own in
--folder (default: TESSERA_FRAMEWORKS, else ~/.cache/tessera-frameworks), with the versions in FRAMEWORKS."""
import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 300  # tells a hang
PAIR_LIMIT_S = 1800  # the same, of a measurement, which starts programs again and again
MINUTES = 30  # of a run: who has more says so
PAIR_SECONDS = 8  # of the wall's clock: what one phase of it takes, once its programs run


@dataclasses.dataclass
class Framework:
    packages: list
    # {site}: its packages; {driver}: the library of the driver; {scratch}: a folder, the same in all regimes
    environment: dict = dataclasses.field(default_factory=dict)
    options: list = dataclasses.field(default_factory=list)  # of tessera run
    capability: str = "9, 0"
    steps: int = 8
    light: bool = False
    partner: str = "halide"  # whose program is the service
    home: str = ""  # the environment of another one, which has the same packages
    debian: bool = False  # on Debian's own Python, with the packages that Debian has for it


JAX = Framework(
    ["jax==0.9.2", "jax-cuda13-plugin==0.9.2", "jax-cuda13-pjrt==0.9.2"], steps=20, capability="12, 0", options=["--keep-ptx"],
    partner="jax_inference", environment={  # JAX's own cache: XLA takes 20 s of a processor to compile a step
        "JAX_COMPILATION_CACHE_DIR": "{scratch}/jax", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"})
TRITON = Framework(["triton==3.9.0", "numpy==2.4.6"], steps=20, environment={"TRITON_DEFAULT_FP_FUSION": "1"})
FRAMEWORKS = {
    "cuda_core": Framework(["cuda-core==1.2.2", "cuda-bindings==13.0.3", "nvidia-cuda-nvrtc==13.0.88", "numpy==2.4.6"],
                           steps=40),
    "drjit": Framework(["drjit==1.5.0", "numpy==2.4.6"], steps=20, light=True),
    "halide": Framework(["halide==21.0.0", "numpy==2.4.6"], steps=20, light=True, partner="drjit"),
    "jax": JAX,
    "jax_transformer": dataclasses.replace(JAX, steps=8, home="jax"),
    "numba": Framework(["numba-cuda==0.15.2", "numba==0.61.2", "numpy==2.2.6"], steps=40, environment={
        # PTX for the driver, as where nvJitLink is not installed
        "NUMBA_CUDA_ENABLE_PYNVJITLINK": "0", "NUMBA_CUDA_USE_NVIDIA_BINDING": "0"}),
    "openmm": Framework(["OpenMM==8.6.1", "OpenMM-CUDA-13==8.6.1", "numpy==2.4.6"], steps=40, light=True),
    "taichi": Framework(["taichi==1.7.4"], steps=40),
    "tinygrad": Framework(["tinygrad==0.14.0", "nvidia-cuda-nvrtc==13.0.88", "numpy==2.4.6"], steps=12, environment={
        # It opens the driver by its path (docs/driver_api.md): this is the one that passes through.
        "CUDA_PATH": "{driver}", "NVRTC_PATH": "{site}/nvidia/cu13/lib/libnvrtc.so.13"}),
    "triton": TRITON,
    "triton_kept": dataclasses.replace(TRITON, home="triton", options=["--keep-ptx"]),
}

ENVIRONMENTS = {
    **FRAMEWORKS,
    "jax_inference": dataclasses.replace(JAX, home="jax"),  # a service only
    "torch": Framework(["torch==2.15.0"]),  # its ranges only (ranges.py)
    # This one runs only its tests (suites.py). They compare with PyTorch, of which Debian has a build without CUDA.
    "tinygrad_0_12": dataclasses.replace(FRAMEWORKS["tinygrad"], debian=True,
                                         packages=["tinygrad==0.12.0", "nvidia-cuda-nvrtc==13.0.88"]),
}


class Time:
    """What is left of a run: nothing begins behind its end."""

    def __init__(self, minutes):
        self.minutes, self.end = minutes, time.monotonic() + 60 * minutes

    def left_s(self):
        return max(0, self.end - time.monotonic())

    def is_over(self):
        return self.left_s() == 0

    def __str__(self):
        return f"the {self.minutes:g} minutes are over (--minutes)"


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
        return self.folder / (ENVIRONMENTS[name].home or name)

    def python(self, name):
        framework, home = ENVIRONMENTS[name], self.home(name)
        python, done = home / "bin/python", home / "packages"
        if not done.exists() or done.read_text().split("\n") != framework.packages:
            shutil.rmtree(home, ignore_errors=True)
            maker, more = ("/usr/bin/python3", ["--system-site-packages"]) if framework.debian else (sys.executable, [])
            made = subprocess.run([maker, "-m", "venv", *more, home], capture_output=True, text=True)
            install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries=1", "--timeout=10",
                       "--no-compile", *framework.packages]
            got = made if made.returncode else subprocess.run(install, capture_output=True, text=True)
            if got.returncode:
                shutil.rmtree(home, ignore_errors=True)
                raise Unavailable("its packages cannot be fetched: " + (got.stderr or got.stdout).strip().split("\n")[-1])
            done.write_text("\n".join(framework.packages))
        return python

    def environment(self, **more):
        return {**os.environ, "TESSERA_SOFTGPU_DIR": str(self.scratch / "gpu"), "TESSERA_SOFTGPU_GPU": str(self.gpu),
                "TESSERA_SOCKET": str(self.scratch / "socket"), "TESSERA_COMMAND": str(self.bin / "tessera"),
                "TESSERA_PROFILES": "off", **{k: str(v) for k, v in more.items()}}

    def client(self, name, run_options, arguments, **more):
        return self.start(name, run_options, [HERE / "client.py", name, *arguments], **more)

    def own_environment(self, name, passthrough):
        site = next((self.home(name) / "lib").glob("python*/site-packages"))
        driver = self.lib / ("softgpu/libcuda.so.1" if passthrough else "libtessera.so")
        return {k: v.format(site=site, driver=driver, scratch=self.scratch) for k, v in ENVIRONMENTS[name].environment.items()}

    def start(self, name, run_options, script, **more):
        """A Python program with its arguments, in the environment of that name."""
        python = self.python(name)
        command = [self.bin / "tessera", "run", "--gpu", "soft", *ENVIRONMENTS[name].options, *run_options, "--", python,
                   *script]
        own = self.own_environment(name, "--passthrough" in run_options)
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


def serve(bench, name, until, work, think_s=0.02):
    """Runs work() while `name` serves under protection: the answer of work, and of the service. `think_s`: between requests."""
    until.unlink(missing_ok=True)
    ready = pathlib.Path(f"{until}.ready")
    ready.unlink(missing_ok=True)
    service = bench.client(name, ["--priority", "high", "--name", "service"], ["--serve", until, "--steps", "1", "--think", str(think_s)])
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


def measure(bench, name, stretch, limit_s):
    """The service beside the framework and alone, in modelled time (pair.cc). `stretch`: to begin with; else it is found."""
    framework = FRAMEWORKS[name]

    def program(what, name, steps):
        own = [f"{k}={v}" for k, v in bench.own_environment(name, passthrough=False).items()]
        return list(map(str, ["/usr/bin/env", *own, bench.python(name), HERE / "program.py", what, name, steps]))

    wanted = {"service": program("serve", framework.partner, 1), "trainer": program("train", name, framework.steps),
              "run_options": framework.options}
    command = [bench.bin / "framework_pair", bench.scratch / "pair", str(PAIR_SECONDS), json.dumps(wanted)]
    start = {"TESSERA_SOFTGPU_STRETCH": stretch} if stretch else {}
    done = subprocess.run(command, capture_output=True, text=True, env=bench.environment(**start), timeout=limit_s)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-2000:])
    return json.loads(done.stdout)


def same(answers):
    return len(set(answers.values())) <= 1


def compare(bench, name, regimes):
    """What the framework computes in each regime, and what tesserad counted of it beside the service."""
    framework, until = FRAMEWORKS[name], bench.scratch / "until"
    steps = ["--steps", str(framework.steps)]
    alone = result_of(bench.client(name, ["--passthrough"], steps))
    runs, services, failed = {}, {}, {}
    for regime in regimes:
        more = {"TESSERA_SLICE": "0"} if regime == "uncut" else {}
        work = lambda: runs.update({regime: result_of(bench.client(name, [], steps, **more))})
        try:
            with Restarts(bench, often=regime == "restarted"):
                _, services[regime] = serve(bench, framework.partner, until, work)
        except (RuntimeError, subprocess.TimeoutExpired) as why:  # what the other regimes computed is told all the same
            failed[regime] = str(why)
    counted = runs.get("beside", {}).get("counters") or {}
    if "beside" in runs and not counted.get("launches"):
        failed["beside"] = "tesserad counted no launch of it: it did not run under Tessera"
    hashes = {"alone": alone["hash"], **{regime: answer["hash"] for regime, answer in runs.items()}}
    service_hashes = {regime: answer["hash"] for regime, answer in services.items()}
    equal = same(hashes) and same(service_hashes)
    return {
        "version": alone["version"],
        "equal": None if equal and failed else equal,  # None: nothing was wrong, and not everything was seen
        "hashes": hashes, "service": framework.partner, "service_hashes": service_hashes, "failed": failed,
        "launches": counted.get("launches", 0), "slices": counted.get("slices", 0), "holds": counted.get("holds", 0),
        "kernels_cut": counted.get("cut_kernels", 0), "refused": refusals(counted),
    }


def run(bench, name, light, stretch, given):
    if light:
        return compare(bench, name, ("beside",))
    row = compare(bench, name, ("beside", "uncut", "restarted"))
    try:
        if given.is_over():
            return {**row, "p99_over_alone": None, "no_time": str(given)}
        pair = measure(bench, name, stretch, min(PAIR_LIMIT_S, given.left_s()))
    except (RuntimeError, subprocess.TimeoutExpired) as why:
        if given.is_over():
            return {**row, "p99_over_alone": None, "no_time": str(given)}
        return {**row, "p99_over_alone": None, "not_measured": str(why)}
    if not pair["service_equal"]:
        row["equal"], row["service_hashes"]["measured"] = False, "differs"
    return {**row, "p99_over_alone": round(pair["p99_over_alone"], 2), "timing": pair}


def sentence(name, row):
    if "problem" in row:
        return f"{name}: {row['problem']}"
    wrong = [f"WRONG RESULTS {row['hashes']}, of the service {row['service_hashes']}"] if row["equal"] is False else []
    failed = [f"FAILED {regime}: {why}" for regime, why in row["failed"].items()]
    text = (f"{name} {row['version']}: {'; '.join(wrong + failed) or 'equal'}, {row['launches']} launches, "
            f"{row['slices']} slices, {row['holds']} holds, {row['kernels_cut']} kernels cut, refused {row['refused'] or 'none'}")
    if "not_measured" in row:
        text += f"; FAILED to measure: {row['not_measured']}"
    if "no_time" in row:
        text += f"; not measured, {row['no_time']}"
    if timing := row.get("timing"):
        text += f"; p99 of {row['service']} {row['p99_over_alone']} of alone, stretch {timing['stretch']:.3g}"
        text += "" if timing["valid"] else ", INVALID: the software GPU lagged"
    return text


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
    parser.add_argument("--light", action="store_true", help="those that are small: alone and beside, and nothing is measured")
    parser.add_argument("--stretch", type=float, metavar="S", help="what measuring begins with; else trials find it")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="N",
                        help="afterwards nothing begins: neither a measurement nor another framework (default: %(default)s)")
    add_places(parser)
    options = parser.parse_args()
    rows, stretch, given = {}, options.stretch, Time(options.minutes)
    for name in chosen(parser, options.names, options.light):
        with tempfile.TemporaryDirectory(prefix="tessera-") as scratch:
            try:
                if given.is_over():
                    raise Unavailable(given)
                bench = Bench(options.build.resolve(), options.folder.resolve(), pathlib.Path(scratch),
                              FRAMEWORKS[name].capability)
                rows[name] = run(bench, name, options.light, stretch, given)
                stretch = stretch or rows[name].get("timing", {}).get("stretch")
            except Unavailable as why:
                rows[name] = {"problem": f"skipped: {why}", "skipped": True}
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                rows[name] = {"problem": f"FAILED: {why}"}
            print(f"[{len(rows)}] {sentence(name, rows[name])}", file=sys.stderr, flush=True)
            if options.json:  # whoever ends it early has what there is
                options.json.write_text(json.dumps({"wrong": wrong_of(rows), "frameworks": rows}, indent=1) + "\n")
    return report(rows)


def wrong_of(rows):
    return [name for name, row in rows.items() if row.get("equal") is False]


def report(rows):
    """Tells wrong results, then the rest; the exit status."""
    wrong = wrong_of(rows)
    failed = [name for name, row in rows.items()
              if row.get("failed") or "not_measured" in row or "problem" in row and not row.get("skipped")]
    for name in sorted(rows, key=lambda name: (name not in wrong, name not in failed)):
        print(sentence(name, rows[name]))
    skipped = sum(row.get("skipped", False) for row in rows.values())
    bad = len({*wrong, *failed})
    print(f"{len(rows) - bad - skipped} passed, {bad} failed, {skipped} skipped")
    return 1 if wrong or failed else 77 if skipped == len(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
