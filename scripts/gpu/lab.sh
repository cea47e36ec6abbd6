#!/usr/bin/env bash
# Answers the questions that only hardware answers (docs/hardware-status.md) with prebuilt programs, each with a time limit of
# its own; a line for each as soon as it is there, and files that are whole at any moment. Changes no device setting; MPS only
# in folders of its own.
set -u

usage() {
  cat <<'TEXT'
usage: scripts/gpu/lab.sh [--kit DIR] [--stage A|B|C] [--out DIR] [--budget SECONDS] [--only headline,H1,H2,...]
                          [--headline SECONDS] [--rehearse]

  --kit DIR           a folder of scripts/gpu/stage.sh (default: the one that this program lies in), or a build folder
                      (cmake --preset device; ninja)
  --stage A|B|C       only what is asked first (150 s), next (250 s), last; all three in this order if not given
  --out DIR           where the answers go, at most eight files (default lab-<date>)
  --budget SECONDS    for all; what could not end within it is skipped
  --only LIST         only these questions
  --headline SECONDS  for the headline (default 240, and 50 less than the budget), which needs PyTorch
  --rehearse          on the software GPU (KIT/lib/softgpu): shows that every program works, answers nothing
TEXT
}

root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root out="" stage="" only="" budget=86400 headline_s=240 rehearse=0
while [ $# -gt 0 ]; do
  case "$1" in
    --kit) build=${2:?--kit needs a folder}; shift 2 ;;
    --stage) stage=${2:?--stage needs A, B or C}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --only) only=",${2:?--only needs a list},"; shift 2 ;;
    --budget) budget=${2:?--budget needs seconds}; shift 2 ;;
    --headline) headline_s=${2:?--headline needs seconds}; shift 2 ;;
    --rehearse) rehearse=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option: $1" >&2; usage >&2; exit 2 ;;
  esac
done
if [ ! -x "$build/bin/device/device_info" ]; then
  echo "no programs in '$build/bin/device': make a kit with stage.sh, or build the target device_programs and pass --kit" >&2
  exit 2
fi
case "$stage" in "" | A | B | C) ;; *) echo "no such stage: $stage" >&2; exit 2 ;; esac
build=$(cd "$build" && pwd)
if [ "$rehearse" = 1 ] && [ ! -e "$build/lib/softgpu/libcuda.so.1" ]; then
  echo "no software GPU in '$build/lib/softgpu': a kit has none; put a build folder's there" >&2
  exit 2
fi
out=${out:-lab-$(date -u +%Y%m%dT%H%M%SZ)}
mkdir -p "$out" || exit 2
few=$(cd "$out" && pwd)  # what the user gets: a few files
bin=$build/bin/device
shim=$build/lib/libtessera.so
alias=$build/lib/libtessera_alias.so
preload=$shim; [ -e "$alias" ] && preload="$shim $alias"
run=$build/bin/tessera
export TESSERA_DEVICE_BIN=$bin

private=$(mktemp -d)
# The answers, a file each; put together after each.
out=$private/answers && mkdir "$out"
# Those of an earlier stage stay.
FEW=$few OUT=$out python3 - <<'PY'
import json, os, pathlib
earlier = pathlib.Path(os.environ["FEW"], "answers.json")
for name, answer in (json.loads(earlier.read_text()) if earlier.exists() else {}).items():
    pathlib.Path(os.environ["OUT"], name + ".json").write_text(json.dumps(answer))
