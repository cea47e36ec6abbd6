#!/usr/bin/env bash
# docs/deploy.md, "One node", line by line as it is written: on bare Debian 12 machines that are booted by systemd-nspawn, with the
# tarball on one and with the packages on the other. Two jobs share the software GPU on each, with the same results.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
[[ -n ${TESSERA_OVERLAY:-} ]] || ((EUID != 0)) || scripts/package.sh >/dev/null
in_overlay
fetch systemd-container debootstrap
bare=$(bare_debian) || skip "Debian cannot be fetched: $(tail -1 /run/debootstrap.log)"

follow() {  # machine, words, where Tessera lies
  local text
  text=$(block "$2") || fail "the page has changed"
  within bash -e -c "cd /root/given; ${text//\/usr\/lib\/tessera/$3}" >>"/run/$1.log" 2>&1
}
machine() {  # name, words of the installing block, what is given, where Tessera lies
  local name=$1 of=$4
  mkdir -p /run/"$name"{,.changed,.work}
  mount -t overlay overlay -o "lowerdir=$bare,upperdir=/run/$name.changed,workdir=/run/$name.work" "/run/$name"
  mkdir "/run/$name/root/given" && cp $3 "/run/$name/root/given"
  echo 'APT::Get::Assume-Yes "true";' >"/run/$name/etc/apt/apt.conf.d/answers"  # whom apt-get asks says yes
  boot "/run/$name"
  within apt-get update -qq >/dev/null 2>&1 || true
  # `tessera doctor`, where it is the last line, says by its exit status that there is no GPU.
  follow "$name" "$2" "$of" || grep -q 'no NVIDIA driver library' "/run/$name.log" || fail "the lines of '$2' fail"
  [[ $(within systemctl is-active tesserad) == active ]] || fail "tesserad does not run: $(within journalctl -u tesserad --no-pager | tail -3)"
  [[ $(within stat -c %G:%a /run/tessera/tesserad-control.sock) == tessera:660 ]] || fail "group tessera may not use the control socket"
  within tessera doctor --json >"/run/$name.doctor" || true
  python3 - "/run/$name.doctor" <<'PYTHON' || fail "tessera doctor does not see the daemon: $(cat "/run/$name.doctor")"
import json, sys
sys.exit(not any(f["check"] == "daemon" and f["state"] == "ok" for f in json.load(open(sys.argv[1]))["findings"]))
PYTHON
  follow "$name" "tessera run --gpu soft --priority high" "$of" || fail "the two programs do not run"
  grep -qE '^[0-9]+ +latency_service +5 ' "/run/$name.log" && grep -qE '^[0-9]+ +batch_trainer +0 ' "/run/$name.log" ||
    fail "tessera ps does not tell of both programs"
  checksum "/run/$name.log" | sort >"/run/$name.checksums"
  [[ $(wc -l <"/run/$name.checksums") == 2 ]] || fail "there are not two checksums"
  within poweroff -f -f >/dev/null 2>&1 || true
}

machine tarball "groupadd --system tessera" "build/package/tarball/*.tar.zst" /opt/tessera
machine packages "apt-get install ./tessera_" "build/package/debs/*.deb" /usr/lib/tessera
cmp /run/tarball.checksums /run/packages.checksums || fail "the results of the tarball's programs and of the packages' differ"
echo "deploy: ok"
