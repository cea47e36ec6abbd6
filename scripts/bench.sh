#!/usr/bin/env bash
# Installs what is missing, builds and runs every bench program; one flat JSON object on standard output, or in FILE
# with --json FILE. --build DIR uses another build folder (default build/release). A part that is missing or fails is
# an error. Numbers vary with what else the machine does: docs/performance.md says how they were taken.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release json=
while [ $# -gt 0 ]; do
  case $1 in
    --json) json=${2:?--json needs a file name}; shift 2 ;;
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
    *) echo "bench.sh: unknown argument '$1' (known: --json FILE, --build DIR)" >&2; exit 2 ;;
  esac
done
"$root/scripts/setup.sh" --bench >&2
# Also where the folder was configured before: what has been installed since is found now.
if [ -f "$build/build.ninja" ]; then
  cmake "$build" >/dev/null
else
  (cd "$root" && cmake --preset release -B "$build" >/dev/null)
fi
ninja -C "$build" benches >&2
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
failed=0
for program in "$build"/bin/bench_*; do
  [ -x "$program" ] || continue
  name=$(basename "$program")
  echo "bench.sh: $name" >&2
  if ! "$program" >"$parts/$name.json"; then
    echo "bench.sh: $name failed" >&2
    rm -f "$parts/$name.json"
    failed=1
  fi
done
merged=$(python3 - "$parts" <<'PY'
import glob, json, sys
out = {}
for path in sorted(glob.glob(sys.argv[1] + "/*.json")):
    part = json.load(open(path))
    twice = out.keys() & part.keys()
    assert not twice, f"{path}: name used twice: {sorted(twice)}"
    assert all(isinstance(v, (int, float)) for v in part.values()), f"{path}: not flat"
    out.update(part)
print(json.dumps(dict(sorted(out.items())), indent=2))
PY
)
if [ -n "$json" ]; then printf '%s\n' "$merged" >"$json"; else printf '%s\n' "$merged"; fi
exit $failed
