#!/usr/bin/env python3
"""Which calls of cuBLAS reach libtessera_ops.so, and that their results are the same with it and without.

usage: loader_test.py FOLDER OPS_LIBRARY ENTRIES     (FOLDER: the programs of this folder's CMakeLists)
"""
import collections
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

FOLDER, OPS, ENTRIES = sys.argv[1:4]
CUBLAS = f"{FOLDER}/cublas/libcublas.so.13"
HEADER, SLOT = struct.Struct("<8sIIQ40x"), struct.Struct("<II13qI3i3Q")  # operations/table.h
SLOTS = 4096
NAMES = re.findall(r"^TS_OPERATION\(\w+, (\w+),", pathlib.Path(ENTRIES).read_text(), re.M)  # by entry
VERSION = 0x20000 + len(NAMES)  # of notes and tables: kNoteVersion, kTableVersion
Shape = collections.namedtuple("Shape", "name dims count types flop bytes calls")

# What the programs give as i-th argument: 3 + i, and 3 wherever a pointer points to.
M, N, K = 6, 7, 8


class Run:
    def __init__(self, words, table=True, preload=(OPS,), code=0, **environment):
        with tempfile.NamedTemporaryFile() as file:
            file.write(HEADER.pack(b"TSOPCNT\0", VERSION, SLOTS, 0))
            file.truncate(HEADER.size + SLOTS * SLOT.size)
            file.flush()
            given = {k: v for k, v in os.environ.items() if not k.startswith(("TESSERA", "LD_"))}
            given.update(LD_LIBRARY_PATH=f"{FOLDER}/cublas", LD_PRELOAD=":".join(preload), **environment)
            if table:
                given["TESSERA_OPERATIONS_TABLE"] = file.name
            run = subprocess.run(words, capture_output=True, text=True, env=given, check=False)
            if run.returncode != code:
                raise AssertionError(f"{words}: status {run.returncode}: {run.stderr}")
            self.output, self.errors = run.stdout, run.stderr
            data = pathlib.Path(file.name).read_bytes()
        self.further = HEADER.unpack_from(data)[3]
        self.shapes = []
        for at in range(HEADER.size, len(data), SLOT.size):
            state, entry, *dims, count, n_dims, a, b, c, flop, size, calls = SLOT.unpack_from(data, at)
            if state == 2:
                self.shapes.append(Shape(NAMES[entry], tuple(dims[:n_dims]), count, (a, b, c), flop, size, calls))
        self.calls = sum(s.calls for s in self.shapes)


def bare(words):
    return Run(words, preload=()).output


