"""What the profile plots share: reading a profile, short kernel names, colours by class. Not a program."""
import json
import subprocess
import sys

CLASSES = ("compute", "memory", "latency", "unknown")
COLOURS = {"compute": "#2980b9", "memory": "#c0392b", "latency": "#7f8c8d", "unknown": "#d5b942"}
VERSION = 1


def read(path):
    """A profile file; exits with the reason if it is none."""
    try:
        with open(path) as file:
            profile = json.load(file)
        version = profile["tessera_profile_version"]
        profile["kernels"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        sys.exit(f"{path}: not a profile: {problem}")
    if version != VERSION:
        sys.exit(f"{path}: has version {version}, this script reads version {VERSION}")
    return profile


def load_operations(path):
    """Library calls of a profile file; exits with the reason if there are none."""
    operations = read(path).get("operations")
    if not operations:
        sys.exit(f"{path}: holds no library calls")
    return operations


def load(path):
    """Kernels of a profile file, each with `label` added; exits with the reason if there are none."""
    kernels = read(path)["kernels"]
    kernels = [k for k in kernels if k.get("duration", {}).get("samples")]
    if not kernels:
        sys.exit(f"{path}: holds no measured kernel")
    for kernel, name in zip(kernels, demangled([k["kernel"] for k in kernels])):
        kernel["label"] = short(name)
    return kernels


def demangled(names):
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        return lines if len(lines) == len(names) else names
    except (OSError, subprocess.CalledProcessError):
        return names


def short(name, most=34):
    name = name.replace("(anonymous namespace)::", "").split("(")[0] or name
    return name if len(name) <= most else name[:most - 3] + "..."


def median_ms(kernel):
    return kernel["duration"]["p50_ns"] / 1e6


def operations(kernel):
    return sum(kernel.get("work", {}).get("operations_per_launch", {}).values())


def memory_bytes(kernel):
    return kernel.get("work", {}).get("memory_bytes_per_launch", 0)


def save(figure, path):
    """PNG or SVG by the file's ending."""
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    print(path)
