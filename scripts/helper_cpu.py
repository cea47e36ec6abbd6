#!/usr/bin/env python3
"""The processor time of Tessera's own threads: a service and an eager trainer on the software GPU, the trainer behind its gate on
the device. Prints for both programs what their helper thread used, in % of one core, how often it was woken, and what a
wake-up took; and the trainer's boundaries, with the GPU time between two of them. Wake-ups cost more on a busy machine, so that
the load is printed, too."""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def helper_of(process):
    """The helper's ns on a processor, and how often it was put there (schedstat of the thread of that name)."""
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        if (task / "comm").read_text().strip() == "tessera":
            used_ns, _, times = map(int, (task / "schedstat").read_text().split())
            return used_ns, times
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"), help="folder of the programs")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=30, help="requests of the service per second")
    parser.add_argument("--scale", type=float, default=1, help="of their length")
    parser.add_argument("--slice-us", type=int, default=1000, help="of the daemon's policy: the longest quantum")
    parser.add_argument("--speed", type=float, default=1, help="of the GPU's SMs and memory, over profiles/gpus/test4.toml")
    parser.add_argument("--trainer", default="", help="further options of eager_trainer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        socket = folder + "/d.sock"
        config = pathlib.Path(folder) / "d.toml"
        config.write_text(f'[daemon]\nprofiles = "off"\n[policy]\ngate = "device"\nslice_us = {options.slice_us}\n')
        gpu = pathlib.Path(folder) / "gpu.toml"
        gpu.write_text(re.sub(r"(?m)^(clock_mhz|gb_per_s) = ([0-9.]+)", lambda m: f"{m[1]} = {float(m[2]) * options.speed}",
                              (ROOT / "profiles/gpus/test4.toml").read_text()))
        environment = os.environ | {"TESSERA_GATE": "device", "TESSERA_CACHE_MAX_MB": "0", "TESSERA_SOFTGPU_GPU": str(gpu),
                                    "TESSERA_SOFTGPU_DIR": folder + "/gpu"}
        lasts = str(options.seconds + 30)
        programs = {
            "service": ["--priority", "high", "--", options.bin + "/latency_service", "--rate", str(options.rate), "--scale",
                        str(options.scale), "--seconds", lasts],
            "trainer": ["--", options.bin + "/eager_trainer", "--seconds", lasts, *options.trainer.split()],
        }
        with open(folder + "/log", "w") as log:
            started = [subprocess.Popen([options.bin + "/tesserad", "--socket", socket, "--config", config], stderr=log)]
            while not os.path.exists(socket):
                time.sleep(0.01)
            for name, words in programs.items():
                started.append(subprocess.Popen([options.bin + "/tessera", "run", "--name", name, "--gpu", "soft", "--socket", socket, *words],
                                                stdout=log, stderr=log, env=environment))

            def clients():
                answer = subprocess.run([options.bin + "/tessera", "ps", "--socket", socket, "--json"], check=True, capture_output=True)
                found = {c["name"]: c for c in json.loads(answer.stdout)["clients"]}
                return {n: (c, helper_of(c["pid"])) for n, c in found.items() if c.get("launches")}

            try:
                while len(clients()) < 2 or clients()["trainer"][0]["gate"] != "device":
                    time.sleep(0.1)
                time.sleep(2)
                before, since = clients(), time.monotonic()
                time.sleep(options.seconds)
                after, passed = clients(), time.monotonic() - since
            finally:
                for process in reversed(started):
                    process.kill()
                    process.wait()
        for name in programs:
            used, times = (b - a for a, b in zip(before[name][1], after[name][1]))
            print(f"{name}: {used / passed / 1e7:.2f} % of a core, {times / passed:.0f} wake-ups per second of {used / times / 1e3:.0f} us")
        client = after["trainer"][0]
        counted = ("gate_boundaries", "completed_ns", "launches", "gate_openings")
        boundaries, gpu_ns, launches, openings = (client[n] - before["trainer"][0][n] for n in counted)
        print(f"launches: {launches / passed:.0f} per second of {gpu_ns / launches / 1e3:.0f} us")
        print(f"boundaries: {boundaries / passed:.0f} per second, every {gpu_ns / boundaries / 1e3:.0f} us of GPU time; "
              f"the longest quantum is {client['gate_quantum_ns'] / 1e3:.0f} us")
        print(f"openings by the hold limit: {openings / passed:.1f} per second")
        print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    sys.exit(main())
