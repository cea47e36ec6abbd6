#!/usr/bin/env python3
"""scripts/gpu/evaluation.py: what a folder of lab.sh becomes, as it is and condensed, and when the page is found wrong.
scripts/gpu/checkpoints.py: what follows from H15."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

GPU_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu"
EVALUATION = GPU_SCRIPTS / "evaluation.py"
sys.path.insert(0, str(GPU_SCRIPTS))
import checkpoints  # noqa: E402
HEADLINE = {
    "alone": {"service": {"resnet_graph": {"latency_p50_ms": 2.0, "latency_p99_ms": 4.0}}, "trainer": {"gpt2": {"steps_per_s": 10.0}}},
    "answers": {"resnet_graph+gpt2/device": {"service": {"latency_p50_ms": 2.2, "latency_p99_ms": 5.0}, "trainer": {"steps_per_s": 6.0}, "ok": True},
                "resnet_graph+gpt2/bare": {"service": {"latency_p50_ms": 2.2, "latency_p99_ms": 5.0}, "trainer": {}, "ok": False}}}
SUMMARY = {"gpu": "NVIDIA X", "driver": "1.2", "date": "2027-01-02T03:04:05", "commit": "abc", "command": "lab.sh --budget 9",
           "rehearsed_on_software_gpu": False}


class Evaluation(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "page.md"

    def run_it(self, *options):
        done = subprocess.run([sys.executable, EVALUATION, *map(str, options)], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    def lab(self, name, **more):
        folder = self.folder / "results" / name
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({**SUMMARY, **more}))
        (folder / "headline.json").write_text(json.dumps(HEADLINE))
        (folder / "answers.json").write_text(json.dumps({"H2_bare": {"launch_ns_p50": 3753.4}, "H24_bare": {"all_lived": True},
                                                         "H3": {"failed": "exit status 1"}}))
        return folder

    def text(self, results):
        self.assertEqual(self.run_it("--results", results, "--page", self.page), (0, ""))
        return self.page.read_text()

    def test_a_folder_as_the_lab_left_it_and_condensed(self):
        folder = self.lab("x/2027-01-02-abc")
        text = self.text(self.folder / "results")
        self.assertIn("## NVIDIA X, 2027-01-02", text)
        self.assertIn("Driver 1.2, commit abc, `profiles/results/x/2027-01-02-abc`. Command: lab.sh --budget 9.", text)
        self.assertIn("| ResNet-50, batch 1, CUDA graph | GPT-2 | Tessera, gate on the device | 1.10 | 1.25 | - | - | 0.60 | yes | lab |", text)
        self.assertIn("| time slices of the driver | 1.10 | 1.25 | - | - | - | **no** | lab |", text)
        self.assertIn("| H2 | launch of an empty kernel, bare | 3,753 ns |", text)
        self.assertIn("| H24 | neighbours live when a client is killed behind its gate | yes |", text)
        self.assertNotIn("H3", text)
        condensed = self.folder / "condensed/x/2027-01-02-abc"
        self.assertEqual(self.run_it("--take", folder, "--into", condensed), (0, ""))
        self.assertEqual(self.text(self.folder / "condensed"), text)

    def test_a_rehearsal_answers_nothing(self):
        self.lab("soft/1", rehearsed_on_software_gpu=True)
        self.assertNotIn("NVIDIA X", self.text(self.folder / "results"))

    def test_a_page_that_is_another_one_is_found(self):
        self.lab("x/1")
        options = ("--results", self.folder / "results", "--page", self.page)
        self.assertEqual(self.run_it(*options, "--check")[0], 1)
        self.text(self.folder / "results")
        self.assertEqual(self.run_it(*options, "--check"), (0, ""))
        self.page.write_text(self.page.read_text().replace("1.25", "1.05"))
        self.assertEqual(self.run_it(*options, "--check")[0], 1)


class Checkpoints(unittest.TestCase):
    DONE = {step: {"answer": 0} for step in checkpoints.STEPS}
    LIVES = {"ends_as": "running", "works": "cudaSuccess", "wrong_values": 0}
    REFUSED = {"subject": {"lock": {"answer": 801}, **LIVES}}

    def answer(self, by_itself, by_another):
        return {"gpu": "NVIDIA X", "driver_version": 13010, "by_itself_1024_mib": by_itself, "by_another": by_another}

    def test_the_program_itself_if_the_driver_lets_it_else_another_process(self):
        itself, another = {"subject": {**self.DONE, **self.LIVES}}, {"parker": self.DONE, "subject": self.LIVES}
        self.assertEqual(checkpoints.who(self.answer(itself, another)), "client")
        self.assertEqual(checkpoints.who(self.answer(self.REFUSED, another)), "parker")
        self.assertIn('gpu = "NVIDIA X"\ndriver = 13010\nby = "parker"', checkpoints.lines(self.answer(self.REFUSED, another)))

    def test_lost_contents_and_a_lost_process_are_no_success(self):
        for wrong in ({"wrong_values": 3}, {"ends_as": "failed"}):
            lost = {"parker": self.DONE, "subject": {**self.LIVES, **wrong}}
            self.assertIsNone(checkpoints.lines(self.answer(self.REFUSED, lost)))


if __name__ == "__main__":
    unittest.main()
