#!/usr/bin/env bash
# Holds the shim against NVIDIA's real driver library, which needs no card up to cuInit: every export, every
# cuGetProcAddress, every function, what stands on it; bare, and through the shim with and without a daemon.
# usage: scripts/real_driver.sh --accept-nvidia-license [--driver 450|470|535|550|555] [--with PART]... [--json FILE]
#                               [--only PROBE] [--build DIR] [--cache DIR]
# The driver comes from the non-free component of this machine's own Debian archive and is unpacked into a cache
# folder; nothing is installed. Its terms are yours to accept: by the option, or TESSERA_ACCEPT_NVIDIA_LICENSE=1.
# --with optix | clinfo (Debian, 131 and 1 MB), wheels | torch (PyPI, about 2 and 4 GB unpacked): libraries that use the driver.
# --build DIR is a folder that is built already. Exit status 0: all the same; 1: a difference; 77: could not be tried.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { echo "skipped: $*"; exit 77; }
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; }

accepted=${TESSERA_ACCEPT_NVIDIA_LICENSE:-0}
driver=535
build=
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/real_driver
with=()
compare=()
while (($#)); do
  case $1 in
    --accept-nvidia-license) accepted=1; shift; continue ;;
    --help | -h) usage; exit 0 ;;
  esac
  (($# > 1)) || { echo "real_driver.sh: $1 needs a value (--help)" >&2; exit 2; }
  case $1 in
    --driver) driver=$2 ;;
    --with) with+=("$2") ;;
    --json | --only) compare+=("$1" "$2") ;;
    --build) build=$2 ;;
    --cache) cache=$2 ;;
    *) echo "real_driver.sh: unknown option $1 (--help)" >&2; exit 2 ;;
  esac
  shift 2
done
packages=(libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 libnvcuvid1 nvidia-opencl-icd libnvidia-fbc1)
case $driver in
  450) suite=sid packages=(libnvidia-tesla-450-cuda1) ;;
  470) suite=bookworm packages=(libnvidia-tesla-470-cuda1) ;;
  535) suite=bookworm ;;
  550) suite=trixie ;;
  555) suite=experimental ;;
  *) echo "real_driver.sh: --driver is 450, 470, 535, 550 or 555" >&2; exit 2 ;;
esac
[[ $accepted == 1 ]] || skip "NVIDIA's terms were not accepted (--accept-nvidia-license or TESSERA_ACCEPT_NVIDIA_LICENSE=1)"

# apt with the archive that this machine gets its own packages from, another suite and the non-free component.
prepare_apt() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || skip "no apt here"
  local codename uri keys=/usr/share/keyrings/debian-archive-keyring.gpg
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  uri=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v c="$codename" '$1 == c && $2 == "main" && !n++ { print $3 }')
  [[ -n $uri ]] || skip "no Debian archive among this machine's apt sources"
  apt_folder=$(mktemp -d)
  trap 'rm -rf "$apt_folder"' EXIT
  mkdir -p "$apt_folder"/{sources,lists/partial,archives/partial}
  cat >"$apt_folder/sources/real_driver.sources" <<SOURCES
Types: deb
URIs: $uri
Suites: $suite
Components: main non-free
$([[ ! -e $keys ]] || echo "Signed-By: $keys")
SOURCES
  apt_options=(-qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$apt_folder/sources"
    -o "Dir::State::Lists=$apt_folder/lists" -o "Dir::Cache=$apt_folder" -o "APT::Sandbox::User=$(id -un)"
    -o Acquire::Retries=0 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
  apt-get "${apt_options[@]}" update || skip "the archive of $suite cannot be read"
}

# unpack FOLDER PACKAGE...   into the cache, whole or not at all
unpack() {
  local folder=$cache/$1
  shift
  [[ -d $folder ]] && return
  [[ -n ${apt_folder:-} ]] || prepare_apt
  (cd "$apt_folder" && apt-get "${apt_options[@]}" download "$@") || skip "$suite has no $*"
  for package in "$apt_folder"/*.deb; do dpkg -x "$package" "$apt_folder/unpacked"; done
  mkdir -p "$(dirname "$folder")"
  mv "$apt_folder/unpacked" "$folder"
  rm "$apt_folder"/*.deb
}

# wheels FOLDER REQUIREMENT...   the same from PyPI; what cannot be had is left out
wheels() {
  local folder=$cache/libraries/$1
  [[ -d $folder ]] && return
  rm -rf "$folder.part"
  if python3 -m pip install --quiet --root-user-action=ignore --target "$folder.part" "${@:2}"; then
    mv "$folder.part" "$folder"
  else
    echo "left out: the $1 cannot be had"
  fi
}

unpack "$driver" "${packages[@]}"
real=$(dirname "$cache/$driver"/usr/lib/x86_64-linux-gnu/nvidia/*/libcuda.so.1)
for part in "${with[@]}"; do
  case $part in
    optix) unpack "$driver-optix" libnvoptix1
           ln -sf "$cache/$driver-optix"/usr/lib/x86_64-linux-gnu/nvidia/*/libnvoptix.so.* "$real/" ;;
    clinfo) unpack libraries/clinfo clinfo ocl-icd-libopencl1 ;;
    wheels) wheels wheels nvidia-cuda-runtime-cu12==12.2.140 nvidia-cublas-cu12==12.2.5.6 nvidia-cudnn-cu12==8.9.7.29 \
              nvidia-nccl-cu12==2.18.3 ;;
    torch) wheels torch torch==2.1.2 "numpy<2" ;;
    *) echo "real_driver.sh: --with is optix, clinfo, wheels or torch" >&2; exit 2 ;;
  esac
done

if [[ -z $build ]]; then
  scripts/setup.sh
  build=build/release
  cmake --preset release >/dev/null
  cmake --build "$build" --target real_driver
fi
[[ -d $cache/libraries ]] && compare+=(--libraries "$cache/libraries")
python3 tests/real_driver/compare.py --build "$build" --driver "$real/libcuda.so.1" "${compare[@]}"
