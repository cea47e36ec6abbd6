#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU: all of them in the release build, and those
# that can run under them again with AddressSanitizer+UBSan and with ThreadSanitizer. The last line counts the tests;
# what a build's tests print follows the next build and is in build/NAME/test-report.log. `clang` is the release build
# by clang, whose warnings are errors too. `arm64` is built by the cross compiler; what can run under qemu-user does.
# usage: scripts/test.sh [release] [asan] [tsan] [clang] [arm64]    (default: the first three)
set -uo pipefail
cd "$(dirname "$0")/.."

builds=("$@")
((${#builds[@]})) || builds=(release asan tsan)
setup=()
for build in "${builds[@]}"; do
  case $build in
    release | asan | tsan) ;;
    clang) setup+=(--clang) ;;
    arm64) setup+=(--arm64) ;;
    --help | -h) sed -n '2,6s/^# //p' "$0"; exit 0 ;;
    *) echo "test.sh: '$build' is none of: release, asan, tsan, clang, arm64" >&2; exit 2 ;;
  esac
done
scripts/setup.sh "${setup[@]}" || exit 1

# While one build's tests run, and often only wait, the next build fills the time that they leave.
testing=
follow_tests() {
  [[ -n $testing ]] || return 0
  tail --pid="$testing" -s 0.2 -n +1 -f "$report.log"
  wait "$testing" || true  # what failed is in the report
  testing=
}
trap '[[ -z $testing ]] || kill -- "-$testing"' EXIT
trap 'exit 130' INT TERM

failed_builds=0
reports=()
for preset in "${builds[@]}"; do
  target=(--target "tests_$preset")
  select=(-L "$preset")
  [[ $preset == release || $preset == clang ]] && target=() && select=(-LE 'device|frameworks_rest')
  echo "== $preset: build"
  if ! { cmake --preset "$preset" >/dev/null && ${testing:+nice -n 3} cmake --build --preset "$preset" "${target[@]}"; }; then
    echo "== $preset: BUILD FAILED"
    failed_builds=$((failed_builds + 1))
    continue
  fi
  follow_tests
  report="$PWD/build/$preset/test-report"
  rm -rf "$report" && mkdir -p "$report" && : >"$report.log"  # there before tail looks for it
  echo "== $preset: test"
  set -m  # a process group of its own, to be ended with this script
  GTEST_OUTPUT="xml:$report/" ctest --test-dir "build/$preset" "${select[@]}" --no-tests=error --output-on-failure \
    --output-junit "$report/ctest.xml" -j2 >>"$report.log" 2>&1 </dev/null &
  testing=$!
  set +m
  reports+=("$report")
done
follow_tests
python3 scripts/count_tests.py --failed-builds "$failed_builds" "${reports[@]}"
