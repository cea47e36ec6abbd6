#!/usr/bin/env bash
# Installs what building and testing Tessera needs on Debian 12 (as root or with sudo); does nothing if all is there.
# The CUDA toolkit 13 is looked for (CUDA_HOME, else /usr/local/cuda, else build/cuda). Where there is none, its parts are fetched
# from PyPI into build/cuda, 0.9 GB, if NVIDIA's terms are accepted: by --accept-nvidia-license, or by
# TESSERA_ACCEPT_NVIDIA_LICENSE=1. They are yours to accept: https://docs.nvidia.com/cuda/eula
# --arm64 makes build/arm64-root, the arm64 packages that cmake/arm64.cmake builds with: this machine's own stay as they are.
# usage: scripts/setup.sh [--accept-nvidia-license] [--bench] [--package] [--clang] [--frameworks] [--suites] [--arm64]
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ "${1:-}" == "--help" || "${1:-}" == "-h" ]]; then
  sed -n '2,7s/^# //p' "$0"
  exit 0
fi
accepted=${TESSERA_ACCEPT_NVIDIA_LICENSE:-0}

packages=(
  g++ cmake ninja-build ccache git python3 python3-matplotlib clang-format
  libboost-dev libspdlog-dev libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev libelf-dev pkg-config libzstd-dev liblz4-dev libxxhash-dev prometheus-cpp-dev
  libprotobuf-dev protobuf-compiler libsqlite3-dev zlib1g-dev
  musl-tools  # programs of another libc are tried (ctest -R loader_hosts)
)

# Packages that the preset arm64 builds with.
arm64_packages=(
  libc6-dev libstdc++6 libboost-dev libspdlog-dev libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev libelf-dev libzstd-dev liblz4-dev libxxhash-dev prometheus-cpp-dev
  libprotobuf-dev libgrpc++-dev libslurm-dev libsqlite3-dev zlib1g-dev
  python3  # loads libraries in tests
)
needs_arm64=0

for option in "$@"; do
  case $option in
    --accept-nvidia-license) accepted=1 ;;
    --bench) packages+=(pocl-opencl-icd ocl-icd-opencl-dev opencl-headers) ;;  # scripts/bench.sh compares with PoCL
    --package) packages+=(dpkg-dev file help2man lintian zstd) ;;              # scripts/package.sh makes packages
    --frameworks) packages+=(python3-venv) ;;                                  # scripts/{frameworks,collect_ptx}.sh
    --suites) packages+=(python3-torch) ;;  # scripts/frameworks.sh --suites: what tinygrad's tests compare with
    --clang) packages+=(clang clang-tidy) ;;  # the presets clang and fuzz, scripts/tidy.sh, tests/fuzz/run.sh
    --arm64) packages+=(g++-aarch64-linux-gnu protobuf-compiler-grpc qemu-user-static) needs_arm64=1 ;;  # the preset arm64
    *) echo "setup: unknown option $option; see --help" >&2; exit 2 ;;
  esac
done

cuda=${CUDA_HOME:-/usr/local/cuda}
is_toolkit() { [[ -e $1/include/cuda.h && -x $1/bin/nvcc ]]; }
[[ -n ${CUDA_HOME:-} ]] || is_toolkit "$cuda" || cuda=$PWD/build/cuda
fetches=0
if ! is_toolkit "$cuda" && [[ -z ${CUDA_HOME:-} && $accepted == 1 ]]; then
  fetches=1
  python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)
fi

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

# Debian's packages for arm64, unpacked: a system of their own for apt, which asks this machine's sources and nothing else of it.
fetch_arm64_root() {  # folder
  local new=$1.new deb link part
  echo "setup: fetching Debian's packages for arm64 into $1"
  rm -rf "$new"
  mkdir -p "$new"/apt/{state/lists,cache/archives}/partial "$new/root"
  : >"$new/apt/status"
  cat >"$new/apt/conf" <<CONF
Dir::State "$new/apt/state"; Dir::State::status "$new/apt/status"; Dir::Cache "$new/apt/cache";
APT::Architecture "arm64"; APT::Architectures { "arm64"; }; APT::Sandbox::User "root";
CONF
  APT_CONFIG=$new/apt/conf apt-get update -qq
  APT_CONFIG=$new/apt/conf apt-get install -qq -y --download-only --no-install-recommends "${arm64_packages[@]}" >/dev/null
  mkdir "$new/root/DEBIAN"  # where dpkg-shlibdeps reads which package has a library
  for deb in "$new"/apt/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$new/root"
    for part in shlibs symbols; do dpkg-deb -I "$deb" $part >>"$new/root/DEBIAN/$part" 2>/dev/null || true; done
  done
  # Links are from the root of a system, which this is not.
  find "$new/root" -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath --no-symlinks --relative-to="$(dirname "$link")" "$new/root$(readlink "$link")")" "$link"
  done
  printf '%s\n' "${arm64_packages[@]}" >"$new/root/packages"
  rm -rf "$1"
  mv "$new/root" "$1"
  rm -r "$new"
}
if ((needs_arm64)) && [[ "$(cat build/arm64-root/packages 2>/dev/null)" != "$(printf '%s\n' "${arm64_packages[@]}")" ]]; then
  fetch_arm64_root "$PWD/build/arm64-root"
fi

# In the shape of an installed toolkit; the link stub is no wheel's.
fetch_toolkit() {  # folder
  local new=$1.new library
  local wheels=(
    nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    nvidia-cuda-profiler-api==13.0.85 nvidia-cuda-cupti==13.0.85 nvidia-nvtx==13.0.85 nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56
  )
  echo "setup: fetching the CUDA toolkit's parts from PyPI into $1"
  rm -rf "$new"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: --target "$new" "${wheels[@]}"
  cp -a "$new"/nvidia/cudnn/. "$new/nvidia/cu13"
  (
    cd "$new/nvidia/cu13"
    mv "$new"/*.dist-info .  # with the licences
    ln -s lib lib64
    for library in lib/lib*.so.*; do ln -s "${library#lib/}" "${library%.so.*}.so"; done
    mkdir lib/stubs
  )
  python3 scripts/gen_driver_entries.py --cuda "$new/nvidia/cu13" --make-stub "$new/nvidia/cu13/lib/stubs/libcuda.so"
  mv "$new/nvidia/cu13" "$1"
  rm -r "$new"
}

((!fetches)) || fetch_toolkit "$cuda"
if ! is_toolkit "$cuda"; then
  cat >&2 <<MESSAGE
setup: CUDA toolkit not found at ${CUDA_HOME:-/usr/local/cuda} (include/cuda.h and bin/nvcc).
       Install CUDA toolkit 13 from NVIDIA (no driver and no GPU are needed to build), or set CUDA_HOME to its folder,
       or accept NVIDIA's terms (https://docs.nvidia.com/cuda/eula) by TESSERA_ACCEPT_NVIDIA_LICENSE=1: then its parts
       are fetched from PyPI into build/cuda.
MESSAGE
  exit 1
fi
release="$("$cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')"
if ((release < 13)); then
  echo "setup: CUDA toolkit at $cuda is release $release, 13 or newer is needed; set CUDA_HOME to a newer one" >&2
  exit 1
fi
