#!/usr/bin/env python3
"""A program and a library that are linked as those of the tarball are (packaging/portable) name no symbol of a newer glibc,
and run; linked as usual the check refuses them.

usage: portable_test.py C++-COMPILER"""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = r"""
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
int thrown(int value);
struct Constructed { int value = 0; Constructed() : value(7) {} ~Constructed() { std::puts("destroyed"); } } constructed;
int main(int argc, char** argv) {
  int caught = 0;
  std::thread([&] { try { thrown(35); } catch (const std::runtime_error& e) { caught = std::stoi(e.what()); } }).join();
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable never;
  const bool woken = never.wait_for(lock, std::chrono::milliseconds(1), [] { return false; });
  const bool random = std::random_device{}() != std::random_device{}() || std::random_device{}() != 0;
  const bool file = std::filesystem::file_size(argv[0]) > 1000;
  std::printf("%d %d %d %d %d %s\n", constructed.value + caught, woken, random, file, argc, std::getenv("WORD"));
}
"""
LIBRARY = '#include <stdexcept>\n#include <string>\nint thrown(int v) { throw std::runtime_error(std::to_string(v)); }\n'


def build(compiler, folder, options):
    """The program and its library in a folder of their own."""
    folder.mkdir()
    rpath = "-Wl,-rpath,$ORIGIN"
    subprocess.run([compiler, "-std=c++20", "-fPIC", "-shared", folder.parent / "library.cc", *options, "-Wl,-z,defs",
                    "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1"], check=True)
    subprocess.run([compiler, "-std=c++20", folder.parent / "program.cc", *options, folder / "libcuda.so.1", rpath,
                    "-o", folder / "program"], check=True)


def check(folder):
    return subprocess.run([ROOT / "scripts/check_portable.py", folder], capture_output=True, text=True)


def main():
    compiler = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "program.cc").write_text(PROGRAM)
        (folder / "library.cc").write_text(LIBRARY)
        subprocess.run([ROOT / "packaging/portable/make_stubs.py", folder / "stubs", "2.28"], check=True)
        # As packaging/portable/portable.cmake has them.
        options = [f"-B{folder}/stubs/", "-static-libstdc++", "-static-libgcc", "-Wl,--push-state,--no-as-needed", "-lpthread",
                   "-ldl", "-lrt", "-Wl,--pop-state"]
        build(compiler, folder / "portable", options)
        portable = check(folder / "portable")
        assert portable.returncode == 0 and "2 files" in portable.stdout, portable.stdout
        ran = subprocess.run([folder / "portable/program", "x"], capture_output=True, text=True, check=True,
                             env={**os.environ, "WORD": "there"})
        assert ran.stdout == "42 0 1 1 2 there\ndestroyed\n", ran.stdout
        build(compiler, folder / "usual", [])
        usual = check(folder / "usual")
        assert usual.returncode == 1 and "needs libstdc++.so.6" in usual.stdout and "GLIBC_2.3" in usual.stdout, usual.stdout
        assert check(folder / "stubs/nothing").returncode != 0
        print(portable.stdout, end="")


if __name__ == "__main__":
    main()
