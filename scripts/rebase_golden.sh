#!/usr/bin/env bash
# Rewrites tests/golden/expected from what the tools print now. Look at `git diff tests/golden` before committing.
#   scripts/rebase_golden.sh [BUILD_FOLDER]      default: build/dev, then any folder under build/ that has the tool
set -euo pipefail
[[ ${1:-} != --help && ${1:-} != -h ]] || { sed -n '2,3s/^# //p' "$0"; exit 0; }
root=$(cd "$(dirname "$0")/.." && pwd)
for build in "${1:-}" "$root/build/dev" "$root"/build/*; do
  if [[ -n $build && -x $build/bin/kernels_tool ]]; then
    exec "$root/tests/golden/golden.sh" rebase "$build/bin/kernels_tool"
  fi
done
echo "rebase_golden.sh: no kernels_tool found; build it first: cmake --build build/dev --target kernels_tool" >&2
exit 1
