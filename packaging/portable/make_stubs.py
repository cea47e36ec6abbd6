#!/usr/bin/env python3
"""Makes what is linked so that it runs on an old glibc, although this machine's glibc is newer.

usage: make_stubs.py FOLDER OLDEST    (OLDEST: 2.28; uses $CC and $AR, or cc and ar)

glibc keeps the old version of each symbol that ever changed. FOLDER gets libraries without code that have the names of
glibc's, and of each symbol only the newest version that glibc OLDEST has. The linker reads them (`cc -B FOLDER`) and writes
these versions into the program; ld.so loads the real libraries. Symbols that have no such version are missing there;
fallbacks.c has those that we need, start.c the entry point for executables. The loader's symbols are in libc's library, too:
no library names ld-linux-x86-64.so.2, which musl does not have. The machine is that which $CC compiles for."""
import os
import pathlib
import re
import subprocess
import sys

# Since glibc 2.34 these are part of libc.so.6; before, programs need them by name. They stay empty here, the symbols are
# taken from libc.so.6: ld.so looks a symbol up in all loaded libraries, whichever it was linked from.
MERGED = ("libpthread.so.0", "libdl.so.2", "librt.so.1")
HERE = pathlib.Path(__file__).parent
CC, AR = os.environ.get("CC", "cc"), os.environ.get("AR", "ar")
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def number(version):
    return tuple(int(part) for part in version.removeprefix("GLIBC_").split("."))


def old_symbols(library, oldest):
    """name -> (version, type, size): of each symbol the newest version that glibc `oldest` has."""
    path = run(CC, f"-print-file-name={library}").strip()
    found = {}
    for line in run("readelf", "-W", "--dyn-syms", path).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] in ("UND", "ABS") or fields[3] not in ("FUNC", "IFUNC", "OBJECT"):
            continue
        match = re.fullmatch(r"(\w+)@{1,2}(GLIBC_[\d.]+)", fields[7])
        if not match or number(match[2])[:2] > oldest:
            continue
        name, version = match.groups()
        if name not in found or number(version) > number(found[name][0]):
            found[name] = (version, "object" if fields[3] == "OBJECT" else "function", int(fields[2], 0))
    if not found:
        sys.exit(f"make_stubs.py: {path} has no symbols of glibc: is this a machine with glibc?")
    return found


def make_library(folder, library, symbols):
    assembly, script, before = [], [], ""
    for index, (name, (version, kind, size)) in enumerate(sorted(symbols.items())):
        assembly += [".data" if kind == "object" else ".text", ".balign 32", f".globl stub_{index}",
                     f".type stub_{index}, @{kind}", f"stub_{index}: .zero {max(size, 1) if kind == 'object' else 1}",
                     f".size stub_{index}, {max(size, 1)}", f".symver stub_{index}, {name}@@@{version}"]
    for version in sorted({version for version, _, _ in symbols.values()}, key=number):
        script.append(f"{version} {{ }}{before};")
        before = " " + version
    (folder / "stub.s").write_text("\n".join(assembly) + '\n.section .note.GNU-stack,"",@progbits\n')
    (folder / "stub.map").write_text("\n".join(script) + "\n")
    versions = [f"-Wl,--version-script={folder}/stub.map"] if symbols else []
    run(CC, "-shared", "-nostdlib", f"-Wl,-soname,{library}", *versions, str(folder / "stub.s"), "-o", str(folder / library))


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder, oldest = pathlib.Path(sys.argv[1]), number(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    machine = run(CC, "-dumpmachine").split("-")[0]
    make_library(folder, "libc.so.6", old_symbols(LOADERS[machine], oldest) | old_symbols("libc.so.6", oldest))
    make_library(folder, "libm.so.6", old_symbols("libm.so.6", oldest))
    for library in MERGED:
        make_library(folder, library, {})
    for library in ("libm.so.6", *MERGED):
        (folder / (library.split(".so")[0] + ".so")).write_text(f"INPUT({folder.resolve() / library})\n")
    compile_ours = (CC, "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-c")
    run(*compile_ours, str(HERE / "fallbacks.c"), "-o", str(folder / "fallbacks.o"))
    run(AR, "rcsD", str(folder / "libfallbacks.a"), str(folder / "fallbacks.o"))
    for start in ("crt1.o", "Scrt1.o"):
        run(*compile_ours, "-fno-stack-protector", str(HERE / "start.c"), "-o", str(folder / start))
    nonshared = run(CC, "-print-file-name=libc_nonshared.a").strip()
    here = folder.resolve()
    (folder / "libc.so").write_text(f"GROUP({here}/libc.so.6 {here}/libfallbacks.a {nonshared})\n")


if __name__ == "__main__":
    main()
