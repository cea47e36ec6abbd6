#!/usr/bin/env bash
# Debian's real podman and runc: two containers share the software GPU by `--device tessera.dev/gpu=LEVEL`; the image, a
# bare root folder, has nothing of Tessera.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
in_overlay
fetch podman runc
cmake --preset release >/dev/null && cmake --build --preset release --target quickstart >/dev/null
export PATH="$PWD/build/release/bin:$PATH"

# The image: this machine's /usr, and the two programs.
mkdir -p /run/image/{usr,etc,proc,sys,dev,run,tmp,programs}
for link in bin lib lib64 sbin; do ln -s usr/$link /run/image/$link; done
mount --bind /usr /run/image/usr
cp build/release/bin/{batch_trainer,latency_service,softgpu_arbiter} /run/image/programs
# A GPU is a device of the host; the software GPU is a process there.
mkdir /run/gpu && cp profiles/gpus/test4.toml /run/gpu
export TESSERA_SOFTGPU_DIR=/run/gpu TESSERA_SOFTGPU_GPU=/run/gpu/test4.toml TESSERA_SOFTGPU_LINGER_MS=600000
gpu=(-v /run/gpu:/run/gpu -e TESSERA_SOFTGPU_DIR -e TESSERA_SOFTGPU_GPU -e TESSERA_SOFTGPU_ARBITER=/programs/softgpu_arbiter)
pod() { podman --storage-driver vfs --root /run/store --runroot /run/state --cgroup-manager cgroupfs "$@"; }
container() {  # name, options...
  local name=$1 command=()
  shift
  while [[ $1 != -- ]]; do command+=("$1"); shift; done
  shift
  pod run --rm --runtime runc --network none --name "$name" "${gpu[@]}" "${command[@]}" --rootfs /run/image "$@"
}

mkdir -p /run/tessera /etc/cdi
tesserad --system 2>/run/tesserad.log &
for _ in {1..200}; do [[ -S /run/tessera/tesserad.sock ]] && break; sleep 0.05; done
tessera cdi --gpu soft --output /etc/cdi/tessera.json
container probe -- true 2>/run/probe.err || skip "runc starts no container here: $(tail -1 /run/probe.err)"
container wrong --device tessera.dev/gpu=fast -- true 2>/run/wrong.err && fail "a device that is not there is accepted"

clients() { tessera ps --json | python3 -c 'import json, sys; print(*sorted(str(c["priority"]) for c in json.load(sys.stdin)["clients"]))'; }

tessera run --gpu soft -- batch_trainer --steps 4 --checksum-steps 4 >/run/alone.out
container trainer --device tessera.dev/gpu=best-effort -- /programs/batch_trainer --seconds 12 --checksum-steps 4 >/run/trainer.out 2>&1 &
trainer=$!
container service --device tessera.dev/gpu=high -- /programs/latency_service --rate 5 --requests 40 >/run/service.out 2>&1 &
service=$!
for _ in {1..300}; do [[ $(clients) == "0 5" ]] && break; sleep 0.1; done
[[ $(clients) == "0 5" ]] || fail "the containers are not clients: '$(clients)' $(cat /run/trainer.out /run/service.out)"
tessera exporter --once | grep -q 'container_id="[0-9a-f]\{64\}"' || fail "the exporter does not name the containers"
wait $trainer || { cat /run/trainer.out >&2; fail "the trainer failed"; }
wait $service || { cat /run/service.out >&2; fail "the service failed"; }
[[ $(checksum /run/alone.out) == "$(checksum /run/trainer.out)" ]] || fail "checksums differ: $(cat /run/alone.out /run/trainer.out)"

# A container that is killed leaves nothing.
container killed --device tessera.dev/gpu=best-effort -- /programs/batch_trainer --seconds 600 >/dev/null 2>&1 &
for _ in {1..300}; do [[ $(clients) == 0 ]] && break; sleep 0.1; done
[[ $(clients) == 0 ]] || fail "the third container is no client"
pod kill killed >/dev/null
for _ in {1..300}; do [[ -z $(clients) ]] && break; sleep 0.1; done
[[ -z $(clients) ]] || fail "the killed container is still a client"
echo "podman: ok, $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
