#!/usr/bin/env bash
# Builds an archive of prometheus-cpp (with civetweb) from the source packages of this Debian release: it has shared libraries
# of them only. FOLDER gets lib/cmake/prometheus-cpp; nothing is installed. OPTION: of CMake.
# usage: packaging/portable/prometheus.sh FOLDER [OPTION...]
set -euo pipefail
[[ $# -ge 1 && $1 != -* ]] || { sed -n '2,4s/^# //p' "$0"; exit 2; }
[[ -e $1/lib/cmake/prometheus-cpp/prometheus-cpp-config.cmake ]] && exit 0
mkdir -p "$1/source/lists/partial" "$1/source/cache/archives/partial"
folder=$(realpath "$1")
cd "$folder/source"

# Source packages, also where apt is set up for binary ones only.
release=$(. /etc/os-release; echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $release" "Created-By: Packages" | head -1)
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:?apt names no mirror of $release} $release main" >sources.list
apt=(-qq -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=/nonexistent -o "Dir::State::lists=$PWD/lists"
     -o "Dir::Cache=$PWD/cache" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update
apt-get "${apt[@]}" source --download-only prometheus-cpp civetweb
for archive in *.orig.tar.*; do tar -xf "$archive"; done
rm -rf prometheus-cpp-*/3rdparty/civetweb
mv civetweb-* "$(echo prometheus-cpp-*)/3rdparty/civetweb"
cmake -S prometheus-cpp-* -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
  -DCMAKE_INSTALL_PREFIX="$folder" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DENABLE_PUSH=OFF -DENABLE_TESTING=OFF \
  -Dcivetweb-3rdparty_DIR="$(echo "$PWD"/prometheus-cpp-*/cmake)" "${@:2}" >/dev/null
cmake --build build --target install >/dev/null
