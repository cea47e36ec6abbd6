#!/usr/bin/env python3
"""The processor time of Tessera's own threads: a service and an eager trainer on the software GPU, the trainer behind its gate on
the device. Prints for both programs what their helper thread used, in % of one core, and how often it was woken; and the
trainer's boundaries. Wake-ups cost more on a busy machine, so that the load is printed, too."""
import argparse
import json
import os
import pathlib
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        socket = folder + "/d.sock"
        config = pathlib.Path(folder) / "d.toml"
        config.write_text('[daemon]\nprofiles = "off"\n[policy]\ngate = "device"\n')
        environment = os.environ | {"TESSERA_GATE": "device", "TESSERA_CACHE_MAX_MB": "0"}
        lasts = str(options.seconds + 30)
        programs = {
            "service": ["--priority", "high", "--", options.bin + "/latency_service", "--rate", str(options.rate), "--scale",
                        str(options.scale), "--seconds", lasts],
            "trainer": ["--", options.bin + "/eager_trainer", "--seconds", lasts],
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
            print(f"{name}: {used / passed / 1e7:.2f} % of a core, {times / passed:.0f} wake-ups per second")
        boundaries = after["trainer"][0]["gate_boundaries"] - before["trainer"][0]["gate_boundaries"]
        print(f"boundaries: {boundaries / passed:.0f} per second, the quantum is {after['trainer'][0]['gate_quantum_ns'] / 1e3:.0f} us")
        print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    sys.exit(main())
