#!/usr/bin/env python3
"""Recorded programs and language models beside each other: every policy and peer, with shipped and with disjoint contention.

Prints Markdown. Per scenario p99 over alone (its mean over the pairs, the worst) and best-effort share; of language models the
p99 of the time to the first token (TTFT) and per token (TPOT) over alone and the attainment, means over their cells. Then the
goals, and in how many cells each peer dominates `tessera`: a tail at most 2 points worse, and 0.08 more share. The means of
`traced` and `llm` are repeated with each program left out in turn.
Needs the data set beside the checkout (docs/traces.md).

usage: traced_report.py [--seeds N] [--first-seed S] [--duration-ms MS] [--only NAME,...] [--json FILE] [--tessera BIN]
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCENARIOS = ["traced", "traced_0.2", "traced_0.8", "traced_bursty", "traced_bursty_0.2", "traced_bursty_0.8", "llm", "llm_bursty",
             "two_models"]
CONTENTION = {"shipped": None, "disjoint": "contention_disjoint.toml"}
POLICIES = ["native", "mps3", "mps3_lending", "hummingbird", "gpreempt", "gpreempt_hints", "vitamin_e", "tally", "orion", "reef_n",
            "temporal", "tessera", "tessera_device"]
MODELS = "two_models"  # no best-effort program, and other runs
MODEL_RUNS = ["time_slices", "mps", "mps3", "mps3_lending", "tessera"]
USERS = [2, 4, 8, 16, 32]  # of one GPU
OURS = "tessera"
SIMILAR_TAIL, MORE_SHARE = 0.02, 0.08
# The goal of share: a part of the GPU's time in which no kernel of the fifteen services runs (0.78).
IDLE_SHARE = {"shipped": 0.75 * 0.78, "disjoint": 0.85 * 0.78}


def simulate(args, name, contention):
    """{policy: {cell: {"p99", "share"} and, of language models, {"ttft", "tpot", "attainment", "per_s", "ttft_ms"}}}, means over seeds."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(ROOT / f"scenarios/{name}.toml")] + ([str(ROOT / "scenarios/parts" / contention)] if contention else [])
        scenario, out = pathlib.Path(folder) / f"{name}.toml", pathlib.Path(folder) / "results.json"
        scenario.write_text(f"include = {json.dumps(files)}\n")
        policies = MODEL_RUNS if name == MODELS else POLICIES
        command = [args.tessera, "simulate", str(scenario), "--seeds", str(args.seeds), "--first-seed", str(args.first_seed),
                   "--policy", ",".join(policies), "--json", str(out)]
        command += ["--duration-ms", str(args.duration_ms)] if args.duration_ms else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        results = json.loads(out.read_text())["policies"]
    found = {}
    for policy in policies:
        of = collections.defaultdict(list)
        for cell in results[policy]["cells"]:
            for client in cell["protected"]:
                row = {"p99": client["p99_over_alone"], "share": cell["be_share"]}
                if "tokens" in client:
                    steps, tokens = client["steps_over_alone"], client["tokens"]
                    row |= {"ttft": steps["first_p99"], "tpot": steps["further_p99"], "attainment": tokens["attainment"],
                            "per_s": tokens["per_s"], "ttft_ms": tokens["first_p50_ms"]}
                of[cell["cell"]].append(row)
        found[policy] = {cell: {key: statistics.mean(row[key] for row in rows) for key in rows[0]} for cell, rows in of.items()}
    return found


def print_table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def with_tokens(cells):
    return [row for row in cells.values() if "ttft" in row]


def summary(cells):
    text = "{:.3f} / {:.2f} / {:.3f}".format(statistics.mean(row["p99"] for row in cells.values()), max(row["p99"] for row in cells.values()),
                                             statistics.mean(row["share"] for row in cells.values()))
    served = with_tokens(cells)
    if served:
        text += "; {:.3f} / {:.3f} / {:.3f}".format(*(statistics.mean(row[key] for row in served) for key in ("ttft", "tpot", "attainment")))
    return text


def cell_text(row):
    text = f"{row['p99']:.3f} / {row['share']:.3f}"
    return text + f" ({row['ttft']:.2f} / {row['tpot']:.2f} / {row['attainment']:.2f})" if "ttft" in row else text


def without_each(policies):
    """Rows of the program that is left out, and every policy's summary over the pairs without it."""
    programs = dict.fromkeys(program for cell in policies[OURS] for program in cell.split(" + "))
    return [[left_out] + [summary({cell: row for cell, row in policies[p].items() if left_out not in cell.split(" + ")}) for p in POLICIES]
            for left_out in programs]


def dominates(row, ours):
    return row["p99"] <= ours["p99"] + SIMILAR_TAIL and row["share"] >= ours["share"] + MORE_SHARE


def models_against_one(policies):
    """{run: [(tokens, TTFT p50) of two models over one with all users, by USERS]}; the one has the whole GPU."""
    def one(users):
        return policies["mps"][f"one model, {users} users"]

    def two(run, users):
        return policies[run][f"two models, {users // 2} user{'' if users == 2 else 's'} each"]
    return {run: [(2 * two(run, n)["per_s"] / one(n)["per_s"], two(run, n)["ttft_ms"] / one(n)["ttft_ms"]) for n in USERS]
            for run in policies}


