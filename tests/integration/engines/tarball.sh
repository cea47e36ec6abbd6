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

# Below a root folder: alone, then two jobs, a bad request, a job that is killed.
share() {  # root folder
  local root=$1 trainer service socket=/tmp/tesserad.sock
  local in=(env -i PATH=/opt/tessera/bin HOME=/tmp TESSERA_SOCKET=$socket /usr/sbin/chroot "$root")
  "${in[@]}" tesserad --socket $socket 2>/run/tesserad.log & local daemon=$!
  for _ in {1..400}; do [[ -S $root$socket ]] && break; sleep 0.05; done
  tessera() { "${in[@]}" tessera "$@"; }
  local job=("${in[@]}" tessera run --gpu soft)
  "${job[@]}" -- /opt/tessera/bin/batch_trainer --steps 4 --checksum-steps 4 >/run/trainer.alone
  "${job[@]}" -- /opt/tessera/bin/latency_service --rate 50 --requests 30 >/run/service.alone
  "${job[@]}" --name trainer -- /opt/tessera/bin/batch_trainer --seconds 600 --checksum-steps 4 >/run/trainer.out 2>&1 & trainer=$!
  "${job[@]}" --name service --priority high -- /opt/tessera/bin/latency_service --rate 5 --requests 30 >/run/service.out 2>&1 & service=$!
  until_clients "service:5 trainer:0"
  until_protected
  kill -TERM "$(pid_of trainer)"
  wait $trainer || { cat /run/trainer.out >&2; fail "the trainer failed"; }
  wait $service || { cat /run/service.out >&2; fail "the service failed"; }
  same_results
  "${job[@]}" --priority fast -- /opt/tessera/bin/batch_trainer >/run/bad.out 2>&1 && fail "--priority fast is accepted"
  grep -q 'best-effort' /run/bad.out || fail "--priority fast is refused without a remedy: $(cat /run/bad.out)"
  "${job[@]}" --name killed -- /opt/tessera/bin/batch_trainer --seconds 600 >/dev/null 2>&1 &
  disown
  until_clients killed:0
  kill -KILL "$(pid_of killed)"
  until_clients ""
  kill $daemon && wait $daemon || true
}

mkdir -p /run/here/tmp /run/here/{usr,proc,sys,dev,run,etc}
for link in bin lib lib64; do ln -s usr/$link /run/here/$link; done
for folder in usr proc sys dev; do mount --rbind /$folder /run/here/$folder; done
share /run/here
echo "tarball: two jobs on $(ldd --version | sed -n '1s/.* //p;1q'), $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
if old_debian /run/old; then
  share /run/old
  echo "tarball: two jobs on $(chroot /run/old /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6 | sed -n '1s/.*version \([0-9.]*[0-9]\).*/\1/p'), $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
else
  echo "tarball: not tried on an older glibc, Debian 11 cannot be fetched: $(tail -1 /run/apt.log)"
fi
echo "tarball: ok"
