#!/usr/bin/env bash
# Builds the attack programs (tests/attack) and runs them one after another; they share N minutes (default 10).
# Exit status 0 if they find nothing. The last line counts.
# usage: scripts/attack.sh [--minutes N] [--json FILE] [--seed N] [--only NAME]
set -euo pipefail
case ${1:-} in --help | -h) sed -n '2,4s/^# //p' "$0"; exit 0 ;; esac
root=$(cd "$(dirname "$0")/.." && pwd)
cmake -S "$root" --preset release >/dev/null
cmake --build "$root/build/release" --target attacks
export TESSERA_PROFILES=off  # nothing is learnt into, or read from, the files of who runs it
exec python3 "$root/tests/attack/run_all.py" --folder "$root/build/release/bin/attack" "$@"
