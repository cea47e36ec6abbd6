#!/usr/bin/env bash
# Installs what building and testing Tessera needs on Debian 12 (as root or with sudo); does nothing if all is there.
# The CUDA toolkit 13 is not installed by this script: its terms are yours to accept. See --help.
set -euo pipefail

if [[ "${1:-}" == "--help" ]]; then
  echo "usage: scripts/setup.sh [--bench] [--package] [--clang] [--frameworks] [--suites]    installs Debian packages that are missing; needs the CUDA toolkit 13 (CUDA_HOME or /usr/local/cuda)"
  exit 0
fi

packages=(
  g++ cmake ninja-build ccache git python3 python3-matplotlib clang-format
  libboost-dev libspdlog-dev libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev libelf-dev pkg-config libzstd-dev liblz4-dev libxxhash-dev prometheus-cpp-dev
  libprotobuf-dev protobuf-compiler
  musl-tools  # programs of another libc are tried (ctest -R loader_hosts)
)

for option in "$@"; do
  case $option in
    --bench) packages+=(pocl-opencl-icd ocl-icd-opencl-dev opencl-headers) ;;  # scripts/bench.sh compares with PoCL
    --package) packages+=(dpkg-dev file help2man lintian zstd) ;;              # scripts/package.sh makes packages
    --frameworks) packages+=(python3-venv) ;;                                  # scripts/{frameworks,collect_ptx}.sh
    --suites) packages+=(python3-torch) ;;  # scripts/frameworks.sh --suites: what tinygrad's tests compare with
    --clang) packages+=(clang clang-tidy) ;;  # the presets clang and fuzz, scripts/tidy.sh, tests/fuzz/run.sh
    *) echo "setup: unknown option $option; see --help" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "setup: run as root or install sudo; missing: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

cuda="${CUDA_HOME:-/usr/local/cuda}"
if [[ ! -e "$cuda/include/cuda.h" || ! -x "$cuda/bin/nvcc" ]]; then
  cat >&2 <<MESSAGE
setup: CUDA toolkit not found at $cuda (include/cuda.h and bin/nvcc).
       Install CUDA toolkit 13 from NVIDIA (no driver and no GPU are needed to build), or set CUDA_HOME to its folder.
MESSAGE
  exit 1
fi
release="$("$cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')"
if ((release < 13)); then
  echo "setup: CUDA toolkit at $cuda is release $release, 13 or newer is needed; set CUDA_HOME to a newer one" >&2
  exit 1
fi
