#!/usr/bin/env bash
# From a clone to a running demonstration: installs what is missing, builds, and shows a latency-critical service and
# a trainer sharing one GPU, without and with Tessera. Without a GPU the software GPU stands in. Further arguments go
# to `tessera demo`.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart
exec build/release/bin/tessera demo "$@"
