#!/usr/bin/env python3
"""Makes docs/evaluation.md of what GPUs answered.

usage: evaluation.py [--check] [--results DIR] [--page FILE]
       evaluation.py --take FOLDER --into DIR [--driver D --date D --commit C --command C --note N]

The page is made of every folder below profiles/results that holds results.json, as --take writes it, or what scripts/gpu/lab.sh left
(summary.json, headline.json, answers.json or one file for each question). --take condenses one folder: lab.sh's, or that of the first
contact (first.json, second.json ...), which does not say by itself what the options say. --check fails if the page is another one."""
import argparse
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]

SYSTEMS = {"bare": "time slices of the driver", "one_process": "stream priorities in one process", "one_process_mps": "stream priorities in one process, MPS", "mps_low": "MPS, low client priority of the training", "tessera": "Tessera, default",
           "tessera_mps": "Tessera, default, MPS", "device": "Tessera, gate on the device", "device_mps": "Tessera, gate on the device, MPS",
           "window500": "Tessera, window of 500 us", "window500_mps": "Tessera, window of 500 us, MPS", "temporal": "Tessera, `temporal`",
           "temporal_mps": "Tessera, `temporal`, MPS", "temporal500": "Tessera, `temporal`, window of 500 us",
           "temporal500_mps": "Tessera, `temporal`, window of 500 us, MPS",
           "trial50": "trial of a gate on the device, 50 us", "trial100": "trial of a gate on the device, 100 us",
           "trial200": "trial of a gate on the device, 200 us", "trial200d2": "trial of a gate on the device, 200 us, two quanta open",
           "trial_mps": "trial of a gate on the device, MPS"}
PROGRAMS = {"resnet_graph": "ResNet-50, batch 1, CUDA graph", "resnet": "ResNet-50", "encoder_graph": "BERT, CUDA graph", "encoder": "BERT",
            "decoder": "decoder", "gpt2": "GPT-2", "products": "products of 8192 x 8192", "copies": "copies"}

# The names of systems in the programs of the first contact.
FIRST_SYSTEMS = {"bare": "bare", "mps": "mps_low", "tess": "tessera", "tmps": "tessera_mps", "tess/default": "tessera",
                 "tmps/default": "tessera_mps", "dg50": "trial50", "dg100": "trial100", "dg200": "trial200", "dg200d2": "trial200d2",
                 "mdg": "trial_mps",
                 **{f"{a}/{name}": name + b for name in ("window500", "temporal", "temporal500") for a, b in (("tess", ""), ("tmps", "_mps"))}}
FIRST_PROGRAMS = {"gpt": "gpt2", "llm": "decoder", "gemm": "products", "copy": "copies"}
FIRST_ANSWERS = {"H2_no_daemon": "H2_shim_no_daemon", "H2_high": "H2_protected", "H2_best": "H2_best_effort", "H9": "H9_time_slices"}

