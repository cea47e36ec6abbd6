#!/usr/bin/env bash
# Builds a fuzz target with clang, ASan and UBSan (preset `fuzz`), and runs it. New inputs go to build/fuzz/NAME.corpus,
# findings to build/fuzz. `all` runs one after another. `minimise` keeps in corpus/NAME.tar.xz what has a name, and of what has
# only a hash, there and in build/fuzz/NAME.corpus, the few inputs of at most 1 KB that reach further code.
# usage: run.sh NAME|all [SECONDS] [libFuzzer options]    run.sh minimise NAME
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
names=$(cd "$here" && printf '%s\n' *_fuzz.cc | sed 's/_fuzz\.cc//')
usage() { sed -n '2,5s/^# //p' "$0"; echo "NAME is one of:" $names; exit 2; }
mode=run
[[ ${1:-} == minimise ]] && mode=minimise && shift
name=${1:-} seconds=${2:-60}
shift $(($# < 2 ? $# : 2))
[[ $name == all && $mode == run ]] || grep -qx -- "$name" <<<"$names" || usage
command -v clang++ >/dev/null || { echo "run.sh: clang++ is not installed (scripts/setup.sh --clang)" >&2; exit 1; }
[[ $name == all ]] || names=$name

out=$root/build/fuzz
cmake -S "$root" --preset fuzz >/dev/null
cmake --build "$out" --target $(printf '%s_fuzzer ' $names)
for name in $names; do
  corpus=$out/corpus/$name  # unpacked when the preset is configured
  seeds=("$corpus")
  [[ $name == ptx ]] && seeds+=("$root/tests/golden/ptx")
  [[ $name == profile ]] && seeds+=("$root/profiles/gpus")
  mkdir -p "$out/$name.corpus"
  fuzzer=("$out/bin/${name}_fuzzer" -max_len=8192 -rss_limit_mb=2048)
  if [[ $mode == minimise ]]; then
    named=$(mktemp -d) hashed=$(mktemp -d)
    cp "${seeds[@]/%//.}" -rt "$named"
    find "$named" "$out/$name.corpus" -regextype egrep -regex '.*/[0-9a-f]{40}' -size -1025c -exec cp -t "$hashed" {} +
    find "$named" "$corpus" -regextype egrep -regex '.*/[0-9a-f]{40}' -delete
    "${fuzzer[@]}" -merge=1 -use_counters=0 "$named" "$hashed"
    find "$named" -regextype egrep -regex '.*/[0-9a-f]{40}' -exec cp -t "$corpus" {} +
    "$here/corpus.py" pack "$name" "$corpus"
    rm -r "$named" "$hashed"
  else
    "${fuzzer[@]}" -max_total_time="$seconds" -timeout=30 -print_final_stats=1 -artifact_prefix="$out/$name-" "$@" \
      "$out/$name.corpus" "${seeds[@]}"
  fi
done
