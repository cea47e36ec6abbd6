"""What the attack programs in Python share: options, findings and report (as attack.h), a private folder, a daemon,
and verified clients: programs on the software GPU whose result is known. Every child ends with its parent.
"""
import argparse
import atexit
import contextlib
import ctypes
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(__file__).resolve().parent.parent
PATIENCE_S = 60  # tells a hang from slowness, on a machine that does much else
MOST_FINDINGS = 20
BEST_EFFORT = ["compute", "256", "8", "2"]  # of tests/integration/sharing/load.cc: kind, blocks, iterations, launches
PROTECTED = ["memory", "64", "4", "1"]


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def eventually(condition, seconds=PATIENCE_S):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Run:
    def __init__(self, name):
        parser = argparse.ArgumentParser(prog="attack_" + name, description="exit status 0 if it finds nothing")
        parser.add_argument("--seconds", type=float, default=5)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--json", type=pathlib.Path)
        self.options = parser.parse_args()
        self.name, self.runs, self.findings, self.notes = name, 0, [], {}
        self.random = random.Random(self.options.seed)
        self.end = None  # what is prepared before goes_on() is first asked takes no time of the run
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-attack-", dir="/tmp"))
        self.folder.chmod(0o711)
        self.children = []
        atexit.register(self.clean_up)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def goes_on(self):
        if self.end is None:
            self.end = time.monotonic() + self.options.seconds
        return time.monotonic() < self.end and len(self.findings) < MOST_FINDINGS

    def found(self, text):
        print(f"FOUND by attack_{self.name} (seed {self.options.seed}): {text}", flush=True)
        self.findings.append(text)

    def finish(self):
        if self.options.json:
            report = {"name": self.name, "seed": self.options.seed, "runs": self.runs, "findings": self.findings,
                      "notes": self.notes}
            self.options.json.write_text(json.dumps(report, indent=1) + "\n")
        print(f"attack_{self.name}: {self.runs} runs, {len(self.findings)} findings, seed {self.options.seed}")
        sys.exit(1 if self.findings else 0)

    def clean_up(self):
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, command, environment, log, limits=(), user=None):
        """A child of ours in the background, perhaps of another user; `limits` are (resource, value)."""
        def prepare():
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            die_with_parent()  # after that: a change of user undoes it
            for what, value in limits:
                resource.setrlimit(what, (value, value))
        with open(self.folder / (log + ".out"), "wb") as out, open(self.folder / (log + ".err"), "wb") as err:
            child = subprocess.Popen(command, env=dict(os.environ, **environment), stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=err, preexec_fn=prepare)
        self.children.append(child)
        return child

    def text(self, log):
        return "".join((self.folder / (log + end)).read_text(errors="replace") for end in (".out", ".err"))


def run_seeds(name, program, variable, n_seeds, filters):
    """A test program whose cases are made by seed: `n_seeds` of them in a run, with one of `filters` in turn. `variable` says how
    many, and with _FROM where they begin."""
    run = Run(name)
    while run.goes_on():
        first = run.random.randrange(1, 1 << 40)
        tests = filters[run.runs % len(filters)]
        environment = {variable: str(n_seeds), variable + "_FROM": str(first)}
        process = run.start([str(BIN / program), f"--gtest_filter={tests}"], environment, "seeds")
        try:
            status = process.wait(timeout=PATIENCE_S * 5)
        except subprocess.TimeoutExpired:
            process.kill()
            status = "none: it hangs"
        if status != 0:
            settings = " ".join(f"{key}={value}" for key, value in environment.items())
            run.found(f"{settings} {program} --gtest_filter='{tests}': status {status}\n{run.text('seeds')[-2000:]}")
        run.runs += 1
    run.finish()


class Daemon:
    def __init__(self, run, config="", wrapper=(), socket=None):
        self.run, self.wrapper = run, list(wrapper)
        self.socket = socket or run.folder / "d.sock"
        self.config = run.folder / "d.toml"
        self.config.write_text(config)
        self.process = None

    def start(self):
        command = [*self.wrapper, str(BIN / "tesserad"), "--socket", str(self.socket), "--config", str(self.config),
                   "--log-level", "error"]
        self.process = self.run.start(command, {}, "daemon")
        return eventually(lambda: self.ask() is not None or self.process.poll() is not None) and self.is_up()

    def is_up(self):
        return self.process.poll() is None

    def end(self, number):
        """None: that did not end it."""
        self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if self.process.poll() is not None:
                self.run.children.remove(self.process)

    def ask(self):
        answer = subprocess.run([str(BIN / "tessera"), "ps", "--json", "--socket", str(self.socket)],
                                capture_output=True, timeout=PATIENCE_S)
        return json.loads(answer.stdout) if answer.returncode == 0 else None


class Clients:
    """Programs under `tessera run`, in bursts; what each computes is held against what it computes bare."""

    def __init__(self, run, socket):
        self.run, self.socket, self.expected, self.n = run, socket, {}, 0
        self.gpu = {"TESSERA_SOFTGPU_DIR": str(run.folder / "gpu"), "TESSERA_SOCKET": str(socket),
                    "TESSERA_CACHE_DIR": str(run.folder / "cache")}

    def command(self, load, bursts, gap_us=0, priority="best-effort", bare=False, steps=None):
        """`steps`: file that grows by a byte with each burst."""
        words = [str(BIN / "tessera"), "run", "--gpu", "soft", "--priority", priority]
        return words + (["--passthrough"] if bare else []) + \
            ["--", str(BIN / "sharing_load"), *load, str(bursts), str(gap_us), *([str(steps)] if steps else [])]

    def start(self, load, bursts, limits=(), **options):
        self.n += 1
        name = f"client{self.n}"
        return name, self.run.start(self.command(load, bursts, **options), self.gpu, name, limits)

    def checksum(self, name):
        text = self.run.text(name)
        at = text.find("checksum=")
        return text[at + 9:at + 25] if at >= 0 else None

    def expect(self, load):
        """One burst: every burst computes the same."""
        if tuple(load) not in self.expected:
            name, bare = self.start(load, 1, bare=True)
            bare.wait(PATIENCE_S)
            self.run.children.remove(bare)
            self.expected[tuple(load)] = self.checksum(name)
        return self.expected[tuple(load)]

    def verify(self, name, process, load, what):
        """Waits for its end; says what is wrong with it."""
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.run.found(f"{what}: the program hangs")
            process.kill()
            status = process.wait()
        else:
            if status != 0 or self.checksum(name) != self.expect(load):
                self.run.found(f"{what}: status {status}, checksum {self.checksum(name)} instead of "
                               f"{self.expect(load)}: {self.run.text(name)[-500:]}")
        self.run.children.remove(process)
        for end in (".out", ".err"):
            (self.run.folder / (name + end)).unlink()


def resident_kib(pid):
    """0: not known. An emulator's memory grows with the code that it has translated."""
    if "TESSERA_EMULATED" in os.environ:
        return 0
    try:
        for line in open(f"/proc/{pid}/status"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def descriptors(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
