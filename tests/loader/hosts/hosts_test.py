#!/usr/bin/env python3
"""Programs of other libcs, loaders and compilers, and installations that are not whole: they start, and what can be managed is.

usage: hosts_test.py BUILD [TEST...]    (BUILD: a build folder, or a folder where Tessera is installed, with bin and lib)
TESSERA_GLIBC_ROOTS: folders with an unpacked glibc each, separated by ':', on which a program is tried, too.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(sys.argv[1]).resolve()
LIBRARIES = [BUILD / f"lib/libtessera{kind}.so" for kind in ("", "_alias", "_ops")]
TESSERA = BUILD / "bin/tessera"
DRIVER = BUILD / "lib/null/libcuda.so.1"
FAILING = BUILD / "lib/failing/libcuda.so.1"
STUBS = BUILD / "glibc-2.17"
COMPILER = os.environ.get("CC", "cc").split()
needs_this_machine = unittest.skipIf("TESSERA_EMULATED" in os.environ, "cannot be emulated")
OLDER_GLIBC = [root for root in os.environ.get("TESSERA_GLIBC_ROOTS", "").split(":") if root]


def clean_environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TESSERA", "LD_", "ASAN"))}
    return {**kept, "TESSERA_DRIVER": str(DRIVER), "TESSERA_SOCKET": "/nonexistent/tesserad.sock", **more}


def ran(words, **variables):
    """Status, output and errors of a command."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False, env=clean_environment(**variables))
    return done.returncode, done.stdout, done.stderr


def preloaded(words, libraries=LIBRARIES, **variables):
    return ran(words, LD_PRELOAD=":".join(str(each) for each in libraries), **variables)


class Hosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kept = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.kept.name)

    @classmethod
    def tearDownClass(cls):
        cls.kept.cleanup()

    def built(self, name, *options, compiler=COMPILER, source="program.c"):
        if not shutil.which(compiler[0]):
            self.skipTest(f"no {compiler[0]}")
        path = self.folder / name
        done = subprocess.run([*compiler, HERE / source, *options, "-o", path, "-ldl"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.skipTest(f"{' '.join([*compiler, *options])}: {done.stderr.strip()}")
        return path

    def test_each_name_of_the_driver(self):
        program = self.built("usual")
        for name in ("libcuda.so.1", "libcuda.so"):
            self.assertEqual(preloaded([program, name]), (0, "init 0\nhello\n", ""), name)

    @needs_this_machine
    def test_musl(self):
        program = self.built("musl", compiler=["musl-gcc"])
        self.assertEqual(preloaded([program]), (0, "hello\n", ""))
        status, output, _ = ran([TESSERA, "run", "--gpu", "soft", "--", program])
        self.assertEqual((status, output), (0, "hello\n"))
        self.assertIn(f"{program} is linked with musl", ran([TESSERA, "doctor", "--gpu", "soft", "--", program])[1])
        # By its path, as its loader does not know SONAMEs: the library works there, too, only the driver is glibc's.
        self.assertEqual(preloaded([program, LIBRARIES[0]], TESSERA_DRIVER="/nonexistent"), (0, "init 100\nhello\n", ""))

    def test_older_glibc(self):
        if not OLDER_GLIBC:
            self.skipTest("TESSERA_GLIBC_ROOTS names none")
        program = self.built("old", f"-B{STUBS}/", "-Wl,--no-as-needed", "-lpthread")
        for root in OLDER_GLIBC:
            loader = next(pathlib.Path(root).rglob("ld-linux-x86-64.so.2")).resolve()
            start = [loader, "--library-path", loader.parent, program]
            for name in ("libcuda.so.1", "libcuda.so"):
                with self.subTest(root=root, name=name):
                    self.assertEqual(preloaded([*start, name], TESSERA_DRIVER="/nonexistent"), (0, "init 100\nhello\n", ""))

    def test_half_an_installation(self):
        program = self.built("half")
        alias = LIBRARIES[1]
        self.assertEqual(preloaded([program, "libcuda.so"], [alias]), (0, "init 100\nhello\n", ""))
        broken = self.folder / "libtessera.so"
        for content in (b"", LIBRARIES[0].read_bytes()[:40]):
            broken.write_bytes(content)
            status, output, errors = preloaded([program], [broken, alias])
            self.assertEqual((status, output), (0, "hello\n"), errors)

    def test_calls_before_libc(self):
        # The loader opens nothing while it binds: then the driver is not initialised yet.
        for kind, early in (("preinit", 0), ("ifunc", 3)):
            for binding in ("lazy", "now"):
                with self.subTest(kind=kind, binding=binding):
                    program = self.built(f"early_{kind}_{binding}", f"-Wl,-z,{binding}", *(["-DTS_IFUNC"] if early else []), DRIVER,
                                         source="early.c")
                    self.assertEqual(preloaded([program]), (0, f"early {early} late 0\n", ""))

    def test_names_that_only_the_driver_knows(self):
        folder = self.folder / "future"
        folder.mkdir(exist_ok=True)
        driver = self.built("future/libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source="future_driver.c")
        variables = {"TESSERA_DRIVER": str(driver), "TESSERA_CACHE_DIR": str(folder / "cache")}
        linked = {binding: self.built(f"future_{binding}", "-DTS_LINKED", f"-Wl,-z,{binding}", driver, source="future.c")
                  for binding in ("lazy", "now")}
        opener = self.built("future_opener", source="future.c")
        programs = [[linked["lazy"]], [linked["now"]], [opener, "libcuda.so.1"], [opener, "libcuda.so"]]
        for options in (["--no-audit"], ["--audit"], ["--priority", "high"]):
            for program in programs:
                with self.subTest(options=options, program=program):
                    self.assertEqual(ran([TESSERA, "run", *options, "--", *program], **variables)[:2], (0, "future 45.5\n45.5\n"))
        run_within_run = [TESSERA, "run", "--", "env", "TESSERA_DISABLE=1", TESSERA, "run", "--", *programs[2]]
        self.assertEqual(ran(run_within_run, **variables)[:2], (0, "future 45.5\n45.5\n"))
        # If nothing can be kept, or run, the program starts all the same, and one line says what it will not find.
        status, output, errors = ran([TESSERA, "run", "--", opener, "libcuda.so.1"],
                                     **{**variables, "TESSERA_CACHE_DIR": "/proc/none"})
        self.assertEqual((status, output), (0, "not found\n"))
        self.assertIn("do not find cuFutureCall and 1 other", errors)
        library = next((folder / "cache/newer").iterdir())
        self.assertEqual(preloaded([opener, "libcuda.so.1"], [library, *LIBRARIES], **{**variables, "TESSERA_DRIVER": "/none"}),
                         (0, "future 100\n100\n", ""))
        self.assertEqual(preloaded([opener, library], [library], **variables), (0, "future 100\n100\n", ""))

    @needs_this_machine
    def test_names_that_only_the_driver_knows_without_run(self):
        """Where `tessera cdi` has been run, an installation serves a plain LD_PRELOAD and containers, which have its lib mounted."""
        folder = self.folder / "installed"
        for part in ("bin", "lib"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for file in (TESSERA, *LIBRARIES, BUILD / "lib/ld.so.preload"):
            shutil.copy(file, folder / file.relative_to(BUILD))
        driver = self.built("installed/libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source="future_driver.c")
        programs = [[self.built("installed/linked", "-DTS_LINKED", driver, source="future.c")]]
        opener = self.built("installed/opener", source="future.c")
        programs += [[opener, name] for name in ("libcuda.so.1", "libcuda.so")]
        libraries = [folder / each.relative_to(BUILD) for each in LIBRARIES]
        cdi = [folder / "bin/tessera", "cdi"]
        self.assertEqual(ran(cdi, TESSERA_DRIVER=str(driver))[::2], (0, ""))
        for program in programs:
            with self.subTest(program=program):
                self.assertEqual(preloaded(program, libraries, TESSERA_DRIVER=str(driver)), (0, "future 45.5\n45.5\n", ""))
        for root in OLDER_GLIBC:  # whose loader ends programs for such a library
            old = self.built("installed/old", f"-B{STUBS}/", "-Wl,--no-as-needed", "-lpthread")
            loader = next(pathlib.Path(root).rglob("ld-linux-x86-64.so.2")).resolve()
            start = [loader, "--library-path", loader.parent, old, "libcuda.so.1"]
            self.assertEqual(preloaded(start, libraries, TESSERA_DRIVER="/none"), (0, "init 100\nhello\n", ""))
        # Without a driver the names stay; one that has none of them takes the place.
        self.assertEqual(ran(cdi, TESSERA_DRIVER="/none")[::2], (0, ""))
        self.assertEqual(preloaded(programs[1], libraries, TESSERA_DRIVER=str(driver)), (0, "future 45.5\n45.5\n", ""))
        self.assertEqual(ran(cdi)[::2], (0, ""))
        self.assertEqual(preloaded(programs[1], libraries, TESSERA_DRIVER=str(driver)), (0, "not found\n", ""))

    def daemon(self):
        """The socket of a tesserad that ends with the test."""
        socket = f"{self.folder}/s"
        ready, write = os.pipe()
        daemon = subprocess.Popen([BUILD / "bin/tesserad", "--socket", socket, "--ready-fd", str(write)], pass_fds=[write],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.terminate)
        os.close(write)
        with os.fdopen(ready) as pipe:
            self.assertTrue(pipe.readline(), "tesserad did not start")
        return socket

    def test_a_driver_that_fails_at_random_and_answers_anything(self):
        program = self.built("failing", DRIVER, source="failing.c")
        given = {"TESSERA_DRIVER": str(FAILING), "TESSERA_SOCKET": self.daemon()}

        def managed(**variables):
            environment = clean_environment(**given, **variables, LD_PRELOAD=":".join(str(each) for each in LIBRARIES))
            child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                     env=environment)
            clients = []
            while child.pid not in clients and child.poll() is None:
                state = json.loads(ran([TESSERA, "ps", "--json"], **given)[1])
                clients = [client["pid"] for client in state["clients"]]
            return child

        def goes_on(child):
            return (*child.communicate("\n"), child.returncode)

        # Beside a protected program best-effort work is gated.
        neighbour = managed(TESSERA_PRIORITY="5")
        self.addCleanup(goes_on, neighbour)
        for kind in ({"TESSERA_PRIORITY": "0"}, {"TESSERA_PRIORITY": "5"}, {"TESSERA_GATE": "device"}):
            for seed in range(12):
                for one_in in (3, 20):
                    with self.subTest(kind=kind, seed=seed, one_in=one_in):
                        drawn = {"TESSERA_FAILING_SEED": str(seed), "TESSERA_FAILING_ONE_IN": str(one_in)}
                        self.assertEqual(goes_on(managed(**kind, **drawn)), ("done\n", "", 0))

    def test_a_filter_without_gettid(self):
        program = self.built("no_gettid", DRIVER, source="no_gettid.c")
        status, output, errors = preloaded([program])
        if status == 77:
            self.skipTest("no filter of system calls can be set here")
        self.assertEqual((status, output, errors), (0, "init 0\n", ""))

    @needs_this_machine
    def test_valgrind(self):
        if not shutil.which("valgrind"):
            self.skipTest("no valgrind")
        program = self.built("image", DRIVER, source="image.c")
        status, output, errors = preloaded(["valgrind", "-q", "--error-exitcode=9", program])
        self.assertEqual((status, output), (0, "started 0 loaded 0\n"), errors)

    @needs_this_machine
    def test_sanitizers(self):
        for kind in ("address", "undefined", "thread", "leak"):
            with self.subTest(kind):
                program = self.built(f"sanitized_{kind}", f"-fsanitize={kind}")
                # Thread and leak sanitizer have more thread-local storage than `tessera run --audit` keeps room for.
                room = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=1048576"} if kind in ("thread", "leak") else {}
                for audit in ("--audit", "--no-audit"):
                    status, output, errors = ran([TESSERA, "run", audit, "--", program, "libcuda.so.1"], **room)
                    self.assertEqual((status, output), (0, "init 0\nhello\n"), errors)

    def installation(self, name):
        """A copy of what `tessera run` needs, in a folder of that name."""
        folder = self.folder / name
        for part in (TESSERA, *LIBRARIES, BUILD / "lib/softgpu/libcuda.so.1"):
            target = folder / part.relative_to(BUILD)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(part, target)
        return folder

    def says_why_it_runs_without(self, words, why, **variables):
        """One line on standard error says it, and the program runs."""
        status, output, errors = ran(words, **variables)
        self.assertEqual((status, output, errors.count("\n")), (0, "hello\n", 1), errors)
        self.assertIn(f"runs without Tessera: {why}", errors)

    def test_paths_that_no_list_holds(self):
        program = self.built("listed")
        for name in ("with space", "with:colon", "$ORIGIN"):
            with self.subTest(name):
                tessera = self.installation(name) / "bin/tessera"
                self.says_why_it_runs_without([tessera, "run", "--", program], f"'{self.folder}/{name}/lib/libtessera.so' cannot be")
                status, output, errors = ran([tessera, "run", "--gpu", "soft", "--", program])
                self.assertEqual((status, output, errors.count("\n")), (2, "", 1), errors)
                self.assertIn("the software GPU cannot be used", errors)

    def test_what_is_no_library(self):
        program, folder = self.built("none"), self.installation("broken")
        for name in ("libtessera.so", "libtessera_alias.so"):
            library = folder / "lib" / name
            whole = library.read_bytes()
            for content in (b"", b"#!/bin/sh\n", whole[:len(whole) // 2]):
                library.write_bytes(content)
                self.says_why_it_runs_without([folder / "bin/tessera", "run", "--", program], library)
            library.unlink()
            library.mkdir()
            self.says_why_it_runs_without([folder / "bin/tessera", "run", "--", program], f"cannot read {library}: it is a folder")
            library.rmdir()
            library.write_bytes(whole)

    def test_a_driver_that_is_none(self):
        program = self.built("driverless")
        empty = self.folder / "empty.so"
        empty.touch()
        for driver, why in ((empty, "file too short"), ("/nonexistent", "No such file"), (BUILD / "lib/libtessera_ops.so", "no cuInit")):
            self.says_why_it_runs_without([TESSERA, "run", "--", program], f"TESSERA_DRIVER={driver} is no driver: ", TESSERA_DRIVER=str(driver))
            self.assertIn(why, ran([TESSERA, "run", "--", program], TESSERA_DRIVER=str(driver))[2])
        in_folder = ran([TESSERA, "run", "--", program, "libcuda.so.1"], TESSERA_DRIVER=str(DRIVER.parent))
        self.assertEqual(in_folder[:2], (0, "init 0\nhello\n"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
