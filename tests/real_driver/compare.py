#!/usr/bin/env python3
"""Runs one table of probes on a driver library, bare and through the shim, and says where the answers differ.

usage: compare.py --build DIR --driver FILE [--only NAME] [--libraries DIR] [--json FILE]

FILE is the driver (libcuda.so.1 in a folder of its own); --libraries a folder of further libraries to ask (made by
scripts/real_driver.sh). A probe prints lines "what<tab>answer". Exit status 0 if nothing differs but what
docs/driver_api.md says; each difference is printed and kept in the JSON file.
"""
import argparse
import collections
import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "scripts"))
from gen_driver_entries import WITHHELD, exports_of, unknown_exports  # noqa: E402

TIMEOUT_S = 120
STARTS = 30  # per mode, for the cost of a start

Probe = collections.namedtuple("Probe", "name command environment before", defaults=({}, ()))
# name -> what is set besides the preload; None: nothing is preloaded
MODES = {
    "bare": None,
    "no daemon": {"TESSERA_SOCKET": "/nonexistent/tesserad.sock"},
    "best-effort": {"TESSERA_PRIORITY": "best-effort"},
    "protected": {"TESSERA_PRIORITY": "high"},
    "switched off": {"TESSERA_DISABLE": "1"},
    "audited": {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=16384"},  # and LD_AUDIT: as `tessera run --audit`
}

# The library that answers (reach.cc): bare, with the shim, and with the audit library beside it. An absent way is the
# driver, and twice the shim.
REACH = {
    "dlopen libcuda.so.1, RTLD_NOLOAD": ("nobody", "shim", "shim"),
    "dlsym RTLD_DEFAULT": ("nobody", "shim", "shim"),
    "dlvsym": ("nobody", "nobody", "nobody"),
    "cuGetProcAddress of another name": ("driver", "driver", "driver"),
    "dlopen by absolute path": ("driver", "driver", "shim"),
    "dlmopen libcuda.so.1": ("driver", "driver", "shim"),
}

# (reason, predicate on what, bare, shim): differences that are by design; each is stated in docs/driver_api.md.
OLD_FORM = re.compile(r" (first|second) \d$| no status$|^cuGetProcAddress(_v2)?$")
BY_DESIGN = [
    ("an entry point that the driver lacks answers 801", lambda w, b, s: b == "absent" and s in ("801", "returned", "present")),
    ("an old driver lacks this form of cuGetProcAddress, and ours answers", lambda w, b, s: OLD_FORM.search(w) and
     b in ("absent", "(no line)")),
    ("a debugger must find the driver's own", lambda w, b, s: w in WITHHELD or b == "object"),
]


class Machine:
    """Where everything is, and how a program is run on the driver in one of the modes."""

    def __init__(self, build, driver, scratch):
        self.programs = build / "bin/real_driver"
        self.static_runtime = build / "bin/conformance_runtime"
        self.shim = build / "lib/libtessera.so"
        self.preload = [self.shim, build / "lib/libtessera_alias.so"]
        self.audit = build / "lib/libtessera_audit.so"
        self.own_drivers = {"software GPU": build / "lib/softgpu", "null driver": build / "lib/null"}
        self.daemon_program = build / "bin/tesserad"
        self.driver = driver
        self.scratch = scratch

    def environment(self, mode, probe=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TESSERA_", "LD_", "CUDA_"))}
        env["LD_LIBRARY_PATH"] = str(self.driver.parent)
        env["HOME"] = str(self.scratch)  # a driver's cache is not this run's business
        before = list(probe.before) if probe else []
        env.update(probe.environment if probe else {})
        if MODES[mode] is not None:
            env.update({"TESSERA_SOCKET": f"{self.scratch}/tesserad.sock", "TESSERA_PROFILES": "off"} | MODES[mode])
            before += self.preload
        if mode == "audited":
            env["LD_AUDIT"] = ":".join(filter(None, [str(self.audit), env.get("LD_AUDIT")]))
        if before:
            env["LD_PRELOAD"] = ":".join(str(p) for p in before)
        return env

    def run(self, mode, probe):
        """Lines of the program, and how it ended."""
        try:
            done = subprocess.run([str(c) for c in probe.command], env=self.environment(mode, probe), cwd=self.scratch,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S,
                                  errors="replace")
        except subprocess.TimeoutExpired:
            return {"(status)": "does not end"}
        lines = {"(status)": str(done.returncode)}
        seen = collections.Counter()
        for line in done.stdout.splitlines():
            what, _, answer = line.partition("\t")
            seen[what] += 1
            lines[what if seen[what] == 1 else f"{what} #{seen[what]}"] = answer
        # A sanitizer's finding, and whether it is in us: the frame behind its own is ours. Addresses and paths keep the rest
        # from being compared.
        for line in done.stderr.splitlines():
            if found := re.search(r"(ERROR|WARNING): (\w+Sanitizer: [\w -]+)", line):
                lines.setdefault("(sanitizer)", found[2].strip())
            if re.match(r"\s*#1 .*libtessera", line):
                lines.setdefault("(in the shim)", line.strip())
        return lines

    @contextlib.contextmanager
    def daemon(self):
        ready, write = os.pipe()
        process = subprocess.Popen([self.daemon_program, "--socket", f"{self.scratch}/tesserad.sock", "--ready-fd",
                                    str(write)], pass_fds=[write], stderr=subprocess.DEVNULL)
        os.close(write)
        try:
            if os.read(ready, 1) == b"":
                raise RuntimeError("tesserad does not start")
            yield
        finally:
            os.close(ready)
            process.terminate()
            process.wait()


def difference(bare, shim):
    """What differs, and how much of what differs by design."""
    found, explained = [], collections.Counter()
    for what in sorted(bare.keys() | shim.keys()):
        a, b = bare.get(what, "(no line)"), shim.get(what, "(no line)")
        if a == b:
            continue
        reason = next((r for r, fits in BY_DESIGN if fits(what, a, b)), None)
        if reason:
            explained[reason] += 1
        else:
            found.append({"what": what, "bare": a, "shim": b})
    return found, explained


def probe_table(machine, libraries):
    run = machine.programs
    probes = [Probe("lookups", [run / "lookups", "0", ROOT / "driver_api/undeclared.txt"])]
    probes += [Probe(f"calls {arguments}, {when} cuInit", [run / "calls", arguments, when])
               for arguments in ("null", "zeros", "ones") for when in ("before", "after")]
    ways = ("threads", "fork", "exec", "close", "exit")
    probes += [Probe(f"start {way}", [run / "start", way]) for way in ways]
    probes += [Probe(f"{sanitizer} sanitizer, {way}", [run / f"{sanitizer}_host", way])
               for sanitizer in ("address", "thread") for way in ways if (sanitizer, way) != ("thread", "fork")]
    # The driver's leaks show if a program unloads it, which it cannot do with us.
    probes = [p._replace(environment={"ASAN_OPTIONS": "detect_leaks=0"}) if p.name.endswith((", close", ", exec")) else p
              for p in probes]
    probes += [Probe("audited start", [run / "start", "close"], {"LD_AUDIT": str(run / "audit.so")}),
               Probe("audited lookups", [run / "lookups", "0"], {"LD_AUDIT": str(run / "audit.so")}),
               Probe("bound at start", [run / "start", "fork"], {"LD_BIND_NOW": "1"})]
    probes.append(Probe("static runtime of the toolkit", [machine.static_runtime]))
    for name, command in library_probes(machine, libraries):
        probes.append(Probe(f"library {name}", command))
    return probes


def library_probes(machine, libraries):
    """(name, command) of what there is: beside the driver, in the toolkit, in the folder that the script filled."""
    ask = [sys.executable, HERE / "ask_library.py"]
    for kind, pattern in (("nvcuvid", "libnvcuvid.so.1"), ("nvoptix", "libnvoptix.so.1"),
                          ("opencl", "libnvidia-opencl.so.1"), ("fbc", "libnvidia-fbc.so.1")):
        for path in machine.driver.parent.glob(pattern):
            yield kind, [*ask, kind, path]
    places = [("toolkit", pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64")]
    if libraries:
        places += [("wheel", path) for path in sorted(libraries.glob("wheels/nvidia/*/lib"))]
    for place, folder in places:
        for kind, pattern in (("cudart", "libcudart.so.*"), ("cublas", "libcublas.so.*"), ("cudnn", "libcudnn.so.*"),
                              ("nccl", "libnccl.so.*"), ("cufft", "libcufft.so.*"), ("cusolver", "libcusolver.so.*")):
            for path in sorted(folder.glob(pattern))[:1]:
                yield f"{kind} of the {place} ({path.name})", [*ask, kind, path]
    if libraries and (libraries / "torch").is_dir():
        yield "torch", [*ask, "torch", libraries / "torch"]
    if libraries and (libraries / "clinfo").is_dir():
        yield "clinfo", [*ask, "clinfo", libraries / "clinfo", machine.driver.parent]


def skipped_libraries(probes):
    """What was not asked because it was not fetched."""
    names = [probe.name for probe in probes]
    return [part for part, sign in (("optix", "nvoptix"), ("clinfo", "clinfo"), ("wheels", "of the wheel"), ("torch", "torch"))
            if not any(sign in name for name in names)]


def compare_exports(machine):
    real, ours = exports_of(machine.driver), exports_of(machine.shim)
    versioned = subprocess.run(["nm", "-D", "--defined-only", str(machine.driver)], capture_output=True, text=True,
                               check=True).stdout.count("@")
    bare = {name: "object" if kind == "object" else "exported" for name, kind in real.items()}
    shim = {name: "exported" for name in ours if name in real}
    # Exports of ours alone have no bare counterpart; `calls` shows their answers.
    return {**bare, "(versioned symbols)": str(versioned)}, {**shim, "(versioned symbols)": "0"}


def compare_own_driver(machine, folder):
    """cuGetProcAddress of a driver of ours, up to the version of the real one; not of names that the latter lacks."""
    version = ctypes.c_int()
    ctypes.CDLL(str(machine.driver)).cuDriverGetVersion(ctypes.byref(version))
    probe = Probe("own", [machine.programs / "lookups", version.value])
    bare = machine.run("bare", probe)
    own = machine.run("bare", probe._replace(environment={"LD_LIBRARY_PATH": str(folder)}))
    known = {what for what, answer in bare.items() if re.search(r"\b0 cu", answer) or what.startswith("(")}
    return {w: a for w, a in bare.items() if w in known}, {w: a for w, a in own.items() if w in known}


def check_reach(machine, mode):
    """Differences from REACH, for a mode with the shim."""
    found, real = [], exports_of(machine.driver)
    ways = subprocess.run([machine.programs / "reach"], capture_output=True, text=True, check=True).stdout.splitlines()
    for way in ways:
        bare, shim, audited = REACH.get(way, ("driver", "shim", "shim"))
        wanted = {"bare": bare, "audited": audited}.get(mode, shim)
        if mode == "bare" and way.startswith("cuGetProcAddress") and "cuGetProcAddress_v2" not in real:
            wanted = "nobody"
        got = next(iter(set(machine.run(mode, Probe(way, [machine.programs / "reach", way, machine.driver,
                                                          machine.programs / "reach_module.so"]))) - {"(status)"}), "")
        if got != wanted:
            found.append({"what": way, "bare": f"{wanted} expected", "shim": got})
    # No preload can reach these: a static program, and one that runs as somebody else.
    alone = [("static program", machine.programs / "alone_static", "nobody"),
             ("plain program", machine.programs / "alone", "shim" if mode != "bare" else "nobody")]
    other = machine.scratch / "set_user_id"
    if os.geteuid() == 0 and not os.statvfs(machine.scratch).f_flag & os.ST_NOSUID:
        shutil.copy(machine.programs / "alone", other)
        os.chown(other, 65534, 65534)
        other.chmod(0o4755)
        alone.append(("set-user-id program", other, "nobody"))
    for what, program, wanted in alone:
        got = next(iter(set(machine.run(mode, Probe(what, [program]))) - {"(status)"}), "")
        if got != wanted:
            found.append({"what": what, "bare": f"{wanted} expected", "shim": got})
    return found, len(ways) + len(alone)


def time_starts(machine):
    """Median microseconds of a process from start to end, and of its parts, mode after mode in turn."""
    probe = Probe("time", [machine.programs / "start", "time"])
    parts = ("process", "dlopen", "first_call", "cuInit")
    taken = {mode: [] for mode in MODES}
    for _ in range(STARTS):
        for mode in MODES:
            begin = time.monotonic()
            done = subprocess.run([str(probe.command[0]), "time"], env=machine.environment(mode, probe),
                                  cwd=machine.scratch, capture_output=True, text=True, check=True)
            process_us = (time.monotonic() - begin) * 1e6
            taken[mode].append([process_us, *(int(ns) / 1000 for ns in done.stdout.split())])

    def summary(us):
        return {"median": round(statistics.median(us)), "quartiles": [round(q) for q in statistics.quantiles(us, n=4)[::2]]}

    return {mode: {f"{part}_us": summary(us) for part, us in zip(parts, zip(*starts))} for mode, starts in taken.items()}


def report(results, name, mode, lines, found, explained):
    results.append({"probe": name, "mode": mode, "lines": lines, "differences": found, "explained": dict(explained)})
    notes = "".join(f"; {count} {reason}" for reason, count in explained.items())
    print(f"{'DIFFERS' if found else 'same   '} {name} [{mode}]: {lines} answers, {len(found)} differ{notes}", flush=True)
    for d in found[:20]:
        print(f"    {d['what']}: bare {d['bare']!r}, with the shim {d['shim']!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--driver", type=pathlib.Path, required=True)
    parser.add_argument("--only", help="probes whose name contains this")
    parser.add_argument("--libraries", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    results, timing, unknown, skipped = [], {}, [], []

    def wanted(name):
        return options.only is None or options.only in name

    with tempfile.TemporaryDirectory(prefix="tessera-real-driver-") as scratch:
        os.chmod(scratch, 0o755)
        machine = Machine(options.build.resolve(), options.driver.absolute(), pathlib.Path(scratch))
        with machine.daemon():
            if wanted("exports"):
                bare, shim = compare_exports(machine)
                report(results, "exports", "no daemon", len(bare), *difference(bare, shim))
                unknown = unknown_exports(machine.driver)
                for name in unknown:
                    print(f"    new: {name} (scripts/gen_driver_entries.py --learn {machine.driver})")
            if wanted("reach"):
                for mode in ("bare", "no daemon", "audited"):
                    found, lines = check_reach(machine, mode)
                    report(results, "reach", mode, lines, found, {})
            probes = probe_table(machine, options.libraries)
            skipped = skipped_libraries(probes) if wanted("library") else []
            for part in skipped:
                print(f"skipped library {part}: not here (scripts/real_driver.sh --with {part})")
            for probe in probes:
                if not wanted(probe.name):
                    continue
                bare = machine.run("bare", probe)
                if len(bare) == 1:
                    bare["(lines)"] = "some expected"  # a probe that asks nothing must not pass
                for mode in list(MODES)[1:]:
                    shim = machine.run(mode, probe)
                    report(results, probe.name, mode, len(bare), *difference(bare, shim))
            for name, folder in machine.own_drivers.items():
                if wanted(f"lookups of the {name}"):
                    bare, own = compare_own_driver(machine, folder)
                    report(results, f"lookups of the {name}", "bare", len(bare), *difference(bare, own))
            if wanted("timing"):
                timing = time_starts(machine)
                for mode, parts in timing.items():
                    print(f"start [{mode}]:", ", ".join(f"{part} {us['median']} ({us['quartiles'][0]}..{us['quartiles'][1]})"
                                                        for part, us in parts.items()))
    findings = sum(len(r["differences"]) for r in results) + len(unknown)
    if options.json:
        summary = {"driver": os.path.basename(os.path.realpath(options.driver)), "findings": findings,
                   "unknown_exports": unknown, "timing": timing, "skipped": skipped, "probes": results}
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    if not results and not timing:
        sys.exit("compare.py: no such probe")
    print(f"{len(results)} comparisons, {sum(r['lines'] for r in results)} answers, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
