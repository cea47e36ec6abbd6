#!/usr/bin/env python3
"""Other interposers in one process with libtessera.so: right results, no recursion, and who sees which call.

usage: neighbours_test.py FOLDER TESSERA DRIVER TESSERAD [-v]     (FOLDER: the libraries and the program of this folder)
Any library may be given for TESSERA: an older one shows what it did. TESSERA_NEIGHBOURS: further interposers, NAME=LIBRARY each.
"""
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

FOLDER, TESSERA, DRIVER, TESSERAD = sys.argv[1:5]
ORDERS = ["before", "after"]
WAYS = ["linked", "opened", "asked"]
# How many calls the neighbour sees, by kind, order and way: four calls of the program, one of its runtime, and its four
# questions to cuGetProcAddress. One that only exports names sees what is bound to it, which is the first of the two.
FIRST, BY_DLSYM, NONE = (5, 5, 9), (1, 5, 9), (0, 0, 0)
SEEN = {"dlsym_hook": (BY_DLSYM, BY_DLSYM), "shim_next": (FIRST, NONE), "link_map": (FIRST, BY_DLSYM),
        "link_map_once": (FIRST, BY_DLSYM), "dlopen_hook": (FIRST, BY_DLSYM), "allocator": ((1, 1, 1), (1, 1, 1)),
        "subscriber": ((3, 3, 3), (3, 3, 3))}  # allocations and launches that reach the driver, whoever called
ANSWERS = "init 0 devices 0 1 memory 0 1 launch 0 runtime 0 1"
REACHED = "driver 1 2 1"  # cuInit, cuMemAlloc by the program and by its runtime, cuLaunchKernel: each once
NOWHERE = "/nonexistent/tesserad.sock"
# A program that recurses for ever needs less than this to use its stack up, on any machine: a guard, not a measure.
ENDLESS_s = 60


def state_environment(state, socket):
    return {"best-effort": {"TESSERA_PRIORITY": "0", "TESSERA_SOCKET": socket},
            "protected": {"TESSERA_PRIORITY": "5", "TESSERA_SOCKET": socket},
            "disabled": {"TESSERA_DISABLE": "1", "TESSERA_SOCKET": socket},
            "no daemon": {"TESSERA_SOCKET": NOWHERE}}[state]


def run(preload, way, environment, errors=False):
    given = {k: v for k, v in os.environ.items() if not k.startswith(("TESSERA", "LD_"))}
    given.update({"LD_PRELOAD": ":".join(preload), "TESSERA_DRIVER": DRIVER, "TESSERA_NULL_EXACT": "1", **environment})
    try:
        done = subprocess.run([f"{FOLDER}/program", way], capture_output=True, text=True, env=given, check=False,
                              timeout=ENDLESS_s)
    except subprocess.TimeoutExpired:
        return "endless"
    if errors:
        return done.stderr
    return done.stdout.strip() if done.returncode == 0 else f"status {done.returncode}: {done.stderr.strip()}"


class Neighbours(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.socket = f"{cls.folder.name}/s"
        ready, write = os.pipe()
        cls.daemon = subprocess.Popen([TESSERAD, "--socket", cls.socket, "--ready-fd", str(write)], pass_fds=[write],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(write)
        with os.fdopen(ready) as pipe:
            assert pipe.readline(), "tesserad did not start"

    @classmethod
    def tearDownClass(cls):
        cls.daemon.terminate()
        cls.daemon.wait()
        cls.folder.cleanup()

    def test_matrix(self):
        for state in ("best-effort", "protected", "disabled", "no daemon"):
            environment = state_environment(state, self.socket)
            for kind, order, way in itertools.product(SEEN, ORDERS, WAYS):
                preload = [f"{FOLDER}/lib{kind}.so", TESSERA]
                with self.subTest(kind=kind, order=order, state=state, way=way):
                    tool = {"CUDA_INJECTION64_PATH": preload[0]} if kind == "subscriber" else {}
                    answer = run(preload if order == "before" else preload[::-1], way, {**environment, **tool})
                    seen = SEEN[kind][ORDERS.index(order)][WAYS.index(way)]
                    self.assertEqual(answer, f"{ANSWERS} neighbour {seen} {REACHED}")

    def test_given(self):
        # The neighbours' view is not known, but the results are, and that each call reaches the driver.
        given = [word.split("=", 1) for word in os.environ.get("TESSERA_NEIGHBOURS", "").split()]
        if not given:
            self.skipTest("TESSERA_NEIGHBOURS names none")
        for (name, library), order, state, way in itertools.product(given, ORDERS, ("best-effort", "protected", "disabled"), WAYS):
            with self.subTest(name=name, order=order, state=state, way=way):
                preload = [library, TESSERA]
                answer = run(preload if order == "before" else preload[::-1], way, state_environment(state, self.socket))
                self.assertEqual(answer.partition(" neighbour")[0], ANSWERS)
                self.assertEqual(answer[answer.find("driver "):], REACHED)

    def test_a_second_installation_tells_nothing(self):
        other = shutil.copy(TESSERA, f"{self.folder.name}/libtessera.so")
        for preload in ([TESSERA, other], [other, TESSERA]):
            for way in WAYS:
                environment = {"TESSERA_SOCKET": self.socket, "TESSERA_RUN": "1"}
                with self.subTest(first=preload[0], way=way):
                    self.assertEqual(run(preload, way, environment), f"{ANSWERS} neighbour 0 {REACHED}")
                    self.assertEqual(run(preload, way, environment, errors=True), "")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
