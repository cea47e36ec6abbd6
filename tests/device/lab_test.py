#!/usr/bin/env python3
"""The protocol of scripts/gpu/workloads, and what scripts/gpu/headline.py leaves when it is ended, on the software GPU.

usage: lab_test.py BUILD_FOLDER"""
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from random import Random

GPU = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu"
sys.path.insert(0, str(GPU))
import processes

BUILD = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
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

    @unittest.skipUnless(importlib.util.find_spec("triton"), "this Python has no Triton")
    def test_tritons_kernels_compile_without_a_gpu(self):
        with tempfile.TemporaryDirectory(prefix="tessera-lab-") as folder:
            answer = subprocess.run([sys.executable, GPU / "workloads/kernels_of_triton.py", "--out", folder], capture_output=True, text=True,
                                    timeout=LIMIT_S, env={**os.environ, "TRITON_CACHE_DIR": folder + "/cache"})
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertEqual(sorted(json.loads(answer.stdout)), ["pointwise", "product", "softmax"])
            for name in json.loads(answer.stdout):
                self.assertIn(f".visible .entry {name}(", pathlib.Path(folder, name + ".ptx").read_text())

    @unittest.skipUnless(importlib.util.find_spec("triton") and importlib.util.find_spec("torch"), "this Python has no Triton and PyTorch")
    def test_tritons_kernels_compute_what_they_shall(self):
        program = ("import torch, kernels_of_triton\na, b = torch.randn(2, 64, 64)\nx, results = a.clone(), kernels_of_triton.results(a, b)\n"
                   "for _ in range(2000): x = x * 0.999 + b\n"
                   "for name, right in (('pointwise', x), ('softmax', a.softmax(-1)), ('product', a @ b)):\n"
                   "    torch.testing.assert_close(results[name], right, atol=1e-4, rtol=1e-4)\n")
        answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, cwd=GPU / "workloads",
                                env={**os.environ, "TRITON_INTERPRET": "1"})
        self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_two_roles_of_one_process_answer_each_for_itself(self):
        with open(os.devnull, "w") as errors:
            service, trainer = processes.both([], {"LD_LIBRARY_PATH": ""}, ["--rehearse"], errors)
            self.addCleanup(service.gone, 0)
            self.assertEqual(service.pid, trainer.pid)
            end_s = time.monotonic() + LIMIT_S
            for role in (service, trainer):
                self.assertEqual(role.answer(end_s)["done"], "start")
                role.send(do="load", what="resnet")
                self.assertEqual(role.answer(end_s).get("what"), "resnet")
            trainer.send(do="run", what="resnet", at_s=time.monotonic(), seconds=0.01)
            service.send(do="explode")
            self.assertIn("error", service.answer(end_s))
            self.assertTrue(trainer.answer(end_s)["losses"])
            for stream in (service.process.stdin, service.process.stdout, trainer.commands):
                stream.close()


