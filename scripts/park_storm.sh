#!/usr/bin/env bash
# Twelve programs whose memory sums to three times the software GPU's run to their end and verify it. Meanwhile they are
# parked at random, some are killed, and now and then their daemon: park_storm.sh [PARKS], default 1000. --by parker has a
# parker process make the driver's calls, and kills that, too. --build DIR uses another build folder (default build/release).
# Exit status 0: none failed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release parks=1000
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --by) export TESSERA_PARK_BY=${2:?--by needs client or parker}; shift 2 ;;
    -h | --help) sed -n '2,5s/^# //p' "$0"; exit 0 ;;
    *[!0-9]*) echo "park_storm.sh: unknown argument '$1' (known: PARKS, --by, --build)" >&2; exit 2 ;;
    *) parks=$1; shift ;;
  esac
done
test -x "$build/bin/integration_parking" || { echo "park_storm.sh: build integration_parking in $build" >&2; exit 2; }
TESSERA_PROFILES=off TESSERA_CACHE_MAX_MB=0 TESSERA_PARKS=$parks exec "$build/bin/integration_parking" \
  --gtest_filter=Parking.MoreThanThereIsRunsToItsEndUnderRandomParks
