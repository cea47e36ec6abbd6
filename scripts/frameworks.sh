#!/usr/bin/env bash
# Runs frameworks from PyPI, unmodified, on the software GPU: alone, beside a protected service, uncut, and while tesserad
# dies; their results must be equal (docs/frameworks.md). With --suites their own tests: what passes bare must pass under
# Tessera. Needs network for what is not in ~/.cache/tessera-frameworks.
# usage: scripts/frameworks.sh [NAME...] [--light] [--minutes N] [--json FILE]    N: afterwards nothing begins (30)
#        scripts/frameworks.sh --suites [NAME...] [--modules PATTERN] [--json FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
program=tests/frameworks/run.py setup=(--frameworks)
if [[ "${1:-}" == "--suites" ]]; then
  shift
  program=tests/frameworks/suites.py setup+=(--suites)
fi
[[ " $* " != *" --help "* && " $* " != *" -h "* ]] || exec python3 "$program" --help
scripts/setup.sh "${setup[@]}"
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart framework_pair
exec python3 "$program" "$@"
