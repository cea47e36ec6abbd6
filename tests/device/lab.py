"""Helpers of the Python questions: where the programs are, starting several at once, reading their JSON."""
import json
import os
import pathlib
import signal
import subprocess

FOLDER = pathlib.Path(os.environ.get("TESSERA_DEVICE_BIN", pathlib.Path(__file__).resolve().parent))


def program(name):
    path = FOLDER / name
    if not path.exists():
        raise SystemExit(f"{path} is not there: build it, or set TESSERA_DEVICE_BIN to the folder that holds it")
    return str(path)


def rounds(kernel_ms, environment=None):
    """What makes a sharer's kernel last kernel_ms; to be asked while nothing else runs."""
    text = subprocess.run([program("sharer"), "--role", "calibrate", "--kernel-ms", str(kernel_ms)],
                          capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})})
    if text.returncode != 0:
        raise SystemExit(text.stderr)
    return int(json.loads(text.stdout)["rounds"])


def start(*arguments, environment=None):
    """Starts a sharer and waits until its loop runs."""
    process = subprocess.Popen([program("sharer"), *map(str, arguments), "--announce"], stdout=subprocess.PIPE,
                               text=True, env={**os.environ, **(environment or {})})
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


def info():
    text = subprocess.run([program("device_info")], capture_output=True, text=True, timeout=60)
    return json.loads(text.stdout) if text.returncode == 0 else {"failed": text.stderr.strip()}
