#!/usr/bin/env bash
# Answers the questions that only hardware answers (docs/hardware-status.md) with prebuilt programs, one JSON file per
# question and summary.json, each program with a time limit. Changes no device setting; MPS only in folders of its own.
set -u

usage() {
  cat <<'TEXT'
usage: scripts/gpu/lab.sh --build DIR [--out DIR] [--only headline,H1,H2,...] [--limit SECONDS] [--budget SECONDS]
                          [--headline SECONDS] [--bundle] [--rehearse]

  --build DIR         build folder (cmake --preset device; ninja) or a folder of scripts/gpu/stage.sh
  --out DIR           where the answers go (default DIR/lab/<date>)
  --only LIST         only these questions
  --limit SECONDS     per program (default 120)
  --budget SECONDS    for all; what does not fit any more is skipped
  --headline SECONDS  of these for the headline (default 240), which needs PyTorch
  --bundle            few files: answers.json with all answers so far, answers.tar.gz at the end
  --rehearse          on the software GPU: shows that every program works, answers nothing
TEXT
}

build="" out="" only="" limit=120 budget=86400 headline_s=240 bundle=0 rehearse=0
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --only) only=",${2:?--only needs a list},"; shift 2 ;;
    --limit) limit=${2:?--limit needs seconds}; shift 2 ;;
    --budget) budget=${2:?--budget needs seconds}; shift 2 ;;
    --headline) headline_s=${2:?--headline needs seconds}; shift 2 ;;
    --bundle) bundle=1; shift ;;
    --rehearse) rehearse=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option: $1" >&2; usage >&2; exit 2 ;;
  esac
done
if [ -z "$build" ] || [ ! -x "$build/bin/device/device_info" ]; then
  echo "no programs in '${build:-(no --build)}/bin/device': build the target device_programs and pass --build" >&2
  exit 2
fi
build=$(cd "$build" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${out:-$build/lab/$(date -u +%Y%m%dT%H%M%SZ)}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
bin=$build/bin/device
shim=$build/lib/libtessera.so
alias=$build/lib/libtessera_alias.so
preload=$shim; [ -e "$alias" ] && preload="$shim $alias"
run=$build/bin/tessera
export TESSERA_DEVICE_BIN=$bin

private=$(mktemp -d)
# With --bundle the answers lie in a folder of our own and are put together after each.
few=$out
if [ "$bundle" = 1 ]; then out=$private/answers && mkdir "$out"; fi
nvidia_driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | head -n 1)
commit=$(head -n 1 "$build/commit" 2> /dev/null || git -C "$root" rev-parse HEAD 2> /dev/null || echo unknown)
command="lab.sh --limit $limit --budget $budget${only:+ --only ${only//,/ }}"
# What was answered so far, after each answer: whoever ends this keeps it.
summarise() {
  OUT=$out FEW=$few BUNDLE=$bundle COMMIT=$commit NVIDIA_DRIVER=${nvidia_driver:-none} REHEARSED=$rehearse COMMAND=$command \
    python3 - <<'PY'
import datetime, json, os, pathlib
out, few = pathlib.Path(os.environ["OUT"]), pathlib.Path(os.environ["FEW"])
ours = {few / "summary.json", few / "answers.json"}
answers = {path.stem: json.loads(path.read_text()) for path in sorted({*out.glob("*.json"), *few.glob("headline.json")} - ours)}

def write(name, what):
    (few / (name + ".new")).write_text(json.dumps(what, indent=1) + "\n")
    os.replace(few / (name + ".new"), few / name)

if os.environ["BUNDLE"] == "1":
    write("answers.json", {name: answer for name, answer in answers.items() if name != "headline"})
info = answers.pop("info", {})
summary = {"gpu": info.get("gpu"), "cuda_driver_version": info.get("driver_version"),
           "driver": os.environ["NVIDIA_DRIVER"], "date": datetime.datetime.now(datetime.timezone.utc).isoformat(),
           "commit": os.environ["COMMIT"], "command": os.environ["COMMAND"].strip(),
           "rehearsed_on_software_gpu": os.environ["REHEARSED"] == "1",
           "questions": {name: "failed" if "failed" in a else "skipped" if "skipped" in a else "answered"
                         for name, a in answers.items()}}
bare = answers.get("H2_bare", {}).get("launch_ns_p50")
if bare:
    summary["H2_added_ns"] = {n: round(a["launch_ns_p50"] - bare, 2) for n, a in answers.items()
                              if n.startswith("H2_") and n != "H2_bare" and "launch_ns_p50" in a}
write("summary.json", summary)
PY
}
# A program that is attended does not keep a signal from us.
running=
attend() {
  local status
  "$@" &
  running=$!
  wait "$running"
  status=$?
  running=
  return "$status"
}
finish() {
  [ -n "$running" ] && kill "$running" 2> /dev/null && wait "$running" 2> /dev/null
  [ "$bundle" = 1 ] && tar -C "$private" -czf "$few/answers.tar.gz" answers
  rm -rf "$private"
}
trap finish EXIT
trap 'exit 143' INT TERM HUP
if [ "$rehearse" = 1 ]; then
  export LD_LIBRARY_PATH=$build/lib/softgpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export TESSERA_SOFTGPU_DIR=$private/gpu TESSERA_SOFTGPU_LINGER_MS=200 TESSERA_LAB_REHEARSED=1
  mkdir -m 700 "$TESSERA_SOFTGPU_DIR"
