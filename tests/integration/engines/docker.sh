#!/usr/bin/env bash
# Debian's real docker (20.10, which knows no CDI): two containers share the software GPU by the mounts and variables of the
# CDI specification, as docs/deploy.md says; the image, a bare root folder, has nothing of Tessera.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
in_overlay
fetch docker.io
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart >/dev/null
prefix=$PWD/build/release
export PATH="/usr/bin:$prefix/bin:$PATH" DOCKER_HOST=unix:///run/docker.sock
dockerd --host $DOCKER_HOST --data-root /run/docker.data --exec-root /run/docker.state --pidfile /run/dockerd.pid --storage-driver vfs \
  --bridge none --iptables=false --ip6tables=false >/run/dockerd.log 2>&1 &
for _ in {1..300}; do docker version >/dev/null 2>&1 && break; sleep 0.1; done
docker version >/dev/null 2>&1 || skip "dockerd does not start here: $(tail -1 /run/dockerd.log)"

# The image: folders for this machine's /usr and for the programs.
mkdir -p /run/image/{usr,etc,proc,sys,dev,run,tmp,programs} /run/programs
for link in bin lib lib64 sbin; do ln -s usr/$link /run/image/$link; done
tar -C /run/image -c . | docker import - machine >/dev/null
cp build/release/bin/{batch_trainer,latency_service,softgpu_arbiter} /run/programs
# A GPU is a device of the host; the software GPU is a process there.
mkdir /run/gpu && cp profiles/gpus/test4.toml /run/gpu
export TESSERA_SOFTGPU_DIR=/run/gpu TESSERA_SOFTGPU_GPU=/run/gpu/test4.toml TESSERA_SOFTGPU_LINGER_MS=600000
gpu=(-v /run/gpu:/run/gpu -e TESSERA_SOFTGPU_DIR -e TESSERA_SOFTGPU_GPU -e TESSERA_SOFTGPU_ARBITER=/programs/softgpu_arbiter)
container() {  # name, options..., --, command...
  local name=$1 options=()
  shift
  while [[ $1 != -- ]]; do options+=("$1"); shift; done
  shift
  docker run --rm --network none --name "$name" -v /usr:/usr:ro -v /run/programs:/programs:ro "${gpu[@]}" "${options[@]}" machine "$@"
}

mkdir -p /run/tessera /etc/cdi
tesserad --system 2>/run/tesserad.log &
for _ in {1..200}; do [[ -S /run/tessera/tesserad.sock ]] && break; sleep 0.05; done
tessera cdi generate --gpu soft --output /etc/cdi/tessera.json
container probe -- true 2>/run/probe.err || skip "docker starts no container here: $(tail -1 /run/probe.err)"

# docs/deploy.md: what Docker before 25 is given.
level() {
  python3 - "$1" <<'PYTHON'
import json, sys
devices = {d["name"]: d["containerEdits"]["env"] for d in json.load(open("/etc/cdi/tessera.json"))["devices"]}
print(*devices[sys.argv[1]], sep="\n")
PYTHON
}
for name in best-effort high; do level $name >/run/$name.env; done
shared=(-v /run/tessera:/run/tessera:ro -v "$prefix/lib:/usr/lib/tessera/lib:ro" -v "$prefix/lib/ld.so.preload:/etc/ld.so.preload:ro")

tessera run --gpu soft -- batch_trainer --steps 4 --checksum-steps 4 >/run/trainer.alone
tessera run --gpu soft -- latency_service --rate 50 --requests 40 >/run/service.alone
container trainer "${shared[@]}" --env-file /run/best-effort.env -- /programs/batch_trainer --seconds 600 --checksum-steps 4 >/run/trainer.out 2>&1 &
trainer=$!
container service "${shared[@]}" --env-file /run/high.env -- /programs/latency_service --rate 5 --requests 40 >/run/service.out 2>&1 &
service=$!
until_clients "container:0 container:5"
until_protected
wait $service || { cat /run/service.out >&2; fail "the service failed"; }
docker kill --signal TERM trainer >/dev/null
wait $trainer || { cat /run/trainer.out >&2; fail "the trainer failed"; }
same_results

# A container that is killed leaves nothing.
container killed "${shared[@]}" --env-file /run/best-effort.env -- /programs/batch_trainer --seconds 600 >/dev/null 2>&1 &
until_clients container:0
docker kill killed >/dev/null
until_clients ""
echo "docker: ok, $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
