#!/usr/bin/env bash
# The Debian packages: installed, used by two jobs on the software GPU, upgraded under them, removed. systemd is not
# started; its own tools check the unit.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
[[ -n ${TESSERA_OVERLAY:-} ]] || ((EUID != 0)) || scripts/package.sh deb >/dev/null
in_overlay

changed() { (cd "$TESSERA_OVERLAY" && find {usr,etc}.changed -not -type d -not -path '*/ld.so.cache' -not -path '*/.pwd.lock' | sort); }
daemon() { tesserad --system 2>/run/tesserad.log & daemon_pid=$!; for _ in {1..200}; do [[ -S /run/tessera/tesserad.sock ]] && return; sleep 0.05; done; cat /run/tesserad.log >&2; fail "tesserad does not start"; }

fetch bash-completion fish zsh
said=$(lintian --tag-display-limit 0 build/package/debs/*.deb 2>/dev/null || true)
[[ -z $said ]] || fail "lintian: $said"
before=$(changed)
dpkg -i build/package/debs/*.deb >/run/install.log 2>&1 || { cat /run/install.log >&2; fail "does not install"; }
[[ $(readlink -f "$(command -v tessera)") == /usr/lib/tessera/bin/tessera ]] || fail "tessera is not in PATH"
ldconfig
ldconfig -p | grep -q /usr/lib/tessera && fail "ld.so finds our libcuda.so.1 by itself"
for package in tessera tesserad; do
  has_licences /usr/share/doc/$package/licences liblz4-dev libprotobuf-dev libspdlog-dev libzstd-dev nlohmann-json3-dev
done
getent group tessera >/dev/null || fail "no group tessera"
systemd-analyze verify /usr/lib/systemd/system/tesserad.service || fail "systemd refuses the unit"
exposure=$(systemd-analyze security --offline=yes --no-pager /usr/lib/systemd/system/tesserad.service | sed -n 's/.*Overall exposure level[^:]*: \([0-9.]*\) .*/\1/p')
grep -q "exposure level $exposure" docs/deploy.md || fail "docs/deploy.md does not say that the exposure level is $exposure"
echo "figure systemd_exposure $exposure"
# Every shell completes what --help says, and each command has a page that says it, too.
expected=$(tessera run --help | grep -oE -- '--pri[a-z-]*' | sort -u)
complete=$(bash -c 'source /usr/share/bash-completion/bash_completion; source /usr/share/bash-completion/completions/tessera
  COMP_WORDS=(tessera ru); COMP_CWORD=1; COMP_LINE="tessera ru"; COMP_POINT=10; _tessera tessera ru tessera; echo ${COMPREPLY[*]}')
[[ $complete == run ]] || fail "completion of 'tessera ru' is '$complete'"
[[ $(HOME=/run fish -c 'complete -C "tessera run --pri"') == "$expected" ]] || fail "fish does not complete 'tessera run --pri'"
[[ $(HOME=/run fish -c 'complete -C "tessera ru"') == run$'\t'* ]] || fail "fish does not complete 'tessera ru'"
HOME=/run python3 tests/integration/engines/complete_in_zsh.py "tessera ru" "tessera run " || fail "zsh does not complete 'tessera ru'"
HOME=/run python3 tests/integration/engines/complete_in_zsh.py "tessera run --pri" "tessera run $expected" || fail "zsh does not complete 'tessera run --pri'"
for command in $(tessera --help | sed -n '/^Subcommands:/,$s/^  \([a-z-]*\) .*/\1/p'); do
  [[ $command != ptxas ]] || continue  # the toolkit's
  zcat "/usr/share/man/man1/tessera-$command.1.gz" | sed 's/\\-/-/g; s/\\fB//g; s/\\fR//g' >/run/page
  for option in $(tessera "$command" --help | grep -oE -- '--[a-z][a-z-]*' | sort -u); do
    grep -q -- "$option" /run/page || fail "tessera-$command(1) does not speak of $option"
  done
done

# Two jobs; the packages are installed again and the daemon restarted under them.
mkdir -p /run/tessera
daemon
[[ -n $(find /run/tessera -type s -group tessera -perm 660) ]] || fail "group tessera may not use the control socket"
tessera run --gpu soft -- /usr/lib/tessera/bin/batch_trainer --steps 4 --checksum-steps 4 >/run/trainer.alone
tessera run --gpu soft -- /usr/lib/tessera/bin/latency_service --rate 50 --requests 50 >/run/service.alone
tessera run --gpu soft --name trainer -- /usr/lib/tessera/bin/batch_trainer --seconds 600 --checksum-steps 4 >/run/trainer.out 2>&1 &
trainer=$!
tessera run --gpu soft --priority high --name service -- /usr/lib/tessera/bin/latency_service --rate 5 --requests 50 >/run/service.out 2>&1 &
service=$!
until_clients "service:5 trainer:0"
until_protected
dpkg -i build/package/debs/*.deb >/run/upgrade.log 2>&1 || { cat /run/upgrade.log >&2; fail "does not upgrade"; }
kill $daemon_pid && wait $daemon_pid || true
daemon
until_clients "*trainer:0"
kill -TERM $trainer
wait $trainer || { cat /run/trainer.out >&2; fail "the upgrade ended the trainer"; }
wait $service || { cat /run/service.out >&2; fail "the upgrade ended the service"; }
same_results
tessera run --gpu soft --priority fast -- true 2>/run/bad.out && fail "--priority fast is accepted"
grep -q best-effort /run/bad.out || fail "--priority fast is refused without a remedy: $(cat /run/bad.out)"
tessera run --gpu soft --name killed -- /usr/lib/tessera/bin/batch_trainer --seconds 600 >/dev/null 2>&1 & killed=$!
until_clients killed:0
kill -KILL $killed
until_clients ""
kill $daemon_pid && wait $daemon_pid || true

echo '# mine' >>/etc/tessera/tesserad.toml
dpkg -r tessera tesserad >/run/remove.log 2>&1 || { cat /run/remove.log >&2; fail "does not remove"; }
grep -q mine /etc/tessera/tesserad.toml || fail "removing took the configuration"
dpkg -P tesserad >/run/purge.log 2>&1 || { cat /run/purge.log >&2; fail "does not purge"; }
left=$(comm -13 <(echo "$before") <(changed) | grep -vE '^etc.changed/(group|gshadow)-?$|/__pycache__/' || true)
left=$(for file in $left; do [[ -c $TESSERA_OVERLAY/$file ]] || echo "$file"; done)
[[ -z $left ]] || fail "left behind: $left"
echo "package: ok"