# Answer, place in it, what it is, unit. {PLACE}: another value of the answer.
FIGURES = (
    ("H2_bare", "launch_ns_p50", "launch of an empty kernel, bare", "ns"),
    ("H2_shim_no_daemon", "launch_ns_p50", "with the library and no daemon", "ns"),
    ("H2_best_effort", "launch_ns_p50", "best-effort", "ns"),
    ("H2_protected", "launch_ns_p50", "protected", "ns"),
    ("H2_bare", "launch_and_sync_ns_p50", "launch and synchronise, bare", "ns"),
    ("H2_best_effort", "launch_and_sync_ns_p50", "best-effort", "ns"),
    ("H2_protected", "launch_and_sync_ns_p50", "protected", "ns"),
    ("H3", "event_call_ns", "`cuEventRecord`", "ns"),
    ("H3", "write_call_ns", "`cuStreamWriteValue32`", "ns"),
    ("H3", "seen_by_event_us", "completion seen by an event", "us"),
    ("H3", "seen_by_write_us", "completion seen by a write", "us"),
    ("H5", "pulses.0.run_ms_p50", "one of two processes runs for", "ms"),
    ("H5", "pulses.0.gap_ms_p50", "and then waits for", "ms"),
    ("H6", "one_stream_alternating_over_mean", "changing shared memory, over not changing it", ""),
    *(("H8", f"kernels.{i}.smallest_slice_within_5_percent_ms", f"smallest slice within 5 %, kernel of {{kernels.{i}.wanted_ms}} ms", "ms")
      for i in range(3)),
    *((f"H9_{regime}", f"beside.{i}.{system}_turnaround_us_p99",
       f"turnaround p99, {name}, {regime.replace('_', ' ')}, kernels of {{beside.{i}.kernel_ms}} ms", "us")
      for regime in ("time_slices", "mps") for i in range(3) for system, name in (("unmanaged", "unmanaged"), ("tessera", "Tessera"))),
    ("H10", "store_to_done_us_p50", "store until the end of a waiting kernel is seen", "us"),
    ("H11", "ptx_first_ms", "JIT of a small module, first", "ms"),
    ("H11", "ptx_again_ms", "from the cache", "ms"),
    *(("H16", f"contention_measured.{a}_beside_{b}.slowdown_p50", f"slowdown of {a} beside {b}", "")
      for a in ("compute", "memory") for b in ("compute", "memory")),
    *(("H16", f"contention_disjoint_measured.{a}_beside_{b}.slowdown_p50", f"on disjoint SMs, {a} beside {b}", "")
      for a in ("compute", "memory") for b in ("compute", "memory")),
    ("H17_green", "make_us_p50", "`cuGreenCtxCreate`", "us"),
    ("H17_green", "disjoint", "two green contexts use disjoint SMs", ""),
    *(("H21", f"rows.{i}.unrolled_over_whole_percent", f"graph kernel by kernel, kernels of {{rows.{i}.kernel_us}} us", "%") for i in range(5)),
    ("H24_bare", "all_lived", "neighbours live when a client is killed behind its gate", ""),
    ("H24_mps", "all_lived", "neighbours live when a client is killed behind its gate, MPS", ""),
    *(("H25", f"connections_8.waiting_{n}.{key}", f"{text}, {n} waiting", unit)
      for n in (1, 64) for key, text, unit in (("lost", "lost stores of {connections_8.waiting_%d.rounds}" % n, ""),
                                               ("first_kernel_us_p50", "store until the first kernel", "us"))),
    *(("H19", f"sm_target.{n}", f"product of cuBLAS, told of {n} SMs" if n else "product of cuBLAS, of all SMs", "ms") for n in (0, 96, 64, 32)),
    *(("H19", f"estimates.{key}.{q}", f"{text} off by, {name}", "") for key, text in (("estimate", "first estimates"), ("quarter_ms", "0.25 ms"))
      for q, name in (("median", "median"), ("p90", "p90"))),
    ("H20", "equal", "kinds of kernels of {kinds} whose slices by a range check in front of machine code are equal", ""),
    *(("H23", f"over_without.mps/default/{beside}.{what}", f"{text} under MPS beside {beside}, over without", "")
      for what, text in (("resnet_graph", "ResNet-50 as a graph"), ("resnet", "eager ResNet-50"), ("decoder", "decoder"))
      for beside in ("nobody", "a client with 0 MiB", "a client with 4096 MiB")),
    ("H27", "equal", "results of frameworks are those without Tessera", ""),
    ("H28", "equal", "slices beside a service have the results of uncut kernels", ""),
    *((f"H29_{regime}", f"{state}.first_us_p50", f"short kernel after another process that is {text}{under}", "us")
      for regime, under in (("bare", ""), ("mps", ", MPS")) for state, text in (("alone", "not there"), ("idle", "idle"), ("drained", "drained"), ("waiting", "waiting for a word"), ("kernel", "in a kernel"))),
    ("H30", "managed", "a program whose context nobody announced is managed", ""),
)
OF_SERVICE = ("p50_ms", "p99_ms", "ttft_p99_ms", "tpot_p99_ms")


