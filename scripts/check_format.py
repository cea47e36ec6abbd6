#!/usr/bin/env python3
"""Tracked C++ files are formatted as .clang-format says. Generated tables are left out. Exit 77 (skipped) without a
clang-format of the major version that the tree is formatted with: versions differ in details.

usage: check_format.py [--fix]
"""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAJOR = 14


def main():
    tool = shutil.which(f"clang-format-{MAJOR}") or shutil.which("clang-format")
    if not tool:
        print("skipped: clang-format is not installed")
        return 77
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout
    major = re.search(r"version (\d+)", version)
    if not major or int(major[1]) != MAJOR:
        print(f"skipped: {version.strip()}, the tree is formatted with version {MAJOR}")
        return 77
    listed = subprocess.run(["git", "ls-files", "*.h", "*.cc"], cwd=ROOT, capture_output=True, text=True)
    files = [f for f in listed.stdout.split() if (ROOT / f).exists()]
    if not files:
        print("skipped: not a git checkout")
        return 77
    mode = ["-i"] if "--fix" in sys.argv[1:] else ["--dry-run", "-Werror"]
    run = subprocess.run([tool, *mode, *files], cwd=ROOT, capture_output=True, text=True)
    bad = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", run.stderr, re.M)))
    for name in bad:
        print(f"{name}: not formatted; run scripts/check_format.py --fix")
    print(f"format: {len(files)} files, {len(bad)} problems")
    return 1 if bad or run.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
