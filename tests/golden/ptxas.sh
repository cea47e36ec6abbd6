#!/usr/bin/env bash
# ptxas.sh KERNELS_TOOL PTXAS FIXTURES [PROGRAM...]: ptxas accepts every rewritten module (also of the programs) for sm_75, sm_80,
# sm_90 and sm_90a as far as its target allows, each sibling, too, and makes identical machine code of a module and of its printed
# copy. Variants need at the median at most 2 registers more than their originals, and none spills more. 77 = no ptxas, skipped.
set -euo pipefail
tool=$1 ptxas=$2 fixtures=$3
shift 3
if [[ ! -x $ptxas ]]; then echo "skipped: no ptxas at $ptxas"; exit 77; fi
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
  for sm in 75 80 90 90a; do
    if [[ ${sm%a} -lt $least ]]; then continue; fi
    "$ptxas" -v -w "${flags[@]}" -arch="sm_$sm" -o "$dir/sliced.cubin" "$dir/sliced.ptx" &>"$dir/resources.sm_$sm" ||
      { cat "$dir/resources.sm_$sm"; echo "$name: ptxas refuses the variants for sm_$sm"; return 1; }
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
resources() {  # of all variants for one architecture, against their originals; unoptimised modules say nothing
  local sm=$1
  for report in "$work"/*/"resources.sm_$sm"; do
    if grep -q 'target.*debug' "${report%/*}/sliced.ptx"; then continue; fi
    awk -v file="$(basename "${report%/*}")" -v suffix=__tessera_slice '
      /Compiling entry function/ { entry = $0; sub(/^[^\047]*\047/, "", entry); sub(/\047.*/, "", entry) }
      /Function properties for/ { function_name = $NF }
      /bytes spill stores/ { spills[function_name] = $5 + $9 }
      /Used [0-9]+ registers/ { n = $0; sub(/.*Used /, "", n); registers[entry] = n + 0 }
      END { for (k in registers) if (k suffix in registers)
              print registers[k suffix] - registers[k], spills[k suffix] - spills[k], file "/" k }' "$report"
  done | sort -n | awk -v sm="$sm" '
    { added[NR] = $1 }
    $2 > 0 { print $3 " spills " $2 " bytes more for sm_" sm; bad = 1 }
    END {
      median = NR ? (added[int((NR + 1) / 2)] + added[int(NR / 2) + 1]) / 2 : 99
      print "sm_" sm ": " NR " variants, added registers: median " median ", least " added[1] ", most " added[NR] " (" $3 ")"
      exit bad || median > 2
    }'
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
for program in "$@"; do  # its PTX; programs are not built where only tests are
  if [[ -e $program ]]; then
    "$tool" print "$program" >"$work/$(basename "$program").ptx"
    list+=("$work/$(basename "$program").ptx")
  else
    echo "$program is not built and left out"
  fi
done
printf '%s\0' "${list[@]}" | xargs -0 -n1 -P2 bash -euo pipefail -c 'check "$1"' _
siblings "$fixtures"/kernels.ptx
failed=0
for sm in 75 80 90 90a; do resources "$sm" || failed=1; done
echo "${#list[@]} modules"
exit "$failed"
