#!/usr/bin/env python3
"""The loader matrix once more, with libtessera_audit.so: which calls of cuBLAS reach libtessera_ops.so by it, and that results
are the same with it and without.

usage: audit_test.py FOLDER OPS_LIBRARY SOURCE AUDIT_LIBRARY OTHER_AUDIT_LIBRARY     (the first three: loader_test.py)
"""
import collections
import shutil
import sys
import tempfile
import unittest

from loader_test import CUBLAS, FOLDER, PYTHON, PYTHON_CTYPES, PYTHON_EXTENSION, Run, bare

AUDIT, OTHER_AUDIT = sys.argv[4:6]
RESERVE = "glibc.rtld.optional_static_tls=16384"  # as `tessera run` sets it
AUDITED = {"LD_AUDIT": AUDIT, "GLIBC_TUNABLES": RESERVE}
EXTENSION = f"{FOLDER}/extension.so"

# Way of opener.cc, what it opens, how many calls are seen without and with the audit library.
MATRIX = [
    ("local", EXTENSION, 1, 1),
    ("lazy", EXTENSION, 1, 1),
    ("reopened", EXTENSION, 2, 2),
    ("deepbind", EXTENSION, 0, 1),
    ("namespace", EXTENSION, 0, 1),
    ("default_version", CUBLAS, 1, 1),
    *[(way, path, 0, 1) for way in ("dlsym", "dlvsym", "default") for path in (CUBLAS, "libcublas.so.13")],
    *[(way, f"{FOLDER}/own_cublas.so", 0, 0) for way in ("local", "lazy", "deepbind", "namespace")],
    ("absent", "-", 0, 0),
]


def by_name(run):
    calls = collections.Counter()
    for shape in run.shapes:
        calls[shape.name] += shape.calls
    return calls


class AuditMatrix(unittest.TestCase):
    def compare(self, words, seen, **environment):
        """Results are those of a bare run: with the audit library alone, and beside the one that counts."""
        expected = bare(words)
        self.assertEqual(Run(words, preload=(), **AUDITED).output, expected, words)
        run = Run(words, **(AUDITED | environment))
        self.assertEqual((run.output, run.calls), (expected, seen), words)
        return run

    def test_matrix(self):
        for way, path, without, with_audit in MATRIX:
            with self.subTest(way, path=path):
                words = [f"{FOLDER}/opener", way, path]
                self.assertEqual(Run(words).calls, without)
                self.compare(words, with_audit)

    def test_python(self):
        self.compare([PYTHON, "-c", PYTHON_CTYPES, CUBLAS], 1)
        self.compare([PYTHON, "-c", PYTHON_EXTENSION, EXTENSION], 1)

    def test_linked_programs_are_seen_as_without(self):
        for way in ("link", "rpath", "runpath", "now"):
            with self.subTest(way):
                words = [f"{FOLDER}/{way}"]
                without = Run(words)
                self.assertEqual(by_name(self.compare(words, without.calls)), by_name(without))

    def test_every_function_that_is_seen_linked_is_seen_looked_up(self):
        linked = Run([f"{FOLDER}/link"])
        for way in ("each", "namespace"):
            with self.subTest(way):
                self.assertEqual(by_name(self.compare([f"{FOLDER}/asker", way, CUBLAS], linked.calls)), by_name(linked))

    def test_a_hook_is_for_one_copy(self):
        self.compare([f"{FOLDER}/asker", "second", CUBLAS], 1)

    def test_a_library_of_another_version_is_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(f"{FOLDER}/cublas12/libcublas.so.12", folder)
            self.compare([f"{FOLDER}/asker", "each", f"{folder}/libcublas.so.12"], 0)

    def test_libraries_come_and_go(self):
        words = [f"{FOLDER}/asker", "cycles", CUBLAS, "100"]  # more often than the library has places for what is loaded
        self.assertEqual(self.compare(words, 100).output, f"{bare([f'{FOLDER}/opener', 'dlsym', CUBLAS])}")
        self.compare([f"{FOLDER}/asker", "threads", CUBLAS, "50"], 200)
        self.compare([f"{FOLDER}/asker", "fork", CUBLAS], 2)

    def test_beside_another_auditing_library(self):
        # Behind one that wants to know of no symbol, glibc tells us of none that is looked up (docs/notes/audit.md).
        for order, seen in (((AUDIT, OTHER_AUDIT), 1), ((OTHER_AUDIT, AUDIT), 0)):
            self.compare([f"{FOLDER}/opener", "dlsym", CUBLAS], seen, LD_AUDIT=":".join(order))
            self.compare([f"{FOLDER}/opener", "deepbind", EXTENSION], 1, LD_AUDIT=":".join(order))

    def test_programs_with_much_thread_local_storage_start(self):
        self.compare([f"{FOLDER}/big_tls_user"], 0)

    def test_the_real_library_answers(self):
        words = ["env", "-u", "LD_LIBRARY_PATH", f"{FOLDER}/real"]
        if shutil.which(words[-1]):
            self.compare(words, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
