#!/usr/bin/env python3
"""Who may include whom (docs/architecture.md, "Modules"). Exit 1 with file:line for every include that breaks a rule.

usage: check_layering.py [--root DIR]
"""
import argparse
import pathlib
import re
import sys

TOP = ("admission", "base", "driver_api", "ipc", "interpose", "kernels", "operations", "scheduler_daemon", "simulator", "profiles", "softgpu",
       "cli", "integrations", "tests")

# The rooms of the preload library, bottom to top: each may include those before it, none the ones behind it.
ROOMS = ("state", "memory", "gate", "track", "slice", "hooks", "lifecycle")


def room(name, *more):
    below = [f"interpose/{r}" for r in ROOMS[:ROOMS.index(name)]]
    return ["admission", "base", "driver_api", "interpose/audit/contract.h", "interpose/ranges/contract.h", "ipc", "operations", *more, *below]


# First matching folder decides. A folder may always include itself. Values: folders or files of the project.
ALLOWED = {
    "base": [],
    "driver_api": ["base"],
    "ipc/abi": [],
    "ipc": ["base"],
    "admission": ["ipc/abi"],
    "operations": ["ipc/abi"],
    "kernels": ["base"],
    "profiles": ["base", "ipc/abi", "kernels", "operations"],
    "softgpu/exec": ["base", "kernels/ptx"],
    "softgpu/timing": ["base", "profiles"],
    "softgpu/faults": [],
    "softgpu/runtime": [],  # on top of any driver, by its public functions
    "softgpu/driver": ["base", "driver_api", "kernels/image", "kernels/ptx", "profiles", "softgpu/exec/exec.h",
                       "softgpu/exec/surface_view.h", "softgpu/exec/tensor_map.h", "softgpu/timing/device_memory.h",
                       "softgpu/timing/engine.h", "softgpu/timing/place.h", "softgpu/faults"],
    "softgpu/libraries": ["profiles", "softgpu/timing/device_memory.h", "softgpu/timing/place.h"],
    "softgpu": ["base", "driver_api", "kernels/image", "kernels/ptx", "profiles"],
    "interpose/state": room("state"),
    "interpose/memory": room("memory"),
    "interpose/gate": room("gate", "profiles/gpus/rates.def"),
    "interpose/track": room("track", "kernels"),
    "interpose/slice": room("slice", "kernels/slice"),
    "interpose/hooks": room("hooks"),
    "interpose/arch": ["base"],  # instructions as text and as bytes
    "interpose/lifecycle": room("lifecycle"),
    "interpose/operations": ["base", "interpose/arch/jumps.inc", "operations"],  # a library of its own, which knows nothing of the other
    "interpose/audit": ["base/exports.h", "base/machine.h", "operations/hook.h"],  # a library of its own, without libc; the others know its contract
    "interpose/ranges": ["base"],  # a library of its own; the preload library knows its contract
    "interpose/entry": ["base", "driver_api", "interpose/arch/jumps.inc", "interpose/audit/contract.h", "interpose/hooks/hooks.h"],  # forwards, also where there is no gate
    "scheduler_daemon/policy": ["base/length_class.h", "base/units.h"],
    "scheduler_daemon/parker": ["base", "driver_api/cuda.h", "ipc/abi", "scheduler_daemon/programs"],  # a process of its own loads the driver
    "scheduler_daemon": ["admission", "base", "ipc", "profiles"],
    "simulator": ["admission", "base", "profiles", "scheduler_daemon/policy"],
    "cli": ["admission", "base", "driver_api", "interpose/arch/written_stub.h", "ipc", "kernels", "profiles", "scheduler_daemon", "simulator"],
    "integrations": ["base", "cli/run/cdi.h", "cli/run/client_environment.h", "ipc/channel"],
    "tests": list(TOP),
}
# Folders whose other includes are limited too: what may stand in angle brackets.
SYSTEM = {
    "ipc/abi": re.compile(r"^cstdint$"),
    "admission": re.compile(r"^(cstdint|span)$"),  # no clock, no atomics, no allocation
    "operations": re.compile(r"^(algorithm|array|bit|compare|cstdint|limits|optional|span|string_view)$"),
    # The C++ library, and of it nothing that reads a clock, a file, the environment, or starts a thread.
    "scheduler_daemon/policy": re.compile(
        r"^(?!chrono|thread|mutex|fstream|iostream|filesystem|cstdlib|ctime|random|future|atomic)[a-z_]+$"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def rule_of(folder, table):
    return next((key for key in table if folder == key or folder.startswith(key + "/")), None)


def problems(root, path, lines):
    relative = path.relative_to(root)
    folder = str(relative.parent)
    rule, system = rule_of(folder, ALLOWED), rule_of(folder, SYSTEM)
    if rule is None:
        yield f"{relative}:1: {folder} has no row in scripts/check_layering.py"
        return
    for number, line in enumerate(lines, 1):
        m = INCLUDE.match(line)
        if not m:
            continue
        quoted, target = m[1] == '"', m[2]
        where = f"{relative}:{number}"
        if target.split("/")[0] not in TOP or not quoted:
            if quoted and not folder.startswith(("tests", "kernels/samples")):
                yield f'{where}: "{target}": spell project headers from the repository root, others in <>'
            elif system and not quoted and not SYSTEM[system].match(target):
                yield f"{where}: {system} may not include <{target}>"
            continue
        own = rule if rule not in ("ipc/abi", "scheduler_daemon/policy") else system
        allowed = ALLOWED[rule] + [own]
        if not any(target == a or target.startswith(a + "/") for a in allowed):
            yield f"{where}: {rule} may not include {target}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    found, files = [], 0
    for top in TOP:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".c", ".S", ".cu", ".cuh", ".def") and path.is_file():
                files += 1
                found += problems(root, path, path.read_text(errors="replace").splitlines())
    for line in found:
        print(line)
    if files == 0:
        print("no source files found: run from a checkout")
        return 1
    print(f"layering: {files} files, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
