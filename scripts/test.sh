#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU: all of them in the release build, and those
# that can run under them again with AddressSanitizer+UBSan and with ThreadSanitizer. The last line counts the tests.
# What a build prints is in build/logs, what its tests print in build/NAME/test-report.log. `clang` is the release build by
# clang, whose warnings are errors too. `arm64` is built by the cross compiler; what can run under qemu-user does.
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

# One lane builds, the other tests: while tests run, and often only wait, the next builds fill the time that they leave. A
# build's log ends with its status.
logs="$PWD/build/logs"
rm -rf "$logs" && mkdir -p "$logs"
for preset in "${builds[@]}"; do : >"$logs/$preset"; done
build_all() {
  local preset nice=()
  for preset in "${builds[@]}"; do
    local target=(--target "tests_$preset")
    [[ $preset == release || $preset == clang ]] && target=()
    { cmake --preset "$preset" >/dev/null && "${nice[@]}" cmake --build --preset "$preset" "${target[@]}"; } >"$logs/$preset" 2>&1
    echo "== built: $?" >>"$logs/$preset"
    nice=(nice -n 3)
  done
}

running=()  # process groups of their own, to be ended with this script
trap 'for group in "${running[@]}"; do kill -- "-$group" 2>/dev/null; done' EXIT
trap 'exit 130' INT TERM
set -m
build_all </dev/null &
building=$!
running+=("$building")
set +m

reports=()
run_tests() {  # BUILD FOLDER_OF_THE_REPORT WHICH...
  local report="$PWD/build/$1/$2"
  rm -rf "$report" && mkdir -p "$report" && : >"$report.log"  # there before tail looks for it
  echo "== $1: test"
  set -m
  GTEST_OUTPUT="xml:$report/" ctest --test-dir "build/$1" "${@:3}" --no-tests=error --output-on-failure \
    --output-junit "$report/ctest.xml" -j3 >"$report.log" 2>&1 </dev/null &
  local testing=$!
  set +m
  running+=("$testing")
  tail --pid="$testing" -s 0.2 -n +1 -f "$report.log"
  wait "$testing" || true  # what failed is in the report
  reports+=("$report")
}

failed_builds=0
measured=()
for preset in "${builds[@]}"; do
  echo "== $preset: build"
  status=1  # unless its log says otherwise
  while IFS= read -r line; do
    [[ $line == "== built: "* ]] && status=${line#== built: } && break
    echo "$line"
  done < <(exec tail --pid="$building" -s 0.2 -n +1 -f "$logs/$preset")
  kill $! 2>/dev/null  # tail
  if ((status)); then
    echo "== $preset: BUILD FAILED"
    failed_builds=$((failed_builds + 1))
    continue
  fi
  select=(-L "$preset")
  if [[ $preset == release || $preset == clang ]]; then
    select=(-LE 'device|frameworks_rest|alone')
    measured+=("$preset")
  fi
  run_tests "$preset" test-report "${select[@]}"
done
# These tests first measure how fast this machine is, so nothing else is built or tested beside them.
for preset in "${measured[@]}"; do run_tests "$preset" test-report-alone -L alone; done
python3 scripts/count_tests.py --failed-builds "$failed_builds" "${reports[@]}"
