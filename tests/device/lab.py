"""Helpers of the Python questions: where the programs are, starting several at once, reading their JSON, an MPS of our own."""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REHEARSED = "TESSERA_LAB_REHEARSED" in os.environ  # on the software GPU
FOLDER = pathlib.Path(os.environ.get("TESSERA_DEVICE_BIN", pathlib.Path(__file__).resolve().parent))


def dies_with_us():
    """For a child, before its program begins: it ends when this program does, however that is."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def program(name):
    path = FOLDER / name
    if not path.exists():
        raise SystemExit(f"{path} is not there: build it, or set TESSERA_DEVICE_BIN to the folder that holds it")
    return str(path)


def calibrated(kernel_ms, environment=None, waves=1):
    """The rounds that make a sharer's kernel last kernel_ms, and how long it lasts; to be asked while nothing else runs."""
    text = subprocess.run([program("sharer"), "--role", "calibrate", "--kernel-ms", str(kernel_ms), "--waves", str(waves)],
                          capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})})
    if text.returncode != 0:
        raise SystemExit(text.stderr)
    return json.loads(text.stdout)


def rounds(kernel_ms, environment=None):
    return calibrated(kernel_ms, environment)["rounds"]


def sharer(*arguments):
    return [program("sharer"), *map(str, arguments), "--announce"]


def start(*arguments, environment=None):
    return started(sharer(*arguments), environment)


def started(command, environment=None):
    """Starts what runs a sharer, and waits until its loop runs."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}, preexec_fn=dies_with_us)
    line = process.stdout.readline()
    if line.strip() != "ready":
        process.kill()
        raise SystemExit(f"sharer did not start: {line.strip() or 'see its message above'}")
    return process


def result(process, timeout_s=60):
    text, _ = process.communicate(timeout=timeout_s)
    if process.returncode != 0:
        return {"failed": process.returncode}
    return json.loads(text)


def end(process):
    process.send_signal(signal.SIGTERM)
    return result(process)


def info(environment=None):
    text = subprocess.run([program("device_info")], capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})})
    return json.loads(text.stdout) if text.returncode == 0 else {"failed": text.stderr.strip()}


class Daemon:
    """A daemon of our own in a folder of our own; what is started meanwhile attaches to it."""

    def __init__(self, tessera, tesserad):
        self.tessera, self.clients = tessera, 0
        self.folder = tempfile.mkdtemp(prefix="tessera-lab-")
        self.socket = os.environ["TESSERA_SOCKET"] = str(pathlib.Path(self.folder, "tesserad.sock"))
        read_end, write_end = os.pipe()
        self.process = subprocess.Popen([tesserad, "--socket", self.socket, "--log-level", "warn", "--ready-fd", str(write_end)],
                                        pass_fds=(write_end,))
        os.close(write_end)
        os.read(read_end, 1)
        os.close(read_end)

    def client(self, gpu, priority, *command):
        """What runs the command as its client."""
        self.clients += 1
        return [self.tessera, "run", "--gpu", gpu, "--priority", priority, "--", *command]

    def state(self):
        """What `tessera ps` says."""
        if self.process.poll() is not None:
            raise SystemExit(f"tesserad ended with status {self.process.returncode}")
        state = subprocess.run([self.tessera, "ps", "--json", "--socket", self.socket], capture_output=True, text=True, timeout=20)
        if state.returncode != 0:
            raise SystemExit(f"tesserad does not answer: {state.stderr.strip()}")
        return json.loads(state.stdout)

    def attached(self):
        return self.state()["daemon"]["attached"]

    def await_clients(self, timeout_s=20):
        """Until everyone that was started as its client has attached. Who ended before never will."""
        end_s = time.monotonic() + timeout_s
        while self.attached() < self.clients and time.monotonic() < end_s:
            time.sleep(0.01)

    def check(self):
        """Does it live, and did every client attach? Else what they answered is of programs that nobody managed."""
        attached = self.attached()
        if attached < self.clients:
            raise SystemExit(f"{attached} of {self.clients} clients attached")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)


class Mps:
    """An MPS control daemon of our own, in a folder of our own, gone afterwards, also where lab.sh ends this program."""

    PROGRAM, READY_S, END_S = "nvidia-cuda-mps-control", 10, 10

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="tessera-mps-")
        folders = {"CUDA_MPS_PIPE_DIRECTORY": self.folder + "/pipe", "CUDA_MPS_LOG_DIRECTORY": self.folder + "/log"}
        shares = {"TESSERA_SOFTGPU_DIR": self.folder + "/gpu"} if REHEARSED else {}
        for path in (*folders.values(), *shares.values()):
            os.mkdir(path, 0o700)
        self.environment = {**folders, **({**shares, "TESSERA_SOFTGPU_MODE": "mps"} if shares else {})}

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        environment = {**os.environ, **self.environment}
        self.output = open(self.folder + "/control.out", "w+")
        self.process = subprocess.Popen([self.PROGRAM, "-f"], env=environment, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output,
                                        preexec_fn=dies_with_us)
        ready, end_s = pathlib.Path(self.folder, "pipe", "control"), time.monotonic() + self.READY_S
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > end_s:
                self.output.seek(0)
                said = self.output.read().strip()
                self.__exit__()
                raise RuntimeError(f"{self.PROGRAM} is not ready: {said}")
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process.poll() is None:
                subprocess.run([self.PROGRAM], input="quit -t 5\n", capture_output=True, text=True, timeout=self.END_S,
                               env={**os.environ, **self.environment})
                self.process.wait(self.END_S)
        self.process.kill()
        self.process.wait()
        self.output.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def answer_under_mps(question, doc, questions):
    """The program of a question: prints what questions(environment, seconds) answers under an MPS of our own."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--seconds", type=float, default=3, help="per measurement")
    seconds = parser.parse_args().seconds
    return tell({**info(), "question": question, **with_mps(questions, seconds)})


def tell(answer):
    """Prints it; the exit status is 1 if a part of it failed."""
    def failed(part):
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return isinstance(part, dict) and "failed" in part or any(map(failed, inside))

    print(json.dumps(answer))
    return 1 if failed(answer) else 0


def with_mps(questions, seconds):
    """The answers of questions(environment, seconds) under an MPS of our own, and what became of it."""
    if not shutil.which(Mps.PROGRAM):
        raise SystemExit(f"{Mps.PROGRAM} is not installed")
    try:
        with Mps() as mps:
            return {"mps": "started in a private directory", "regime": info(mps.environment).get("regime"),
                    **questions(mps.environment, seconds)}
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"no MPS: {error}") from error
