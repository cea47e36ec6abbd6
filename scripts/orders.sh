#!/usr/bin/env bash
# Random programs of stream order before the gate on the device, compared with what they leave bare, on the software GPU.
# scripts/orders.sh [N [FROM]]: programs FROM to FROM + N - 1, 1000000 from 1 by default; some 7 ms each. Stops at the first
# run of 5000 that fails, and says which. Builds what it runs.
set -euo pipefail
[[ ${1:-} != --help && ${1:-} != -h ]] || { sed -n '2,4s/^# //p' "$0"; exit 0; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=${TESSERA_BUILD:-$root/build/release}
[[ -e $build/CMakeCache.txt ]] || (cd "$root" && cmake --preset release >/dev/null)
cmake --build "$build" --target interpose_device_order_test >&2
left=${1:-1000000} from=${2:-1} done=0
export TESSERA_PROFILES=off TESSERA_CACHE_MAX_MB=0 TESSERA_SOFTGPU_STRICT=1
while ((left > 0)); do
  n=$((left < 5000 ? left : 5000))
  if ! TESSERA_RANDOM_ORDERS=$n TESSERA_RANDOM_ORDERS_FROM=$from "$build/bin/interpose_device_order_test" --gtest_filter='*Bare' >"$build/orders.log" 2>&1; then
    cat "$build/orders.log" >&2
    echo "orders: $done passed; failed within $from to $((from + n - 1))" >&2
    exit 1
  fi
  done=$((done + n)) from=$((from + n)) left=$((left - n))
  printf '\r%d passed' "$done" >&2
done
echo >&2
echo "orders: $done passed, 0 failed"
