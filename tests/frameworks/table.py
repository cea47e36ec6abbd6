"""Prints the tables of docs/frameworks.md from the JSON of run.py or suites.py: table.py FILE..."""
import json
import pathlib
import sys


EQUAL = {True: "yes", False: "**no**", None: "failed"}


def markdown(head, rows):
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in [head, ["---"] * len(head), *rows])


def counts(some):
    return ", ".join(f"{name} {count}" for name, count in some.items()) or "-"


def timing_cells(row):
    timing = row.get("timing")
    if not timing:
        return [row["service"], "-", "-", "not measured", "-"]
    figures = [f"{row['p99_over_alone']:.2f}", f"{timing['p50_over_alone']:.2f}"] if timing["valid"] else ["lagged"] * 2
    return [row["service"], timing["beside"]["requests"], f"{timing['stretch']:.3g}", *figures]


def frameworks(rows):
    head = ["framework", "equal", "launches", "slices", "holds", "kernels cut", "refused", "service", "requests", "stretch",
            "p99 / alone", "p50 / alone"]
    return markdown(head, [
        [f"{name} {row['version']}", EQUAL[row["equal"]], row["launches"], row["slices"], row["holds"],
         row["kernels_cut"], counts(row["refused"]), *timing_cells(row)] for name, row in rows.items() if "problem" not in row])


def suites(rows):
    head = ["tests of", "modules", "tests", "pass bare", "of them under Tessera", "launches", "slices", "bare, else"]
    return markdown(head, [
        [row["version"], f"`{row['modules']}`", row["tests"], row["pass_bare"], row["pass_under"],
         row["counted"]["launches"], row["counted"]["slices"], counts({k: v for k, v in row["outcomes_bare"].items() if k != "passed"})]
        for row in rows.values() if "problem" not in row])


def main():
    for path in map(pathlib.Path, sys.argv[1:]):
        data = json.loads(path.read_text())
        print(frameworks(data["frameworks"]) if "frameworks" in data else suites(data["suites"]), end="\n\n")


if __name__ == "__main__":
    main()
