#!/usr/bin/env python3
"""No two commands of a build write one file: ninja runs them at once, and `install` fails where both create it.

usage: check_build.py BUILD

Reads BUILD/build.ninja. Exit 1 with each such file and what its commands make; 77 where another generator was used.
"""
import collections
import pathlib
import shlex
import sys

COPIES = {"cp", "install", "ln", "mv"}  # the last argument is written, as of cmake -E
CMAKE_COPIES = {"copy", "copy_if_different", "create_symlink", "rename"}


def written(command):
    """The files that one simple command (a list of words) writes, as far as its words say."""
    files = [following for word, following in zip(command, command[1:]) if word in ("-o", ">", ">>")]
    files += [word.partition("=")[2] for word in command if word.startswith(("--create=", "--output="))]
    name = pathlib.PurePath(command[0]).name
    if name in COPIES or (name == "cmake" and len(command) > 3 and command[1] == "-E" and command[2] in CMAKE_COPIES):
        files.append(command[-1])
    return files


def simple_commands(line):
    """The commands between the operators of a shell line, each with the folder that a `cd` before it chose."""
    folder, command = "", []
    for word in shlex.split(line) + ["&&"]:
        if word not in ("&&", ";", "||"):
            command.append(word)
            continue
        if len(command) == 2 and command[0] == "cd":
            folder = command[1]
        elif command:
            yield folder, command
        command = []


def written_twice(ninja):
    """{file: [what each of its commands makes]} for files of more than one command."""
    writers, makes = collections.defaultdict(list), ""
    for line in ninja.splitlines():
        if line.startswith("build "):
            makes = line[len("build "):].split(":")[0].split(" |")[0]
        elif line.startswith("  COMMAND = "):
            line = line[len("  COMMAND = "):].replace("$$", "$")
            files = {str(pathlib.PurePath(folder, file)) for folder, command in simple_commands(line) for file in written(command)}
            for file in files - {"/dev/null"}:
                writers[file].append(makes)
    return {file: edges for file, edges in writers.items() if len(edges) > 1}


def main():
    ninja = pathlib.Path(sys.argv[1], "build.ninja")
    if not ninja.exists():
        print(f"skipped: {ninja.parent} was not configured for Ninja")
        return 77
    found = written_twice(ninja.read_text())
    for file, edges in sorted(found.items()):
        print(f"{file}: written by the commands of {', '.join(edges)}; give it a command of its own, and depend on it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
