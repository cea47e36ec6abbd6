#!/usr/bin/env bash
# Other people's libraries, loaders, compilers and services beside Tessera, as far as this machine has them: interposers in one process, programs of
# other libcs and sanitizers, installations that are not whole, MPS, programs that come to the GPU past Tessera. docs/neighbours.md
# says what was tried. One line for each test, then their number; builds what it needs into build/release.
# usage: scripts/neighbours.sh [--with NAME=LIBRARY]... [--glibc FOLDER]... [--json FILE]
# --with: an interposer that you have built, to preload before and after Tessera. --glibc: an unpacked glibc, to start a program on.
# FILE: {"SUITE.TEST": "passed|failed|skipped: WHY", ...}. Exit status 1: something failed.
set -uo pipefail
json= with=() roots=()
while (($#)); do
  case $1 in
    --help | -h) sed -n '2,8s/^# //p' "$0"; exit 0 ;;
  esac
  (($# > 1)) || { echo "neighbours.sh: $1 needs a value (--help)" >&2; exit 2; }
  case $1 in
    --with) [[ $2 == ?*=?* && -f ${2#*=} ]] || { echo "neighbours.sh: '$2' is not NAME=LIBRARY with a file" >&2; exit 2; }
      with+=("${2%%=*}=$(realpath "${2#*=}")") ;;
    --glibc) [[ -d $2 ]] || { echo "neighbours.sh: no folder $2" >&2; exit 2; }
      roots+=("$(realpath "$2")") ;;
    --json) json=$(realpath -m "$2") ;;
    *) echo "neighbours.sh: unknown option $1 (--help)" >&2; exit 2 ;;
  esac
  shift 2
done
cd "$(dirname "$0")/.."
build=build/release lib=build/release/lib results=$(mktemp) output=$(mktemp)
trap 'rm -f "$results" "$output"' EXIT
cmake --preset release >/dev/null &&
  cmake --build --preset release --target loader unit_cli_run unit_cli_doctor unit_cli_neighbours daemon_test integration_hosts >"$output" ||
  { tail -n 40 "$output" >&2; exit 2; }

export TESSERA_PROFILES=off TESSERA_CACHE_MAX_MB=0
export TESSERA_NEIGHBOURS="${with[*]}" TESSERA_GLIBC_ROOTS
TESSERA_GLIBC_ROOTS=$(IFS=:; echo "${roots[*]}")

suite() {  # name, command...: its lines "TEST<tab>RESULT" go to $results
  local name=$1
  shift
  "$@" >"$output" 2>&1
  {
    sed -nE 's/^test_(\w+) \(.*\) \.\.\. (ok|FAIL|ERROR|skipped.*)$/\1\t\2/p' "$output"         # unittest
    sed -nE 's/^\[ +(OK|FAILED|SKIPPED) +\] (\w+\.\w+) \([0-9]+ ms\)$/\2\t\1/p' "$output"        # GoogleTest
  } | sed -E "s/^/$name./; s/\t(ok|OK)$/\tpassed/; s/\t(FAIL|ERROR|FAILED)$/\tfailed/; s/\tskipped '(.*)'$/\tskipped: \1/; s/\tSKIPPED$/\tskipped/" >"$output.rows"
  [[ -s $output.rows ]] || printf '%s\tfailed\n' "$name" >"$output.rows"
  column -t -s $'\t' "$output.rows"
  ! grep -q $'\tfailed$' "$output.rows" || sed -n '/^FAIL\|^ERROR\|: Failure$/,+12p' "$output" >&2
  cat "$output.rows" >>"$results"
  rm "$output.rows"
}
tests=tests/loader
suite interposers python3 $tests/neighbours/neighbours_test.py $build/bin/loader/neighbours $lib/libtessera.so $lib/null/libcuda.so.1 $build/bin/tesserad -v
suite hosts python3 $tests/hosts/hosts_test.py $build -v
suite run $build/bin/unit_cli_run --gtest_filter='Run.*:Place.*:Bypass.*:ClientEnvironment.*:Cdi.*'
suite doctor $build/bin/unit_cli_doctor
suite names $build/bin/unit_cli_neighbours
suite mps $build/bin/daemon_test --gtest_filter='MpsTest.*'
suite past_tessera $build/bin/integration_hosts --gtest_filter='ByPath.*'

count() { grep -c $'\t'"$1" "$results"; }
[[ -z $json ]] || python3 - "$results" "$json" <<'PYTHON' || exit 1
import json, sys
rows = dict(line.rstrip("\n").split("\t") for line in open(sys.argv[1]))
json.dump(rows, open(sys.argv[2], "w"), indent=2)
PYTHON
echo "$(count passed) passed, $(count failed) failed, $(count skipped) skipped"
! grep -q $'\tfailed$' "$results"
