#!/usr/bin/env bash
# run.sh ptx|image|cubin|cache|profile|region|config|socket [SECONDS] [libFuzzer options]: builds the fuzz target with clang, ASan and UBSan, and runs it. New
# inputs go to a scratch folder; add the few that matter to corpus/ by hand (small ones).
set -euo pipefail
name=$1 seconds=${2:-60}
shift $(($# < 2 ? $# : 2))
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v clang++ >/dev/null || { echo "run.sh: clang++ is not installed (apt-get install clang)" >&2; exit 1; }
out=$root/build/fuzz
mkdir -p "$out/$name.corpus"
profiles=("$root"/profiles/{classify,duration_histogram,folders,gpu_attributes,gpu_description,kernel_profile,profile_file,profile_json}.cc)
daemon=("$root"/scheduler_daemon/{core,policy,stats,learning}/*.cc "$root"/ipc/channel/*.cc "$root"/base/*.cc "${profiles[@]}")
case $name in
  ptx) sources=("$root"/kernels/ptx/*.cc "$root"/kernels/slice/*.cc) libraries=() seeds=("$root/tests/golden/ptx") ;;
  image | cubin) sources=("$root"/kernels/image/*.cc) libraries=(-lzstd -llz4) seeds=() ;;
  cache) sources=("$root"/kernels/cache/{file,rewritten}.cc) libraries=() seeds=() ;;
  profile)
    sources=("${profiles[@]}") libraries=() seeds=("$root/profiles/gpus") ;;
  region)
    sources=("${daemon[@]}") libraries=(-pthread) seeds=() ;;
  config)
    sources=("${daemon[@]}" "$root"/scheduler_daemon/config/*.cc) libraries=(-pthread) seeds=() ;;
  socket)
    sources=("${daemon[@]}" "$root"/scheduler_daemon/transport/control.cc) libraries=(-pthread -lspdlog -lfmt)
    seeds=() ;;
  *) echo "usage: run.sh ptx|image|cubin|cache|profile|region|config|socket [SECONDS] [libFuzzer options]" >&2; exit 2 ;;
esac
clang++ -std=c++20 -g -O1 -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL -DSPDLOG_SHARED_LIB -DFMT_SHARED -I"$root" -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
  -o "$out/${name}_fuzzer" "$root/tests/fuzz/${name}_fuzz.cc" "${sources[@]}" "${libraries[@]}"
exec "$out/${name}_fuzzer" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 \
  -artifact_prefix="$out/" "$@" "$out/$name.corpus" "$root/tests/fuzz/corpus/$name" "${seeds[@]}"
