#!/usr/bin/env bash
# Debian's real Prometheus reads the exporter beside two clients, joins by UUID, and its alert fires when the daemon goes.
# Nothing is installed: the package is unpacked into build/engines.
set -euo pipefail
cd "$(dirname "$0")/../../.."
prometheus=build/engines/prometheus
if [[ ! -x $prometheus/usr/bin/promtool ]]; then
  mkdir -p $prometheus
  (cd $prometheus && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }) >/dev/null 2>&1 ||
    { echo "prometheus: skipped: the package cannot be fetched"; exit 77; }
  dpkg -x $prometheus/*.deb $prometheus
fi
export PATH="$PWD/$prometheus/usr/bin:$PWD/build/release/bin:$PATH"
cmake --preset release >/dev/null && cmake --build --preset release --target quickstart >/dev/null

promtool check rules packaging/prometheus/tessera.rules.yml
promtool test rules packaging/prometheus/tests.yml
python3 -m json.tool packaging/prometheus/dashboard.json >/dev/null

folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
export TESSERA_SOCKET=$folder/tesserad.sock
fail() { echo "prometheus: $*" >&2; exit 1; }
cat >"$folder/prometheus.yml" <<CONFIG
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [$PWD/packaging/prometheus/tessera.rules.yml]
scrape_configs:
  - job_name: tessera
    static_configs: [{targets: ["127.0.0.1:19478"]}]
CONFIG
tesserad --socket "$TESSERA_SOCKET" --foreground 2>/dev/null & daemon=$!
tessera exporter --listen 127.0.0.1:19478 & 
prometheus --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/data" --web.listen-address=127.0.0.1:19090 \
  --log.level=error &
for _ in {1..100}; do [[ -S $TESSERA_SOCKET ]] && break; sleep 0.1; done
tessera run --gpu soft --name trainer -- batch_trainer --seconds 600 >/dev/null &
tessera run --gpu soft --priority high --name service -- latency_service --rate 5 --seconds 600 >/dev/null &

answer() { python3 - "$1" <<'ASK'
import json, sys, urllib.parse, urllib.request
url = "http://127.0.0.1:19090/api/v1/query?query=" + urllib.parse.quote(sys.argv[1])
try:
    print(" ".join(row["value"][1] for row in json.load(urllib.request.urlopen(url, timeout=5))["data"]["result"]))
except OSError:
    pass
ASK
}
until_answer() {  # query, seconds
  for ((i = 0; i < $2; i++)); do [[ -n $(answer "$1") ]] && return; sleep 1; done
  fail "no answer to: $1"
}
until_answer 'count(tessera_client_launches_total{name=~"trainer|service"}) == 2' 120
until_answer 'count by (UUID) (tessera_client_launches_total{UUID=~"GPU-.+"}) == 2' 30
until_answer 'rate(tessera_client_launches_total{name="trainer"}[10s]) > 0' 60
for metric in $(grep -oE 'tessera_[a-z_]+' packaging/prometheus/dashboard.json packaging/prometheus/tessera.rules.yml -h | sort -u); do
  until_answer "$metric" 10
done
[[ -z $(answer 'ALERTS{alertname="TesseraDown"}') ]] || fail "TesseraDown although tesserad runs"
kill $daemon
until_answer 'ALERTS{alertname="TesseraDown",alertstate="firing"}' 90
echo "prometheus: ok"
