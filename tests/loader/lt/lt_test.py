#!/usr/bin/env python3
"""Which calls of cuBLASLt reach libtessera_ops.so, and that their results are the same with it and without.

usage: lt_test.py FOLDER OPS_LIBRARY SOURCE_FOLDER AUDIT_LIBRARY      (the first three: loader_test.py)
"""
import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from loader_test import FOLDER, OPS, SOURCE, Run, exported  # noqa: E402

AUDIT = sys.argv[4]
LT = f"{FOLDER}/lt/libcublasLt.so.13"
PLACE = {"LD_LIBRARY_PATH": f"{FOLDER}/lt"}
AUDITED = {"LD_AUDIT": AUDIT, **PLACE}
# By hand: 3 x 5 = 3 x 7 times 7 x 5 of single precision; a conversion of 3 x 5, alone and with a second matrix.
PRODUCT = ("cublasLtMatmul", (3, 5, 7), 210, 4 * 86)
CONVERSION, SUM = ("cublasLtMatrixTransform", (3, 5), 15, 4 * 30), ("cublasLtMatrixTransform", (3, 5), 45, 4 * 45)


class Lt(unittest.TestCase):
    def compare(self, words, times, **environment):
        bare = Run(words, preload=(), **PLACE).output
        run = Run(words, **environment)
        self.assertEqual(run.output, bare, words)
        self.assertEqual(len(set(run.output.split())), 3)
        told = {(s.name, s.dims, s.flop, s.bytes): s.calls for s in run.shapes}
        self.assertEqual(told, {call: times for call in (PRODUCT, CONVERSION, SUM)} if times else {})

    def test_linked_programs_are_seen(self):
        self.compare([f"{FOLDER}/lt_caller", "linked"], 2, **PLACE)
        self.compare([f"{FOLDER}/lt_caller", "linked"], 2, **AUDITED)

    def test_names_looked_up_are_seen_with_the_audit_library(self):
        for way in ("dlsym", "namespace", "moved"):
            with self.subTest(way):
                self.compare([f"{FOLDER}/lt_caller", way, LT], 0, **PLACE)
                self.compare([f"{FOLDER}/lt_caller", way, LT], 1, **AUDITED)

    def test_the_real_library_answers(self):
        program = f"{FOLDER}/lt_real"
        if not os.path.exists(program):
            self.skipTest("this toolkit has no libcublasLt.so.13")
        words = ["env", "-u", "LD_LIBRARY_PATH", program]
        bare = Run(words, preload=()).output
        self.assertEqual(bare.splitlines()[0], "0 0 0 0 0")
        self.assertEqual(len(bare.splitlines()), 501)
        for environment in ({}, {"LD_AUDIT": AUDIT}):
            run = Run(words, **environment)
            self.assertEqual((run.output, run.calls), (bare, 0))  # without a handle nothing is computed
        said = Run(words, LD_DEBUG="bindings").errors  # the loader says whom it gave each name
        ours = set(re.findall(rf"binding file {re.escape(program)} .* to {re.escape(OPS)} .* symbol `(cublasLt\w+)'", said))
        self.assertEqual(ours, {"cublasLtMatmul", "cublasLtMatrixTransform"})

    def test_every_name_has_the_version_of_its_library(self):
        folder = pathlib.Path(f"{SOURCE}/interpose/operations")
        for version, calls in (("libcublas.so.13", "cublas"), ("libcublasLt.so.13", "cublaslt")):
            rows = []
            for kind in ("calls", "followed"):
                file = folder / f"{calls}_{kind}.def"
                if file.exists():
                    rows += re.findall(r"^TS_(?:CALL|FOLLOW)\((\w+),", file.read_text(), re.M)
            self.assertEqual(exported(version), sorted(rows))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
