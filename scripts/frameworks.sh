#!/usr/bin/env bash
# Runs frameworks from PyPI, unmodified, on the software GPU: alone, beside a protected service, uncut, and while tesserad
# dies; their results must be equal (docs/frameworks.md). Needs network for what is not in ~/.cache/tessera-frameworks.
# usage: scripts/frameworks.sh [NAME...] [--light] [--json FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
[[ " $* " != *" --help "* && " $* " != *" -h "* ]] || exec python3 tests/frameworks/run.py --help
scripts/setup.sh --frameworks
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart
exec python3 tests/frameworks/run.py "$@"
