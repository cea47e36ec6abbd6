#!/usr/bin/env bash
# How many of the kernels that do not wait for other blocks may be cut: the samples, and algorithms of CUB, Thrust and
# cooperative groups as the toolkit's nvcc compiles them, those in clusters for sm_90a. Prints counts and refusals; exit 1 below 94 %,
# or if order dependence were allowed and a look-back were not cut, or what waits otherwise were.
#   scripts/slice_share.sh --library    the same of more of CUB and Thrust (tests/golden/library.cu; about a minute)
# Builds what it runs, in $TESSERA_BUILD or build/release.
set -euo pipefail
[[ ${1:-} != --help && ${1:-} != -h ]] || { sed -n '2,6s/^# //p' "$0"; exit 0; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TESSERA_BUILD:-$root/build/release}
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
[[ -x $nvcc ]] || { echo "no nvcc at $nvcc: install the CUDA toolkit or set CUDA_HOME"; exit 2; }
[[ -e $build/CMakeCache.txt ]] || (cd "$root" && cmake --preset release >/dev/null)
cmake --build "$build" --target kernels_tool >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
verdicts() {  # SOURCE ARCHITECTURE
  local name
  name=$(basename "$1")
  "$nvcc" -std=c++17 -O2 -ptx -arch="compute_$2" -I"$root" "$root/$1.cu" -o "$work/$name.ptx"
  "$build/bin/kernels_tool" verdicts "$work/$name.ptx" >"$work/$name.verdicts"
  "$build/bin/kernels_tool" verdicts --allow-order-dependent "$work/$name.ptx" >"$work/$name.allowed"
}
if [[ ${1:-} == --library ]]; then
  verdicts tests/golden/library 80
else
  for source in kernels/samples/{latency_service,batch_trainer} tests/unit/softgpu_algorithms/{groups,own,library}; do
    verdicts "$source" 80
  done
  for source in tests/integration/sharing/clusters tests/unit/softgpu_driver/hopper; do verdicts "$source" 90a; done
fi
# The algorithm's name tells whether it waits, not our verdict: a wrong finding must count as a refusal.
awk '
  BEGIN {
    waits = "DeviceScan(ByKey)?Kernel|ReduceByKey(Kernel|Agent)|(Select|Rle)SweepKernel|OnesweepKernel|"
    waits = waits "ThreeWayPartitionKernel|SetOpAgent|UniqueAgent|grid_steps"
  }
  $1 ~ waits && $2 == "none" { print "accepted although it waits: " $1; bad = 1 }
  FILENAME ~ /allowed$/ { cut_if_allowed += $1 ~ waits && $2 == "none:"; next }  # the colon: with its wait
  $1 ~ waits { waiting++; look_back += $2 == "lower_block_wait:"; next }
  $2 == "none" { accepted++; next }
  { refused++; print "refused: " $0 }
  END {
    share = 100 * accepted / (accepted + refused)
    printf "%d of %d kernels that do not wait may be cut (%.1f %%); %d wait for other blocks, %d of them for lower ones\n", accepted, accepted + refused, share, waiting, look_back
    printf "%d more if order dependence is allowed\n", cut_if_allowed
    exit bad || share < 94 || cut_if_allowed != look_back
  }' "$work"/*.verdicts "$work"/*.allowed
