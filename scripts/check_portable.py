#!/usr/bin/env python3
"""Do all programs and libraries below FOLDER run with nothing but glibc 2.28? (packaging/portable)

usage: check_portable.py [--preload] FOLDER

Each ELF file may need glibc's own libraries and ours, of glibc symbols up to version GLIBC_2.28, and no other versions:
no C++ runtime, no libgcc. Libraries that are loaded into other people's programs may need GLIBC_2.17. --preload: only
these are looked at, and all of them must be there."""
import pathlib
import re
import subprocess
import sys

NEWEST, NEWEST_OF_PRELOADS = (2, 28), (2, 17)
PRELOADS = {"libtessera.so", "libtessera_alias.so", "libtessera_ops.so", "libtessera_audit.so", "libtessera_ranges.so"}
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
OURS = {"libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libnvidia-ml.so.1"}


def number(version):
    return tuple(int(part) for part in version.split("."))


def problems(path):
    """What is wrong with an ELF file, and the newest version of glibc that it names."""
    allowed = NEWEST_OF_PRELOADS if path.name in PRELOADS else NEWEST
    text = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"^\s*NEEDED\s+(\S+)", text, re.M))
    references = text.partition("Version References:")[2]
    versions = set(re.findall(r"^\s*0x\w+ 0x\w+ \d+ (\S+)", references, re.M))
    newest = max((number(v.removeprefix("GLIBC_")) for v in versions if re.fullmatch(r"GLIBC_[\d.]+", v)), default=(0,))
    found = [f"needs {name}" for name in sorted(needed - GLIBC - OURS)]
    found += [f"needs version {v}" for v in sorted(versions - OURS)  # libcudart.so.13 names its version after itself
              if not re.fullmatch(r"GLIBC_[\d.]+", v) or number(v.removeprefix("GLIBC_"))[:2] > allowed]
    return found, newest


def main():
    options, folders = sys.argv[1:-1], sys.argv[-1:]
    if options not in ([], ["--preload"]) or not folders or folders[0].startswith("-"):
        sys.exit(__doc__)
    files = [path for path in sorted(pathlib.Path(folders[0]).rglob("*"))
             if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF"]
    wrong, newest = 0, (0,)
    if options:
        files = [path for path in files if path.name in PRELOADS]
        missing = PRELOADS - {path.name for path in files}
        if missing:
            sys.exit(f"{folders[0]}: no {sorted(missing)}")
    for path in files:
        found, uses = problems(path)
        newest = max(newest, uses)
        wrong += len(found)
        for line in found:
            print(f"{path}: {line}")
    print(f"portable: {len(files)} files, newest GLIBC_{'.'.join(map(str, newest))}, {wrong} problems")
    sys.exit(1 if wrong or not files else 0)


if __name__ == "__main__":
    main()
