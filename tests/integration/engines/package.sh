#!/usr/bin/env bash
# The Debian packages: installed, used by two jobs on the software GPU, upgraded under them, removed. systemd is not
# started; its own tools check the unit.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
[[ -n ${TESSERA_OVERLAY:-} ]] || ((EUID != 0)) || scripts/package.sh >/dev/null
in_overlay

changed() { (cd "$TESSERA_OVERLAY" && find {usr,etc}.changed -not -type d -not -path '*/ld.so.cache' -not -path '*/.pwd.lock' | sort); }
daemon() { tesserad --system 2>/run/tesserad.log & daemon_pid=$!; for _ in {1..200}; do [[ -S /run/tessera/tesserad.sock ]] && return; sleep 0.05; done; cat /run/tesserad.log >&2; fail "tesserad does not start"; }

before=$(changed)
begin=$(date +%s%N)
dpkg -i build/package/debs/*.deb >/run/install.log 2>&1 || { cat /run/install.log >&2; fail "does not install"; }
[[ $(readlink -f "$(command -v tessera)") == /usr/lib/tessera/bin/tessera ]] || fail "tessera is not in PATH"
ldconfig
ldconfig -p | grep -q /usr/lib/tessera && fail "ld.so finds our libcuda.so.1 by itself"
getent group tessera >/dev/null || fail "no group tessera"
systemd-analyze verify /usr/lib/systemd/system/tesserad.service || fail "systemd refuses the unit"
echo "package: $(systemd-analyze security --offline=yes /usr/lib/systemd/system/tesserad.service | tail -1)"
complete=$(bash -c 'source /usr/share/bash-completion/bash_completion; source /usr/share/bash-completion/completions/tessera
  COMP_WORDS=(tessera ru); COMP_CWORD=1; COMP_LINE="tessera ru"; COMP_POINT=10; _tessera tessera ru tessera; echo ${COMPREPLY[*]}')
[[ $complete == run ]] || fail "completion of 'tessera ru' is '$complete'"
zcat /usr/share/man/man1/tessera-run.1.gz | grep -q -- 'priority' || fail "tessera-run(1) does not speak of --priority"

# Two jobs; the packages are installed again and the daemon restarted under them.
mkdir -p /run/tessera
daemon
[[ -n $(find /run/tessera -type s -group tessera -perm 660) ]] || fail "group tessera may not use the control socket"
tessera run --gpu soft -- /usr/lib/tessera/bin/batch_trainer --steps 4 --checksum-steps 4 >/run/alone.out
echo "package: install to first job done: $((($(date +%s%N) - begin) / 1000000)) ms"
tessera run --gpu soft --name trainer -- /usr/lib/tessera/bin/batch_trainer --seconds 10 --checksum-steps 4 >/run/trainer.out 2>&1 &
trainer=$!
tessera run --gpu soft --priority high --name service -- /usr/lib/tessera/bin/latency_service --rate 5 --requests 50 >/run/service.out 2>&1 &
service=$!
for _ in {1..400}; do tessera ps | grep -q service && break; sleep 0.05; done
tessera ps | grep -q trainer || fail "the trainer is no client: $(tessera ps)"
dpkg -i build/package/debs/*.deb >/run/upgrade.log 2>&1 || { cat /run/upgrade.log >&2; fail "does not upgrade"; }
kill $daemon_pid && wait $daemon_pid || true
daemon
wait $trainer || { cat /run/trainer.out >&2; fail "the upgrade ended the trainer"; }
wait $service || { cat /run/service.out >&2; fail "the upgrade ended the service"; }
[[ $(checksum /run/trainer.out) == "$(checksum /run/alone.out)" ]] || fail "checksums differ: $(cat /run/alone.out /run/trainer.out)"
kill $daemon_pid && wait $daemon_pid || true

echo '# mine' >>/etc/tessera/tesserad.toml
dpkg -r tessera tesserad >/run/remove.log 2>&1 || { cat /run/remove.log >&2; fail "does not remove"; }
grep -q mine /etc/tessera/tesserad.toml || fail "removing took the configuration"
dpkg -P tesserad >/run/purge.log 2>&1 || { cat /run/purge.log >&2; fail "does not purge"; }
left=$(comm -13 <(echo "$before") <(changed) | grep -vE '^etc.changed/(group|gshadow)-?$|/__pycache__/' || true)
left=$(for file in $left; do [[ -c $TESSERA_OVERLAY/$file ]] || echo "$file"; done)
[[ -z $left ]] || fail "left behind: $left"
echo "package: ok"
