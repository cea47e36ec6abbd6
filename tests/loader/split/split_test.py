#!/usr/bin/env python3
"""Calls of cuBLAS, cuBLASLt and cuDNN in pieces (interpose/operations/split.h), on libraries and a driver of our own, which compute at once.

usage: split_test.py FOLDER OPS_LIBRARY [CASE]...     (FOLDER: what this folder's CMakeLists builds)
"""
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

FOLDER, OPS = sys.argv[1:3]
RANDOM = ("8", "6")  # seed, products of each form
DRIVER = ("cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetName", "cuDriverGetVersion", "cuDeviceGetAttribute", "cuMemGetInfo_v2", "cuMemGetAddressRange_v2",
          "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamCreate", "cuStreamSynchronize", "cuEventCreate", "cuEventRecord",
          "cuEventQuery")


class Run:
    def __init__(self, words=RANDOM, preload=True, split="1", slice_ns="300", cache=None, program="program", **environment):
        given = {k: v for k, v in os.environ.items() if not k.startswith(("TESSERA", "LD_", "XDG_", "HOME"))}
        given.update(LD_LIBRARY_PATH=FOLDER, READER_SLICE=slice_ns, TESSERA_SPLIT_OPERATIONS=split, **environment)
        if preload:
            given["LD_PRELOAD"] = f"{FOLDER}/reader.so:{OPS}"
        with tempfile.TemporaryDirectory() as folder:
            given["XDG_CACHE_HOME"] = cache or folder
            run = subprocess.run([f"{FOLDER}/{program}", *words], capture_output=True, text=True, env=given, check=False)
        if run.returncode != 0:
            raise AssertionError(f"status {run.returncode}: {run.stderr}")
        self.output = run.stdout
        self.counts = {name: int(n) for name, n in (line.split() for line in run.stderr.splitlines())}

    def __getattr__(self, name):
        return self.counts[name]


