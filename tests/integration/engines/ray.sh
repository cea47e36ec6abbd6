#!/usr/bin/env bash
# Real Ray from PyPI: actors, tasks and replicas of Serve share the software GPU through python/tessera_ray. A virtual
# environment of its own, kept in TESSERA_RAY_VENV if that is set.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
python3 python/tessera_ray_test.py || fail "options() are wrong"
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart >/dev/null
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT
venv=${TESSERA_RAY_VENV:-$scratch/venv}
if [[ ! -x $venv/bin/ray ]]; then
  python3 -m venv "$venv" && "$venv/bin/pip" install -q "ray[serve]==2.*" >"$scratch/pip.log" 2>&1 || skip "Ray cannot be fetched: $(tail -1 "$scratch/pip.log")"
fi

export PATH="$PWD/build/release/bin:$venv/bin:$PATH" PYTHONPATH="$PWD/python" TESSERA_SOCKET="$scratch/tesserad.sock"
export TESSERA_SOFTGPU_DIR="$scratch/gpu" TESSERA_SOFTGPU_GPU="$PWD/profiles/gpus/test4.toml" RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled
tesserad --socket "$TESSERA_SOCKET" 2>"$scratch/tesserad.log" &
for _ in {1..200}; do [[ -S $TESSERA_SOCKET ]] && break; sleep 0.05; done
python tests/integration/engines/ray_jobs.py || { cat "$scratch/tesserad.log" >&2; fail "see above"; }
