#!/usr/bin/env python3
"""Which calls of cuBLAS reach libtessera_ops.so, and that their results are the same with it and without.

usage: loader_test.py FOLDER OPS_LIBRARY SOURCE_FOLDER     (FOLDER: the programs of this folder's CMakeLists)
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

import costs

FOLDER, OPS, SOURCE = sys.argv[1:4]
PYTHON = os.environ.get("TESSERA_TEST_PYTHON", sys.executable)  # an interpreter of the machine that the libraries are for
CUBLAS = f"{FOLDER}/cublas/libcublas.so.13"
HEADER, SLOT = struct.Struct("<8sIIQ40x"), struct.Struct("<II13qI4i4x3Q")  # operations/table.h
SLOTS = 4096
ENTRIES = re.findall(r"^TS_OPERATION\((\w+), (\w+), (\w+), (\w+), (\w+)\)",
                     pathlib.Path(f"{SOURCE}/operations/entries.def").read_text(), re.M)
NAMES = [row[1] for row in ENTRIES]  # by entry
CALLS = re.findall(r"^TS_CALL\((\w+), (\w+), \((.*?)\), \(", pathlib.Path(
    f"{SOURCE}/interpose/operations/cublas_calls.def").read_text(), re.M)  # symbol, entry, parameters
VERSION = 0x30000 + len(NAMES)  # of tables: kTableVersion
NOTE_VERSION = 0x60000 + len(NAMES)  # kNoteVersion
Shape = collections.namedtuple("Shape", "name dims count types flop bytes calls")

# The programs give 3 + i as i-th argument, and 3 wherever a pointer points to.
M, N, K = 6, 7, 8


def exported(version):
    """What the library exports under a version."""
    symbols = subprocess.run(["readelf", "-W", "--dyn-syms", OPS], capture_output=True, text=True, check=True).stdout
    return sorted(re.findall(rf" (\w+)@{re.escape(version)}\b", symbols))


class Run:
    def __init__(self, words, table=True, preload=(OPS,), code=0, **environment):
        with tempfile.NamedTemporaryFile() as file:
            file.write(HEADER.pack(b"TSOPCNT\0", VERSION, SLOTS, 0))
            file.truncate(HEADER.size + SLOTS * SLOT.size)
            file.flush()
            given = {k: v for k, v in os.environ.items() if not k.startswith(("TESSERA", "LD_"))}
            given.update({"LD_LIBRARY_PATH": f"{FOLDER}/cublas", "LD_PRELOAD": ":".join(preload), **environment})
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
            state, entry, *dims, count, n_dims, a, b, c, _, flop, size, calls = SLOT.unpack_from(data, at)
            if state == 2:
                self.shapes.append(Shape(NAMES[entry], tuple(dims[:n_dims]), count, (a, b, c), flop, size, calls))
        self.calls = sum(s.calls for s in self.shapes)


BITS = {0: 32, 1: 64, 2: 16, 4: 64, 5: 128, 8: 8, 10: 32, 14: 16, 24: 64}  # by cudaDataType
COMPLEX = (4, 5)
POINTED = {"float": 0, "double": 1, "cuComplex": 4, "cuDoubleComplex": 5, "__half": 2, "__nv_bfloat16": 14, "int": 10,
           "int64_t": 24, "char": 8, "void": 2}
# By family: what A, B and C are called; one that is not there is as the first that is.
OPERANDS = {"kTriangularSolve": "A-B", "kDiagonalProduct": "AxC", "kMatrixVector": "Axy", "kBandVector": "Axy",
            "kSymmetricVector": "Axy", "kSymmetricBandVector": "Axy", "kTriangularVector": "A-x",
            "kTriangularBandVector": "A-x", "kOuterProduct": "xyA", "kSymmetricOuterProduct": "x-A",
            "kSymmetricOuterProduct2": "xyA", "kDot": "xyr", "kNorm": "x-r", "kAbsoluteSum": "x-r", "kExtreme": "x-r",
            "kLu": "APA", "kLuInverse": "APC", "kLuSolve": "AdB", "kInverse": "A-A", "kQr": "ATA"}


def argument_values(parameters, mode):
    """What calls.h gives as integers, by name, and what pointers point to, by the first letter of their names."""
    values, given = {"left": mode == 0, "turned": mode != 0}, {}
    for i, parameter in enumerate(parameters.split(", ")):
        name = re.search(r"(\w+)(\[\])?$", parameter)[1]
        pointed = re.match(r"(?:const |unsigned )*(\w+)\*", parameter)
        if pointed and name not in ("alpha", "beta", "param", "c", "s", "info"):
            given.setdefault(name[0], POINTED[pointed[1]])
        elif re.match(r"(int|int64_t) ", parameter):
            values[name] = 3 + i
    return values, given


def types_of(family, kind, given):
    letters = OPERANDS.get(family, "ABC" if "A" in given else "x-y" if "y" in given else "xxx")
    first = given[letters[0]]
    return [given.get(letter, first) for letter in letters]


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
                run = self.compare([f"{FOLDER}/{way}"], len(CALLS))
                by_name = collections.Counter()
                for shape in run.shapes:
                    by_name[shape.name] += shape.calls
                # Both widths count as one; a call that a call makes does not count: cublasGemmEx would have four.
                self.assertEqual(by_name, collections.Counter(base for _, base, _ in CALLS))

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

    def test_costs_of_every_function_are_those_counted(self):
        families = {row[1]: row for row in ENTRIES}
        for mode in (None, 0):
            shapes = collections.defaultdict(list)
            for shape in Run([f"{FOLDER}/link"] + ([] if mode is None else [str(mode)])).shapes:
                shapes[shape.name].append(shape)
            for symbol, base, parameters in CALLS:
                _, _, family, form, kind = families[base]
                if form == "kGrouped":
                    continue
                with self.subTest(symbol, mode=mode):
                    values, given = argument_values(parameters, mode)
                    types, times = types_of(family, kind, given), values.get("batchCount", values.get("batchSize", 1))
                    flop, elements = costs.flop_and_elements(family, values, types[0] in COMPLEX)
                    size = sum((BITS[t] * n + 7) // 8 for t, n in zip(types, elements))
                    self.assertIn((times * flop, times * size), [(s.flop, s.bytes) for s in shapes[base]])

    def test_groups_are_read_as_the_library_reads_them(self):
        shapes = [s for s in Run([f"{FOLDER}/link"]).shapes if s.name == "cublasDgemmGroupedBatched"]
        # group_count is argument 14. 64-bit numbers are all 3; read as 32-bit ones, each second one is 0.
        self.assertEqual({(s.dims, s.count, s.flop) for s in shapes},
                         {((), 17, 17 * 3 * 54), ((), 17, 9 * 3 * 54)})

    def test_extensions_are_seen_wherever_they_are_opened(self):
        self.opener("local", f"{FOLDER}/extension.so", 1)
        self.opener("lazy", f"{FOLDER}/extension.so", 1)
        self.opener("reopened", f"{FOLDER}/extension.so", 2)
        self.compare([PYTHON, "-c", PYTHON_EXTENSION, f"{FOLDER}/extension.so"], 1)

    def test_names_looked_up_are_the_librarys_own(self):
        for way in ("dlsym", "dlvsym", "default"):
            for path in (CUBLAS, "libcublas.so.13"):
                with self.subTest(way, path=path):
                    self.opener(way, path, 0)
        self.opener("default_version", CUBLAS, 1)
        self.compare([PYTHON, "-c", PYTHON_CTYPES, CUBLAS], 0)

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
        told = Run(words, table=False, preload=reader, READER_VERSION=str(NOTE_VERSION), READER_ROLE="2")
        self.assertEqual(told.errors, f"note {2 * M * N * K} {4 * (M * K + K * N + 2 * M * N)} 0 0 0\n"
                                      f"cublasSgemm_v2: cublasSgemm_v2 f32 {M}x{N}x{K}\nend cublasSgemm_v2\n")
        self.assertEqual(told.output, bare(words))
        for role, version in (("0", NOTE_VERSION), ("1", NOTE_VERSION), ("2", NOTE_VERSION + 1)):  # not attached, protected, another release
            quiet = Run(words, table=False, preload=reader, READER_VERSION=str(version), READER_ROLE=role)
            self.assertEqual((quiet.output, quiet.errors), (told.output, ""))

    def test_the_real_library_answers(self):
        program = f"{FOLDER}/real"
        if not os.path.exists(program):
            self.skipTest("this toolkit has no libcublas.so.13")
        words = ["env", "-u", "LD_LIBRARY_PATH", program]
        run = self.compare(words, 0)  # without a handle nothing is computed
        self.assertEqual(len(run.output.splitlines()), len(CALLS))
        # No handle, nothing to do (some look at that first), or an argument that is looked at before the handle.
        self.assertEqual({line.split()[1] for line in run.output.splitlines()}, {"0", "1", "7"})
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
