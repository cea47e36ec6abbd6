#!/usr/bin/env python3
"""Who makes the driver's checkpoint calls on a GPU (`[park] by`), as H15 measured it: the lines for checkpoints.toml in a folder of profiles.

usage: checkpoints.py H15.json|answers.json >> ~/.local/share/tessera/profiles/checkpoints.toml
"""
import json
import pathlib
import sys

STEPS = ("lock", "checkpoint", "restore", "unlock")


def went_well(case, caller):
    """There and back, with the contents that it had."""
    subject = case.get("subject", {})
    steps = case.get(caller, {})
    return (all(steps.get(step, {}).get("answer") == 0 for step in STEPS) and subject.get("ends_as") == "running"
            and subject.get("works") == "cudaSuccess" and subject.get("wrong_values") == 0)


def who(answer):
    """None: nobody could."""
    alone = [case for name, case in answer.items() if name.startswith("by_itself_")]
    if alone and all(went_well(case, "subject") for case in alone):
        return "client"
    return "parker" if went_well(answer.get("by_another", {}), "parker") else None


def lines(answer):
    by = who(answer)
    if not by or not answer.get("gpu") or not answer.get("driver_version"):
        return None
    return f'[[checkpoint]]\ngpu = "{answer["gpu"]}"\ndriver = {int(answer["driver_version"])}\nby = "{by}"\n'


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    said = json.loads(pathlib.Path(sys.argv[1]).read_text())
    text = lines(said.get("H15", said))
    if not text:
        print("checkpoints.py: by these answers nobody can checkpoint a process, or they are not H15's", file=sys.stderr)
        return 1
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
