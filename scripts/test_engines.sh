#!/usr/bin/env bash
# Runs the tests that install or start what carries Tessera's jobs elsewhere (packages; tests/integration/engines). They
# take minutes, need root and are not part of scripts/test.sh. The last line counts them.
# usage: scripts/test_engines.sh [--json FILE]    FILE: {"NAME": {"result": "passed|failed|skipped", "seconds": N, FIGURE: N, ...}}
set -uo pipefail
json=
case "${1:-}" in
  "") ;;
  --json) json=$(realpath -m "${2:?--json needs a file}") ;;
  --help | -h) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
  *) echo "test_engines.sh: unknown option '$1'" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT
passed=0 failed=0 skipped=0 rows=()
for test in tests/integration/engines/*.sh; do
  [[ -x $test ]] || continue  # what tests share
  name=$(basename "$test" .sh)
  begin=$SECONDS
  "$test" | tee "$output"
  case ${PIPESTATUS[0]} in
    0) result=passed; passed=$((passed + 1)) ;;
    77) result=skipped; skipped=$((skipped + 1)) ;;
    *) result=failed; failed=$((failed + 1)) ;;
  esac
  echo "$name: $result in $((SECONDS - begin)) s"
  figures=$(sed -n 's/^figure \([a-z_.]*\) \([0-9.]*\)$/, "\1": \2/p' "$output" | tr -d '\n')
  rows+=("\"$name\": {\"result\": \"$result\", \"seconds\": $((SECONDS - begin))$figures}")
done
[[ -z $json ]] || (IFS=,; echo "{${rows[*]}}" >"$json") || failed=$((failed + 1))
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