def goals(results):
    """Rows of goal, where, wanted, result, whether it is met; of `tessera`."""
    rows = []

    def add(goal, where, wanted, result, met):
        rows.append([goal, where, wanted, result, "yes" if met else "**no**"])

    for (name, contention), policies in results.items():
        where = f"`{name}`, {contention}"
        if name == MODELS:
            ratios = models_against_one(policies)
            worse = [n for n, ours, halves in zip(USERS, ratios[OURS], ratios["mps3"]) if ours[0] < halves[0]]
            light = ratios[OURS][0][1]
            add("G6", where, "tokens >= fixed halves in every row, TTFT p50 <= 2 at 2 users",
                f"{len(USERS) - len(worse)} of {len(USERS)} rows, {light:.2f}", not worse and light <= 2)
            continue
        for policy in (OURS, "tessera_device"):
            ours, cells = policies[policy], len(policies[policy])
            called = f"{where}, `{policy}`"
            tails, share = [row["p99"] for row in ours.values()], statistics.mean(row["share"] for row in ours.values())
            if name == "traced":
                add("G1", called, f"p99 <= 1.05 / 1.10, share >= {IDLE_SHARE[contention]:.3f}",
                    f"{statistics.mean(tails):.3f} / {max(tails):.2f}, {share:.3f}",
                    statistics.mean(tails) <= 1.05 and max(tails) <= 1.10 and share >= IDLE_SHARE[contention])
                less = [c for c, row in policies["temporal"].items() if row["p99"] <= 1.05 and ours[c]["share"] < row["share"]]
                add("G1", called, "never less share than `temporal` within the target", f"{len(less)} of {cells} cells", not less)
            served = {c: row for c, row in ours.items() if "ttft" in row}
            if name == "llm":
                met = [c for c, row in served.items() if row["ttft"] <= 1.05 and row["tpot"] <= 1.02 and row["attainment"] >= 0.99]
                add("G2", called, "TTFT p99 <= 1.05, TPOT p99 <= 1.02, attainment >= 0.99", f"{len(met)} of {len(served)} cells",
                    len(met) == len(served))
            if name == "llm_bursty":
                least = min(served.values(), key=lambda row: row["attainment"])["attainment"]
                add("G3", called, "attainment >= 0.95 in every cell", f"{least:.3f} at least", least >= 0.95)
            better = {c: row for c, row in policies["native"].items() if ours[c]["p99"] <= row["p99"]}
            enough = [c for c, row in better.items() if ours[c]["share"] >= 0.85 * row["share"]]
            add("G5", called, "0.85 of the share under native priorities at no worse a tail", f"{len(enough)} of {cells} cells",
                len(enough) == cells)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--duration-ms", type=int, default=0)
    parser.add_argument("--only", type=lambda s: s.split(","), default=SCENARIOS)
    parser.add_argument("--contention", type=lambda s: s.split(","), default=list(CONTENTION))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--tessera", default=str(ROOT / "build/release/bin/tessera"))
    args = parser.parse_args()
    results = {(name, c): simulate(args, name, CONTENTION[c]) for name in args.only for c in args.contention}
    if args.json:
        args.json.write_text(json.dumps({f"{name}, {c}": cells for (name, c), cells in results.items()}, indent=1) + "\n")
    print(f"Seeds {args.first_seed} to {args.first_seed + args.seeds - 1}, {args.duration_ms or 'the scenarios own'} ms.")
    print_table(["goal", "scenario, contention", "wanted", "result", "met"], goals(results))
    shared = {key: policies for key, policies in results.items() if key[0] != MODELS}
    for name in dict.fromkeys(name for name, _ in shared):
        of = [policies for (n, _), policies in shared.items() if n == name]
        print_table([f"`{name}`"] + args.contention, [[f"`{p}`"] + [summary(policies[p]) for policies in of] for p in POLICIES])
    counted = [[f"`{name}`, {c}"] + [str(sum(dominates(policies[p][cell], ours) for cell, ours in policies[OURS].items()))
                                     for p in POLICIES if not p.startswith(OURS)] + [str(len(policies[OURS]))]
               for (name, c), policies in shared.items()]
    if counted:
        print_table(["G7: cells of `tessera` dominated by"] + [f"`{p}`" for p in POLICIES if not p.startswith(OURS)] + ["of"], counted)
    for (name, c), policies in results.items():
        if name == MODELS:
            print_table([f"`{name}`, {c}: tokens / TTFT p50 over one model, by users"] + [str(n) for n in USERS],
                        [[f"`{run}`"] + [f"{tokens:.2f} / {ttft:.2f}" for tokens, ttft in row] for run, row in models_against_one(policies).items()])
        elif name in ("traced", "llm"):
            print_table([f"`{name}`, {c}, without"] + [f"`{p}`" for p in POLICIES], without_each(policies))
            print_table([f"`{name}`, {c}"] + [f"`{p}`" for p in POLICIES],
                        [[cell] + [cell_text(policies[p][cell]) for p in POLICIES] for cell in policies[OURS]])


if __name__ == "__main__":
    main()
