#!/usr/bin/env bash
# The unit under a booted systemd (Debian's, in systemd-nspawn): the packages are installed there, as docs/deploy.md says, the
# daemon starts in its sandbox, two jobs share the software GPU, the daemon is killed and reloaded, and nothing is left.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
[[ -n ${TESSERA_OVERLAY:-} ]] || ((EUID != 0)) || scripts/package.sh deb >/dev/null
in_overlay
fetch systemd-container systemd systemd-sysv dbus
rm /usr/sbin/policy-rc.d  # in there services do start

# A machine of its own below /run/machine: this one's /usr, and /etc and /var as they are in the overlay.
machine=/run/machine
mkdir -p $machine/{usr,etc,var,run,tmp,proc,sys,dev,root,packages}
for link in bin lib lib64 sbin; do ln -s usr/$link $machine/$link; done
mount --rbind /usr $machine/usr
mount --bind /etc $machine/etc
mount --bind /var $machine/var
cp build/package/debs/*.deb $machine/packages
systemd-id128 new >/etc/machine-id
find /etc/systemd/system -mindepth 1 -delete  # services of this machine
boot $machine

begin=$(date +%s%N)
within sh -c 'apt-get install -y --no-install-recommends /packages/tessera_*.deb /packages/tesserad_*.deb' >/run/install.log 2>&1 || fail "does not install"
within systemctl is-active --quiet tesserad || { within journalctl -u tesserad --no-pager | tail -5 >&2; fail "the service is not active"; }
job=(tessera run --gpu soft)
within "${job[@]}" -- /usr/lib/tessera/bin/batch_trainer --steps 4 --checksum-steps 4 >/run/trainer.alone
echo "figure install_to_first_job_ms $((($(date +%s%N) - begin) / 1000000))"
within "${job[@]}" -- /usr/lib/tessera/bin/latency_service --rate 50 --requests 60 >/run/service.alone

tessera() { within tessera "$@"; }
folder=$(within stat -c %i /run/tessera)
within "${job[@]}" --name trainer -- /usr/lib/tessera/bin/batch_trainer --seconds 600 --checksum-steps 4 >/run/trainer.out 2>&1 & trainer=$!
within "${job[@]}" --name service --priority high -- /usr/lib/tessera/bin/latency_service --rate 5 --requests 60 >/run/service.out 2>&1 & service=$!
until_clients "service:5 trainer:0"
until_protected
# Killed: systemd starts it again, in the same folder, and clients come back by themselves.
within systemctl kill --signal=KILL tesserad
until_clients "*trainer:0"
[[ $(within systemctl show -p NRestarts --value tesserad) == 1 ]] || fail "systemd did not start the daemon again"
within systemctl restart tesserad
until_clients "*trainer:0"
[[ $(within stat -c %i /run/tessera) == "$folder" ]] || fail "a restart made another /run/tessera: containers would lose it"
within systemctl reload tesserad
echo 'mistake =' >>/etc/tessera/tesserad.toml
within tessera reload >/run/reload.out 2>&1 && fail "a broken configuration is accepted"
grep -q 'tesserad.toml' /run/reload.out || fail "a broken configuration is refused without its place: $(cat /run/reload.out)"
within kill -TERM "$(pid_of trainer)"
wait $trainer || { cat /run/trainer.out >&2; fail "the trainer failed"; }
wait $service || { cat /run/service.out >&2; fail "the service failed"; }
same_results
within "${job[@]}" --name killed -- /usr/lib/tessera/bin/batch_trainer --seconds 600 >/dev/null 2>&1 &
until_clients killed:0
within pkill -KILL batch_trainer
until_clients ""

within apt-get purge -y tessera tesserad >/run/purge.log 2>&1 || fail "does not purge"
[[ $(within systemctl is-active tesserad || true) == inactive ]] || fail "the service is still there"
left=$(within find /usr/lib/tessera /etc/tessera /var/lib/tessera /run/tessera 2>/dev/null || true)
[[ -z $left ]] || fail "left behind: $left"
within poweroff -f -f >/dev/null 2>&1 || true
echo "systemd: ok, $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
