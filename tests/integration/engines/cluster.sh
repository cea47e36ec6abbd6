#!/usr/bin/env bash
# docs/deploy.md, "Kubernetes", line by line as it is written, on a cluster of one node: Kubernetes 1.20 built from Debian's source,
# Debian's etcd, containerd, runc and registry, kubectl of Debian 13. The node has the software GPU; two pods share it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
[[ -n ${TESSERA_OVERLAY:-} ]] || ((EUID != 0)) || scripts/package.sh deb >/dev/null
in_overlay
fetch podman runc buildah debootstrap protobuf-compiler-grpc libgrpc++-dev libprotobuf-dev protobuf-compiler golang-go etcd-server \
  containerd containernetworking-plugins docker-registry iptables dpkg-dev python3-yaml
bare=$(bare_debian) || skip "Debian cannot be fetched: $(tail -1 /run/debootstrap.log)"
tree=$PWD

# Kubernetes, kept below build/engines: Debian 12 packages its client only, but has the source of all of it; kubectl is of Debian 13,
# because what the page writes for kustomize is newer than 1.20.
kubernetes=$PWD/build/engines/kubernetes
build_kubernetes() {
  local mirror work=$kubernetes.work
  mirror=$(apt-get indextargets --format '$(REPO_URI)' "Origin: Debian" "Created-By: Packages" | head -1)
  local signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
  printf '%s\n' "deb-src $signed $mirror bookworm main" "deb $signed $mirror trixie main" >/etc/apt/sources.list.d/kubernetes.list
  apt-get update -qq >/run/kubernetes.log 2>&1 && rm -rf "$work" && mkdir -p "$work"/{bin,go/src/k8s.io,kubectl} || return
  (
    set -e
    cd "$work"
    apt-get download -qq kubectl/trixie && dpkg -x kubectl_*.deb kubectl && cp kubectl/usr/bin/kubectl bin
    apt-get source -qq --download-only kubernetes/bookworm
    tar -C go/src/k8s.io -xf kubernetes_*.orig.tar.gz && mv go/src/k8s.io/kubernetes-* go/src/k8s.io/kubernetes
    cd go/src/k8s.io/kubernetes
    export GOPATH=$work/go GO111MODULE=off GOFLAGS= CGO_ENABLED=0 GOCACHE=$work/cache
    gcc -Os -static -DVERSION=3.2 -o "$work/bin/pause" build/pause/linux/pause.c
    # The API server's OpenAPI definitions are generated while it is built.
    go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep -rl --include='*.go' '+k8s:openapi-gen=' staging/src/k8s.io pkg | grep -v '_test.go\|/kube-openapi/\|code-generator\|/sample-' |
      xargs -n1 dirname | sort -u | sed 's#^staging/src/#k8s.io/kubernetes/vendor/#; s#^pkg#k8s.io/kubernetes/pkg#' | paste -sd,)
    "$work/openapi-gen" -i "$inputs" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi -h /dev/null --report-filename /dev/null --output-base "$work/go/src"
    version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
    go build -tags "providerless dockerless" -o "$work/bin/" -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" \
      ./cmd/kube-apiserver ./cmd/kube-controller-manager ./cmd/kube-scheduler ./cmd/kubelet
  ) >>/run/kubernetes.log 2>&1 || return
  mkdir "$kubernetes" && mv "$work"/bin/* "$kubernetes" && rm -rf "$work"
}
[[ -d $kubernetes ]] || build_kubernetes || { rm -rf "$kubernetes.work"; skip "Kubernetes cannot be built: $(tail -1 /run/kubernetes.log)"; }
export PATH="$kubernetes:$PATH"

until_done() {  # what it waits for, command...
  local what=$1
  shift
  for _ in {1..1200}; do "$@" >/run/until 2>&1 && return; sleep 0.25; done
  fail "$what: $(cat /run/until)"
}

# The registry, and in it what the sandboxes of pods run, and the image that the page builds.
registry=localhost:5000
printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: /run/registry}}\nhttp: {addr: "%s"}\n' $registry >/run/registry.yml
docker-registry serve /run/registry.yml >/run/registry.log 2>&1 &
export STORAGE_DRIVER=vfs
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/state"\ngraphroot = "/run/store"\n' >/etc/containers/storage.conf
printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' $registry >/etc/containers/registries.conf
build=(podman build --runtime runc --network host --pull=never)
printf 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n' | "${build[@]}" -t $registry/pause -f - "$kubernetes" >/run/build.log 2>&1 || fail "podman builds nothing"
tar -C "$bare" -c . | podman import - docker.io/library/debian:12-slim >/dev/null || fail "the base cannot be imported"
# A folder of its own: what is found here is not there outside. The image takes the program from where the page's build puts it.
cmake --preset release -B build/engines >/dev/null
cmake --build build/engines --target tessera-device-plugin >/dev/null
mkdir -p build/release && mount -t tmpfs none build/release
install -D build/engines/bin/tessera-device-plugin build/release/bin/tessera-device-plugin
lines=$(block "podman build" | grep "^podman")
lines=${lines/#podman build/${build[*]}}
bash -e -c "${lines//REGISTRY/$registry}" >>/run/build.log 2>&1 || fail "the image cannot be built and pushed"
# The jobs' image has the two programs and nothing else of Tessera.
printf 'FROM %s/tessera:0.2.0 AS given\nFROM docker.io/library/debian:12-slim\nCOPY --from=given /usr/lib/tessera/bin/batch_trainer /usr/lib/tessera/bin/latency_service /programs/\n' $registry |
  "${build[@]}" -t $registry/jobs -f - "$kubernetes" >>/run/build.log 2>&1 || fail "the jobs' image cannot be built"
podman push -q $registry/pause && podman push -q $registry/jobs

# The control plane.
page=$(block "resources: [TREE") && commands=$(block "kubectl apply -k") || fail "the page has changed"
mkdir /run/cluster && cd /run/cluster
openssl genrsa -out accounts.key 2048 2>/dev/null
echo 'secret,admin,admin,system:masters' >tokens.csv
cat >config <<'CONFIG'
{apiVersion: v1, kind: Config, current-context: here, contexts: [{name: here, context: {cluster: here, user: admin}}],
 clusters: [{name: here, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}], users: [{name: admin, user: {token: secret}}]}
CONFIG
export KUBECONFIG=$PWD/config
etcd --data-dir etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 >/run/etcd.log 2>&1 &
kube-apiserver --etcd-servers http://127.0.0.1:2379 --cert-dir certificates --bind-address 127.0.0.1 --secure-port 6443 --token-auth-file tokens.csv \
  --authorization-mode AlwaysAllow --allow-privileged --kubelet-preferred-address-types InternalIP --service-cluster-ip-range 10.96.0.0/24 --service-account-issuer https://here \
  --service-account-signing-key-file accounts.key --service-account-key-file accounts.key >/run/apiserver.log 2>&1 &
until_done "the API server is not ready" kubectl get --raw /readyz
kube-controller-manager --kubeconfig config --service-account-private-key-file accounts.key --leader-elect=false >/run/controllers.log 2>&1 &
kube-scheduler --kubeconfig config --leader-elect=false >/run/scheduler.log 2>&1 &

# The node. Its runtime class `nvidia` adds no driver: the GPU is a process of the node, and its driver is Tessera's.
mount --make-rshared /
mkdir -p /run/containerd.root /etc/cni/net.d /var/lib/kubelet
cat >/etc/cni/net.d/10-pods.conflist <<'CONFIG'
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/addresses", "subnet": "10.244.0.0/24"}}]}
CONFIG
cat >containerd.toml <<CONFIG
version = 2
root = "/run/containerd.root"
state = "/run/containerd.state"
[grpc]
  address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$registry/pause"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]
    runc.runtime_type = "io.containerd.runc.v2"
    nvidia.runtime_type = "io.containerd.runc.v2"
CONFIG
containerd --config containerd.toml >/run/containerd.log 2>&1 &
cat >kubelet.yaml <<'CONFIG'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
cgroupsPerQOS: false
enforceNodeAllocatable: []
evictionHard: {memory.available: 10Mi, nodefs.available: 0.1%, imagefs.available: 0.1%}
CONFIG
start_kubelet() {
  kubelet --config kubelet.yaml --kubeconfig config --hostname-override node --container-runtime remote --container-runtime-endpoint unix:///run/containerd.sock \
    >>/run/kubelet.log 2>&1 & kubelet=$!
}
start_kubelet
ready() { kubectl wait --for condition=Ready --timeout 1s node/node; }
until_done "the node is not ready" ready
kubectl label node node nvidia.com/gpu.present=true >/dev/null
kubectl apply -f - >/dev/null <<<'{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}'

# The page's overlay, and over it what this node differs in.
mkdir page here
sed "s#TREE#$(realpath --relative-to page "$tree")#; s#REGISTRY#$registry#" <<<"$page" >page/kustomization.yaml
cat >here/kustomization.yaml <<'CONFIG'
resources: [../page]
patches:
  - target: {kind: DaemonSet, name: tessera-device-plugin}
    patch: |-
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: --without-cdi}
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: --gpu=soft}
CONFIG
(cd here && eval "$(grep -- "^kubectl apply -k" <<<"$commands")") >/run/apply.log 2>&1 || fail "the manifests are not accepted: $(cat /run/apply.log)"
offers() { [[ $(eval "$(grep "^kubectl get nodes" <<<"$commands")" | tr -s ' ') == *"node $1"* ]]; }
until_done "the node offers no GPU" offers 1
[[ $(kubectl get node node -o 'jsonpath={.status.allocatable.tessera\.dev/best-effort}') == 8 ]] || fail "not eight best-effort pods may share the GPU"

mkdir /run/gpu && cp "$tree/profiles/gpus/test4.toml" /run/gpu
export TESSERA_SOFTGPU_DIR=/run/gpu TESSERA_SOFTGPU_GPU=/run/gpu/test4.toml TESSERA_SOFTGPU_LINGER_MS=600000
tessera() { /usr/lib/tessera/bin/tessera "$@"; }  # as an operator on the node
# Alone, on the node. The software GPU, a process, is the node's from then on: one that a pod starts would end with it.
alone() { tessera run --gpu soft -- "/usr/lib/tessera/bin/$@"; }
alone batch_trainer --steps 4 --checksum-steps 4 >/run/trainer.alone
alone latency_service --rate 50 --requests 40 >/run/service.alone

# The page's two pods, with the image and the programs of this test; of the node they see the software GPU.
pods() {  # name=PROGRAM..., each like the page's pod of that name or, after a colon, of another one
  python3 - "$tree/integrations/kubernetes/example.yaml" $registry/jobs "$@" <<'PYTHON'
import copy, json, os, sys, yaml
example = {pod["metadata"]["name"]: pod for pod in yaml.safe_load_all(open(sys.argv[1]))}
for word in sys.argv[3:]:
    (name, like), command = (word.split("=", 1)[0].split(":") * 2)[:2], word.split("=", 1)[1]
    pod = copy.deepcopy(example[like])
    pod["metadata"]["name"] = name
    pod["spec"] |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "volumes": [{"name": "gpu", "hostPath": {"path": "/run/gpu"}}]}
    container = pod["spec"]["containers"][0]
    container |= {"image": sys.argv[2], "command": command.split(), "volumeMounts": [{"name": "gpu", "mountPath": "/run/gpu"}]}
    container["env"] += [{"name": k, "value": v} for k, v in os.environ.items() if k.startswith("TESSERA_SOFTGPU_")]
    print("---\n" + json.dumps(pod))
PYTHON
}
start() { pods "$@" >/run/pods.yaml && kubectl apply -f /run/pods.yaml >/run/apply.log 2>&1 || fail "pods are not accepted: $(cat /run/apply.log)"; }
ended() { [[ $(kubectl get pod "$1" -o 'jsonpath={.status.phase}') == Succeeded ]] || { kubectl logs "$1" | tail -2; return 1; }; }

start "trainer=/programs/batch_trainer --seconds 600 --checksum-steps 4" "service=/programs/latency_service --rate 5 --requests 40"
until_clients "container:0 container:5"
until_protected
until_done "the service does not end" ended service
kubectl logs service >/run/service.out
kubectl exec trainer -- sh -c 'kill -TERM 1'
until_done "the trainer does not end" ended trainer
kubectl logs trainer >/run/trainer.out
same_results
kubectl delete pod trainer service --wait=true >/dev/null

# A pod that is killed leaves nothing.
start "killed:trainer=/programs/batch_trainer --seconds 600"
until_clients container:0
kubectl delete pod killed --grace-period 0 --force >/dev/null 2>&1
until_clients ""

# A pod that asks for more than there is waits, and is told the missing resource.
pods "greedy:service=/programs/latency_service" | sed 's#"tessera.dev/high": 1#"tessera.dev/high": 2#' | kubectl apply -f - >/dev/null
told() { kubectl describe pod greedy | grep 'Insufficient tessera.dev/high'; }
until_done "nobody says what is missing" told
kubectl delete pod greedy >/dev/null

# The kubelet comes back and knows the shares again; while tesserad is away none are offered.
kill $kubelet && wait $kubelet || true
start_kubelet
until_done "the node offers no GPU after its kubelet came back" offers 1
kubectl -n tessera-system delete daemonset tesserad >/dev/null
until_done "the node offers a GPU that nobody schedules" offers 0
echo "cluster: ok, Kubernetes $(kubectl get node node -o 'jsonpath={.status.nodeInfo.kubeletVersion}'), $(sed -n 's/^p99/p99/p' /run/service.out | head -1)"
