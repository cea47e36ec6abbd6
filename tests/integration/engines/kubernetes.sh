#!/usr/bin/env bash
# The device plugin below a kubelet that speaks its protocol, with Debian's gRPC; Debian's kubectl reads the manifests.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
in_overlay
fetch libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler python3-yaml $(command -v kubectl >/dev/null || echo kubernetes-client)
# A folder of its own: what is found here is not there outside.
cmake --preset release -B build/engines >/dev/null
cmake --build build/engines --target integration_kubernetes >/dev/null
TESSERA_SOFTGPU_STRICT=1 build/engines/bin/integration_kubernetes >/run/kubernetes.log 2>&1 || { cat /run/kubernetes.log >&2; fail "the tests failed"; }

kubectl kustomize integrations/kubernetes >/run/manifests.yaml || fail "kubectl does not take the manifests"
python3 - /run/manifests.yaml integrations/kubernetes/example.yaml build/engines/bin/tessera-device-plugin <<'PYTHON' || fail "the manifests do not hold together"
import re, subprocess, sys, yaml
manifests, example = (list(yaml.safe_load_all(open(path))) for path in sys.argv[1:3])
sets = {m["metadata"]["name"]: m["spec"]["template"] for m in manifests if m["kind"] == "DaemonSet"}
assert set(sets) == {"tesserad", "tessera-device-plugin"}, set(sets)
mounted = {}
for name, template in sets.items():
    spec = template["spec"]
    volumes = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"]}
    for container in spec["containers"] + spec.get("initContainers", []):
        assert container["image"] == "tessera:0.2.0", container["image"]
        for mount in container["volumeMounts"]:
            mounted[name, mount["mountPath"]] = volumes[mount["name"]]
# The defaults of the plugin are folders that it is given, and those of the node.
text = subprocess.run([sys.argv[3], "--help"], capture_output=True, text=True, check=True).stdout
for option, of in (("kubelet", None), ("cdi", None), ("socket", "/run/tessera")):
    path = of or re.search(rf"--{option} TEXT[ =\[]+([^]\s]+)", text)[1]
    assert mounted["tessera-device-plugin", path] == path, (option, path)
assert mounted["tesserad", "/run/tessera"] == "/run/tessera" and mounted["tesserad", "/node"] == "/usr/lib/tessera"
offered = {"tessera.dev/" + word.split("=")[0] for word in sets["tessera-device-plugin"]["spec"]["containers"][0]["args"] if "=" in word}
asked = {name for pod in example for c in pod["spec"]["containers"] for name in c["resources"]["limits"]}
assert asked == offered, (asked, offered)
PYTHON
echo "kubernetes: ok, $(sed -n 's/^\[  PASSED  \] //p' /run/kubernetes.log)"
