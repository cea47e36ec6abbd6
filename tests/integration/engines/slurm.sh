#!/usr/bin/env bash
# Debian's real munge, slurmctld and slurmd on this machine: two jobs share the software GPU through the SPANK plugin, which is built
# and installed by the lines of docs/deploy.md.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
in_overlay
fetch munge slurmctld slurmd slurm-client libslurm-dev
cmake --preset release -B build/engines >/dev/null
cmake --build build/engines --target quickstart >/dev/null
export PATH="$PWD/build/engines/bin:$PATH"

host=$(hostname -s)
mkdir -p /run/munge /run/tessera /run/slurm && chown munge /run/munge
mkdir -p /etc/slurm
# As written, but for the folders of this build.
echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/answers
lines=$(block "apt-get install libslurm-dev") || fail "the page has changed"
lines=${lines//"cmake --preset release"/"cmake --preset release -B build/engines"}
lines=${lines//"--build --preset release"/"--build build/engines"}
lines=${lines//"build/release"/"build/engines"}
bash -e -c "${lines//"prefix=/usr/lib/tessera"/"prefix=$PWD/build/engines"}" >/run/lines.log 2>&1 || fail "the lines of docs/deploy.md fail"
cat >/etc/slurm/slurm.conf <<CONFIG
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/linear
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/slurmd.log
PlugStackConfig=/etc/slurm/plugstack.conf
Epilog=/run/epilog
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=batch Nodes=$host OverSubscribe=FORCE:8 Default=YES State=UP
PartitionName=serve Nodes=$host OverSubscribe=FORCE:8 State=UP
CONFIG
printf '#!/bin/sh\nPATH=%s:$PATH /etc/slurm/tessera_epilog.sh 2>>/run/epilog.log\necho $SLURM_JOB_ID >>/run/epilog.done\n' "$PWD/build/engines/bin" >/run/epilog
chmod +x /run/epilog

runuser -u munge -- munged --force || fail "munged does not start"
tesserad --system 2>/run/tesserad.log &
slurmctld -D >/dev/null 2>&1 &
slurmd -D >/dev/null 2>&1 &
for _ in {1..300}; do sinfo -h -o %T 2>/dev/null | grep -q idle && break; sleep 0.1; done
sinfo -h -o %T | grep -q idle || fail "no node is idle: $(sinfo 2>&1)"

srun --tessera=fast true 2>/run/bad.err && fail "--tessera=fast is accepted"
grep -q 'none of: high, best-effort' /run/bad.err || fail "--tessera=fast is refused without a remedy: $(cat /run/bad.err)"
srun --tessera=high --tessera-slo=soon true 2>/run/bad.err && fail "--tessera-slo=soon is accepted"
grep -q '20ms' /run/bad.err || fail "--tessera-slo=soon is refused without a remedy: $(cat /run/bad.err)"
[[ -z $(srun --tessera=off printenv TESSERA_RUN) ]] || fail "--tessera=off makes a client"
[[ $(srun printenv TESSERA_PRIORITY) == 0 ]] || fail "partition batch is not best-effort"
[[ -z $(srun -p serve printenv TESSERA_RUN) ]] || fail "partition serve is managed"

srun tessera run --passthrough --gpu soft -- batch_trainer --steps 4 --checksum-steps 4 >/run/trainer.alone
srun tessera run --passthrough --gpu soft -- latency_service --rate 50 --requests 40 >/run/service.alone
srun --job-name trainer batch_trainer --seconds 600 --checksum-steps 4 >/run/trainer.out 2>&1 & trainer=$!
srun -p serve --tessera=high --tessera-slo=500ms latency_service --rate 5 --requests 40 >/run/service.out 2>&1 & service=$!
until_clients "job-*:? job-*:?"
until_protected
wait $service || { cat /run/service.out >&2; fail "the service failed"; }
scancel --signal TERM --name trainer
wait $trainer || { cat /run/trainer.out >&2; fail "the trainer failed"; }
same_results
until_clients ""

# A job that is cancelled leaves nothing.
sbatch -p batch --wrap "srun batch_trainer --seconds 600" -o /run/cancelled.out >/dev/null
until_clients "job-*:0"
scancel -u root
until_clients ""
for _ in {1..100}; do [[ $(wc -l </run/epilog.done) -ge 8 ]] && break; sleep 0.1; done
[[ ! -s /run/epilog.log ]] || fail "the epilog found: $(cat /run/epilog.log)"
echo "slurm: ok, $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
