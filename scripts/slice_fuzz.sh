#!/usr/bin/env bash
# Random kernels, cut against uncut on the software GPU, compared byte by byte.
#   scripts/slice_fuzz.sh [--cases N] [--seed S] [--min-accepted PERCENT]
#   scripts/slice_fuzz.sh --self-test      named miscompilations, each must be caught
# Exit 0 only if all are equal, at least 60 % of the kernels are accepted and each feature class is among them. A failure
# prints the seed and the module. Uses build/release, build/dev or $TESSERA_BUILD; build it first (target slice_diff).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
for build in "${TESSERA_BUILD:-}" "$root/build/release" "$root/build/dev" "$root"/build/*; do
  if [[ -n $build && -x $build/bin/slice_diff ]]; then
    exec "$build/bin/slice_diff" "$@"
  fi
done
echo "slice_fuzz.sh: no slice_diff found; build it first: cmake --build build/dev --target slice_diff" >&2
exit 1
