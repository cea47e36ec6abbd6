#!/usr/bin/env python3
"""Runs a question's program as a client of a daemon of our own, alone, and prints its answer. Fails if the daemon died or the
program was no client of it."""
import argparse
import subprocess
import sys

import lab


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True, help="the tessera program")
    parser.add_argument("--tesserad", required=True, help="the daemon")
    parser.add_argument("--gpu", default="auto", choices=("auto", "soft"))
    parser.add_argument("--priority", default="best-effort")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    with lab.Daemon(args.tessera, args.tesserad) as daemon:
        done = subprocess.run(daemon.client(args.gpu, args.priority, *args.command), stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="")
        daemon.check()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