class LoaderMatrix(unittest.TestCase):
    def compare(self, words, calls, preload=(OPS,)):
        run = Run(words, preload=preload)
        self.assertEqual(run.output, bare(words), words)
        self.assertEqual(run.calls, calls, words)
        return run

    def opener(self, way, path, calls):
        return self.compare([f"{FOLDER}/opener", way, path], calls)

    def test_linked_programs_are_seen(self):
        for way in ("link", "rpath", "runpath", "now"):
            with self.subTest(way):
                run = self.compare([f"{FOLDER}/{way}"], 57)
                by_name = collections.Counter()
                for shape in run.shapes:
                    by_name[shape.name] += shape.calls
                # Both widths count as one; a call that a call makes does not count: cublasGemmEx would have four.
                self.assertEqual(by_name, {b: 1 if b == "cublasUint8gemmBias" else 2 for b in NAMES})

    def test_costs_are_those_of_the_arguments(self):
        shapes = {s.name: s for s in Run([f"{FOLDER}/link"]).shapes}
        single = shapes["cublasSgemm_v2"]
        self.assertEqual(single, Shape("cublasSgemm_v2", (M, N, K), 1, (0, 0, 0), 2 * M * N * K,
                                       4 * (M * K + K * N + 2 * M * N), 2))
        self.assertEqual(shapes["cublasZgemm_v2"].flop, 8 * M * N * K)
        typed = shapes["cublasGemmEx"]
        self.assertEqual((typed.types, typed.flop, typed.bytes), ((2, 2, 2), 2 * M * N * K,
                                                                  2 * (M * K + K * N + 2 * M * N)))
        batch = shapes["cublasSgemmStridedBatched"]  # batchCount is argument 17
        self.assertEqual((batch.count, batch.flop), (20, 20 * 2 * M * N * K))
        biased = shapes["cublasUint8gemmBias"]  # one transpose more in front
        self.assertEqual((biased.dims, biased.flop), ((7, 8, 9), 2 * 7 * 8 * 9))

    def test_groups_are_read_as_the_library_reads_them(self):
        shapes = [s for s in Run([f"{FOLDER}/link"]).shapes if s.name == "cublasDgemmGroupedBatched"]
        # group_count is argument 14. 64-bit numbers are all 3; read as 32-bit ones, each second one is 0.
        self.assertEqual({(s.dims, s.count, s.flop) for s in shapes},
                         {((), 17, 17 * 3 * 54), ((), 17, 9 * 3 * 54)})

    def test_extensions_are_seen_wherever_they_are_opened(self):
        self.opener("local", f"{FOLDER}/extension.so", 1)
        self.opener("lazy", f"{FOLDER}/extension.so", 1)
        self.opener("reopened", f"{FOLDER}/extension.so", 2)
        self.compare([sys.executable, "-c", PYTHON_EXTENSION, f"{FOLDER}/extension.so"], 1)

    def test_names_looked_up_are_the_librarys_own(self):
        for way in ("dlsym", "dlvsym", "default"):
            for path in (CUBLAS, "libcublas.so.13"):
                with self.subTest(way, path=path):
                    self.opener(way, path, 0)
        self.opener("default_version", CUBLAS, 1)
        self.compare([sys.executable, "-c", PYTHON_CTYPES, CUBLAS], 0)

    def test_another_library_has_addresses_bound_to_hooks(self):
        for path in (CUBLAS, "libcublas.so.13"):
            self.opener("hooked", path, 1)
        self.opener("hooked_namespace", CUBLAS, 1)  # a copy that the exported names never meet
        self.compare([f"{FOLDER}/opener", "hooked_second", CUBLAS], 0)

    def test_scopes_of_their_own_are_not_seen(self):
        self.opener("deepbind", f"{FOLDER}/extension.so", 0)
        self.opener("namespace", f"{FOLDER}/extension.so", 0)

    def test_a_library_with_its_own_cublas_meets_itself(self):
        for way in ("local", "lazy", "deepbind", "namespace"):
            run = self.opener(way, f"{FOLDER}/own_cublas.so", 0)
            self.assertEqual(run.output, f"{1_000_000 + M + N + K}\n")

    def test_without_the_library_there_is_none(self):
        self.opener("absent", "-", 0)
        # Asked for by version, which only our name has: the status that says that nothing is initialised.
        self.assertEqual(Run([f"{FOLDER}/opener", "absent_version", "-"]).output, "1\n")

    def test_no_call_is_lost_between_threads_and_processes(self):
        threads, shapes, calls = 4, 50, 2000
        run = Run([f"{FOLDER}/many", str(threads), str(shapes), str(calls)])
        by_shape = collections.Counter()  # two that met at a new shape may both have taken a slot
        for shape in run.shapes:
            m = shape.dims[0]
            by_shape[m] += shape.calls
            self.assertEqual(shape[:-2], ("cublasSgemm_v2", (m, 2, 3), 1, (0, 0, 0), 12 * m))
        each = (2 * threads + 1) * calls // shapes
        self.assertEqual((by_shape, run.further), ({m: each for m in range(1, shapes + 1)}, 0))

    def test_more_shapes_than_fit_are_counted_without_their_shape(self):
        run = Run([f"{FOLDER}/many", "2", "6000", "6000"])
        self.assertEqual(run.calls + run.further, 5 * 6000)
        self.assertGreater(run.further, 0)
        self.assertGreater(len(run.shapes), 2048)

    def test_switched_off(self):
        run = Run([f"{FOLDER}/link"], TESSERA_OPERATIONS="0")
        self.assertEqual((run.output, run.calls), (bare([f"{FOLDER}/link"]), 0))

    def test_a_table_that_is_none_is_left_alone(self):
        for content in (b"", b"x" * 100, bytes(HEADER.size + SLOTS * SLOT.size),
                        HEADER.pack(b"TSOPCNT\0", VERSION + 1, SLOTS, 0) + bytes(SLOTS * SLOT.size)):
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                run = Run([f"{FOLDER}/link"], table=False, TESSERA_OPERATIONS_TABLE=file.name)
                self.assertEqual(run.output, bare([f"{FOLDER}/link"]))
                self.assertEqual(pathlib.Path(file.name).read_bytes(), content)

    def test_notes_of_outermost_calls_reach_the_reader(self):
        reader = (f"{FOLDER}/reader.so", OPS)
        words = [f"{FOLDER}/opener", "local", f"{FOLDER}/extension.so"]
        told = Run(words, table=False, preload=reader, READER_VERSION=str(VERSION), READER_ROLE="2")
        self.assertEqual(told.errors, f"note {2 * M * N * K} {4 * (M * K + K * N + 2 * M * N)} 0 0 0\nend\n")
        self.assertEqual(told.output, bare(words))
        for role, version in (("0", VERSION), ("1", VERSION), ("2", VERSION + 1)):  # not attached, protected, another release
            quiet = Run(words, table=False, preload=reader, READER_VERSION=str(version), READER_ROLE=role)
            self.assertEqual((quiet.output, quiet.errors), (told.output, ""))

    def test_the_real_library_answers(self):
        program = f"{FOLDER}/real"
        if not os.path.exists(program):
            self.skipTest("this toolkit has no libcublas.so.13")
        words = ["env", "-u", "LD_LIBRARY_PATH", program]
        run = self.compare(words, 0)  # without a handle nothing is computed
        self.assertEqual(len(run.output.splitlines()), 57)
        self.assertEqual({line.split()[1] for line in run.output.splitlines()}, {"1"})
        # The loader says whom it gave each name.
        said = Run(words, LD_DEBUG="bindings").errors
        ours = set(re.findall(rf"binding file {re.escape(program)} .* to {re.escape(OPS)} .* symbol `(cublas\w+)'", said))
        self.assertEqual(ours, {line.split()[0] for line in run.output.splitlines()})


PYTHON_LIBRARY = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
"""
PYTHON_EXTENSION = PYTHON_LIBRARY + "print(library.run_extension())"
PYTHON_CTYPES = PYTHON_LIBRARY + """
pointer, f = ctypes.c_void_p, library.cublasSgemm_v2
f.argtypes = [pointer] + [ctypes.c_int] * 5 + [pointer] * 2 + [ctypes.c_int, pointer, ctypes.c_int] + [pointer] * 2 + [ctypes.c_int]
print(f(64, 0, 0, 2, 3, 4, 64, 64, 2, 64, 2, 64, 64, 2))
"""

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
