#!/usr/bin/env bash
# A machine without a CUDA toolkit: scripts/setup.sh says what it needs, and with NVIDIA's terms accepted
# (TESSERA_ACCEPT_NVIDIA_LICENSE=1) fetches the toolkit from PyPI; what is built with it runs.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
[[ ${TESSERA_ACCEPT_NVIDIA_LICENSE:-0} == 1 ]] || skip "NVIDIA's terms were not accepted (TESSERA_ACCEPT_NVIDIA_LICENSE=1)"
in_overlay
rm -rf /usr/local/cuda*
unset CUDA_HOME
mkdir /run/tree
git ls-files -z | xargs -0 cp -a --parents -t /run/tree
cd /run/tree
TESSERA_ACCEPT_NVIDIA_LICENSE=0 scripts/setup.sh 2>/run/refused && fail "no toolkit, and nothing is said"
grep -q 'TESSERA_ACCEPT_NVIDIA_LICENSE=1' /run/refused || fail "it does not say how to go on: $(cat /run/refused)"
[[ ! -e build ]] || fail "it has fetched what was not accepted"
mkdir build
mount -t tmpfs none build
scripts/setup.sh || { [[ -e build/cuda.new/nvidia ]] && fail "what was fetched makes no toolkit"; skip "PyPI does not answer"; }
# Only a part of the tree is built below.
grep -rhoE --exclude-dir=build --include=*.h --include=*.cc --include=*.cu '^#include <(cu|nv)[^>]*>' . | sed 's/.*<\(.*\)>/\1/' | sort -u | while read -r header; do
  [[ -e build/cuda/include/$header || -e build/cuda/include/cccl/$header ]] || fail "what was fetched lacks $header"
done
cmake --preset release >/dev/null
cmake --build --preset release --target tessera tesserad tessera_shim tessera_alias tessera_ops softgpu_driver softgpu_runtime softgpu_arbiter batch_trainer integration_host >/run/built.log
build/release/bin/tessera run --gpu soft -- build/release/bin/batch_trainer --steps 4 --checksum-steps 4 || fail "what was built does not run"
python3 scripts/gen_driver_entries.py --check --cuda build/cuda || fail "the fetched headers and the table disagree"
echo "toolkit: ok, $(du -sh build/cuda | cut -f1)"
