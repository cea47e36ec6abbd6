#!/usr/bin/env bash
# Collects the PTX that frameworks from PyPI hand to the driver (scripts/frameworks.sh) and runs reader, slicer and ptxas over
# it; nothing of it is kept without --keep. Exit status 1 if one of them fails on PTX that ptxas takes (docs/frameworks.md).
# usage: scripts/collect_ptx.sh [NAME...] [--keep FOLDER] [--json FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
[[ " $* " != *" --help "* && " $* " != *" -h "* ]] || exec python3 tests/frameworks/ptx.py --help
scripts/setup.sh --frameworks
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart
exec python3 tests/frameworks/ptx.py "$@"
