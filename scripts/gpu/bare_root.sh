#!/usr/bin/env bash
# Rehearses a kit where a user would open it: in a root of another Debian release that has its C library, a shell and Python, and in
# an empty environment. The software GPU, which no kit has, is laid beside it. Changes nothing outside its folders.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu/bare_root.sh [--kit DIR] [--build DIR] [--root DIR] --out DIR [--] [OPTION OF lab.sh]...

  --kit DIR      of scripts/gpu/stage.sh (default build/gpu-kit)
  --build DIR    of the software GPU (default build/portable)
  --root DIR     the root (default build/bare-root); made by mmdebstrap where it is not there
  --out DIR      gets the answers
TEXT
}

top=$(cd "$(dirname "$0")/../.." && pwd)
kit=$top/build/gpu-kit build=$top/build/portable root=$top/build/bare-root out=""
while [ $# -gt 0 ]; do
  case "$1" in
    --kit) kit=${2:?--kit needs a folder}; shift 2 ;;
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --root) root=${2:?--root needs a folder}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    *) break ;;
  esac
done
[ -n "$out" ] || { usage >&2; exit 2; }
fail() { echo "bare_root.sh: $1" >&2; exit 1; }
[ -x "$kit/scripts/gpu/lab.sh" ] || fail "$kit is no kit"
for needed in lib/softgpu/libcuda.so.1 bin/softgpu_arbiter; do
  [ -e "$build/$needed" ] || fail "no software GPU: $build/$needed is not there"
done

if [ ! -e "$root/usr/bin/python3" ]; then
  command -v mmdebstrap > /dev/null || fail "there is no root in $root, and no mmdebstrap that would make one"
  release=trixie
  if (. /etc/os-release && [ "${VERSION_CODENAME:-}" = "$release" ]); then release=bookworm; fi
  rm -rf "$root.new"
  mmdebstrap --quiet --variant=essential --include=python3 "$release" "$root.new"
  rm -rf "$root" && mv "$root.new" "$root"
fi

mkdir -p "$out"
beside=$(mktemp -d)
trap 'rm -rf "$beside"' EXIT
cp -r "$kit/." "$beside"
cp -r "$build/lib/softgpu" "$beside/lib"
cp "$build/bin/softgpu_arbiter" "$beside/bin"
mkdir -p "$beside/share/tessera/gpus"
cp "$top/profiles/gpus/test4.toml" "$beside/share/tessera/gpus"
mkdir -p "$root/kit" "$root/out"
user=()
[ "$(id -u)" = 0 ] || user=(--map-root-user)
# Mounts and processes of its own, which end with it.
unshare "${user[@]}" --mount --pid --fork --kill-child=SIGKILL bash -c '
  set -e
  mount -t proc proc "$1/proc"
  mount --rbind /dev "$1/dev"
  mount --bind "$2" "$1/kit"
  mount --bind "$3" "$1/out"
  root=$1
  shift 3
  exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin /kit/scripts/gpu/lab.sh --rehearse --out /out "$@"
' bash "$(realpath "$root")" "$beside" "$(realpath "$out")" "$@"