class Split(unittest.TestCase):
    def same(self, run, **environment):
        bare = Run(preload=False, **environment)
        self.assertEqual(run.output, bare.output)
        if "allocations" in run.counts:
            self.assertEqual((run.allocations, run.capture_mode), (0, 0))
        return bare

    def test_pieces_give_the_bits_of_the_whole(self):
        run = Run()
        bare = self.same(run)
        self.assertGreater(run.split_calls, 20)
        self.assertGreater(run.split_pieces, 2 * run.split_calls - 1)
        self.assertGreater(run.proven, 20)
        self.assertEqual(run.unequal + run.kept_unequal, 0)
        self.assertGreater(run.kept_form, 0)  # batches by pointers, small ones
        self.assertGreater(run.calls, bare.calls)

    def test_more_seeds_and_slices(self):
        for seed, slice_ns in (("1", "50"), ("2", "1000"), ("3", "1")):
            run = Run((seed, "4"), slice_ns=slice_ns)
            self.assertEqual(run.output, Run((seed, "4"), preload=False).output)
            self.assertGreater(run.split_calls, 0)

    def test_nothing_is_split_unless_it_is_asked_for(self):
        for run in (Run(split="0"), Run(split=""), Run(slice_ns="0")):
            self.assertEqual(run.calls, self.same(run).calls)
            self.assertEqual(run.split_calls + run.kept_form + run.kept_unproven, 0)

    def test_each_call_is_counted_once_by_what_became_of_it(self):
        whole = ("kept_short", "kept_free", "kept_unproven", "kept_unequal", "kept_form")
        seen = lambda run: run.split_calls + sum(run.counts[name] for name in whole)
        alone, short, usual = Run(slice_ns="0"), Run(slice_ns="1000000000000"), Run()
        self.assertGreater(alone.kept_free, 20)
        self.assertEqual((alone.kept_free, short.kept_short), (seen(alone), seen(short)))
        self.assertEqual({seen(run) for run in (alone, short, usual, Run(TESSERA_BIT_STABILITY="relaxed"))}, {seen(usual)})
        self.assertEqual(seen(Run(split="0")), 0)

    def test_what_was_proven_is_remembered(self):
        with tempfile.TemporaryDirectory() as cache:
            first, second = Run(cache=cache), Run(cache=cache)
            self.same(second)
            self.assertGreater(first.proven, 0)
            self.assertEqual((second.proven, second.kept_unproven), (0, 0))
            self.assertGreater(second.split_calls, first.split_calls)
            for other in ({"FAKE_VERSION": "130001"}, {"FAKE_GPU": "another"}, {"FAKE_SMS": "66"}, {"FAKE_MATH": "3"}, {"NVIDIA_TF32_OVERRIDE": "0"},
                          {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}):
                self.assertEqual(Run(cache=cache, **other).proven, first.proven)

    def test_nothing_is_proven_of_precision_that_depends_on_numbers(self):
        for other in ({"FAKE_MATH": "8"}, {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1"}):
            run = Run(**other)
            self.same(run, **other)
            self.assertEqual((run.split_calls, run.proven, run.kept_unproven), (0, 0, 0))
            self.assertGreater(Run(TESSERA_BIT_STABILITY="relaxed", **other).split_calls, 0)

    def test_other_bits_are_found_and_never_split_again(self):
        with tempfile.TemporaryDirectory() as cache:
            first, second = Run(cache=cache, FAKE_BITS="size"), Run(cache=cache, FAKE_BITS="size")
            bare = self.same(first, FAKE_BITS="size")
            self.same(second, FAKE_BITS="size")
            self.assertGreater(first.unequal, 20)
            self.assertGreater(first.kept_unequal, first.unequal)
            self.assertEqual(second.unequal + second.kept_unproven, 0)
            self.assertGreater(second.kept_unequal, first.kept_unequal)
            strided = first.proven  # products of a batch are of the same size in a piece
            self.assertGreater(strided, 0)
            self.assertEqual(second.calls - second.split_pieces + second.split_calls, bare.calls)

    def test_what_was_proven_holds_for_other_scalars_only_if_they_were_tried(self):
        run = Run(("scalars",), FAKE_BITS="beta")
        self.assertEqual(run.output, Run(("scalars",), preload=False, FAKE_BITS="beta").output)
        self.assertEqual((run.proven, run.unequal), (1, 1))
        self.assertGreater(run.split_calls, 0)

    def test_what_was_proven_holds_for_memory_to_work_in_of_one_size(self):
        run = Run(("workspace",), FAKE_BITS="workspace")
        self.assertEqual(run.output, Run(("workspace",), preload=False, FAKE_BITS="workspace").output)
        self.assertEqual((run.proven, run.unequal), (1, 1))
        self.assertEqual((run.split_calls, run.kept_unequal), (5, 2))

    def test_results_that_any_order_gives_prove_nothing(self):
        run = Run(("plain",), FAKE_BITS="order")
        self.assertEqual(run.output, Run(("plain",), preload=False, FAKE_BITS="order").output)
        self.assertEqual((run.proven, run.unequal, run.split_calls, run.kept_unequal), (0, 1, 0, 2))
        self.assertEqual(Run(("plain",)).proven, 1)

    def test_relaxed_splits_what_is_not_proven(self):
        run = Run(TESSERA_BIT_STABILITY="relaxed")
        self.same(run)
        self.assertGreater(run.split_calls, Run().split_calls)
        self.assertEqual(run.proven + run.kept_unproven, 0)
        other = Run(TESSERA_BIT_STABILITY="relaxed", FAKE_BITS="size")
        self.assertNotEqual(other.output, Run(preload=False, FAKE_BITS="size").output)

    def test_groups_are_split_where_nothing_need_be_proven(self):
        strict, relaxed = Run(("11", "8")), Run(("11", "8"), TESSERA_BIT_STABILITY="relaxed")
        self.assertEqual(relaxed.output, strict.output)
        forms = 8 * 3  # calls of batches by pointers, and of each of three kinds of groups
        self.assertGreater(strict.kept_form, forms)
        self.assertLess(2 * relaxed.kept_form, strict.kept_form)
        # In the smallest pieces, each product is one.
        small = Run(("11", "8"), slice_ns="1", TESSERA_BIT_STABILITY="relaxed")
        self.assertEqual(small.output, strict.output)
        self.assertGreater(small.split_pieces, relaxed.split_pieces)

    def test_the_library_is_told_of_the_sms_that_a_lease_leaves(self):
        run = Run(READER_SMS="96", TESSERA_BIT_STABILITY="relaxed")
        self.same(run)
        self.assertEqual(run.target, 0)
        self.assertGreater(run.narrowed, 20)
        self.assertGreaterEqual(run.narrow_calls, run.narrowed)
        for other in ({"READER_SMS": "96"}, {"READER_SMS": "0", "TESSERA_BIT_STABILITY": "relaxed"}):
            bare = Run(**other)  # bits could be others; nothing to tell
            self.assertEqual((bare.narrowed, bare.narrow_calls), (0, 0))

    def test_the_programs_own_target_comes_back_and_outranks_a_larger_one(self):
        for own, narrowed in (("128", True), ("64", False)):
            run = Run(READER_SMS="96", TESSERA_BIT_STABILITY="relaxed", PROGRAM_SMS=own)
            self.same(run, PROGRAM_SMS=own)
            self.assertEqual(run.target, int(own))
            self.assertEqual(run.narrowed > 0, narrowed)

    def test_relaxed_does_not_split_what_was_found_unequal(self):
        with tempfile.TemporaryDirectory() as cache:
            first = Run(cache=cache, FAKE_BITS="size")
            run = Run(cache=cache, FAKE_BITS="size", TESSERA_BIT_STABILITY="relaxed")
            self.assertGreaterEqual(run.kept_unequal, first.kept_unequal)

    def test_nothing_is_tried_while_somebody_is_busy(self):
        run = Run(READER_BUSY="1")
        self.assertEqual(run.calls, self.same(run).calls)
        self.assertEqual(run.split_calls + run.proven, 0)
        self.assertGreater(run.kept_unproven, 0)

    def test_nothing_is_tried_without_memory(self):
        run = Run(FAKE_FREE="8")
        self.assertEqual(run.calls, self.same(run).calls)
        self.assertEqual(run.split_calls + run.proven, 0)

    def test_trials_hold_little_memory_and_go_on_from_piece_to_piece(self):
        whole = 256 * 256 * 4
        for room, held, proven in ((whole + 40, 2 * whole, 1), (whole // 2 + 40, whole, 1), (whole // 4, 0, 0)):
            for bits, found in ({}, "proven"), ({"FAKE_BITS": "size"}, "unequal"):
                run = Run(("large",), FAKE_FREE=str(8 * room), **bits)
                self.assertEqual(run.output, Run(("large",), preload=False, **bits).output)
                self.assertEqual((run.counts[found], run.allocations), (proven, 0))
                self.assertLessEqual(run.most_bytes, held + 2 * 256)
                # One of three calls is a trial, or one for each of two pieces; an unequal piece is enough.
                self.assertEqual(run.split_calls, 0 if bits or not proven else 2 if held > whole else 1)
        # This holds however much is free.
        self.assertLessEqual(Run(("large",), FAKE_FREE=str(1 << 40)).most_bytes, 64 << 20)

    def test_a_trial_gives_its_memory_to_the_program(self):
        run = Run(("short",))
        self.assertEqual(run.output, Run(("short",), preload=False).output)
        self.assertEqual((run.nothing_to_give, run.held, run.given, run.held_then), (0, 2, 1, 0))
        self.assertEqual((run.proven, run.split_calls, run.allocations), (1, 2, 0))  # tried again

    def test_a_trial_gives_its_memory_to_another_thread(self):
        run = Run(("threads",))
        self.assertEqual(run.output, Run(("threads",), preload=False).output)
        self.assertEqual((run.proven, run.unequal, run.allocations), (1, 0, 0))

    def test_a_library_that_is_refused_memory_in_a_trial_ends_it(self):
        for every in ("1", "2"):  # in the program's call; in the first piece, which says nothing about its bits
            run = Run(("large",), FAKE_SHORT=every)
            self.assertEqual((run.proven, run.unequal, run.kept_unequal, run.allocations), (0, 0, 0, 0))
            self.assertEqual(run.kept_unproven, 3)
        self.assertEqual(run.output, Run(("large",), preload=False).output)

    def test_a_trial_ends_with_its_context(self):
        run = Run(("reset",))
        self.assertEqual(run.output, Run(("reset",), preload=False).output)
        self.assertEqual((run.held, run.proven, run.split_calls, run.allocations), (2, 1, 2, 0))

    def test_a_driver_that_fails_changes_nothing(self):
        bare = Run(("8", "2"), preload=False)
        self.assertGreater(Run(("8", "2")).split_calls, 0)
        for function in DRIVER:
            run = Run(("8", "2"), FAKE_FAIL=function)
            self.assertEqual(run.output, bare.output, function)
            self.assertEqual((run.split_calls, run.unequal), (0, 0), function)

    def test_the_answer_is_the_librarys(self):
        self.assertEqual(Run(("refused",), slice_ns="1").output, Run(("refused",), preload=False).output)
        relaxed = Run(("refused",), slice_ns="1", TESSERA_BIT_STABILITY="relaxed")
        self.assertEqual(relaxed.output, Run(("refused",), preload=False).output)

    def test_a_file_that_others_could_write_or_garbled_is_not_believed(self):
        with tempfile.TemporaryDirectory() as cache:
            first = Run(cache=cache)
            file = pathlib.Path(cache, "tessera/split")
            good = file.read_bytes()
            self.assertEqual(len(good), 24 * first.proven)
            self.assertEqual(file.stat().st_mode & 0o777, 0o600)
            file.chmod(0o620)
            self.assertEqual(Run(cache=cache).proven, first.proven)
            file.unlink()
            other = pathlib.Path(cache, "other")
            other.write_bytes(good)
            file.symlink_to(other)
            self.assertEqual(Run(cache=cache).proven, first.proven)
            self.assertEqual(other.read_bytes(), good)
            file.unlink()
            # A record that claims what was not found, one that was cut off, and the good ones behind it.
            file.write_bytes(struct.pack("<QQII", 5, 6, 2, 0) + good[:13] + good)
            self.assertEqual(Run(cache=cache).proven, 0)


class OfProgram:
    """What holds of all that is cut, whichever library it is of: PROGRAM makes random calls, WORDS are enough of them."""
    PROGRAM: str
    WORDS: tuple
    TRIED: int  # classes at least
    SLICE: int  # ns

    def run_it(self, words=None, slice_ns=None, **more):
        return Run(words or self.WORDS, program=self.PROGRAM, slice_ns=slice_ns or str(self.SLICE), **more)

    def same(self, run, words=None, **environment):
        bare = self.run_it(words, preload=False, **environment)
        self.assertEqual(run.output, bare.output)
        self.assertEqual((run.allocations, run.capture_mode), (bare.allocations, 0))
        return bare

    def test_pieces_give_the_bits_of_the_whole(self):
        run = self.run_it()
        bare = self.same(run)
        self.assertGreater(run.proven, self.TRIED)
        self.assertGreater(run.split_calls, self.TRIED)
        self.assertGreater(run.split_pieces, 2 * run.split_calls - 1)
        self.assertEqual(run.unequal + run.kept_unequal, 0)
        self.assertGreater(run.calls, bare.calls)

    def test_more_seeds_and_slices(self):
        for seed, slice_ns in (("1", str(self.SLICE // 4)), ("2", str(self.SLICE * 3)), ("3", "1")):
            words = (seed, self.WORDS[1])
            run = self.run_it(words, slice_ns=slice_ns)
            self.same(run, words)
            self.assertGreater(run.split_calls, 0)
            relaxed = self.run_it(words, slice_ns=slice_ns, TESSERA_BIT_STABILITY="relaxed")
            self.same(relaxed, words)
            self.assertEqual(relaxed.proven + relaxed.kept_unproven, 0)
            self.assertGreater(relaxed.split_calls, run.split_calls)

    def test_nothing_is_split_unless_it_is_asked_for(self):
        for run in (self.run_it(split="0"), self.run_it(slice_ns="0")):
            self.assertEqual(run.calls, self.same(run).calls)
            self.assertEqual(run.split_calls + run.kept_form + run.kept_unproven, 0)

    def test_what_was_proven_is_remembered(self):
        with tempfile.TemporaryDirectory() as cache:
            first, second = self.run_it(cache=cache), self.run_it(cache=cache)
            self.same(second)
            self.assertEqual((second.proven, second.kept_unproven), (0, 0))
            self.assertGreater(second.split_calls, first.split_calls)
            for other in ({"FAKE_VERSION": "130001"}, {"FAKE_GPU": "another"}):
                self.assertEqual(self.run_it(cache=cache, **other).proven, first.proven)

    def test_other_bits_are_found_and_never_split_again(self):
        with tempfile.TemporaryDirectory() as cache:
            first, second = self.run_it(cache=cache, FAKE_BITS="size"), self.run_it(cache=cache, FAKE_BITS="size")
            bare = self.same(first, FAKE_BITS="size")
            self.same(second, FAKE_BITS="size")
            self.assertGreater(first.unequal, self.TRIED)
            self.assertEqual(second.unequal + second.kept_unproven, 0)
            self.assertGreater(second.kept_unequal, first.kept_unequal)
            self.assertEqual(second.calls - second.split_pieces + second.split_calls, bare.calls)
            self.assertGreaterEqual(self.run_it(cache=cache, FAKE_BITS="size", TESSERA_BIT_STABILITY="relaxed").kept_unequal,
                                    second.kept_unequal)

    def test_nothing_is_tried_while_somebody_is_busy(self):
        run = self.run_it(READER_BUSY="1")
        self.assertEqual(run.calls, self.same(run).calls)
        self.assertEqual(run.split_calls + run.proven, 0)
        self.assertGreater(run.kept_unproven, 0)

    def stays_whole(self, calls, **environment):
        for bits in ("strict", "relaxed"):
            run = self.run_it(("uncut",), slice_ns="1", TESSERA_BIT_STABILITY=bits, **environment)
            self.assertEqual(run.output, "1\n" * calls)
            self.assertEqual((run.split_calls, run.proven), (0, 0))
        return run

    def asks_before(self, slice_ns, **environment):
        """What the library says of pieces, the last one, too, is asked before any is issued."""
        run = self.run_it(slice_ns=slice_ns, TESSERA_BIT_STABILITY="relaxed", **environment)
        self.same(run, **environment)
        free = self.run_it(slice_ns=slice_ns, TESSERA_BIT_STABILITY="relaxed")
        self.assertLess(run.split_calls, free.split_calls)
        self.assertGreater(run.split_calls, 0)
        strict = self.run_it(slice_ns=slice_ns, **environment)
        self.same(strict, **environment)
        self.assertEqual(strict.unequal, 0)


class Lt(OfProgram, unittest.TestCase):
    PROGRAM, WORDS, TRIED, SLICE = "program_lt", ("5", "80"), 20, 300

    def test_what_a_piece_would_have_to_move_in_or_write_beside_d_stays_whole(self):
        run = self.stays_whole(calls=22)
        self.assertEqual(run.kept_form, 22)

    def test_the_callers_algorithm_must_do_for_the_pieces_in_its_workspace(self):
        for answer in ("refused", "workspace"):
            self.asks_before("5000", FAKE_CHECK=answer)

    def test_the_answer_is_the_librarys(self):
        for bits in ("strict", "relaxed"):
            run = self.run_it(("refused",), slice_ns="1", TESSERA_BIT_STABILITY=bits)
            self.same(run, ("refused",))
            self.assertEqual((run.calls, run.split_calls), (7, 0))

    def test_where_the_library_chooses_it_is_told_of_the_sms_that_a_lease_leaves(self):
        relaxed = {"READER_SMS": "96", "TESSERA_BIT_STABILITY": "relaxed"}
        cut, whole = self.run_it(**relaxed), self.run_it(slice_ns="1000000000", **relaxed)
        for run in (cut, whole):
            bare = self.same(run)
            self.assertGreater(run.narrowed, 20)
            self.assertEqual((run.least_target, run.chosen_narrow_calls, run.changed), (96, 0, 0))
            self.assertLess(run.narrowed, bare.calls)  # the caller's algorithm is not chosen by it
        self.assertGreater(cut.split_calls, 20)
        self.assertGreater(cut.narrow_calls, cut.narrowed)
        self.assertEqual((whole.split_calls, whole.calls, whole.narrow_calls), (0, bare.calls, whole.narrowed))
        for other in ({"READER_SMS": "96"}, {"READER_SMS": "0", "TESSERA_BIT_STABILITY": "relaxed"}):
            run = self.run_it(**other)  # bits could be others; nothing to tell
            self.assertEqual((run.narrowed, run.narrow_calls, run.chosen_narrow_calls), (0, 0, 0))

    def test_a_products_own_target_stands_where_it_is_smaller(self):
        for own, least in (("128", 96), ("96", 96), ("64", 64)):
            run = self.run_it(READER_SMS="96", TESSERA_BIT_STABILITY="relaxed", PROGRAM_SMS=own)
            self.same(run, PROGRAM_SMS=own)
            self.assertEqual((run.least_target, run.chosen_least_target, run.changed), (least, int(own), 0))
            self.assertEqual(run.narrowed > 0, own == "128")

    def test_threads_share_what_is_known(self):
        for bits in ({}, {"FAKE_BITS": "size"}):
            run = self.run_it(("threads",), slice_ns="50", **bits)
            self.same(run, ("threads",), **bits)
            self.assertGreater(run.unequal if bits else run.split_calls, 0)
        run = self.run_it(("threads",), slice_ns="50", READER_SMS="96", TESSERA_BIT_STABILITY="relaxed")
        self.same(run, ("threads",))
        self.assertGreater(run.narrowed, 0)
        self.assertEqual((run.least_target, run.changed), (96, 0))


class Cudnn(OfProgram, unittest.TestCase):
    PROGRAM, WORDS, TRIED, SLICE = "program_cudnn", ("6", "35"), 20, 50

    def test_what_is_not_cut_by_the_image_stays_whole(self):
        run = self.stays_whole(calls=4)
        self.assertEqual(run.kept_form, 3)  # the filter's gradient is not even asked about

    def test_the_callers_workspace_must_do_for_the_pieces(self):
        self.assertEqual(self.run_it(TESSERA_BIT_STABILITY="relaxed", FAKE_WORKSPACE="all").split_calls, 0)
        self.asks_before("150", FAKE_WORKSPACE="odd")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
