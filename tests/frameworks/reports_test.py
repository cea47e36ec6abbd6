#!/usr/bin/env python3
"""What run.py and suites.py say of programs that compute something else under Tessera, die, or never ran under it. Needs no
framework and no build: programs and tesserad are stand-ins, suites a few lines of Python."""
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import run
import suites


class Ended:
    """In place of a process: it has printed `out`, or died without."""
    args = ["program"]

    def __init__(self, out=""):
        self.out, self.returncode = out, 0 if out else 1

    def communicate(self, timeout=None):
        return self.out, "" if self.out else "a fault killed it"

    def poll(self):
        return None

    def kill(self):
        pass


class FakeBench:
    """`answers`: of each program, in the order in which it is run; "x": it dies."""
    answers, launches, site = {}, 7, None

    def __init__(self, build, folder, scratch, capability):
        self.scratch = scratch

    def client(self, name, run_options, arguments, **more):
        if "--serve" in arguments:
            pathlib.Path(f"{arguments[1]}.ready").touch()
        answer = self.answers[name].pop(0)
        counters = {"launches": self.launches}
        return Ended("" if answer == "x" else json.dumps({"version": "1", "hash": answer, "counters": counters}))

    def daemon(self):
        return Ended()

    def python(self, name):
        return sys.executable

    def home(self, name):
        return self.site.parent.parent.parent

    def start(self, name, run_options, script, **more):
        """Of suites.py: `tessera ps` knows whoever asks, unless nothing ran under Tessera."""
        ps = self.scratch / "ps"
        ps.write_text('#!/bin/sh\necho "{\\"clients\\": [{\\"pid\\": $PPID, \\"id\\": 1, \\"launches\\": %d, \\"slices\\": 9, '
                      '\\"cut_kernels\\": 1}]}"\n' % self.launches)
        ps.chmod(0o755)
        more |= {"TESSERA_COMMAND": ps, "UNDER": "" if "--passthrough" in run_options else "1"}
        return subprocess.Popen([sys.executable, *map(str, script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={k: str(v) for k, v in more.items()})


class Reports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for patch in (mock.patch.object(run, "Bench", FakeBench), mock.patch.object(FakeBench, "launches", 7)):
            patch.start()
            self.addCleanup(patch.stop)

    def call(self, program, *words):
        """Exit status, lines of output, JSON."""
        said, path = io.StringIO(), self.folder / "report.json"
        arguments = [program.__name__, *words, "--json", str(path)]
        with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(said), \
                contextlib.redirect_stderr(io.StringIO()):
            status = program.main()
        return status, said.getvalue().splitlines(), json.loads(path.read_text())

    def run_frameworks(self, answers, *words, timing=None):
        """`answers`: of each framework alone, beside, uncut, restarted; "NAME service": of the service beside it."""
        known = {name: run.Framework([], light=True, partner=f"{name} service") for name in answers if "service" not in name}
        services = {f"{name} service": ["s"] * 3 for name in known}
        measured = {"service_equal": True, "p99_over_alone": 1, "stretch": 1, "valid": True, **(timing or {})}
        with mock.patch.object(run, "FRAMEWORKS", known), mock.patch.object(FakeBench, "answers", {**services, **answers}), \
                mock.patch.object(run, "measure", lambda *_: measured):
            return self.call(run, *words)

    def test_equal(self):
        status, lines, said = self.run_frameworks({"good": ["1"] * 4})
        self.assertEqual((status, said["wrong"], lines[-1]), (0, [], "1 passed, 0 failed, 0 skipped"))
        self.assertIs(said["frameworks"]["good"]["equal"], True)

    def test_nothing_begins_when_the_time_is_over(self):
        status, lines, said = self.run_frameworks({"good": ["1"] * 4}, "--minutes", "0")
        self.assertEqual((status, said["wrong"], lines[-1]), (77, [], "0 passed, 0 failed, 1 skipped"))
        self.assertIn("the 0 minutes are over", lines[0])
        # It is over while the results are compared: they are told, and nothing is measured.
        with mock.patch.object(run.Time, "left_s", mock.Mock(side_effect=[9, 0])):
            status, lines, said = self.run_frameworks({"good": ["1"] * 4})
        self.assertEqual((status, said["frameworks"]["good"]["equal"]), (0, True))
        self.assertIn("not measured", lines[0])

    def test_wrong_results_come_first(self):
        for regime, answers in {"beside": "1211", "uncut": "1121", "restarted": "1112"}.items():
            status, lines, said = self.run_frameworks({"good": ["1"] * 4, "dead": ["x"], "bad": list(answers)})
            self.assertEqual((status, list(said)[0], said["wrong"]), (1, "wrong", ["bad"]), regime)
            self.assertIn("bad 1: WRONG RESULTS", lines[0])
            self.assertIn("dead: FAILED: exit 1: a fault killed it", lines[1])
            self.assertEqual(lines[-1], "1 passed, 2 failed, 0 skipped")
            row = said["frameworks"]["bad"]
            self.assertIs(row["equal"], False)
            self.assertEqual([name for name, value in row["hashes"].items() if value != row["hashes"]["alone"]], [regime])

    def test_wrong_results_of_the_service(self):
        for answers, timing in (("112", None), ("111", {"service_equal": False})):
            status, lines, said = self.run_frameworks({"bad": ["1"] * 4, "bad service": list(answers)}, timing=timing)
            self.assertEqual((status, said["wrong"]), (1, ["bad"]))
            self.assertIn("WRONG RESULTS", lines[0])

    def test_wrong_results_are_told_where_another_regime_fails(self):
        status, lines, said = self.run_frameworks({"bad": ["1", "2", "x", "1"]})
        self.assertEqual((status, said["wrong"], list(said["frameworks"]["bad"]["failed"])), (1, ["bad"], ["uncut"]))
        self.assertIn("WRONG RESULTS", lines[0])
        self.assertIn("FAILED uncut: exit 1: a fault killed it", lines[0])

    def test_a_regime_that_fails_is_no_wrong_result(self):
        status, lines, said = self.run_frameworks({"dead": ["1", "1", "1", "x"]})
        self.assertEqual((status, said["wrong"], said["frameworks"]["dead"]["equal"]), (1, [], None))

    def test_what_did_not_run_under_tessera_proves_nothing(self):
        FakeBench.launches = 0
        status, lines, said = self.run_frameworks({"away": ["1"] * 2}, "--light")
        self.assertEqual((status, said["wrong"], said["frameworks"]["away"]["equal"]), (1, [], None))
        self.assertIn("did not run under Tessera", lines[0])

    def run_suite(self, tests):
        site = self.folder / "home/lib/python3/site-packages"
        (site / "tests").mkdir(parents=True)
        (site / "tests/test_sample.py").write_text(f"import os, unittest\nclass Sample(unittest.TestCase):\n{tests}")
        known = {"sample": suites.Suite("sample", "test_*.py", installed="tests")}
        environments = {"sample": run.Framework(["sample==1"], partner="service")}
        with mock.patch.object(suites, "SUITES", known), mock.patch.object(run, "ENVIRONMENTS", environments), \
                mock.patch.object(FakeBench, "site", site), mock.patch.object(FakeBench, "answers", {"service": ["s"]}):
            return self.call(suites)

    TESTS = """  def test_1_passes(self): pass
  def test_2_dies_bare(self): os._exit(3)
  def test_3_fails_bare(self): self.fail()
  def test_4_passes(self): pass
"""

    def test_suite(self):
        status, lines, said = self.run_suite(self.TESTS)
        self.assertEqual((status, said["lost"]), (0, []), lines)
        row = said["suites"]["sample"]
        self.assertEqual(row["outcomes_bare"], {"passed": 2, "died": 1, "failed": 1})
        self.assertEqual((row["pass_under"], row["counted"]["launches"], row["counted"]["modules_attached"]), (2, 7, 1))

    def test_a_test_that_tessera_breaks_comes_first(self):
        status, lines, said = self.run_suite("""
    def test_1_fails(self): self.assertFalse(os.environ["UNDER"])
    def test_2_dies(self): os.environ["UNDER"] and os._exit(3)
    def test_3_passes(self): pass
""")
        lost = [f"sample: test_sample.Sample.test_{what}" for what in ("1_fails", "2_dies")]
        self.assertEqual((status, list(said)[0], said["lost"]), (1, "lost", lost))
        self.assertEqual(lines[0], f"PASSES BARE, NOT UNDER TESSERA: {lost[0]}: failed")
        self.assertEqual(said["suites"]["sample"]["pass_under"], 1)

    def test_a_suite_that_did_not_run_under_tessera_proves_nothing(self):
        FakeBench.launches = 0
        status, lines, _ = self.run_suite(self.TESTS)
        self.assertEqual(status, 1)
        self.assertIn("tesserad counted no launch of theirs", lines[0])


if __name__ == "__main__":
    unittest.main()
