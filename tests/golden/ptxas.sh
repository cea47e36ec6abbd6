#!/usr/bin/env bash
# ptxas.sh KERNELS_TOOL PTXAS FIXTURES: ptxas accepts every rewritten module for sm_75, sm_80 and sm_90 as far as its target allows,
# each sibling, too, and makes identical machine code of a module and of its printed copy.
set -euo pipefail
tool=$1 ptxas=$2 fixtures=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() {  # one input
  local input=$1 name dir flags=() options=() least
  name=$(basename "$input" .ptx)
  dir=$work/$name
  mkdir -p "$dir"
  if head -1 "$input" | grep -q no-ptxas; then return 0; fi
  if head -1 "$input" | grep -q relocatable; then flags+=(-c); fi
  if head -1 "$input" | grep -q -- '--allow-order-dependent'; then options+=(--allow-order-dependent); fi
  least=$(grep -m1 -o '^\.target sm_[0-9]*' "$input" | tr -dc 0-9)
  "$tool" slice "${options[@]}" "$input" >"$dir/sliced.ptx"
  "$tool" print "$input" >"$dir/printed.ptx"
  for sm in 75 80 90; do
    if [[ $sm -lt $least ]]; then continue; fi
    "$ptxas" -w "${flags[@]}" -arch="sm_$sm" -o "$dir/sliced.cubin" "$dir/sliced.ptx" ||
      { echo "$name: ptxas refuses the variants for sm_$sm"; return 1; }
  done
  # -G modules keep line numbers of the PTX text in the cubin: there only acceptance is asked.
  if grep -q 'target.*debug' "$input"; then return 0; fi
  sm=$((least < 75 ? 75 : least))
  for kind in original printed; do
    local text=$dir/printed.ptx
    if [[ $kind == original ]]; then text=$input; fi
    cp "$text" "$dir/same_name.ptx"
    (cd "$dir" && "$ptxas" -w "${flags[@]}" -arch="sm_$sm" -o "$kind.cubin" same_name.ptx)
  done
  cmp "$dir/original.cubin" "$dir/printed.cubin" || { echo "$name: printing changed the machine code"; return 1; }
}
siblings() {  # of one input: each variant alone in its module
  local dir=$work/siblings n=0
  mkdir -p "$dir"
  "$tool" siblings "$dir" "$1"
  for text in "$dir"/*.ptx; do
    "$ptxas" -w -arch=sm_80 -o "$dir/sibling.cubin" "$text" || { echo "ptxas refuses the sibling of $text"; return 1; }
    n=$((n + 1))
  done
  grep -q _globals "$dir"/*.ptx || { echo "no sibling is passed a variable"; return 1; }
  echo "$n siblings"
}
export -f check
export tool ptxas work
list=("$here"/ptx/*.ptx "$fixtures"/kernels.ptx "$fixtures"/kernels_debug.ptx)
printf '%s\0' "${list[@]}" | xargs -0 -n1 -P2 bash -euo pipefail -c 'check "$1"' _
siblings "$fixtures"/kernels.ptx
echo "${#list[@]} modules"
