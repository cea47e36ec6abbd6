#!/bin/sh
# Runs a command where programs for aarch64 start like any others, also those that it starts itself: in namespaces of its own, of
# which binfmt_misc knows qemu-user. The machine stays as it is; where it starts such programs anyway, there are none.
# Libraries are build/arm64-root's. Tests compile by CC, and start TESSERA_TEST_PYTHON where an interpreter loads a library.
# Root keeps the numbers of all users in there; anybody else is root there, and alone.
# usage: cmake/emulated.sh COMMAND...
set -eu
QEMU_LD_PREFIX=$(cd "$(dirname "$0")/../build/arm64-root" && pwd)
CC="aarch64-linux-gnu-gcc --sysroot=$QEMU_LD_PREFIX"
TESSERA_TEST_PYTHON=$QEMU_LD_PREFIX/usr/bin/python3
TESSERA_EMULATED=1
export QEMU_LD_PREFIX CC TESSERA_TEST_PYTHON TESSERA_EMULATED
if "$QEMU_LD_PREFIX/lib/ld-linux-aarch64.so.1" --version >/dev/null 2>&1; then exec "$@"; fi
# ELF files of 64 bits for aarch64, programs and libraries. P: argv[0] stays; F: the emulator is opened here, for every root.
rule=':aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:PF'
users=--map-root-user
if [ "$(id -u)" = 0 ]; then
  users=''
  # All users are mapped from outside, by a process of nobody's, when unshare has made the namespace in this process.
  ({
    outside=$(readlink /proc/self/ns/user)
    until [ "$(readlink /proc/$$/ns/user)" != "$outside" ]; do sleep 0.01; done
    for map in uid_map gid_map; do awk '{ print $1, $1, $3 }' /proc/self/$map >/proc/$$/$map || kill $$; done
  } &)
fi
exec unshare --user $users --mount sh -c '
  until read -r _ </proc/self/gid_map; do sleep 0.01; done
  if ! mount -t binfmt_misc none /proc/sys/fs/binfmt_misc; then
    echo "emulated.sh: this needs Linux 6.7, or the emulator registered on this machine (packages qemu-user-static, binfmt-support)" >&2
    exit 1
  fi
  printf "%s" "$0" >/proc/sys/fs/binfmt_misc/register
  exec "$@"' "$rule" "$@"
