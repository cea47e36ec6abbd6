#!/usr/bin/env python3
"""The protocol of scripts/gpu/workloads, and what scripts/gpu/headline.py leaves when it is ended, on the software GPU.

usage: lab_test.py BUILD_FOLDER"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

GPU = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu"
BUILD = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
LIMIT_S = 60


def children(pid):
    """Of a process, and theirs."""
    found = []
    for text in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, text.read_text().split()):
            found += [child, *children(child)]
    return found


def running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Workloads(unittest.TestCase):
    def conversation(self, script, *commands):
        """The answers to commands of a stand-in that finds no GPU."""
        environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
        text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in commands)
        answer = subprocess.run([sys.executable, GPU / "workloads" / script, "--rehearse"], input=text, capture_output=True, text=True,
                                timeout=LIMIT_S, env=environment)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return [json.loads(line) for line in answer.stdout.splitlines()]

    def test_one_start_serves_many_runs(self):
        start_s = time.monotonic()
        run = {"do": "run", "what": "resnet", "at_s": start_s, "seconds": 30}
        service = self.conversation("service.py", {"do": "load", "what": "resnet"}, {**run, "rate_per_s": 1e-9}, {"do": "unload"},
                                    {"do": "quit"}, {"do": "load", "what": "late"})
        self.assertEqual([answer.get("done") for answer in service], ["start", "load", "run", "unload"])
        self.assertGreater(service[1]["alone_ms"], 0)
        self.assertEqual(service[2]["requests"], 0)
        trainer = self.conversation("trainer.py", {"do": "load", "what": "resnet"}, {**run, "seconds": 0.01}, {"do": "quit"})
        self.assertEqual([answer.get("done") for answer in trainer], ["start", "load", "run"])
        self.assertTrue(trainer[2]["losses"])

    def test_a_mistake_is_answered(self):
        for script in ("service.py", "trainer.py"):
            answers = self.conversation(script, "no JSON\n", {"do": "explode"}, {"do": "run", "what": "x", "at_s": 0, "seconds": 0},
                                        {"do": "load", "what": "resnet"})
            self.assertEqual(["error" in answer for answer in answers], [False, True, True, True, False], answers)


@unittest.skipUnless(BUILD, "needs a build folder")
class Headline(unittest.TestCase):
    def ended_by(self, number):
        with tempfile.TemporaryDirectory(prefix="tessera-lab-") as folder:
            out, gpu = pathlib.Path(folder) / "out", pathlib.Path(folder) / "gpu"
            gpu.mkdir(mode=0o700)
            command = [sys.executable, GPU / "headline.py", "--build", BUILD, "--out", out, "--rehearse", "--seconds", "0.1", "--budget", "300"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "TESSERA_SOFTGPU_DIR": str(gpu), "TESSERA_SOFTGPU_LINGER_MS": "200"}) as headline:
                self.assertTrue(any("alone resnet_graph" in line for line in headline.stdout), "it ended before its first answer")
                started = children(headline.pid)
                self.assertGreater(len(started), 6)
                headline.send_signal(number)
                for _ in headline.stdout:  # until it has ended
                    pass
            end_s = time.monotonic() + LIMIT_S
            while (left := [pid for pid in started if running(pid)]) and time.monotonic() < end_s:
                time.sleep(0.05)
            self.assertEqual(left, [])
            summary = json.loads((out / "headline.json").read_text())
            self.assertIn("latency_p50_ms", summary["alone"]["service"]["resnet_graph"])
            self.assertLessEqual(len(list(out.iterdir())), 8)
            return headline.returncode

    def test_ends_what_it_started(self):
        self.assertEqual(self.ended_by(signal.SIGTERM), 1)

    def test_nothing_outlives_it(self):
        self.assertEqual(self.ended_by(signal.SIGKILL), -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