PY
nvidia_driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | head -n 1)
commit=$(head -n 1 "$build/commit" 2> /dev/null || git -C "$root" rev-parse HEAD 2> /dev/null || echo unknown)
asked=${only#,}
command="lab.sh${stage:+ --stage $stage} --budget $budget${only:+ --only ${asked%,}}"
# Writes the answers so far, after each answer: they stay if this is ended early.
summarise() {
  OUT=$out FEW=$few COMMIT=$commit NVIDIA_DRIVER=${nvidia_driver:-none} REHEARSED=$rehearse COMMAND=$command \
    python3 - <<'PY'
import datetime, json, os, pathlib
out, few = pathlib.Path(os.environ["OUT"]), pathlib.Path(os.environ["FEW"])
answers = {path.stem: json.loads(path.read_text()) for path in sorted([*out.glob("*.json"), *few.glob("headline.json")])}

def write(name, what):
    (few / (name + ".new")).write_text(json.dumps(what, indent=1) + "\n")
    os.replace(few / (name + ".new"), few / name)

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
  tar -C "$private" -czf "$few/answers.tar.gz" answers
  rm -rf "$private"
}
trap finish EXIT
trap 'exit 143' INT TERM HUP
if [ "$rehearse" = 1 ]; then
  export LD_LIBRARY_PATH=$build/lib/softgpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export TESSERA_SOFTGPU_DIR=$private/gpu TESSERA_SOFTGPU_LINGER_MS=200 TESSERA_LAB_REHEARSED=1
  export PATH=$root/scripts/gpu/pretended:$PATH  # a control program of MPS
  mkdir -m 700 "$TESSERA_SOFTGPU_DIR"
fi

failures=0
# answer NAME SECONDS ENVIRONMENT... -- COMMAND...: runs the command, which has SECONDS; NAME.json is its last line, or
# says why not. It does not start where it might not end within the budget. A rehearsal shares its machine with others.
answer() {
  local name=$1 limit=$2 environment=() status reason left
  shift 2
  left=$((budget - SECONDS - 5))  # `timeout` waits 5 s more for what does not end
  if [ "$limit" -gt "$left" ]; then
    skip "$name" "no time is left: it may take $limit s of $((left > 0 ? left : 0))"
    return
  fi
  if [ "$rehearse" = 1 ]; then limit=$((limit * 3 < left ? limit * 3 : left)); fi
  while [ "$1" != "--" ]; do environment+=("$1"); shift; done
  shift
  printf '%-28s ' "$name"
  attend env "${environment[@]}" timeout -k 5 "$limit" "$@" > "$out/$name.out" 2> "$out/$name.err"
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
  [ $status = 124 ] && reason="time limit of $limit s"
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
  summarise
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
at=A  # the stage that is being asked
wanted() { [[ (-z "$stage" || "$stage" = "$at") && (-z "$only" || "$only" == *",$1,"*) ]]; }
# small OPTION...: what a rehearsal passes.
small() { few_times=(); [ "$rehearse" = 0 ] || few_times=("$@"); }
has() {  # NAME FILE...: is all of it there?
  local name=$1 file
  shift
  for file in "$@"; do
    if [ ! -e "$file" ]; then
      skip "$name" "${file#"$build/"} is not built"
      return 1
    fi
  done
}
frameworks=()
[ "$rehearse" = 1 ] && frameworks=(--rehearse)
has_torch() {
  [ "$rehearse" = 1 ] && return
  python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' && return
  skip "$1" "this Python has no PyTorch"
  return 1
}
# of_programs NAME SECONDS PROGRAM OPTION...: a question to stock programs under daemons of its own.
of_programs() {
  local name=$1 limit=$2 program=$3
  shift 3
  has "$name" "$run" "$build/bin/tesserad" && has_torch "$name" || return
  answer "$name" "$limit" -- python3 "$root/scripts/gpu/$program" --build "$build" "${frameworks[@]}" "$@"
}
gpu=auto
[ "$rehearse" = 1 ] && gpu=soft
under_mps=(python3 "$bin/under_mps.py" --)

answer info 20 -- "$bin/device_info"

# What is asked first: does it keep its promise beside its rivals, may machine code be cut, are results right?
at=A
if wanted H20; then
  small --width 8 --height 4
  answer H20 20 -- "$bin/h20_prologue" "${few_times[@]}"
fi
if wanted headline; then
  left=$((budget - SECONDS - 50))
  [ -z "$only" ] || left=$((budget - SECONDS - 5))
  if [ "$headline_s" -gt "$left" ]; then headline_s=$left; fi
  small --rehearse --seconds 0.3 --pairs 1
  if has headline "$run" "$build/bin/tesserad" && has_torch headline &&
    ! attend python3 "$root/scripts/gpu/headline.py" --build "$build" --out "$few" --budget "$headline_s" "${few_times[@]}"; then
    echo "headline FAILED"
    failures=$((failures + 1))
  fi
  summarise
fi
if wanted H27; then of_programs H27 45 h27_digests.py; fi

# Next: what else decides about cutting, MPS and the gate on the device.
at=B
if wanted H24; then
  small --kernel-ms 20 --rounds 5 --kernels 20
  answer H24_bare 20 -- "$bin/h24_killed_behind_gate" "${few_times[@]}"
  answer H24_mps 25 -- "${under_mps[@]}" "$bin/h24_killed_behind_gate" "${few_times[@]}"
fi
if wanted H19; then of_programs H19 75 h19_operations.py; fi
if wanted H28; then of_programs H28 60 h28_slices_beside.py; fi
if wanted H23; then of_programs H23 120 h23_mps_alone.py; fi
if wanted H29; then
  small --rounds 5 --kernel-ms 5
  answer H29_bare 30 -- "$bin/h29_change" "${few_times[@]}"
  answer H29_mps 30 -- "${under_mps[@]}" "$bin/h29_change" "${few_times[@]}"
fi
if wanted H25; then
  small --rounds 4
  answer H25 40 -- "$bin/h25_wait_word" "${few_times[@]}"
fi
if wanted H15; then
  small --mib-list 4,8
  answer H15 120 -- "$bin/h15_checkpoint" "${few_times[@]}"
fi
if wanted H26; then answer H26 30 -- "$bin/h26_calls_behind_gate"; fi
if wanted H30; then
  if has H30 "$run" "$build/bin/tesserad"; then
    answer H30 25 -- python3 "$bin/h30_unannounced_context.py" --tessera "$run" --tesserad "$build/bin/tesserad" --gpu $gpu
  fi
fi

at=C
if wanted H13; then
  if has H13 "$run"; then
    profile=(python3 "$bin/h13_profile.py" --tessera "$run" --out "$out/profiles")
    if [ "$rehearse" = 1 ]; then answer H13_copy 60 -- "${profile[@]}" --gpu soft --repeat 1 --work copy
    else
      answer H13_calibrate 60 -- "${profile[@]}" --calibrate
      # Each is run seven times, one of them with every kernel repeated for its counters.
      for work in copy gemm resnet50 gpt2; do answer "H13_$work" 120 -- "${profile[@]}" --work "$work"; done
    fi
  fi
fi
if wanted H16; then
  stretch=()
  [ "$rehearse" = 1 ] && stretch=(TESSERA_SOFTGPU_STRETCH=8)
  small --mebibytes 1 --launches 3 --kernel-ms 0.3
  answer H16 40 "${stretch[@]}" -- "$bin/h16_contention" "${few_times[@]}"
  if [ -x "$run" ]; then simulate_h16; fi
fi
if wanted H17; then
  small --rounds 100 --times 5 --launches 10
  answer H17_green 20 -- "$bin/h17_green_contexts" "${few_times[@]}"
  small --seconds 0.5
  answer H17_mps 60 -- python3 "$bin/h17_mps.py" "${few_times[@]}"
fi
if wanted H1; then
  # The vendor's runtime and libraries authenticate the driver: not for the software GPU.
  programs=(h1_shim_static h1_shim) libraries=(--libraries)
  [ "$rehearse" = 1 ] && programs=(h1_shim) libraries=()
  for program in "${programs[@]}"; do
    answer "H1_bare_$program" 30 -- "$bin/$program" "${libraries[@]}"
    if has "H1_shim_$program" "$shim"; then answer "H1_shim_$program" 30 LD_PRELOAD="$preload" -- "$bin/$program" "${libraries[@]}"; fi
  done
  answer H1_bare_python 40 -- python3 "$bin/h1_python.py"
  if has H1_shim_python "$shim"; then answer H1_shim_python 40 LD_PRELOAD="$preload" -- python3 "$bin/h1_python.py"; fi
fi
if wanted H2; then
  small --batches 10
  answer H2_bare 20 -- "$bin/h2_launch_cost" "${few_times[@]}"
  if has H2_shim_no_daemon "$shim"; then answer H2_shim_no_daemon 20 LD_PRELOAD="$preload" -- "$bin/h2_launch_cost" "${few_times[@]}"; fi
  # Both run alone, so this is the cost of the open road.
  for priority in protected best-effort; do
    level=$priority; [ $priority = protected ] && level=high
    if has "H2_${priority/-/_}" "$run" "$build/bin/tesserad"; then
      answer "H2_${priority/-/_}" 30 -- python3 "$bin/under_daemon.py" --tessera "$run" --tesserad "$build/bin/tesserad" --gpu $gpu \
        --priority $level -- "$bin/h2_launch_cost" "${few_times[@]}"
    fi
  done
fi
if wanted H3; then
  small --rounds 10 --chain 10
  answer H3 20 -- "$bin/h3_marker" "${few_times[@]}"
fi
if wanted H4; then
  small --seconds 1
  answer H4 60 -- python3 "$bin/h4_mps.py" "${few_times[@]}"
fi
if wanted H5; then
  small --seconds 1 --kernel-ms 0.5
  answer H5 40 -- python3 "$bin/h5_timeslice.py" "${few_times[@]}"
fi
if wanted H6; then
  small --launches 10 --repeats 3 --rounds 50
  answer H6 20 -- "$bin/h6_occupancy" "${few_times[@]}"
fi
if wanted H7; then
  small --rounds 100
  answer H7 20 -- "$bin/h7_green_context" "${few_times[@]}"
fi
if wanted H8; then
  small --kernels-ms 5 --max-slices 16 --repeats 3
  answer H8 30 -- "$bin/h8_slices" "${few_times[@]}"
fi
if wanted H9; then
  if has H9 "$run" "$build/bin/tesserad"; then
    turnaround=(python3 "$bin/h9_turnaround.py" --tessera "$run" --tesserad "$build/bin/tesserad")
    small --gpu soft --seconds 1.5 --kernels-ms 5
    answer H9_time_slices 60 -- "${turnaround[@]}" "${few_times[@]}"
    answer H9_mps 60 -- "${turnaround[@]}" "${few_times[@]}" --mps
  fi
fi
if wanted H10; then
  small --rounds 10 --chain 10
  answer H10 20 -- "$bin/h10_wait_value" "${few_times[@]}"
fi
if wanted H11; then
  answer H11 30 -- "$bin/h11_jit"
  [ "$rehearse" = 1 ] || answer H11_no_cache 30 CUDA_CACHE_DISABLE=1 -- "$bin/h11_jit"
fi
if wanted H12; then answer H12 20 -- "$bin/h12_module_state"; fi
if wanted H14; then answer H14 20 -- "$bin/h14_clusters"; fi
if wanted H18; then
  answer H18 30 -- "$bin/h18_keep_ptx"
  [ "$rehearse" = 1 ] || answer H18_forced 30 CUDA_FORCE_PTX_JIT=1 -- "$bin/h18_keep_ptx"
fi
if wanted H21; then
  small --kernels 50 --turns 3
  answer H21 30 -- "$bin/h21_graphs" "${few_times[@]}"
fi

summarise
echo "answers in $few, $failures failed"
[ "$failures" = 0 ]
