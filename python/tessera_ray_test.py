#!/usr/bin/env python3
"""What options() gives to Ray; needs no Ray. tests/integration/engines/ray.sh runs the real one."""
import pathlib
import re
import shlex
import unittest

import tessera_ray
from tessera_ray import node_resources, options


def command(given):
    return shlex.split(given["runtime_env"]["py_executable"])


class Options(unittest.TestCase):
    def test_worker_is_started_by_tessera(self):
        given = options("high", slo_ms=2.5, weight=300, name="chat; rm", gpu=0.25, run=["--gpu", "soft"])
        self.assertEqual(command(given), ["tessera", "run", "--priority", "high", "--slo", "2.5ms", "--weight", "300", "--name",
                                          "chat; rm", "--gpu", "soft", "--", "python"])
        self.assertEqual(given["num_gpus"], 0.25)
        self.assertNotIn("resources", given)

    def test_best_effort_by_default(self):
        self.assertEqual(command(options()), ["tessera", "run", "--priority", "best-effort", "--", "python"])

    def test_what_the_job_needs_is_kept(self):
        environment, needs = {"env_vars": {"A": "b"}}, {"disk": 2}
        given = options(3, runtime_env=environment, resources=needs, by_level=True)
        self.assertEqual(given["runtime_env"]["env_vars"], {"A": "b"})
        self.assertEqual(given["resources"], {"disk": 2, "tessera_high": 1.0})
        self.assertEqual((environment, needs), ({"env_vars": {"A": "b"}}, {"disk": 2}))

    def test_a_level_is_a_resource_of_nodes(self):
        offered = node_resources(2, high=1, best_effort=4)
        self.assertEqual(offered, {"tessera_high": 2.0, "tessera_best_effort": 8.0})
        for priority in ("high", 1, 7, 0, "best-effort"):
            self.assertLessEqual(set(options(priority, by_level=True)["resources"]), set(offered))

    def test_bad_requests_say_what_to_do(self):
        for wrong, remedy in (({"priority": "hgih"}, "give 'high'"), ({"priority": 8}, "0 (best effort) to 7"),
                              ({"priority": True}, "give 'high'"), ({"slo_ms": 5}, "give priority='high'"),
                              ({"priority": "high", "slo_ms": 0}, "from 0.001"), ({"weight": 0}, "from 1 to 10000"),
                              ({"gpu": 1.5}, "part of one GPU"), ({"gpu": 0}, "part of one GPU"),
                              ({"runtime_env": {"py_executable": "uv run"}}, "python=")):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, re.escape(remedy)):
                options(**wrong)

    def test_version_is_the_projects(self):
        cmake = (pathlib.Path(__file__).parent.parent / "CMakeLists.txt").read_text()
        self.assertEqual(tessera_ray.__version__, re.search(r"project\(tessera VERSION (\S+)", cmake)[1])


if __name__ == "__main__":
    unittest.main()
