#!/usr/bin/env bash
# Puts all that a machine with a GPU needs into one folder: scripts/gpu/lab.sh, its programs, Tessera, the workloads.
# Nothing is built or fetched there. Proves itself: every program starts, and some of the lab is rehearsed in a bare root of another
# release. A second run builds what has changed.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu/stage.sh [--out DIR] [--build DIR] [--no-root]

  --out DIR    the folder (default build/gpu-kit); it is replaced
  --build DIR  take the programs of this build folder, which is only read; it runs where the C library and the libraries
               are this machine's. Default: build build/portable, which needs nothing but glibc 2.28
  --no-root    do not rehearse it in a bare root (bare_root.sh); so it is with --build

There:  KIT/scripts/gpu/lab.sh --stage A --budget 150 --out ANSWERS    and B, C
TEXT
}

root=$(cd "$(dirname "$0")/../.." && pwd)
out=$root/build/gpu-kit build="" bare_root=1
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --no-root) bare_root=0; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option: $1" >&2; usage >&2; exit 2 ;;
  esac
done
most_mib=40
rehearsed=H20,H24,H12,H16,H19,H27  # one or more of each kind: device programs, processes, stock programs under a daemon
fail() { echo "stage.sh: $1" >&2; exit 1; }
if [ -e "$out" ] && [ ! -e "$out/commit" ]; then fail "$out is there and is no kit"; fi

cd "$root"
portable=0
how="programs of a given build folder"
if [ -z "$build" ]; then
  portable=1 build=$root/build/portable
  how="TESSERA_PORTABLE, Release"
  mkdir -p "$build"
  # The software GPU is for the rehearsal; no part of the kit.
  targets=(tessera tesserad tessera_shim tessera_alias tessera_ops tessera_audit device_programs)
  [ "$bare_root" = 0 ] || targets+=(softgpu_driver softgpu_runtime softgpu_arbiter softgpu_cublas softgpu_cublasLt)
  if ! { packaging/portable/prometheus.sh "$build/prometheus" &&
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_PORTABLE=ON -DCMAKE_PREFIX_PATH="$build/prometheus" &&
    cmake --build "$build" --target "${targets[@]}"; } > "$build/stage.log" 2>&1; then
    tail -n 20 "$build/stage.log" >&2
    fail "the build failed; all of it is in $build/stage.log"
  fi
fi
for needed in bin/tessera bin/tessera-ptxas bin/tesserad bin/device/device_info lib/libtessera.so lib/libtessera_alias.so lib/libtessera_ops.so \
  lib/libtessera_audit.so; do
  [ -e "$build/$needed" ] || fail "$build/$needed is not there"
done
build=$(cd "$build" && pwd)

mkdir -p "$(dirname "$out")"
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
new=$out.new
rm -rf "$new" && mkdir -p "$new/bin" "$new/lib" "$new/scripts" "$new/scenarios"
cp "$build"/bin/tessera{,-ptxas,d} "$new/bin"
cp -r "$build/bin/device" "$new/bin"
cp "$build"/lib/libtessera{,_alias,_ops,_audit}.so "$new/lib"
cp -r scripts/gpu scripts/prior_error.py "$new/scripts"
cp -r scenarios/saturated.toml scenarios/parts "$new/scenarios"
find "$new" -name __pycache__ -prune -exec rm -r {} +
is_elf() { [ "$(head -c 4 "$1" | tail -c 3)" = ELF ] && [ "$(od -An -tu2 -j18 -N2 "$1" | tr -d ' ')" = 62 ]; }  # of this CPU
elves=()
while IFS= read -r file; do
  if is_elf "$file"; then elves+=("$file"); fi
done < <(find "$new/bin" "$new/lib" -type f | sort)
strip --strip-unneeded "${elves[@]}"
runtime=libcudart.so.13
if objdump -p "${elves[@]}" | grep "NEEDED *$runtime" > /dev/null; then
  cuda=${CUDA_HOME:-/usr/local/cuda}
  [ -e "$cuda/lib64/$runtime" ] || fail "the programs need $runtime, which is not in $cuda/lib64 (CUDA_HOME names another)"
  cp -L "$cuda/lib64/$runtime" "$new/lib"
fi
{
  git rev-parse HEAD 2> /dev/null || echo unknown
  changed=$(git status --porcelain 2> /dev/null | wc -l)
  echo "built as: $how; $(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt" 2> /dev/null), glibc of $(getconf GNU_LIBC_VERSION)"
  echo "folder: $build; files changed since the commit: $changed; staged $(date -u +%Y-%m-%dT%H:%M:%SZ)"
} > "$new/commit"

# It proves itself.
if [ "$portable" = 1 ]; then
  # The vendor's runtime is as it came.
  mkdir "$new.vendor"
  [ ! -e "$new/lib/$runtime" ] || mv "$new/lib/$runtime" "$new.vendor"
  scripts/check_portable.py "$new" || { rm -r "$new.vendor"; fail "not portable"; }
  [ ! -e "$new.vendor/$runtime" ] || mv "$new.vendor/$runtime" "$new/lib"
  rmdir "$new.vendor"
fi
bare=(env -i PATH=/usr/bin:/bin TESSERA_PTXAS=/bin/true)  # else tessera-ptxas would miss the real one
for file in "${elves[@]}"; do
  status=0
  case "$file" in
    *.so) said=$("${bare[@]}" LD_PRELOAD="$new/lib/libtessera.so $file" true 2>&1) || status=$? ;;
    *) said=$("${bare[@]}" timeout 20 "$file" --help 2>&1) || status=$? ;;
  esac
  # Without a driver some programs say so and end with 1.
  if [ "$status" -ge 124 ] || [[ "$said" == *"shared librar"* || "$said" == *"LD_PRELOAD cannot"* ]]; then
    fail "$file does not start (status $status): $said"
  fi
done
python3 - "$new" <<'PY'
import ast, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    ast.parse(path.read_text(), str(path))
PY
mib=$(du -sm --apparent-size "$new" | cut -f1)
[ "$mib" -le "$most_mib" ] || fail "$mib MiB are more than $most_mib"
said="not rehearsed in a bare root"
if [ "$portable" = 1 ] && [ "$bare_root" = 1 ]; then
  rehearsal=$(mktemp -d)
  if ! scripts/gpu/bare_root.sh --kit "$new" --build "$build" --out "$rehearsal/answers" -- \
    --only "$rehearsed" > "$rehearsal/said" 2>&1; then
    cat "$rehearsal/said" >&2
    fail "the rehearsal in a bare root failed; its answers are in $rehearsal/answers"
  fi
  said="rehearsed in a bare root ($(grep -c ' ok$' "$rehearsal/said") answers)"
  rm -rf "$rehearsal"
fi
rm -rf "$out" && mv "$new" "$out"
echo "$out: ${#elves[@]} programs and libraries, $mib MiB, $said, commit $(head -n 1 "$out/commit")"