@unittest.skipUnless(BUILD, "needs a build folder")
class Questions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tessera-lab-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def script(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/usr/bin/env python3\n" + text)
        path.chmod(0o755)
        return path

    def run_on_softgpu(self, *command, libraries=(), **environment):
        gpu = self.folder / "gpu"
        gpu.mkdir(mode=0o700, exist_ok=True)
        path = ":".join(map(str, [*libraries, BUILD / "lib" / "softgpu"]))
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S,
                              env={**os.environ, "PATH": f"{GPU / 'pretended'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": path,
                                   "TESSERA_SOFTGPU_DIR": str(gpu), "TESSERA_SOFTGPU_LINGER_MS": "200", "TESSERA_LAB_REHEARSED": "1",
                                   **environment})

    @unittest.skipUnless(BUILD and (BUILD / "build.ninja").exists() and shutil.which("ninja"), "not built by ninja")
    def test_the_programs_bring_what_they_ask(self):
        commands = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", "device_programs"], capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(commands.returncode, 0, commands.stderr)
        for asked in ("lib/libtessera.so", "lib/libtessera_alias.so", "bin/tessera", "bin/tessera-ptxas", "bin/tesserad"):
            self.assertTrue(f" -o {asked} " in commands.stdout, asked)

    def test_any_wrong_answer_fails_h1(self):
        program = BUILD / "bin" / "device" / "h1_shim"
        right = self.run_on_softgpu(program)
        self.assertEqual(right.returncode, 0, right.stdout + right.stderr)
        (self.folder / "libcublas.so.13").symlink_to((BUILD / "lib/softgpu/libcudart.so.13").resolve())
        wrong = self.run_on_softgpu(program, "--libraries", libraries=[self.folder])
        self.assertEqual(json.loads(wrong.stdout)["cublas"], "failed: symbols")
        self.assertEqual(wrong.returncode, 1)

    def test_what_is_cut_has_eight_waves_and_the_regime_a_name(self):
        h8 = json.loads(self.run_on_softgpu(BUILD / "bin/device/h8_slices", "--repeats", "1", "--max-slices", "2", "--kernels-ms", "5,10").stdout)
        self.assertEqual([kernel["wanted_ms"] for kernel in h8["kernels"]], [5, 10])
        self.assertGreaterEqual(h8["blocks"], 8 * 16 * h8["multiprocessors"])  # 16 blocks of 128 threads fill one
        self.assertEqual(h8["regime"], "time slices")
        hog = json.loads(self.run_on_softgpu(BUILD / "bin/device/sharer", "--role", "calibrate", "--kernel-ms", "20", "--waves", "8").stdout)
        self.assertEqual(hog["blocks"], h8["blocks"])
        self.assertGreater(hog["kernel_ms"], 5)

    def test_a_daemon_that_died_fails_who_asked_it(self):
        dying = self.script("tesserad", "import os, sys\nos.write(int(sys.argv[-1]), b'x')\n")
        common = ["--tessera", BUILD / "bin" / "tessera", "--tesserad", dying, "--gpu", "soft"]
        device = BUILD / "bin" / "device"
        h9 = self.run_on_softgpu(sys.executable, device / "h9_turnaround.py", *common, "--seconds", "0.2", "--kernels-ms", "0.2")
        h2 = self.run_on_softgpu(sys.executable, device / "under_daemon.py", *common, "--", device / "h2_launch_cost", "--batches", "1")
        for answer in (h9, h2):
            self.assertIn("tesserad ended", answer.stderr)
            self.assertNotEqual(answer.returncode, 0)

    def test_an_mps_of_our_own_ends_with_who_started_it(self):
        """It is said where its program runs, and it is gone also if the question is ended."""
        program = [sys.executable, BUILD / "bin/device/under_mps.py", "--", sys.executable, "-c",
                   "import json, os\nprint(json.dumps({'pipe': os.environ['CUDA_MPS_PIPE_DIRECTORY'], "
                   "'there': os.path.exists(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/control')}))"]
        answer = self.run_on_softgpu(*program)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertTrue(json.loads(answer.stdout)["there"])
        self.assertFalse(os.path.exists(json.loads(answer.stdout)["pipe"]))
        # Python may take a signal just before it waits; who ends it then does so again.
        script = self.script("ended", "import os, signal, time\n"
                             f"open({str(self.folder / 'pipe')!r}, 'w').write(os.environ['CUDA_MPS_PIPE_DIRECTORY'])\n"
                             "while True:\n    os.kill(os.getppid(), signal.SIGTERM)\n    time.sleep(0.05)\n")
        self.assertEqual(self.run_on_softgpu(*program[:3], script).returncode, 1)
        self.assertFalse(os.path.exists((self.folder / "pipe").read_text()))

    def test_a_program_is_managed_whose_context_nobody_announced(self):
        answer = self.run_on_softgpu(sys.executable, BUILD / "bin/device/h30_unannounced_context.py", "--tessera", BUILD / "bin/tessera",
                                     "--tesserad", BUILD / "bin/tesserad", "--gpu", "soft")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertTrue(json.loads(answer.stdout)["managed"], answer.stdout)

    def test_who_saw_nothing_says_so(self):
        """Of questions with several processes, none of which finds a device."""
        device = BUILD / "bin" / "device"
        commands = [[device / "h24_killed_behind_gate"], [device / "h25_wait_word"], [device / "h26_calls_behind_gate"], [device / "h29_change"],
                    [sys.executable, device / "under_mps.py", "--", device / "h24_killed_behind_gate"], [sys.executable, device / "h17_mps.py"]]
        for command in commands:
            answer = self.run_on_softgpu(*command, TESSERA_SOFTGPU_ARBITER="/nowhere")
            self.assertNotEqual(answer.returncode, 0, command)

    def test_work_finds_no_runtime_of_the_kit(self):
        """PyTorch brings its own."""
        for program in ("bin/tessera", "bin/device/device_info"):
            self.script("kit/" + program, "print('{}')\n")
        self.script("kit/bin/device/h13_profile.py", "import json, os\nprint(json.dumps({'path': os.environ.get('LD_LIBRARY_PATH')}))\n")
        (self.folder / "kit" / "lib").mkdir()
        (self.folder / "kit" / "lib" / "libcudart.so.13").touch()
        subprocess.run([GPU / "lab.sh", "--kit", self.folder / "kit", "--out", self.folder / "out", "--only", "H13"], capture_output=True,
                       timeout=LIMIT_S, env={**os.environ, "LD_LIBRARY_PATH": "/its/own"})
        self.assertEqual(json.loads((self.folder / "out" / "answers.json").read_text())["H13_gpt2"], {"path": "/its/own"})


