#!/usr/bin/env bash
# From a clone to a running demonstration: installs what is missing, builds, and shows a latency-critical service and
# a trainer sharing one GPU, without and with Tessera. Without a GPU the software GPU stands in. Further arguments go
# to `tessera demo`.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ "${1:-}" == "--help" || "${1:-}" == "-h" ]]; then
  echo "usage: scripts/quickstart.sh [--accept-nvidia-license] [--seconds N] [--nonce TEXT] [--out DIR] [--load X] [--gpu auto|soft]"
  echo "       installs what is missing, builds into build/release, runs \`tessera demo\` with these options"
  exit 0
fi

if [[ "${1:-}" == "--accept-nvidia-license" ]]; then  # of the CUDA toolkit, where there is none (scripts/setup.sh)
  export TESSERA_ACCEPT_NVIDIA_LICENSE=1
  shift
fi
scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart
exec build/release/bin/tessera demo "$@"
