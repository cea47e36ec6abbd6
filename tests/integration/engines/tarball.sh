#!/usr/bin/env bash
# The tarball for glibc 2.28 and newer: no program or library of it needs more; unpacked, its two sample jobs share the
# software GPU on this machine, and in a root folder with Debian 11's glibc 2.31 if its packages can be fetched.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
[[ -n ${TESSERA_OVERLAY:-} ]] || ((EUID != 0)) || scripts/package.sh tarball >/dev/null
in_overlay

mkdir -p /run/here/opt
tar -xf build/package/tarball/*.tar.zst -C /run/here/opt
mv /run/here/opt/tessera-* /run/here/opt/tessera
scripts/check_portable.py /run/here/opt/tessera || fail "it needs more than glibc 2.28"
has_licences /run/here/opt/tessera/share/doc/tessera/licences libelf-dev libprotobuf-dev libzstd-dev nlohmann-json3-dev prometheus-cpp

# Debian 11's C library, unpacked, not installed. No shell, no C++ runtime.
old_debian() {
  local root=$1 folder
  old_glibc "$root" || return 1
  mkdir -p "$root"/{opt/tessera,proc,sys,dev,tmp,run,etc}
  mount --bind /run/here/opt/tessera "$root/opt/tessera"
  for folder in proc sys dev; do mount --rbind /$folder "$root/$folder"; done
}

mkdir -p /run/here/tmp /run/here/{usr,proc,sys,dev,run,etc}
for link in bin lib lib64; do ln -s usr/$link /run/here/$link; done
for folder in usr proc sys dev; do mount --rbind /$folder /run/here/$folder; done
share /run/here /opt/tessera
echo "tarball: two jobs on $(ldd --version | sed -n '1s/.* //p;1q'), $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
if old_debian /run/old; then
  share /run/old /opt/tessera
  echo "tarball: two jobs on $(chroot /run/old /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6 | sed -n '1s/.*version \([0-9.]*[0-9]\).*/\1/p'), $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
else
  echo "tarball: not tried on an older glibc, Debian 11 cannot be fetched: $(tail -1 /run/apt.log)"
fi
echo "tarball: ok"