fi

failures=0
# answer NAME ENVIRONMENT... -- COMMAND...: runs the command under the limit; NAME.json is its last line, or says why not.
answer() {
  local name=$1 environment=() status reason allowed=$limit
  shift
  # `timeout` waits 5 s more for what does not end.
  if [ $((budget - SECONDS - 5)) -lt "$allowed" ]; then allowed=$((budget - SECONDS - 5)); fi
  if [ "$allowed" -lt 1 ]; then
    skip "$name" "no time is left"
    return
  fi
  while [ "$1" != "--" ]; do environment+=("$1"); shift; done
  shift
  printf '%-28s ' "$name"
  attend env "${environment[@]}" timeout -k 5 "$allowed" "$@" > "$out/$name.out" 2> "$out/$name.err"
  status=$?
  if tail -n 1 "$out/$name.out" | python3 -m json.tool > "$out/$name.json" 2> /dev/null && [ $status = 0 ]; then
    rm -f "$out/$name.out"
    [ -s "$out/$name.err" ] || rm -f "$out/$name.err"
    summarise
    echo ok
    return
  fi
  failures=$((failures + 1))
  reason="exit status $status"
  [ $status = 124 ] && reason="time limit of $allowed s"
  STATUS=$status REASON=$reason NAME=$name ERRORS=$out/$name.err PRINTED=$out/$name.out python3 - > "$out/$name.json" <<'PY'
import json, os
lines = open(os.environ["PRINTED"], errors="replace").read().strip().splitlines()
try:
    printed = json.loads(lines[-1]) if lines else None
except ValueError:
    printed = None
print(json.dumps({"question": os.environ["NAME"].split("_")[0], "failed": os.environ["REASON"], "printed": printed,
                  "stderr": open(os.environ["ERRORS"], errors="replace").read()[-1000:]}, indent=4))
PY
  summarise
  echo "FAILED: $reason"
}
skip() {
  printf '%-28s skipped: %s\n' "$1" "$2"
  printf '{"question": "%s", "skipped": "%s"}\n' "${1%%_*}" "$2" > "$out/$1.json"
}
# The simulator reads the answer to H16 as it stands.
simulate_h16() {
  local results=$out/H16_simulated.json
  printf '%-28s ' H16_simulated
  if "$run" simulate "$root/scenarios/saturated.toml" --contention "$out/H16.json" --seeds 1 --duration-ms 1000 --policy temporal,tessera \
    --json "$results" > "$out/H16_simulated.out" 2> "$out/H16_simulated.err"; then
    echo ok
    return
  fi
  failures=$((failures + 1))
  printf '{"question": "H16", "failed": "see H16_simulated.err"}\n' > "$results"
  echo "FAILED: $(tail -n 1 "$out/H16_simulated.err")"
}
wanted() { [ -z "$only" ] || [[ "$only" == *",$1,"* ]]; }

answer info -- "$bin/device_info"
quick=()
[ "$rehearse" = 1 ] && quick=(--batches 10)

