"""What the questions to stock programs share: daemons of their own, the workloads as processes that are told what to do by lines,
and that all which was started ends, by its process id, on every way out."""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
WORKLOADS = HERE / "workloads"
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def dies_with(number):
    """For a child: the signal that it gets when this program ends, however it ends."""
    parent = os.getpid()

    def arrange():
        LIBC.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)
    return arrange


class Process:
    """Something that was started, with lines from it."""

    def __init__(self, command, environment, errors, read_fd=None, ends_by=signal.SIGKILL, **more):
        self.ends_by, self.text = ends_by, b""
        self.process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=errors,
                                        preexec_fn=dies_with(ends_by), **more)
        self.fd = self.process.stdout.fileno() if read_fd is None else read_fd
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.fd, selectors.EVENT_READ)

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def line(self, end_s):
        """The next line, or None: too late, or it ended."""
        while b"\n" not in self.text:
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not self.selector.select(left_s):
                return None
            data = os.read(self.fd, 65536)
            if not data:
                return None
            self.text += data
        line, self.text = self.text.split(b"\n", 1)
        return line.decode()

    def end(self):
        if self.alive():
            self.process.send_signal(self.ends_by)

    def gone(self, end_s):
        try:
            self.process.wait(max(0.1, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it: its end is the kernel's
                self.process.wait(1)


class Worker(Process):
    def __init__(self, script, prefix, environment, options, errors, **more):
        super().__init__([*prefix, sys.executable, str(WORKLOADS / script), *options], environment, errors,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
        self.commands = self.process.stdin

    def send(self, **command):
        with contextlib.suppress(OSError):  # it has ended; its answer says so
            self.commands.write(json.dumps(command).encode() + b"\n")
            self.commands.flush()

    def answer(self, end_s):
        line = self.line(end_s)
        if line is None:
            why = "no answer in time" if self.alive() else f"ended with {self.process.returncode}"
            self.end()  # what comes late would be taken for the next answer
            return {"error": why}
        return json.loads(line)


class SecondRole(Worker):
    """The trainer in the process of a service (workloads/both.py): a Worker whose lines go by pipes of its own."""

    def __init__(self, first, commands, fd):
        self.process, self.ends_by, self.text, self.commands, self.fd = first.process, first.ends_by, b"", commands, fd
        self.selector = selectors.DefaultSelector()
        self.selector.register(fd, selectors.EVENT_READ)


def both(prefix, environment, options, errors):
    """Service and trainer in one process."""
    told, tell = os.pipe()
    said, say = os.pipe()
    service = Worker("both.py", prefix, environment, [*options, "--trainer", f"{told},{say}"], errors, pass_fds=(told, say))
    os.close(told)
    os.close(say)
    return service, SecondRole(service, os.fdopen(tell, "wb"), said)


class Daemon(Process):
    def __init__(self, bin_folder, folder, configuration, environment, errors):
        folder.mkdir(mode=0o700)
        self.socket, self.bin = str(folder / "tesserad.sock"), bin_folder
        (folder / "tesserad.toml").write_text(configuration)
        ours, its = os.pipe()
        super().__init__([str(bin_folder / "tesserad"), "--config", str(folder / "tesserad.toml"), "--socket", self.socket,
                          "--log-level", "info", "--ready-fd", str(its)],
                         {**environment, "XDG_DATA_HOME": str(folder)}, errors, read_fd=ours, ends_by=signal.SIGTERM,
                         pass_fds=(its,), stdout=errors)
        os.close(its)
        self.pipe_directory = folder / "mps" / "pipe"

    def state(self):
        """What `tessera ps` says; nothing where it does not answer."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            answer = subprocess.run([str(self.bin / "tessera"), "ps", "--json", "--socket", self.socket], capture_output=True, timeout=5)
            return json.loads(answer.stdout)
        return {}

    def client(self, worker):
        return next((c for c in self.state().get("clients", []) if c["pid"] == worker.pid), {})

    def mps_state(self):
        """What became of MPS: clients can come before it has started."""
        end_s = time.monotonic() + 10
        while True:
            state = self.state().get("mps", {})
            if state.get("active") or "is starting" not in state.get("reason", "") or time.monotonic() > end_s:
                return state
            time.sleep(0.1)

    def clients_of_mps(self, rehearse):
        """The environment of its clients without Tessera. A rehearsal's are those of a software GPU that shares as MPS does."""
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory)}
        if not rehearse:
            return environment
        gpu = self.pipe_directory.parent / "gpu"
        gpu.mkdir(mode=0o700, parents=True, exist_ok=True)
        return {**environment, "TESSERA_SOFTGPU_MODE": "mps", "TESSERA_SOFTGPU_DIR": str(gpu)}


class Company:
    """What one question starts: daemons and workers, all of which end with the `with` block. Errors go to standard error."""

    START_S, ANSWER_S, CLEAN_UP_S = 40, 20, 12

    def __init__(self, options):
        self.bins, self.soft = options.build / "bin", options.build / "lib" / "softgpu" if options.rehearse else None
        self.patience = 5 if options.rehearse else 1  # a rehearsal shares its machine with other tests
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-lab-"))
        self.daemons, self.workers = [], []

    def daemon(self, text=""):
        """With such a configuration; it is ready."""
        environment = {"TESSERA_SOFTGPU_LINGER_MS": "200"} if self.soft else {}
        daemon = Daemon(self.bins, self.folder / str(len(self.daemons)), text, environment, sys.stderr)
        self.daemons.append(daemon)
        if daemon.line(time.monotonic() + self.START_S) is None:
            raise SystemExit("tesserad is not ready")
        return daemon

    def worker(self, script, daemon=None, run=(), environment=None):
        """A workload; as a client of the daemon where one is given, which `tessera run` starts with more options `run`."""
        environment, prefix = dict(environment or {}), []
        if daemon:
            prefix = [str(self.bins / "tessera"), "run", "--gpu", "soft" if self.soft else "auto", "--socket", daemon.socket, *run, "--"]
        elif self.soft:
            environment["LD_LIBRARY_PATH"] = str(self.soft)
        worker = Worker(script, prefix, environment, ["--rehearse"] if self.soft else [], sys.stderr)
        self.workers.append(worker)
        return worker

    def ask(self, worker, **command):
        """What it answers; the question fails where it does not."""
        worker.send(**command)
        return self.answer(worker, command.get("seconds", 0))

    def answer(self, worker, seconds=0):
        answer = worker.answer(time.monotonic() + seconds + self.ANSWER_S * self.patience)
        if "error" in answer:
            raise SystemExit(f"a workload: {answer['error']}")
        return answer

    def started(self):
        """All workers begin at once; this waits for them."""
        end_s = time.monotonic() + self.START_S * self.patience
        for worker in self.workers:
            answer = worker.answer(end_s)
            if "error" in answer:
                raise SystemExit(f"a workload does not start: {answer['error']}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ending()
        end_s = time.monotonic() + self.CLEAN_UP_S
        for group in (self.workers, self.daemons):  # MPS outlives its clients
            for process in group:
                process.end()
            for process in group:
                process.gone(end_s)
        shutil.rmtree(self.folder, ignore_errors=True)


def question(doc, answer):
    """The program of a question: prints what answer(company, options) says; `wrong`, a list of it, makes it fail."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="folder with bin/ and lib/")
    parser.add_argument("--seconds", type=float, default=2, help="length of a phase")
    parser.add_argument("--rehearse", action="store_true", help="on the software GPU, without frameworks")
    options = parser.parse_args()
    arranged(options)
    with Company(options) as company:
        said = answer(company, options)
        print(json.dumps(said), flush=True)
        return 1 if said.get("wrong") else 0


def arranged(options):
    """For a program that starts others: ends when told to, also when who started it does. Call `ending` on the way out."""
    for number in ENDS:
        signal.signal(number, lambda *_: sys.exit(1))
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # lab.sh may be killed
    options.build = options.build.resolve()
    if options.rehearse:  # with a control program of MPS
        os.environ["PATH"] = f"{HERE / 'pretended'}:{os.environ['PATH']}"


def ending():
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
