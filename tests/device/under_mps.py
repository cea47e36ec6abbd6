#!/usr/bin/env python3
"""Runs a question's program, whose processes are clients of an MPS of our own, and prints its answer."""
import argparse
import json
import os
import subprocess
import sys

import lab


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()

    def answers(environment, _):
        done = subprocess.run(args.command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}, preexec_fn=lab.dies_with_us)
        if done.returncode != 0:
            raise SystemExit(done.stdout or f"{args.command[0]} ended with status {done.returncode}")
        return json.loads(done.stdout)

    print(json.dumps(lab.with_mps(answers, None)))


if __name__ == "__main__":
    sys.exit(main())
