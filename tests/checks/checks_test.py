#!/usr/bin/env python3
"""The checks find what they are for: each is shown a small tree or library that breaks its rule, and one that does not."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"


def run(script, *arguments):
    done = subprocess.run([sys.executable, str(SCRIPTS / script), *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Tree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def expect(self, script, files, *expected):
        """`files` break exactly the rules whose texts are `expected` (none: the tree is clean)."""
        for name, text in files.items():
            self.write(name, text)
        code, output = run(script, "--root", self.root)
        self.assertEqual(code, 1 if expected else 0, output)
        for text in expected:
            self.assertIn(text, output)
        for name in files:
            (self.root / name).unlink()

    def test_layering(self):
        good = {"base/a.h": "#include <string>\n", "interpose/gate/b.cc": '#include "ipc/abi/r.h"\n#include "base/a.h"\n',
                "ipc/abi/r.h": "#include <cstdint>\n", "scheduler_daemon/policy/p.h": '#include "base/units.h"\n',
                "interpose/slice/s.cc": '#include "interpose/track/t.h"\n#include "interpose/gate/b.h"\n',
                "tests/unit/t.cc": '#include "softgpu/x.h"\n', "softgpu/x.h": '#include "kernels/ptx/ir.h"\n'}
        self.expect("check_layering.py", good)
        for name, line, text in (
                ("base/a.h", '#include "ipc/abi/r.h"', "base may not include ipc/abi/r.h"),
                ("ipc/abi/r.h", "#include <string>", "ipc/abi may not include <string>"),
                ("ipc/abi/r.h", '#include "base/a.h"', "ipc/abi may not include base/a.h"),
                ("scheduler_daemon/policy/p.cc", "#include <chrono>", "may not include <chrono>"),
                ("scheduler_daemon/policy/p.cc", '#include "base/clock.h"', "may not include base/clock.h"),
                ("scheduler_daemon/core/c.cc", '#include "interpose/gate/g.h"', "may not include interpose"),
                ("interpose/gate/g.cc", '#include "scheduler_daemon/core/c.h"', "may not include scheduler_daemon"),
                ("interpose/state/s.cc", '#include "interpose/gate/g.h"', "interpose/state may not include interpose/gate/g.h"),
                ("interpose/gate/g.cc", '#include "interpose/slice/s.h"', "interpose/gate may not include interpose/slice/s.h"),
                ("interpose/gate/g.h", '#include "interpose/track/t.h"', "interpose/gate may not include interpose/track/t.h"),
                ("interpose/track/t.cc", '#include "interpose/slice/s.h"', "interpose/track may not include interpose/slice"),
                ("interpose/hooks/h.cc", '#include "interpose/lifecycle/l.h"', "may not include interpose/lifecycle/l.h"),
                ("interpose/entry/e.cc", '#include "interpose/gate/g.h"', "interpose/entry may not include interpose/gate"),
                ("interpose/attic/a.cc", "#include <string>", "interpose/attic has no row"),
                ("softgpu/s.cc", '#include "interpose/entry/entry.h"', "softgpu may not include interpose"),
                ("softgpu/exec/e.cc", '#include "softgpu/driver/d.h"', "softgpu/exec may not include softgpu/driver"),
                ("softgpu/driver/d.cc", '#include "softgpu/exec/core.h"', "softgpu/driver may not include softgpu/exec/core.h"),
                ("softgpu/timing/t.cc", '#include "softgpu/exec/exec.h"', "softgpu/timing may not include softgpu/exec"),
                ("softgpu/s.cc", '#include "kernels/slice/slice.h"', "softgpu may not include kernels/slice"),
                ("base/a.cc", '#include "tests/x.h"', "base may not include tests/x.h"),
                ("base/a.cc", '#include "result.h"', "spell project headers from the repository root")):
            self.expect("check_layering.py", {name: line + "\n"}, f"{name}:1", text)

    def test_empty_tree_is_an_error(self):
        for script in ("check_layering.py", "check_banned.py", "check_headers.py"):
            self.assertEqual(run(script, "--root", self.root)[0], 1, script)

    def test_every_script_has_help_and_builds_nothing_for_it(self):
        for tool in ("cmake", "ninja", "apt-get"):
            self.write(f"bin/{tool}", f"#!/bin/sh\necho {tool} was called >&2\nexit 1\n").chmod(0o755)
        path = f"{self.root}/bin:{os.environ['PATH']}"
        for script in sorted(SCRIPTS.rglob("*.sh")):
            with self.subTest(script.name):
                done = subprocess.run([script, "--help"], capture_output=True, text=True, env={**os.environ, "PATH": path})
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout)

    def test_banned(self):
        self.expect("check_banned.py", {
            "interpose/a.cc": '// exit(1) in a comment\nconst char* s = "abort()"; void on_exit_(); void f() { on_exit_(); }\n'
                              'bool g(int* n) { const auto r = real().cuDeviceGetCount(n); return real().cuDriverGetVersion(n) == r; }\n',
            "scripts/x.sh": "# TODO(#12): later\n", "cli/m.cc": "int main() { exit(1); }\n"})
        for name, line, text in (
                ("interpose/a.cc", "void f() { exit(1); }", "not ours to end"),
                ("interpose/a.cc", "void f() { ::_exit(1); }", "not ours to end"),
                ("interpose/a.cc", "void f() { std::abort(); }", "not ours to end"),
                ("interpose/a.cc", "void f() { throw 1; }", "nothing throws"),
                ("interpose/a.cc", "void f() { assert(true); }", "assert aborts"),
                ("interpose/a.cc", 'void f() { printf("x"); }', "raw_log"),
                ("interpose/a.cc", "void f() { sigaction(1, 0, 0); }", "signal handlers"),
                ("interpose/a.cc", 'void* p = dlsym(RTLD_NEXT, "x");', "RTLD_NEXT"),
                ("interpose/a.cc", "void f() { int n; real().cuDeviceGetCount(&n); }", "driver_api/ask.h"),
                ("interpose/a.cc", "if (x) driver_api::real().cuDriverGetVersion(&n);", "driver_api/ask.h"),
                ("interpose/a.cc", "if (real.cuEventCreate(&own->event, 0) != CUDA_SUCCESS) return;", "made()"),
                ("scheduler_daemon/policy/p.cc", "auto t = now_ns();", "policy is pure"),
                ("base/a.h", "using namespace std;", "open namespaces"),
                ("tests/unit/t.cc", "void f() { usleep(1); }", "not synchronisation"),
                ("base/a.cc", "// TODO: something", "TODO(#issue)")):
            self.expect("check_banned.py", {name: line + "\n"}, f"{name}:1", text)

    def test_build(self):
        copy = "build {0}: CUSTOM_COMMAND\n  COMMAND = cd /b && install -m 755 /s/{0}.py {0} && install -m 644 /s/frame.py /b/frame.py\n"
        compile = "build {0}: CUSTOM_COMMAND\n  COMMAND = cd /b && nvcc -ptx /s/a.cu -o {1} > /dev/null\n"
        for text, *expected in ((copy.format("one"),), (compile.format("one", "a.ptx") + compile.format("two", "b.ptx"),),
                                (copy.format("one") + copy.format("two"), "/b/frame.py", "one, two"),
                                (compile.format("one", "a.ptx") + compile.format("two", "/b/a.ptx"), "/b/a.ptx", "one, two")):
            self.write("build.ninja", text)
            code, output = run("check_build.py", self.root)
            self.assertEqual(code, 1 if expected else 0, output)
            for part in expected:
                self.assertIn(part, output)

    def test_headers(self):
        self.expect("check_headers.py", {"base/a.h": "#pragma once\n#include <string>\nstd::string f();\n"})
        self.expect("check_headers.py", {"base/b.h": "#pragma once\nstd::string f();\n"}, "base/b.h")

    def test_headers_that_were_built_are_taken_as_built(self):
        bad = "#pragma once\nstd::string f();\n"
        source = self.write("base/a.cc", '// A word first.\n#include "base/a.h"\n')
        self.write("base/a.h", bad)
        second = self.write("base/c.cc", '#include <string>\n\n#include "base/b.h"\n')
        database = self.write("built.json", json.dumps([{"file": str(source)}, {"file": str(second)}]))
        code, output = run("check_headers.py", "--root", self.root, "--built", database)
        self.assertEqual((code, output.strip().splitlines()[-1]), (0, "headers: 1, 0 compiled alone here, 0 problems"))
        self.write("base/b.h", bad)
        code, output = run("check_headers.py", "--root", self.root, "--built", database)
        self.assertEqual(code, 1)
        self.assertIn("base/b.h:", output)

    def compile(self, source, name, *options):
        out = self.root / name
        subprocess.run(["gcc", "-O1", "-fPIC", *options, "-o", str(out), str(self.write("s.c", source))], check=True)
        return out

    def test_exports(self):
        script = self.write("e.map", "{ global:\n  a;\n  b;\nlocal: *; };\n")
        both = self.compile("int a(void){return 1;} int b(void){return 2;}", "l.so", "-shared")
        self.assertEqual(run("check_symbols.py", "exports", both, script)[0], 0)
        other = self.compile("int a(void){return 1;} int c(void){return 2;}", "l.so", "-shared")
        code, output = run("check_symbols.py", "exports", other, script)
        self.assertEqual(code, 1)
        self.assertIn("exported but not listed: c", output)
        self.assertIn("listed but not exported: b", output)

    def test_preload(self):
        source = "int a(void){return 1;}"
        good = ("-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-z,now")
        self.assertEqual(run("check_symbols.py", "preload", self.compile(source, "l.so", *good))[0], 0)
        kept = good + ("-Wl,-rpath,$ORIGIN/newer",)
        self.assertEqual(run("check_symbols.py", "preload", self.compile(source, "l.so", *kept))[0], 0)
        for options, text in ((good + ("-Wl,--no-as-needed", "-lstdc++"), "libstdc++"),
                              (("-shared", "-Wl,-z,now"), "SONAME"),
                              (good[:2] + ("-Wl,-z,lazy",), "lazy binding"),
                              (good + ("-Wl,-rpath,/x",), "run path"),
                              (good + ("-z", "execstack"), "executable stack")):
            code, output = run("check_symbols.py", "preload", self.compile(source, "l.so", *options))
            self.assertEqual(code, 1, (options, output))
            self.assertIn(text, output)

    def test_constructors(self):
        good = ("-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-z,now")
        source = "int x; __attribute__((constructor)) static void early(void) { x = 1; }"
        code, output = run("check_symbols.py", "preload", self.compile(source, "l.so", *good))
        self.assertEqual(code, 1, output)
        self.assertIn("1 constructors", output)

    def test_hot(self):
        listing = self.write("hot.txt", "# hot\ngate/hot.c\n")

        def archive(source):
            self.compile(source, "hot.c.o", "-c")
            self.compile("#include <stdlib.h>\nvoid* cold(void){return malloc(1);}", "cold.c.o", "-c")
            out = self.root / "libgate.a"
            out.unlink(missing_ok=True)
            subprocess.run(["ar", "rcs", str(out), str(self.root / "hot.c.o"), str(self.root / "cold.c.o")], check=True)
            return f"gate={out}"

        self.assertEqual(run("check_symbols.py", "hot", listing, archive("int x; int f(void){return x;}"))[0], 0)
        for source, text in (("#include <stdlib.h>\nvoid* f(void){return malloc(3);}", "allocates"),
                             ("#include <stdio.h>\nvoid f(int i){printf(\"%d\", i);}", "prints"),
                             ("#include <stdlib.h>\nchar* f(void){return getenv(\"x\");}", "environment"),
                             ("#include <dlfcn.h>\nvoid* f(void){return dlsym(0, \"x\");}", "looks symbols up"),
                             ("__thread int t; int* f(void){return &t;}", "initial-exec"),
                             ("#include <pthread.h>\nint f(pthread_mutex_t* m){return pthread_mutex_lock(m);}", "locks"),
                             ("#include <unistd.h>\nlong f(void){return write(1, \"x\", 1);}", "system call")):
            code, output = run("check_symbols.py", "hot", listing, archive(source))
            self.assertEqual(code, 1, (source, output))
            self.assertIn(text, output)
        code, output = run("check_symbols.py", "hot", self.write("hot2.txt", "slice/hot.c\n"), archive("int x;"))
        self.assertEqual(code, 1)
        self.assertIn("slice/hot.c is listed but in no archive", output)

    def test_docs(self):
        tree = {"cli/main.cc": 'app.add_subcommand("run", ""); add_option("--priority"); int used_here; class KernelRecord;\n',
                "scheduler_daemon/config/options.def": 'TS_NUMBER(policy, window_us, 1, 1, 1, "")\n',
                "interpose/a.cc": 'getenv("TESSERA_DISABLE");\n', "scripts/x.sh": "# --fast\n",
                "tests/t.cc": "TEST(Suite, Holds) {}\n",
                "interpose/b.h": "inline constexpr uint32_t kLimit = 1'000;\nvoid helper();\n",
                "scheduler_daemon/policy/tuning.def": 'TS_TUNE(double, least_gain, 0.04, "", "")\n',
 "tests/golden/a.h": "", "tests/golden/b.h": ""}
        for name, text in tree.items():
            self.write(name, text)
        def check(text):
            self.write("README.md", text)
            subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
            subprocess.run(["git", "add", "-A"], cwd=self.root, check=True)
            return run("check_docs.py", "--root", self.root)
        good = ("`cli/main.cc`, `main.cc`, tests/t.cc, `tests/golden/{a,b}.h`, `tests/golden/`, `golden/*.h`, [code](cli/main.cc)\n"
                "`tessera run --priority 3 -- ls --all`, `policy.window_us`, `TESSERA_DISABLE=1`, `Suite.Holds`, `Suite.*`\n"
                "`KernelRecord`, `used_here()`, `used_here(int a)`, `/etc/x.conf`, `build/out.json`, `<name>.cc`, `NAME.json`\n"
                "`interpose/b.h: helper`, `b.{h,cc}: cuLaunchKernel`, `b.h: kLimit, helper`, `kLimit` = 1,000, `least_gain = 0.04`\n"
                "`cuLaunchKernel` is of others.\n```\nscripts/x.sh --fast\ntessera run -- gone/gone.py\n```\n")
        self.write("interpose/b.cc", "cuLaunchKernel();\n")
        code, output = check(good)
        self.assertEqual(code, 0, output)
        for text, expected in (("`cli/gone.cc`", "no file cli/gone.cc"), ("see docs/gone.md", "no file docs/gone.md"),
                               ("`tests/golden/{a,c}.h`", "no file tests/golden/c.h"), ("[x](gone.md)", "link to gone.md"),
                               ("`tessera walk`", "no command `tessera walk`"), ("`tessera run --slow`", "no option --slow"),
                               ("```\nscripts/x.sh --slow\n```", "scripts/x.sh has no option --slow"),
                               ("```\nscripts/y.sh\n```", "no file scripts/y.sh"),
                               ("`policy.window_ms`", "no configuration key policy.window_ms"),
                               ("`TESSERA_ENABLE`", "no variable TESSERA_ENABLE"), ("`Suite.Fails`", "no test Suite.Fails"),
                               ("`KernelRecords`", "nothing is called KernelRecords"), ("`unused()`", "nothing is called unused"),
                               ("`unused(int a)`", "nothing is called unused"),
                               ("`b.h: gone`", "b.h has no gone"), ("`interpose/c.h: helper`", "no file interpose/c.h"),
                               ("`kLimit` = 999", "kLimit is not 999"), ("`kGone = 4`", "no constant kGone"),
                               ("`least_gain` = 0.4", "least_gain is not 0.4"), ("`no_such_name`", "nothing is called no_such_name")):
            code, output = check(good + text)
            self.assertEqual(code, 1, (text, output))
            self.assertIn(expected, output)

    def test_prose(self):
        full = "// " + "word " * 18 + "word and\n"
        many = " ".join(["word"] * 31)
        self.write("docs/architecture.md", "| | decision |\n|---|---|\n| D7 | nothing is cut unless proved |\n")
        good = {"a.md": "A short sentence, e.g. This one. W" + " ".join(["word"] * 29)[1:] + " end. Another one.\n\n- an item\n- another\n\n"
                        f"```\n{many}\n```\n`{many}` counts once (D7).\n\n| cell | {' '.join(['word'] * 40)} |\n",
                "b.cc": "// What is a slice? A run of blocks.\nint a;  // Of trailing comments nothing is asked\n"
                        f"\n// The kernel has one module.\n// Of its sibling.\n{full}// tail, of several words.\n{full}int b;\n"
                        "// --- names " + "-" * 60 + "\nint D99;\n", "c.sh": "#!/bin/sh\n# Runs so many that\n# none is left, as long as so long as it may.\n",
                "docs/notes/old.md": many + ".\n"}

        def check(*options, **files):
            for name, text in {**good, **{n.replace("__", "/").replace("_", "."): t for n, t in files.items()}}.items():
                self.write(name, text)
            subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
            subprocess.run(["git", "add", "-A"], cwd=self.root, check=True)
            return run("check_prose.py", "--root", self.root, *options)

        code, output = check()
        self.assertEqual(code, 0, output)
        for name, text, expected in (("a_md", many + ".", "a.md:1: sentence: 31 words"),
                                     ("a_md", "Short. And\n" + many + "\n", "a.md:1: sentence: 32 words"),
                                     ("a_md", f"| short | {many} {many} |\n", "a.md:1: cell: 62 words"),
                                     ("a_md", "see D8", "a.md:1: reference: defined nowhere: D8"),
                                     ("a_md", "see conventions 26-34", "a.md:1: reference: not in the project"),
                                     ("b_cc", "// (design section 8)\n", "b.cc:1: reference: not in the project: design section"),
                                     ("b_cc", "int a;  // research ptx.md\n", "b.cc:1: reference: not in the project: research ptx.md"),
                                     ("b_cc", "// Of its sibling.\n", "b.cc:1: opening: opens with a bare Of"),
                                     ("b_cc", "int a;\n  // What a slice costs.\n  // Why?\n", "b.cc:2: opening: opens with a bare What"),
                                     ("b_cc", "int a;  // waits for so" + " long\n", "b.cc:1: pronoun: so" + " long"),
                                     ("a_md", "It has so" + " many.", "a.md:1: pronoun: so" + " many"),
                                     ("c_sh", "# Where it is.\n", "c.sh:1: opening: opens with a bare Where"),
                                     ("b_cc", full + "// what.\n// Next.\n", "b.cc:2: orphan: left over by a formatter"),
                                     ("b_cc", "// --- names\n// " + "-" * 60 + "\n", "b.cc:2: orphan: the rest of the rule")):
            code, output = check(**{name: text})
            self.assertEqual(code, 1, (text, output))
            self.assertIn(expected, output)

    def test_unknown_exports(self):
        """A driver's names that the table has, that are kept out of it, and one that nobody knows."""
        source = ("int cuInit(void){return 0;} int cudbgReportDriverApiError(void){return 0;} int cudbgIpcFlag;"
                  "int cuFromTheFuture(void){return 0;} int other(void){return 0;}")
        code, output = run("gen_driver_entries.py", "--unknown", self.compile(source, "libcuda.so.999.1", "-shared"))
        self.assertEqual((code, output), (0, "cuFromTheFuture\n"))

    def test_a_newer_release(self):
        """Rows that are newer than the toolkit stay, and a release adds those that nobody has, with proposals for their classes."""
        sys.path.insert(0, str(SCRIPTS))
        import gen_driver_entries as generator
        known = ("TS_CU(cuInit, cuInit, 2000, none, CUresult, (unsigned int Flags), (Flags))\n"
                 "TS_CU(cuNewer_v2_ptsz, cuNewer, 14000, per_thread((c ? c->hStream : nullptr)), CUresult, (int a), (a))\n")
        newer = generator.newer_rows(known, 13000)
        self.assertEqual(newer, {"cuNewer_v2_ptsz": ("cuNewer_v2_ptsz", "cuNewer", 14000, "per_thread((c ? c->hStream : nullptr))",
                                                     "CUresult", "(int a)", "(a)")})
        declared = ["cuInit(unsigned int Flags)", "cuInit_v2(int flags)", "cuFutureCopyAsync(CUnewThing *to, size_t n, CUstream hStream)",
                    "cuFutureCopyAsync_ptsz(CUnewThing *to, size_t n, CUstream hStream)", "cuFutureGet(int *value)"]
        versions = ["cuInit_v2000", "cuInit_v15000", "cuFutureCopyAsync_v15000", "cuFutureCopyAsync_v15000_ptsz", "cuFutureGet_v15000"]
        with tempfile.TemporaryDirectory() as folder:
            include = pathlib.Path(folder) / "include"
            include.mkdir()
            for name in ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler"):
                (include / f"{name}.h").write_text("")
                (include / f"{name}Typedefs.h").write_text("")
            (include / "cuda.h").write_text("".join(f"CUresult CUDAAPI {each};\n".replace("CUDAAPI ", "") for each in declared))
            (include / "cudaTypedefs.h").write_text("".join(f"typedef CUresult (CUDAAPI *PFN_{each})(int);\n" for each in versions))
            added = generator.release_rows(pathlib.Path(folder), {"cuInit": None, **newer})
            self.assertEqual({row.symbol: (row.since, row.stream) for row in added.values()},
                             {"cuInit_v2": (15000, "none"), "cuFutureCopyAsync": (15000, "legacy(hStream)"),
                              "cuFutureCopyAsync_ptsz": (15000, "per_thread(hStream)"), "cuFutureGet": (15000, "none")})
            proposed = list(generator.proposals(added.values(), {"cuInit": "init"}))
            self.assertEqual([line.strip() for line in proposed],
                             ["cuFutureCopyAsync: copy (it takes a stream: does it enqueue work?)", "cuFutureGet: pass"])
            (include / "cudaTypedefs.h").write_text("")
            with self.assertRaisesRegex(generator.Problem, "since which version"):
                generator.release_rows(pathlib.Path(folder), {"cuInit": None})

    def test_actions(self):
        """Every copy and fill has its columns, and nothing else has."""
        sys.path.insert(0, str(SCRIPTS))
        import gen_driver_entries as generator
        classes = ["launch", "copy"]
        good = ('// head\nTS_ACTION(cuLaunchKernel, launch, "starts a kernel")\n\n'
                "TS_TRANSFER(cuMemcpyDtoH,  copy, always, d2h, count(ByteCount), 1)\n")
        actions, transfers = generator.read_actions(good, classes)
        self.assertEqual(actions, {"cuLaunchKernel": "launch", "cuMemcpyDtoH": "copy"})
        self.assertEqual(transfers, {"cuMemcpyDtoH": ("always", "d2h", "count(ByteCount)", "1")})
        for row, text in (('TS_ACTION(cuMemcpyDtoH, copy, "copy")', "TS_TRANSFER is for"),
                          ("TS_TRANSFER(cuLaunchKernel, launch, never, h2d, count(n), 1)", "TS_TRANSFER is for"),
                          ("TS_TRANSFER(cuMemcpyDtoH, copy, always, d2h, count(ByteCount))", "neither"),
                          ("TS_ACTION(cuLaunchKernel, launch)", "neither"),
                          ('TS_ACTION(cuLaunchKernel, lunch, "starts")', "classes.def"),
                          (good, "twice")):
            with self.assertRaisesRegex(generator.Problem, text):
                generator.read_actions(good + row if row is good else row, classes)


if __name__ == "__main__":
    unittest.main()
