#!/usr/bin/env python3
"""What the parts and the constants of `tessera` do, as Markdown tables.

--ablation: scenarios/ablation.toml, one row per part that is off. Else every constant of
scheduler_daemon/policy/tuning.def at half and at double, on the same cells (scenarios/parts/varied_cells.toml).

usage: tuning_table.py [--ablation] [--tessera BIN] [--seeds N] [--first-seed S] [--only NAME,...] [--out FILE]
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROW = re.compile(r'^TS_TUNE\((\w+), (\w+), ([^,]+), "([^"]*)", "([^"]*)"\)')
GROUP = re.compile(r"^// ---- (.*)")
# Constants of these groups act only under these settings of a run.
SETTINGS = {"minimum share": "min_share = 0.1", "`temporal` and exclusive turns": 'regime = "timesliced"'}


def constants(path):
    """(group, type, name, value, unit, why) in the order of the file."""
    group, rows = "", []
    for line in path.read_text().splitlines():
        if m := GROUP.match(line):
            group = m[1]
        elif m := ROW.match(line):
            rows.append((group, m[1], m[2], float(m[3].replace("'", "")), m[4], m[5]))
        elif line.startswith("TS_TUNE("):
            sys.exit(f"{path}: cannot read the row: {line}")
    return rows


def varied(kind, value):
    """The value at half and at double, as TOML, whole where it must be."""
    half, double = value / 2, value * 2
    if kind == "uint64_t":
        half, double = int(half), int(double)
    return {"half": half, "double": double}


def simulate(args, scenario, folder):
    out = pathlib.Path(folder) / "results.json"
    subprocess.run([args.tessera, "simulate", str(scenario), "--seeds", str(args.seeds), "--first-seed", str(args.first_seed),
                    "--json", str(out)], check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())["policies"]


def per_cell(policy):
    """{cell: (p99 over alone, best-effort share)}, means over seeds."""
    cells = {}
    for row in policy["cells"]:
        tail = sum(p["p99_over_alone"] for p in row["protected"]) / len(row["protected"])
        cells.setdefault(row["cell"], []).append((tail, row["be_share"]))
    return {name: tuple(sum(x) / len(rows) for x in zip(*rows)) for name, rows in cells.items()}


def change(now, before):
    """Of mean tail and mean share, and of the cell that moved most: points (hundredths of alone)."""
    cells_now, cells_before = per_cell(now), per_cell(before)
    tail = 100 * (now["p99_mean_over_alone"] - before["p99_mean_over_alone"])
    share = 100 * (now["be_share"] - before["be_share"])
    moved = {c: [100 * (a - b) for a, b in zip(cells_now[c], cells_before[c])] for c in cells_now}
    most = max(moved, key=lambda c: max(map(abs, moved[c])))
    return tail, share, most, moved[most]


def text(tail, share, most, moved):
    if max(map(abs, moved)) < 0.5:
        return "-"
    return f"{tail:+.1f} / {share:+.1f}; {most} {moved[0]:+.0f} / {moved[1]:+.0f}"


def constants_table(args):
    rows = [r for r in constants(ROOT / "scheduler_daemon/policy/tuning.def") if not args.only or r[2] in args.only]
    settings = sorted({SETTINGS.get(r[0], "") for r in rows})
    toml = [f'include = ["{ROOT}/scenarios/parts/varied_cells.toml"]', 'name = "tuning"']

    def run(name, setting, tune=""):
        toml.append(f'[[run]]\nname = "{name}"\npolicy = "tessera"\nconfine = "dynamic"\n{setting}\n{tune}')

    for setting in settings:
        run(f"base {setting}".replace('"', ""), setting)
    for group, kind, name, value, _, _ in rows:
        for which, other in varied(kind, value).items():
            run(f"{name} {which}", SETTINGS.get(group, ""), f"tune = {{ {name} = {other} }}")
    with tempfile.TemporaryDirectory() as folder:
        scenario = pathlib.Path(folder) / "tuning.toml"
        scenario.write_text("\n".join(toml) + "\n")
        results = simulate(args, scenario, folder)
    lines, last = [], None
    for group, _, name, value, unit, why in rows:
        if group != last:
            lines += ["", f"### {group[0].upper() + group[1:]}", "", "| constant | value | why | at half | at double |", "|---|---|---|---|---|"]
            last = group
        before = results[f"base {SETTINGS.get(group, '')}".replace('"', "")]
        moved = [text(*change(results[f"{name} {which}"], before)) for which in ("half", "double")]
        lines.append(f"| `{name}` | {value:,.10g} {unit} | {why} | {moved[0]} | {moved[1]} |")
    return lines[1:]


def unfairness(policy):
    """How far the shares over weights of `weights 300 and 100` are from equal: 1 = one has all."""
    far = []
    for row in policy["cells"]:
        if row["cell"] == "weights 300 and 100":
            a, b = row["be_shares"][0] / 3, row["be_shares"][1]
            far.append(abs(a - b) / max(a, b, 1e-9))
    return sum(far) / len(far)


def ablation_table(args):
    with tempfile.TemporaryDirectory() as folder:
        results = simulate(args, ROOT / "scenarios/ablation.toml", folder)
    lines = ["| run | p99 mean | worst | share | away from the weights | cell that moves most (tail / share, points) |", "|---|---|---|---|---|---|"]
    for name, row in results.items():
        base = results["time-sliced" if name.startswith("time-sliced") else "tessera"]
        _, _, most, moved = change(row, base)
        most_text = "" if row is base else "-" if max(map(abs, moved)) < 0.5 else f"{most} {moved[0]:+.0f} / {moved[1]:+.0f}"
        lines.append(f"| {name} | {row['p99_mean_over_alone']:.3f} | {row['p99_worst_over_alone']:.2f} | {row['be_share']:.3f} | "
                     f"{unfairness(row):.2f} | {most_text} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--tessera", default=str(ROOT / "build/release/bin/tessera"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", type=lambda s: s.split(","), default=[])
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    lines = ablation_table(args) if args.ablation else constants_table(args)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
