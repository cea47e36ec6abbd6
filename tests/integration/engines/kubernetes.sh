#!/usr/bin/env bash
# The device plugin below a stand-in of the kubelet that speaks its protocol, with Debian's gRPC. A real kubelet: cluster.sh.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
in_overlay
fetch libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler
# A folder of its own: what is found here is not there outside.
cmake --preset release -B build/engines >/dev/null
cmake --build build/engines --target integration_kubernetes >/dev/null
TESSERA_SOFTGPU_STRICT=1 build/engines/bin/integration_kubernetes >/run/kubernetes.log 2>&1 || { cat /run/kubernetes.log >&2; fail "the tests failed"; }
echo "kubernetes: ok, $(sed -n 's/^\[  PASSED  \] //p' /run/kubernetes.log)"
