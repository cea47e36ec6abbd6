#!/usr/bin/env python3
"""Packs the inputs of a fuzz target into its archive corpus/NAME.tar.xz, or lists and unpacks them. CMake unpacks all
archives into build/PRESET/corpus. The same inputs give the same bytes, whoever packs them.

usage: corpus.py pack NAME FOLDER      all files of FOLDER become the corpus
       corpus.py unpack NAME FOLDER    FOLDER/NAME holds the corpus, and nothing else
       corpus.py list [NAME...]        how many inputs each archive has"""
import io
import pathlib
import shutil
import sys
import tarfile

ARCHIVES = pathlib.Path(__file__).resolve().parent / "corpus"


def archive(name):
    return ARCHIVES / f"{name}.tar.xz"


def pack(name, folder):
    with tarfile.open(archive(name), "w:xz", preset=9) as out:
        for path in sorted(p for p in pathlib.Path(folder).iterdir() if p.is_file()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{name}/{path.name}")  # neither times nor owners
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))


def unpack(name, folder):
    shutil.rmtree(pathlib.Path(folder) / name, ignore_errors=True)
    with tarfile.open(archive(name)) as packed:
        packed.extractall(folder)


def count(*names):
    for name in names or sorted(p.name.removesuffix(".tar.xz") for p in ARCHIVES.glob("*.tar.xz")):
        with tarfile.open(archive(name)) as packed:
            print(name, len(packed.getmembers()))


def main():
    commands = {"pack": (pack, 2), "unpack": (unpack, 2), "list": (count, None)}
    command, n = commands.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, None))
    if command is None or n not in (None, len(sys.argv) - 2):
        sys.exit(__doc__)
    command(*sys.argv[2:])


if __name__ == "__main__":
    main()
