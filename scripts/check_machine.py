#!/usr/bin/env python3
"""Are these files there, and are they programs or libraries for that processor?

usage: check_machine.py MACHINE FILE...

MACHINE: x86_64 or aarch64. Prints what is wrong with each file; exit 1 if anything is."""
import pathlib
import struct
import sys

ELF_MACHINE = {"x86_64": 62, "aarch64": 183}


def problem(path, machine):
    """What is wrong with a file, or None."""
    if not path.is_file():
        return "is not there"
    head = path.open("rb").read(20)
    if len(head) < 20 or not head.startswith(b"\x7fELF\x02\x01"):
        return "is no ELF file of 64 bits"
    seen = struct.unpack_from("<H", head, 18)[0]
    return None if seen == ELF_MACHINE[machine] else f"is for the ELF machine {seen}, not for {machine}"


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ELF_MACHINE:
        sys.exit(__doc__)
    found = [f"{name} {wrong}" for name in sys.argv[2:] if (wrong := problem(pathlib.Path(name), sys.argv[1]))]
    print(*found, f"machine: {len(sys.argv) - 2} files, {len(found)} problems", sep="\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
