#!/usr/bin/env bash
# Debian's real Prometheus reads the exporter beside two clients, joins by UUID, and its alert fires when the daemon goes.
# Nothing is installed: the package is unpacked into build/engines.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
prometheus=build/engines/prometheus
if [[ ! -x $prometheus/usr/bin/promtool ]]; then
  mkdir -p $prometheus
  (cd $prometheus && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }) >/dev/null 2>&1 ||
    skip "the package cannot be fetched"
  dpkg -x $prometheus/*.deb $prometheus
fi
export PATH="$PWD/$prometheus/usr/bin:$PWD/build/release/bin:$PATH"
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart >/dev/null

promtool check rules packaging/prometheus/tessera.rules.yml
promtool test rules packaging/prometheus/tests.yml
python3 -m json.tool packaging/prometheus/dashboard.json >/dev/null

folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
export TESSERA_SOCKET=$folder/tesserad.sock
cat >"$folder/prometheus.yml" <<CONFIG
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [$PWD/packaging/prometheus/tessera.rules.yml]
scrape_configs:
  - job_name: tessera
    static_configs: [{targets: ["127.0.0.1:19478"]}]
CONFIG
tesserad --socket "$TESSERA_SOCKET" --foreground 2>/dev/null & daemon=$!
tessera exporter --listen 127.0.0.1:19478 >/dev/null &
prometheus --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/data" --web.listen-address=127.0.0.1:19090 \
  --log.level=error &
for _ in {1..100}; do [[ -S $TESSERA_SOCKET ]] && break; sleep 0.1; done

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
run() { local job=$1; shift; exec tessera run --gpu soft "$@" >"$folder/$job" 2>&1; }

run trainer.alone -- batch_trainer --steps 4 --checksum-steps 4 & wait $!
run service.alone -- latency_service --rate 50 --requests 120 & wait $!
run trainer.out --name trainer -- batch_trainer --seconds 600 --checksum-steps 4 & trainer=$!
run service.out --priority high --name service -- latency_service --rate 3 --requests 120 & service=$!
until_answer 'count(tessera_client_launches_total{name=~"trainer|service"}) == 2' 120
until_answer 'count by (UUID) (tessera_client_launches_total{UUID=~"GPU-.+"}) == 2' 30
until_answer 'rate(tessera_client_launches_total{name="trainer"}[10s]) > 0' 60
# The trainer waits for the service, never the service for it.
until_answer 'tessera_client_holds_total{name="trainer"} > 0 and on(UUID) tessera_client_holds_total{name="service"} == 0' 60
for metric in $(grep -oE 'tessera_[a-z_]+' packaging/prometheus/dashboard.json packaging/prometheus/tessera.rules.yml -h | sort -u); do
  until_answer "$metric" 10
done
wait $service || fail "the service failed: $(cat "$folder/service.out")"
kill -TERM $trainer
wait $trainer || fail "the trainer failed: $(cat "$folder/trainer.out")"
same_results "$folder"

run killed.out --name killed -- batch_trainer --seconds 600 & killed=$!
until_answer 'tessera_client_launches_total{name="killed"} > 0' 60
kill -KILL $killed
until_answer 'absent({__name__=~"tessera_client_.+"})' 30  # of whom nothing is left

# Bad requests.
tessera exporter --listen 127.0.0.1:19090 2>"$folder/bad" && fail "the exporter listens where Prometheus does"
grep -q -- '--listen' "$folder/bad" || fail "an address in use is refused without a remedy: $(cat "$folder/bad")"

[[ -z $(answer 'ALERTS{alertname="TesseraDown"}') ]] || fail "TesseraDown although tesserad runs"
kill $daemon
until_answer 'ALERTS{alertname="TesseraDown",alertstate="firing"}' 90
echo "prometheus: ok, $(sed -n 's/^p99/p99/p' "$folder/service.out" | head -1)"
