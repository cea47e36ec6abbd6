#!/usr/bin/env bash
# Random kernels, cut against uncut on the software GPU, compared byte by byte.
#   scripts/slice_fuzz.sh [--cases N] [--seed S] [--min-accepted PERCENT]
#   scripts/slice_fuzz.sh --sibling ...    the variant in a module of its own, variables passed by address
#   scripts/slice_fuzz.sh --look-back ...  blocks wait for lower ones; slices ascending, order dependence allowed
#   scripts/slice_fuzz.sh --self-test      named miscompilations, each must be caught
# Exit 0 only if all are equal, at least 60 % of the kernels are accepted and each feature class is among them. A failure
# prints the seed and the kernel, made as small as it stays wrong. Builds what it runs, in $TESSERA_BUILD or build/release.
set -euo pipefail
[[ ${1:-} != --help && ${1:-} != -h ]] || { sed -n '2,8s/^# //p' "$0"; exit 0; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TESSERA_BUILD:-$root/build/release}
[[ -e $build/CMakeCache.txt ]] || (cd "$root" && cmake --preset release >/dev/null)
cmake --build "$build" --target slice_diff >&2
exec "$build/bin/slice_diff" "$@"
