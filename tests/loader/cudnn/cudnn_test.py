#!/usr/bin/env python3
"""Which calls of cuDNN reach libtessera_ops.so, and that what they answer is the same with it and without.

usage: cudnn_test.py FOLDER OPS_LIBRARY SOURCE_FOLDER AUDIT_LIBRARY SOFTWARE_GPU_FOLDER [REAL_LIBRARY]
(the first three: loader_test.py)
"""
import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from loader_test import FOLDER, OPS, SOURCE, Run, exported  # noqa: E402

AUDIT, SOFT = sys.argv[4:6]
REAL = (*sys.argv[6:], "")[0]
LIBRARY = f"{FOLDER}/cudnn/libcudnn.so.9"
PLACE = {"LD_LIBRARY_PATH": f"{FOLDER}/cudnn"}
FILES = {kind: pathlib.Path(f"{SOURCE}/interpose/operations/cudnn_{kind}.def").read_text() for kind in ("calls", "followed")}
# The fake library knows no plan here, so that calls of plans are not told.
ROWS = re.findall(r"^TS_CALL\((\w+),", FILES["calls"], re.M)
TOLD = [name for name in ROWS if name != "cudnnBackendExecute"]


class Cudnn(unittest.TestCase):
    def compare(self, words, calls, preload=(OPS,), **environment):
        bare = Run(words, preload=(), **PLACE).output
        run = Run(words, preload=preload, **environment)
        self.assertEqual(run.output, bare, words)
        self.assertEqual(len(bare.splitlines()), len(ROWS))
        self.assertEqual({s.name: s.calls for s in run.shapes}, dict.fromkeys(TOLD, calls) if calls else {})
        return {s.name: s for s in run.shapes}

    def test_linked_programs_are_seen(self):
        shapes = self.compare([f"{FOLDER}/cudnn_caller", "linked"], 1, **PLACE)
        # Everything is 2 x 3 x 4 x 5; the sum of a filter's 3 x 4 x 5.
        forward = shapes["cudnnConvolutionForward"]
        self.assertEqual((forward.dims, forward.flop, forward.bytes), ((2, 3, 4, 5, 3, 4, 5), 2 * 120 * 60, 4 * 4 * 120))
        self.assertEqual((shapes["cudnnPoolingForward"].flop, shapes["cudnnPoolingForward"].bytes), (5 * 120, 4 * 3 * 120))

    def test_names_looked_up_are_seen_with_the_audit_library(self):
        words = [f"{FOLDER}/cudnn_caller", "dlsym", LIBRARY]
        self.compare(words, 0, **PLACE)
        self.compare(words, 1, LD_AUDIT=AUDIT, **PLACE)

    def test_switched_off(self):
        self.compare([f"{FOLDER}/cudnn_caller", "linked"], 0, TESSERA_OPERATIONS="0", **PLACE)

    def test_every_name_has_the_version_of_its_library(self):
        self.assertEqual(exported("libcudnn.so.9"), sorted(ROWS + re.findall(r"^TS_FOLLOW\((\w+),", FILES["followed"], re.M)))

    def test_graphs_are_known_by_their_plans(self):
        words = [f"{FOLDER}/cudnn_graphs", "plans"]
        if not os.path.exists(words[0]):
            self.skipTest("built without cuDNN's headers")
        bare = Run(words, preload=(), **PLACE).output
        for more in ({}, {"LD_AUDIT": AUDIT}):
            run = Run(words, **PLACE, **more)
            self.assertEqual(run.output, bare)
            # Three runs of a plan by a heuristic, one of a plan by an engine, and one of which nothing is known. A convolution,
            # 576 products in the sum, with a bias; x, w, bias and y are in memory, what leads from one to the next is not.
            self.assertEqual([(s.name, s.dims, s.flop, s.bytes, s.calls) for s in run.shapes],
                             [("cudnnBackendExecute", (2, 32, 8, 8, 576), 2 * 4096 * 576 + 4096,
                               2 * (8192 + 32 * 576 + 32 + 4096), 4)])
        self.assertEqual(Run(words, TESSERA_OPERATIONS="0", **PLACE).calls, 0)

    def test_graphs_of_the_real_library_are_made_as_without(self):
        words = [f"{FOLDER}/cudnn_graphs"]
        if not REAL or not os.path.exists(words[0]):
            self.skipTest("this toolkit has no libcudnn.so.9")
        place = {"LD_LIBRARY_PATH": os.path.dirname(REAL)}
        bare = Run(words, preload=(), **place).output
        self.assertIn("0\n" * 50, bare)
        self.assertEqual(Run(words, **place).output, bare)

    def any_calls(self, told, **environment):
        """Random calls, often invalid, have the same statuses bare, with the library, and with the audit library."""
        words = [f"{FOLDER}/cudnn_any_calls", "3000"]
        if not os.path.exists(words[0]):
            self.skipTest("built without cuDNN's headers")
        bare = Run(words, preload=(), **environment)
        self.assertGreater(len(set(bare.output.splitlines())), 40)
        for more in ({}, {"LD_AUDIT": AUDIT}):
            run = Run(words, **environment, **more)
            self.assertEqual(run.output, bare.output)
            self.assertEqual(run.calls > 0, told)

    def test_any_calls_of_the_real_library(self):
        if not REAL:
            self.skipTest("this toolkit has no libcudnn.so.9")
        self.any_calls(False, LD_LIBRARY_PATH=os.path.dirname(REAL))  # without a handle, which takes a GPU, nothing is computed

    def test_any_calls_of_the_software_gpu(self):
        self.any_calls(True, LD_LIBRARY_PATH=SOFT, TESSERA_SOFTGPU_LOCAL=f"{SOURCE}/profiles/gpus/test4.toml")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