if wanted headline; then
  remaining=$((budget - SECONDS - 5))
  if [ "$headline_s" -gt "$remaining" ]; then headline_s=$remaining; fi
  headline=(python3 "$root/scripts/gpu/headline.py" --build "$build" --out "$few" --budget "$headline_s")
  [ "$rehearse" = 1 ] && headline+=(--rehearse --seconds 0.3 --pairs 1)
  if [ ! -x "$run" ] || [ ! -x "$build/bin/tesserad" ]; then skip headline "bin/tessera or bin/tesserad is not built"
  elif [ "$rehearse" = 0 ] && ! python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then skip headline "this Python has no PyTorch"
  elif ! attend "${headline[@]}"; then
    echo "headline FAILED"
    failures=$((failures + 1))
  fi
fi
if wanted H24; then
  if [ "$rehearse" = 1 ]; then
    quick_death=(--kernel-ms 20 --rounds 5 --kernels 20)
    answer H24_bare -- "$bin/h24_killed_behind_gate" "${quick_death[@]}"
    mkdir -m 700 "$private/h24"
    answer H24_mps TESSERA_SOFTGPU_MODE=mps TESSERA_SOFTGPU_DIR="$private/h24" -- python3 "$bin/h24_mps.py" "${quick_death[@]}"
  else
    answer H24_bare -- "$bin/h24_killed_behind_gate"
    answer H24_mps -- python3 "$bin/h24_mps.py"
  fi
fi
if wanted H25; then
  if [ "$rehearse" = 1 ]; then answer H25 -- "$bin/h25_wait_word" --rounds 4; else answer H25 -- "$bin/h25_wait_word"; fi
fi
if wanted H26; then answer H26 -- "$bin/h26_calls_behind_gate"; fi
if wanted H1; then
  if [ "$rehearse" = 1 ]; then
    # The vendor's runtime and libraries authenticate the driver: not for the software GPU.
    programs=(h1_shim) libraries=()
  else
    programs=(h1_shim_static h1_shim) libraries=(--libraries)
  fi
  for program in "${programs[@]}"; do
    answer "H1_bare_$program" -- "$bin/$program" "${libraries[@]}"
    if [ -e "$shim" ]; then answer "H1_shim_$program" LD_PRELOAD="$preload" -- "$bin/$program" "${libraries[@]}"
    else skip "H1_shim_$program" "lib/libtessera.so is not built"; fi
  done
  answer H1_bare_python -- python3 "$bin/h1_python.py"
  if [ -e "$shim" ]; then answer H1_shim_python LD_PRELOAD="$preload" -- python3 "$bin/h1_python.py"; fi
fi
if wanted H2; then
  answer H2_bare -- "$bin/h2_launch_cost" "${quick[@]}"
  if [ -e "$shim" ]; then
    answer H2_shim_no_daemon LD_PRELOAD="$preload" -- "$bin/h2_launch_cost" "${quick[@]}"
  else skip H2_shim_no_daemon "lib/libtessera.so is not built"; fi
  if [ -x "$run" ] && [ -x "$build/bin/tesserad" ]; then
    # Both run alone, so this is the cost of the open road.
    gpu=auto; [ "$rehearse" = 1 ] && gpu=soft
    for priority in protected best-effort; do
      level=$priority; [ $priority = protected ] && level=high
      answer "H2_${priority/-/_}" -- python3 "$bin/under_daemon.py" --tessera "$run" --tesserad "$build/bin/tesserad" --gpu $gpu \
        --priority $level -- "$bin/h2_launch_cost" "${quick[@]}"
    done
  else skip H2_protected "bin/tessera or bin/tesserad is not built"; fi
fi
if wanted H3; then
  if [ "$rehearse" = 1 ]; then answer H3 -- "$bin/h3_marker" --rounds 10 --chain 10; else answer H3 -- "$bin/h3_marker"; fi
fi
if wanted H4; then
  if [ "$rehearse" = 1 ]; then
    mkdir -m 700 "$private/mps"
    answer H4 TESSERA_SOFTGPU_MODE=mps TESSERA_SOFTGPU_DIR="$private/mps" -- python3 "$bin/h4_mps.py" --seconds 1
  else answer H4 -- python3 "$bin/h4_mps.py"; fi
fi
if wanted H5; then
  if [ "$rehearse" = 1 ]; then answer H5 -- python3 "$bin/h5_timeslice.py" --seconds 1 --kernel-ms 0.5
  else answer H5 -- python3 "$bin/h5_timeslice.py"; fi
fi
if wanted H6; then
  if [ "$rehearse" = 1 ]; then answer H6 -- "$bin/h6_occupancy" --launches 10 --repeats 3 --rounds 50
  else answer H6 -- "$bin/h6_occupancy"; fi
