#!/usr/bin/env bash
# Debian's real podman and runc: two containers share the software GPU by `--device tessera.dev/gpu=LEVEL`; the image, a
# bare root folder, has nothing of Tessera.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
in_overlay
fetch podman runc musl-tools
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart >/dev/null
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
  pod run --rm --runtime runc --network none --name "$name" "${gpu[@]}" "${command[@]}" --rootfs "${image:-/run/image}" "$@"
}

mkdir -p /run/tessera /etc/cdi
tesserad --system 2>/run/tesserad.log &
for _ in {1..200}; do [[ -S /run/tessera/tesserad.sock ]] && break; sleep 0.05; done
tessera cdi --gpu soft --output /etc/cdi/tessera.json
container probe -- true 2>/run/probe.err || skip "runc starts no container here: $(tail -1 /run/probe.err)"
container wrong --device tessera.dev/gpu=fast -- true 2>/run/wrong.err && fail "a device that is not there is accepted"
grep -q 'tessera.dev/gpu=fast' /run/wrong.err || fail "podman does not say which device is missing: $(cat /run/wrong.err)"
# A newer version of CDI changes the file's version only. Runtimes older than it refuse the file (docs/deploy.md).
variables() { container version --device tessera.dev/gpu=high -- env 2>/run/version.err | grep '^TESSERA' | sort; }
variables >/run/by_oldest || true
[[ -s /run/by_oldest ]] || fail "no variable of the specification is set: $(cat /run/version.err)"
tessera cdi --gpu soft --cdi-version 1.1.0 --output /etc/cdi/tessera.json
if variables >/run/by_newest; then
  cmp /run/by_oldest /run/by_newest || fail "CDI 1.1.0 gives other variables than 0.3.0"
else
  grep -q 'unresolvable CDI devices' /run/version.err || fail "podman refuses CDI 1.1.0: $(cat /run/version.err)"
  echo "podman: $(podman --version | sed 's/.* //') takes CDI 0.3.0, not 1.1.0"
fi
tessera cdi --gpu soft --output /etc/cdi/tessera.json

# Images of other libcs: programs start, with the library where the loader takes it.
mkdir -p /run/musl/{etc,lib,proc,run,tmp}
cp -L /lib/ld-musl-x86_64.so.1 /run/musl/lib
musl-gcc tests/loader/hosts/program.c -o /run/musl/program
[[ $(image=/run/musl container musl --device tessera.dev/gpu=high -- /program libcuda.so.1 2>/run/musl.err) == $'init -1\nhello' ]] ||
  fail "a program does not start in an image with musl: $(cat /run/musl.err)"
if old_glibc /run/old; then
  mkdir -p /run/old/{etc,proc,run,tmp}
  cc -B build/release/glibc-2.17/ tests/loader/hosts/program.c -o /run/old/program -Wl,--no-as-needed -lpthread -ldl
  # The software GPU's driver is of this machine's glibc: the library answers that there is none.
  [[ $(image=/run/old container old --device tessera.dev/gpu=high -- /program libcuda.so.1 2>/run/old.err) == $'init 100\nhello' ]] ||
    fail "a program does not start with glibc 2.31: $(cat /run/old.err)"
else
  echo "podman: not tried on an older glibc, Debian 11 cannot be fetched: $(tail -1 /run/apt.log)"
fi

# A container's own preloads stay, and come first.
cc -shared -o /run/image/programs/own.so -xc - <<<'int of_the_container;'
container own --device tessera.dev/gpu=high -e LD_PRELOAD=/programs/own.so -- cat /proc/self/maps >/run/maps
for library in /programs/own.so /usr/lib/tessera/lib/libtessera.so; do
  grep -q " $library$" /run/maps || fail "a container with an LD_PRELOAD of its own has no $library"
done

tessera run --gpu soft -- batch_trainer --steps 4 --checksum-steps 4 >/run/trainer.alone
tessera run --gpu soft -- latency_service --rate 50 --requests 40 >/run/service.alone
container trainer --device tessera.dev/gpu=best-effort -- /programs/batch_trainer --seconds 600 --checksum-steps 4 >/run/trainer.out 2>&1 &
trainer=$!
container service --device tessera.dev/gpu=high -- /programs/latency_service --rate 5 --requests 40 >/run/service.out 2>&1 &
service=$!
until_clients "container:0 container:5"
until_protected
tessera exporter --once >/run/metrics
grep -q 'container_id="[0-9a-f]\{64\}"' /run/metrics || fail "the exporter does not name the containers: $(grep client_launches /run/metrics)"
wait $service || { cat /run/service.out >&2; fail "the service failed"; }
pod kill --signal TERM trainer >/dev/null
wait $trainer || { cat /run/trainer.out >&2; fail "the trainer failed"; }
same_results

# A container that is killed leaves nothing.
container killed --device tessera.dev/gpu=best-effort -- /programs/batch_trainer --seconds 600 >/dev/null 2>&1 &
until_clients container:0
pod kill killed >/dev/null
until_clients ""
echo "podman: ok, $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
