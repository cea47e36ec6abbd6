#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU: all of them in the release build, and those
# that can run under them again with AddressSanitizer+UBSan and with ThreadSanitizer. The last line counts the tests.
# usage: scripts/test.sh [release] [asan] [tsan]    (default: all three)
set -uo pipefail
cd "$(dirname "$0")/.."

builds=("$@")
((${#builds[@]})) || builds=(release asan tsan)
for build in "${builds[@]}"; do
  case $build in
    release | asan | tsan) ;;
    --help | -h) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
    *) echo "test.sh: '$build' is none of: release, asan, tsan" >&2; exit 2 ;;
  esac
done
scripts/setup.sh || exit 1

failed_builds=0
reports=()
for preset in "${builds[@]}"; do
  target=(--target "tests_$preset")
  select=(-L "$preset")
  [[ $preset == release ]] && target=() && select=(-LE device)
  echo "== $preset: build"
  if ! cmake --preset "$preset" >/dev/null || ! cmake --build --preset "$preset" "${target[@]}"; then
    echo "== $preset: BUILD FAILED"
    failed_builds=$((failed_builds + 1))
    continue
  fi
  echo "== $preset: test"
  report="$PWD/build/$preset/test-report"
  rm -rf "$report" && mkdir -p "$report"
  GTEST_OUTPUT="xml:$report/" ctest --test-dir "build/$preset" "${select[@]}" --no-tests=error --output-on-failure \
    --output-junit "$report/ctest.xml" -j2
  reports+=("$report")
done
exec python3 scripts/count_tests.py --failed-builds "$failed_builds" "${reports[@]}"