fi
if wanted H7; then
  if [ "$rehearse" = 1 ]; then answer H7 -- "$bin/h7_green_context" --rounds 100; else answer H7 -- "$bin/h7_green_context"; fi
fi
if wanted H8; then
  if [ "$rehearse" = 1 ]; then answer H8 -- "$bin/h8_slices" --kernels-ms 5 --max-slices 16 --repeats 3; else answer H8 -- "$bin/h8_slices"; fi
fi
if wanted H9; then
  turnaround=(python3 "$bin/h9_turnaround.py" --tessera "$run" --tesserad "$build/bin/tesserad")
  if [ ! -x "$run" ] || [ ! -x "$build/bin/tesserad" ]; then skip H9 "bin/tessera or bin/tesserad is not built"
  elif [ "$rehearse" = 1 ]; then
    short=(--gpu soft --seconds 0.5 --kernels-ms 5)
    answer H9_time_slices -- "${turnaround[@]}" "${short[@]}"
    mkdir -m 700 "$private/h9"
    answer H9_mps TESSERA_SOFTGPU_MODE=mps TESSERA_SOFTGPU_DIR="$private/h9" -- "${turnaround[@]}" "${short[@]}" --mps
  else
    answer H9_time_slices -- "${turnaround[@]}"
    answer H9_mps -- "${turnaround[@]}" --mps
  fi
fi
if wanted H10; then
  if [ "$rehearse" = 1 ]; then answer H10 -- "$bin/h10_wait_value" --rounds 10 --chain 10
  else answer H10 -- "$bin/h10_wait_value"; fi
fi
if wanted H11; then
  answer H11 -- "$bin/h11_jit"
  [ "$rehearse" = 1 ] || answer H11_no_cache CUDA_CACHE_DISABLE=1 -- "$bin/h11_jit"
fi
if wanted H12; then answer H12 -- "$bin/h12_module_state"; fi
if wanted H13; then
  profile=(python3 "$bin/h13_profile.py" --tessera "$run" --out "$out/profiles")
  if [ ! -x "$run" ]; then skip H13 "bin/tessera is not built"
  elif [ "$rehearse" = 1 ]; then answer H13_copy -- "${profile[@]}" --gpu soft --repeat 1 --work copy
  else
    answer H13_calibrate -- "${profile[@]}" --calibrate
    # Each is run seven times, one of them with every kernel repeated for its counters.
    limit=$((limit * 4))
    for work in copy gemm resnet50 gpt2; do answer "H13_$work" -- "${profile[@]}" --work "$work"; done
    limit=$((limit / 4))
  fi
fi
if wanted H14; then answer H14 -- "$bin/h14_clusters"; fi
if wanted H16; then
  if [ "$rehearse" = 1 ]; then
    answer H16 TESSERA_SOFTGPU_STRETCH=8 -- "$bin/h16_contention" --mebibytes 1 --launches 3 --kernel-ms 0.3
  else answer H16 -- "$bin/h16_contention"; fi
  if [ -x "$run" ]; then simulate_h16; fi
fi
if wanted H17; then
  if [ "$rehearse" = 1 ]; then
    answer H17_green -- "$bin/h17_green_contexts" --rounds 100 --times 5 --launches 10
    mkdir -m 700 "$private/h17"
    answer H17_mps TESSERA_SOFTGPU_MODE=mps TESSERA_SOFTGPU_DIR="$private/h17" -- python3 "$bin/h17_mps.py" --seconds 0.5
  else
    answer H17_green -- "$bin/h17_green_contexts"
    answer H17_mps -- python3 "$bin/h17_mps.py"
  fi
fi
if wanted H18; then
  answer H18 -- "$bin/h18_keep_ptx"
  [ "$rehearse" = 1 ] || answer H18_forced CUDA_FORCE_PTX_JIT=1 -- "$bin/h18_keep_ptx"
fi
if wanted H20; then
  if [ "$rehearse" = 1 ]; then answer H20 -- "$bin/h20_prologue" --width 8 --height 3
  else answer H20 -- "$bin/h20_prologue"; fi
fi
if wanted H21; then
  if [ "$rehearse" = 1 ]; then answer H21 -- "$bin/h21_graphs" --kernels 50 --turns 3; else answer H21 -- "$bin/h21_graphs"; fi
fi

summarise
echo "answers in $few, $failures failed"
[ "$failures" = 0 ]
