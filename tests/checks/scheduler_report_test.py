#!/usr/bin/env python3
"""What scripts/scheduler_report.py makes of results, and the form of its JSON by a short run of the simulator (argument: tessera)."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import scheduler_report  # noqa: E402

TESSERA = sys.argv.pop(1)


def row(tail, share):
    return {"p99_over_alone": tail, "be_share": share}


class Report(unittest.TestCase):
    def test_dominated(self):
        def found(baseline):
            return scheduler_report.dominated({"s": {"c": {"tessera": row(1.05, 0.40), "orion": baseline}}})

        self.assertEqual(len(found(row(1.07, 0.48))), 1)
        self.assertEqual(found(row(1.01, 0.90))[0]["baseline"], "orion")
        self.assertEqual(found(row(1.08, 0.48)), [])  # more than 2 points of tail
        self.assertEqual(found(row(1.07, 0.47)), [])  # less than 0.08 of share

    def test_weights(self):
        self.assertAlmostEqual(scheduler_report.away_from_weights([0.4, 0.1], [400, 100]), 0)
        self.assertAlmostEqual(scheduler_report.away_from_weights([0.3, 0.1], [200, 100]), 0.2)
        self.assertEqual(scheduler_report.away_from_weights([0, 0], [2, 1]), 1)
        self.assertEqual(scheduler_report.weights("many"), {"weights 8:4:2:1": [800, 400, 200, 100]})

    def test_cells_are_means_over_seeds(self):
        def seed(tail, share):
            return {"cell": "c", "be_share": share, "be_shares": [share], "protected": [{"p99_over_alone": tail}]}

        cells = scheduler_report.per_cell({"policies": {"tessera": {"cells": [seed(1.0, 0.2), seed(1.2, 0.4)]}}}, {})
        self.assertAlmostEqual(cells["c"]["tessera"]["p99_over_alone"], 1.1)
        self.assertAlmostEqual(cells["c"]["tessera"]["be_share"], 0.3)

    def test_goals(self):
        def met(tail, share):
            summary = {"p99_mean_over_alone": tail, "p99_worst_over_alone": tail, "be_share": share}
            cells = {"tiny_requests": {"c": {"tessera": row(tail, share)}}}
            return [g["met"] for g in scheduler_report.goals({"tiny_requests": {"tessera": summary}}, cells)]

        self.assertEqual(met(1.25, 0.40), [True, True])  # the second: no cell is dominated
        self.assertEqual(met(1.26, 0.40), [False, True])
        self.assertEqual(met(1.25, 0.39), [False, True])

    def test_every_registered_scenario_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "r.json"
            command = [str(ROOT / "scripts/scheduler_report.sh"), "--first-seed", "3", "--seeds", "1", "--duration-ms", "800", "--json", str(out),
                       "--tessera", TESSERA]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(out.read_text())
        runs = {"mps_priority", "tally", "reef_n", "orion", "temporal", "tessera"}
        for name in scheduler_report.SCENARIOS:
            for contention in ("", ".two_thirds", ".disjoint"):
                policies = report["scenarios"][name + contention]
                self.assertEqual(set(policies), runs)
                expected = {"p99_mean_over_alone", "p99_worst_over_alone", "be_share"}
                if name == "stock_grid":  # the one with requests of two lengths
                    expected |= {"short_p99_mean_over_alone", "short_p99_worst_over_alone"}
                for result in policies.values():
                    self.assertEqual(set(result), expected, name)
        shipped, disjoint = (report["scenarios"]["tally_grid" + c]["mps_priority"]["p99_mean_over_alone"] for c in ("", ".disjoint"))
        self.assertGreater(shipped, disjoint)  # the range reaches the model
        self.assertIsInstance(report["dominated"], list)
        unknown = subprocess.run([*command, "--only", "nothing"], capture_output=True, text=True)
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("tally_grid", unknown.stderr)


if __name__ == "__main__":
    unittest.main()
