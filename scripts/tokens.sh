#!/usr/bin/env bash
# Tokens of a small decoder on the software GPU, as best-effort work that is cut, confined, split and preempted at random, compared
# with the uncut run's. scripts/tokens.sh [N]: N tokens, 1000000 by default. Builds what it runs.
set -euo pipefail
[[ ${1:-} != --help && ${1:-} != -h ]] || { sed -n '2,3s/^# //p' "$0"; exit 0; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TESSERA_BUILD:-$root/build/release}
[[ -e $build/CMakeCache.txt ]] || (cd "$root" && cmake --preset release >/dev/null)
cmake --build "$build" --target integration_operations tessera_shim tesserad transformer >&2
TESSERA_TOKENS=${1:-1000000} exec "$(find "$build" -name integration_operations -type f -executable)" \
  --gtest_filter=Transformer.TokensAreThoseOfTheUncutRun