def at(answer, place):
    """A value of nested JSON; None where there is none."""
    for key in place.split("."):
        if isinstance(answer, list) and key.isdigit() and int(key) < len(answer):
            answer = answer[int(key)]
        elif isinstance(answer, dict):
            answer = answer.get(key)
        else:
            return None
    return answer if isinstance(answer, (int, float)) else None


def figures(answers):
    """What the page shows of the answers to questions, as flat as it is asked for."""
    kept = {}
    for name, place, text, _ in FIGURES:
        for each in (place, *re.findall(r"{(.+?)}", text)) if at(answers.get(name, {}), place) is not None else ():
            kept.setdefault(name, {})[each] = at(answers[name], each)
    return kept


def service_of(answer):
    names = {"p50_ms": ("latency_p50_ms", "p50_ms"), "p99_ms": ("latency_p99_ms", "p99_ms"), "ttft_p99_ms": ("ttft_p99_ms", "ttft_p99"),
             "tpot_p99_ms": ("tpot_p99_ms", "tpot_p99")}
    found = {ours: next((answer[n] for n in theirs if n in answer), None) for ours, theirs in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def lab_run(folder):
    """A folder of lab.sh: its headline and its answers, as one run."""
    def read(name):
        path = folder / name
        return json.loads(path.read_text()) if path.exists() else {}

    headline, summary = read("headline.json"), read("summary.json")
    answers = read("answers.json") or {path.stem: json.loads(path.read_text()) for path in folder.glob("H*.json")}
    run = {"name": "lab", "alone": {"service": {}, "trainer": {}}, "pairs": [], "answers": figures(answers)}
    for role in ("service", "trainer"):
        for what, answer in headline.get("alone", {}).get(role, {}).items():
            run["alone"][role][what] = service_of(answer) if role == "service" else {"steps_per_s": answer.get("steps_per_s")}
    for name, answer in headline.get("answers", {}).items():
        service, trainer, system = re.fullmatch(r"(.+)\+(.+)/(.+)", name).groups()
        run["pairs"].append({"system": system, "service": service, "trainer": trainer, **service_of(answer.get("service", {})),
                             "steps_per_s": answer.get("trainer", {}).get("steps_per_s"), "ok": answer.get("ok", False)})
    return {"gpu": summary.get("gpu"), "driver": summary.get("driver"), "date": (summary.get("date") or "")[:10],
            "commit": summary.get("commit"), "command": summary.get("command"), "rehearsed": summary.get("rehearsed_on_software_gpu"),
            "runs": [run]}


def first_run(path):
    """One file of the first contact."""
    everything = json.loads(path.read_text())
    program = lambda name: FIRST_PROGRAMS.get(name, name)
    answers = {}
    for name, value in everything.items():
        if re.match(r"H\d", name) and isinstance(value, dict) and isinstance(value.get("json"), dict):
            answers[FIRST_ANSWERS.get(name, name)] = value["json"]
    run = {"name": path.stem, "alone": {"service": {}, "trainer": {}}, "pairs": [], "answers": figures(answers)}
    for name, value in everything.items():
        if not isinstance(value, dict):
            continue
        service, trainer = value.get("service"), value.get("trainer")
        alone, pair = re.fullmatch(r"alone/(\w+)", name), re.fullmatch(r"(?:pair/)?([\w/]+)/(\w+)\+(\w+)", name)
        if alone and service:
            run["alone"]["service"][program(service["what"])] = service_of(service)
        if alone and trainer:
            run["alone"]["trainer"][program(trainer["what"])] = {"steps_per_s": trainer["steps_per_s"]}
        if pair and service and trainer and pair[1] in FIRST_SYSTEMS:
            run["pairs"].append({"system": FIRST_SYSTEMS[pair[1]], "service": program(service["what"]), "trainer": program(trainer["what"]),
                                 **service_of(service), "steps_per_s": trainer["steps_per_s"]})
    devices = [answer.get("gpu") for answer in answers.values() if answer.get("gpu")]
    return run, devices[0] if devices else None


def take(folder, into, said):
    first = [path for path in (folder / name for name in ("first.json", "second.json", "third.json")) if path.exists()]
    if first:
        runs = [first_run(path) for path in first]
        result = {"gpu": next((gpu for _, gpu in runs if gpu), None), "runs": [run for run, _ in runs]}
    else:
        result = lab_run(folder)
    result = {**{key: result.get(key) for key in ("gpu", "driver", "date", "commit", "command")}, **said, "runs": result["runs"]}
    into.mkdir(parents=True, exist_ok=True)
    (into / "results.json").write_text(json.dumps(result, indent=1) + "\n")


def load(folder):
    path = folder / "results.json"
    return json.loads(path.read_text()) if path.exists() else lab_run(folder)


def number(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def over(value, alone):
    return f"{value / alone:.2f}" if value is not None and alone else "-"


def pair_rows(run):
    for pair in run["pairs"]:
        service = run["alone"]["service"].get(pair["service"], {})
        trainer = run["alone"]["trainer"].get(pair["trainer"], {})
        yield (PROGRAMS.get(pair["service"], pair["service"]), PROGRAMS.get(pair["trainer"], pair["trainer"]),
               SYSTEMS.get(pair["system"], pair["system"]), *(over(pair.get(key), service.get(key)) for key in OF_SERVICE),
               over(pair.get("steps_per_s"), trainer.get("steps_per_s")), {True: "yes", False: "**no**"}.get(pair.get("ok"), "-"), run["name"])


def table(headings, rows):
    rows = list(rows)
    if not rows:
        return []
    return ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|", *("| " + " | ".join(row) + " |" for row in rows), ""]


def section(folder, result):
    runs = result["runs"]
    lines = [f"## {result['gpu']}, {result['date']}", "",
             f"Driver {result['driver']}, commit {result['commit']}, `profiles/results/{folder}`. Command: {result['command']}.", ""]
    if result.get("note"):
        lines += [*textwrap.wrap(result["note"], 158), ""]
    lines += table(("service", "training", "system", "p50", "p99", "TTFT p99", "TPOT p99", "share", "ok", "run"),
                   (row for run in runs for row in pair_rows(run)))
    rows = []
    for name, place, text, unit in FIGURES:
        answers = [run["answers"][name] for run in runs if place in run["answers"].get(name, {})]
        for answer in answers[-1:]:  # asked again, the later one counts
            what = re.sub(r"{(.+?)}", lambda found: number(answer[found[1]]), text)
            rows.append((name.split("_")[0], what, number(answer[place]) + (" " + unit if unit else "")))
    return lines + table(("question", "figure", "answer"), rows)


def page(results):
    lines = ["# Measurements on GPUs", "",
             "Made by `scripts/gpu/evaluation.py` of `profiles/results`; a CTest (`evaluation.page`) checks that. Latencies are over those of the",
             "service alone in the same run, from the intended arrival; the share is the training's steps per second over those alone. `ok` means",
             "that results were right and preconditions held; `-`: not asked. `docs/hardware-status.md` says what follows and what is open.", ""]
    # Folders with either kind of file; what was only rehearsed answers nothing.
    folders = sorted({path.parent for name in ("results.json", "summary.json") for path in results.rglob(name)})
    for folder in folders:
        result = load(folder)
        if not result.get("rehearsed"):
            lines += section(folder.relative_to(results), result)
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "profiles" / "results")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs" / "evaluation.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--take", type=pathlib.Path)
    parser.add_argument("--into", type=pathlib.Path)
    said = ("driver", "date", "commit", "command", "note")
    for name in said:
        parser.add_argument("--" + name)
    options = parser.parse_args()
    if options.take:
        if not options.into:
            parser.error("--take needs --into")
        take(options.take, options.into, {name: getattr(options, name) for name in said if getattr(options, name)})
        return 0
    made = page(options.results)
    if not options.check:
        options.page.write_text(made)
        return 0
    if options.page.exists() and options.page.read_text() == made:
        return 0
    print(f"{options.page} is not what {options.results} makes of it: run scripts/gpu/evaluation.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