@unittest.skipUnless(BUILD, "needs a build folder")
class Lab(unittest.TestCase):
    """Ended at some moment, the lab leaves a summary with every answer that it had told."""

    def run_lab(self, *options, limit=LIMIT_S * 5):
        folder = tempfile.TemporaryDirectory(prefix="tessera-lab-")
        self.addCleanup(folder.cleanup)
        out = pathlib.Path(folder.name) / "out"
        lab = subprocess.run([GPU / "lab.sh", "--kit", BUILD, "--out", out, *options], capture_output=True, text=True, timeout=limit, cwd=folder.name)
        self.assertLessEqual(len(list(out.iterdir())), 8)
        return lab, json.loads((out / "summary.json").read_text())

    def ended_by(self, number):
        random = Random(number)
        asked = ("H3", "H6", "H7", "H10", "H12", "H14", "H18")
        with tempfile.TemporaryDirectory(prefix="tessera-lab-") as folder:
            out = pathlib.Path(folder) / "out"
            command = [GPU / "lab.sh", "--kit", BUILD, "--out", out, "--rehearse", "--only", ",".join(asked)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as lab:
                told = []
                while len(told) < random.randint(2, len(asked)):
                    line = lab.stdout.readline()
                    self.assertTrue(line, told)
                    told.append(line.split()[0])
                lab.send_signal(number)
                returncode = lab.wait(LIMIT_S)
                lab.stdout.close()
            summary = json.loads((out / "summary.json").read_text())
            self.assertEqual([name for name in told if name != "info" and name not in summary["questions"]], [])
            self.assertLessEqual(len(list(out.iterdir())), 8)
            self.assertEqual([name for name in told if name not in json.loads((out / "answers.json").read_text())], [])
            return returncode

    def test_by_a_signal(self):
        self.assertEqual(self.ended_by(signal.SIGTERM), 143)

    def test_at_once(self):
        self.assertEqual(self.ended_by(signal.SIGKILL), -signal.SIGKILL)

    def test_nothing_starts_that_could_not_end_within_the_budget(self):
        lab, summary = self.run_lab("--rehearse", "--only", "H12,H4", "--budget", "60")
        self.assertEqual(summary["questions"], {"H12": "answered", "H4": "skipped"}, lab.stdout)

    def test_a_stage_asks_its_questions_alone(self):
        lab, summary = self.run_lab("--rehearse", "--only", "H12,H20", "--stage", "A")
        self.assertEqual(summary["questions"], {"H20": "answered"}, lab.stdout)

    def test_an_earlier_stage_stays_beside_a_later_one(self):
        with tempfile.TemporaryDirectory(prefix="tessera-lab-") as out:
            for asked in ("H12", "H20"):
                subprocess.run([GPU / "lab.sh", "--kit", BUILD, "--out", out, "--rehearse", "--only", asked], capture_output=True, timeout=LIMIT_S)
            self.assertEqual(sorted(json.loads((pathlib.Path(out) / "answers.json").read_text())), ["H12", "H20", "info"])


@unittest.skipUnless(BUILD, "needs a build folder")
class RangeCheck(unittest.TestCase):
    def test_a_kind_that_ends_the_process_takes_no_answer_from_the_others(self):
        device = BUILD / "bin" / "device"
        with tempfile.TemporaryDirectory(prefix="tessera-h20-") as folder:
            images, gpu = pathlib.Path(folder) / "images", pathlib.Path(folder) / "gpu"
            images.mkdir()
            gpu.mkdir(mode=0o700)
            shutil.copy(device / "h20_kernels.cubin", images)
            head, entry, body = (device / "h20_checked.ptx").read_text().partition(".visible .entry jumped(")
            text = head + entry + body.replace("{", "{ trap;", 1)
            (images / "h20_checked.ptx").write_text(text.replace(".visible .entry odd(", ".visible .entry another("))
            asked = subprocess.run([device / "h20_prologue", "--folder", images, "--width", "8", "--height", "4"], text=True,
                                   capture_output=True, timeout=2 * LIMIT_S,
                                   env={**os.environ, "TESSERA_SOFTGPU_DIR": str(gpu), "TESSERA_SOFTGPU_LINGER_MS": "200",
                                        "TESSERA_LAB_REHEARSED": "1", "LD_LIBRARY_PATH": str(BUILD / "lib" / "softgpu")})
            answer = json.loads(asked.stdout)
        self.assertEqual((answer["jumped"], answer["jumped_step"]), ("wrong", "run"), asked.stderr)
        self.assertEqual((answer["odd"], answer["odd_step"]), ("refused by the driver", "function"))
        self.assertEqual((answer["equal"], answer["kinds"]), (13, 15))
        self.assertEqual(answer["clustered"], "equal")


@unittest.skipUnless(BUILD, "needs a build folder")
class Headline(unittest.TestCase):
    # Both services in both regimes, before anything is asked of a rival.
    FIRST = ["resnet_graph+gpt2/tessera", "resnet_graph+gpt2/device_mps", "decoder+gpt2/tessera", "decoder+gpt2/device_mps"]

    def ended_by(self, number):
        with tempfile.TemporaryDirectory(prefix="tessera-lab-") as folder:
            out, gpu = pathlib.Path(folder) / "out", pathlib.Path(folder) / "gpu"
            gpu.mkdir(mode=0o700)
            command = [sys.executable, GPU / "headline.py", "--build", BUILD, "--out", out, "--rehearse", "--seconds", "0.1", "--budget", "300"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "TESSERA_SOFTGPU_DIR": str(gpu), "TESSERA_SOFTGPU_LINGER_MS": "200"}) as headline:
                self.assertTrue(any(f" {self.FIRST[-1]}:" in line for line in headline.stdout), "it ended before its first answers")
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
            self.assertEqual(list(summary["answers"])[:len(self.FIRST)], self.FIRST)
            self.assertEqual(summary["answers"][self.FIRST[-1]]["tessera"]["gate"], "device")
            self.assertLessEqual(len(list(out.iterdir())), 8)
            return headline.returncode

    def test_ends_what_it_started(self):
        self.assertEqual(self.ended_by(signal.SIGTERM), 1)

    def test_nothing_outlives_it(self):
        self.assertEqual(self.ended_by(signal.SIGKILL), -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
