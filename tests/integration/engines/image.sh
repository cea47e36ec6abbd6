#!/usr/bin/env bash
# The image of both DaemonSets, built by Debian's real podman as docs/deploy.md says, on a bare Debian 12 in place of the one of a
# registry; what is in it starts.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
[[ -n ${TESSERA_OVERLAY:-} ]] || ((EUID != 0)) || scripts/package.sh deb >/dev/null
in_overlay
fetch podman runc buildah debootstrap protobuf-compiler-grpc libgrpc++-dev libprotobuf-dev protobuf-compiler
bare=$(bare_debian) || skip "Debian cannot be fetched: $(tail -1 /run/debootstrap.log)"
# A folder of its own: what is found here is not there outside. The image takes the program from where the page's build puts it.
cmake --preset release -B build/engines >/dev/null
cmake --build build/engines --target tessera-device-plugin >/dev/null
mkdir -p build/release && mount -t tmpfs none build/release
install -D build/engines/bin/tessera-device-plugin build/release/bin/tessera-device-plugin

export STORAGE_DRIVER=vfs
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/state"\ngraphroot = "/run/store"\n' >/etc/containers/storage.conf
tar -C "$bare" -c . | podman import - docker.io/library/debian:12-slim >/dev/null || fail "the base cannot be imported"
line=$(block "podman build" | grep "^podman build")
line=${line/#podman build/podman build --runtime runc --network host --pull=never}
bash -e -c "${line//REGISTRY/registry.example}" >/run/build.log 2>&1 || fail "the image cannot be built"
in_image() { podman run --rm --runtime runc --cgroup-manager cgroupfs --network none registry.example/tessera:0.2.0 "$@"; }
version=$(in_image tesserad --version) || fail "tesserad does not start in the image"
in_image /usr/lib/tessera/bin/tessera-device-plugin --help >/run/plugin.log 2>&1 || fail "the device plugin does not start in the image"
echo "image: ok, $version"
