#!/usr/bin/env bash
# The Debian packages and the tarball for arm64, on bare Debian 12 machines for arm64 whose programs are emulated: installed,
# started, used by two jobs on the software GPU, removed. The machines' roots are made once, in build/engines.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
debs=build/package-arm64/debs
bare=$PWD/build/engines/bare-arm64

if [[ -z ${TESSERA_EMULATED:-} ]]; then
  [[ -n ${TESSERA_OVERLAY:-} ]] || ((EUID != 0)) || scripts/package.sh arm64 >/dev/null
  in_overlay
  needs=$(for deb in $debs/*.deb; do dpkg-deb -f "$deb" Depends; done | tr ',' '\n' | sed 's/(.*//; s/ //g' | sort -u | paste -sd,),python3
  if [[ $(cat "$bare.made" 2>/dev/null) != "$needs" ]]; then
    fetch mmdebstrap arch-test
    rm -rf "$bare"{,.made} && mkdir -p "$bare"
    TMPDIR=/run cmake/emulated.sh mmdebstrap --mode=root --arch=arm64 --variant=essential --include="$needs" bookworm "$bare" >/run/mmdebstrap.log 2>&1 ||
      skip "Debian for arm64 cannot be fetched: $(tail -1 /run/mmdebstrap.log)"
    echo "$needs" >"$bare.made"
  fi
  for machine in packages tarball; do
    mkdir -p /run/$machine{,.changed,.work}
    mount -t overlay overlay -o "lowerdir=$bare,upperdir=/run/$machine.changed,workdir=/run/$machine.work" /run/$machine
    for folder in proc sys dev; do mount --rbind /$folder /run/$machine/$folder; done
    mkdir /run/$machine/given
  done
  cp $debs/*.deb /run/packages/given
  cp -r python CMakeLists.txt /run/packages/given  # its test reads which version this is
  mkdir /run/tarball/opt/tessera
  tar -xf build/package-arm64/tarball/*.tar.zst -C /run/tarball/opt/tessera --strip-components 1
  exec cmake/emulated.sh "$0"
fi
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

within() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive /usr/sbin/chroot /run/packages "$@"; }
[[ $(within uname -m) == aarch64 ]] || fail "the root's programs are not emulated"
before=$(cd /run/packages && find etc usr var -not -type d -not -path 'var/lib/dpkg/*' -not -path 'var/log/*' | sort)
within sh -c 'dpkg -i /given/*.deb' >/run/install.log 2>&1 || fail "does not install"
version=$(within tessera --version)
for program in /run/packages/usr/lib/tessera/{bin/*,lib/*.so*,lib/softgpu/*.so*}; do
  [[ $(file -Lb "$program") != *ELF* || $(file -Lb "$program") == *aarch64* ]] || fail "$program is not for aarch64"
done
for part in bin/{tessera,tesserad} lib/libtessera{,_alias,_audit,_ops,_ranges}.so; do
  for folder in /run/packages/usr/lib/tessera /run/tarball/opt/tessera; do [[ -f $folder/$part ]] || fail "no $part in $folder"; done
done
within env PYTHONPATH=/given/python python3 /given/python/tessera_ray_test.py >/run/python.log 2>&1 || fail "the Python package fails"

# The system's daemon is seen by the doctor; nothing else of this machine stands in the way but that it has no driver.
within tesserad --system 2>/run/tesserad.log & daemon=$!
for _ in {1..400}; do [[ -S /run/packages/run/tessera/tesserad.sock ]] && break; sleep 0.05; done
[[ $(within stat -c %G:%a /run/tessera/tesserad-control.sock) == tessera:660 ]] || fail "group tessera may not use the control socket"
status=0
within tessera doctor >/run/doctor.log || status=$?
[[ $status == 3 ]] && grep -q 'no NVIDIA driver library' /run/doctor.log || fail "tessera doctor says, with status $status: $(cat /run/doctor.log)"
within tessera doctor --json >/run/doctor.json || true
python3 - /run/doctor.json <<'PYTHON' || fail "tessera doctor finds more than a missing driver: $(cat /run/doctor.json)"
import json, sys
state = {f["check"]: f["state"] for f in json.load(open(sys.argv[1]))["findings"]}
failures = [check for check, said in state.items() if said == "failure"]
sys.exit(not (state["daemon"] == "ok" and failures == ["driver"]))
PYTHON
kill $daemon && wait $daemon || true

share /run/packages /usr/lib/tessera
echo "arm64: packages $version, two jobs, $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
cp /run/trainer.alone /run/trainer.packages
within dpkg -P tessera tesserad >/run/purge.log 2>&1 || fail "does not purge"
left=$(comm -13 <(echo "$before") <(cd /run/packages && find etc usr var -not -type d -not -path 'var/lib/dpkg/*' -not -path 'var/log/*' | sort) |
  grep -vE '^etc/(group|gshadow)-?$|/__pycache__/|^etc/.pwd.lock$' || true)
[[ -z $left ]] || fail "left behind: $left"

share /run/tarball /opt/tessera
[[ $(checksum /run/trainer.alone) == "$(checksum /run/trainer.packages)" ]] || fail "the results of the tarball's program and of the package's differ"
echo "arm64: tarball, two jobs, $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
echo "arm64: ok"
