#!/usr/bin/env bash
# golden.sh check|rebase KERNELS_TOOL: for every tests/golden/ptx/NAME.ptx compares (or rewrites)
#   expected/NAME.verdicts   may each kernel be cut, and why not; kernels named refused_* must be refused, accepted_* not,
#                            refused_lower_* as waiting for lower blocks, and not with --allow-order-dependent,
#                            refused_other_* for another reason, and always
#   expected/NAME.changes    what printing changes, and how each cut function differs from its original (changes.py)
# The first line of an input may say `// options: --allow-order-dependent no-ptxas relocatable`.
set -euo pipefail
mode=$1 tool=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0 failed=0
mkdir -p "$here/expected"
for input in "$here"/ptx/*.ptx; do
  name=$(basename "$input" .ptx)
  options=()
  if head -1 "$input" | grep -q -- '--allow-order-dependent'; then options+=(--allow-order-dependent); fi
  "$tool" stable "$input"
  "$tool" verdicts "${options[@]}" "$input" >"$work/$name.verdicts"
  "$tool" print "$input" >"$work/printed"
  "$tool" slice "${options[@]}" "$input" >"$work/cut"
  python3 "$here/changes.py" "$input" "$work/printed" "$work/cut" >"$work/$name.changes"
  n=$((n + 1))
  if ! awk '{sub(":", "", $2)} ($1 ~ /^refused_/ && $2 == "none") || ($1 ~ /^accepted_/ && $2 != "none") ||
            ($1 ~ /^refused_lower_/ && $2 != "lower_block_wait") || ($1 ~ /^refused_other_/ && $2 == "lower_block_wait") {print; bad = 1}
            END {exit bad}' "$work/$name.verdicts"; then
    echo "$name: the verdict above is not what the kernel's name says"
    failed=1
  fi
  if ! "$tool" verdicts --allow-order-dependent "$input" |
    awk '($1 ~ /^refused_lower_/ && $2 != "none:") || ($1 ~ /^refused_other_/ && $2 == "none") {print; bad = 1} END {exit bad}'; then
    echo "$name: the verdict above is wrong where order dependence is allowed"
    failed=1
  fi
  for kind in verdicts changes; do
    if [[ $mode == rebase ]]; then
      cp "$work/$name.$kind" "$here/expected/$name.$kind"
    elif ! diff -u "$here/expected/$name.$kind" "$work/$name.$kind"; then
      echo "$name.$kind differs; if the change is meant: scripts/rebase_golden.sh"
      failed=1
    fi
  done
done
if [[ $mode == rebase ]]; then  # results of inputs that have gone
  for old in "$here"/expected/*; do
    [[ -e $here/ptx/$(basename "${old%.*}").ptx ]] || rm "$old"
  done
fi
echo "$n inputs"
[[ $n -gt 0 && $failed -eq 0 ]]
