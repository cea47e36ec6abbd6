#!/usr/bin/env python3
"""Runs a command without a preload and with each given one; output and exit status must be equal.

  same.py --libs BUILD/lib [--mode passthrough --mode full] [--driver null|none] [--env K=V ...] [--with K=V ...]
          [--before LIB] [--after LIB] [--expect FILE] -- command ...

--env applies to every run, --with only to the preloaded ones. --expect compares with a file instead of the run without
a preload (for what must differ by design). --before/--after: another library to preload beside ours.
"""
import argparse
import os
import subprocess
import sys

TIMEOUT_S = 50


def run(command, extra, preload):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TESSERA_", "LD_"))}
    env["TESSERA_SOCKET"] = "/nonexistent/tesserad.sock"  # a daemon of this machine must not matter
    env.update(item.split("=", 1) for item in extra)
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=TIMEOUT_S)
    return done.returncode, done.stdout, done.stderr


def difference(expected, got):
    a, b = expected.splitlines(), got.splitlines()
    for i in range(max(len(a), len(b))):
        left, right = (x[i] if i < len(x) else "<end>" for x in (a, b))
        if left != right:
            return f"line {i + 1}: expected {left!r}, got {right!r}"
    return "equal"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--libs", required=True)
    parser.add_argument("--mode", action="append", choices=["passthrough", "full"])
    parser.add_argument("--driver", default="null", choices=["null", "none"])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--with", dest="extra", action="append", default=[])
    parser.add_argument("--before", action="append", default=[])
    parser.add_argument("--after", action="append", default=[])
    parser.add_argument("--expect")
    parser.add_argument("command", nargs="+")
    o = parser.parse_args()
    env = list(o.env)
    if o.driver == "null":
        env.append(f"LD_LIBRARY_PATH={o.libs}/null")
    if o.expect:
        expected = (0, open(o.expect).read())
    else:
        code, out, err = run(o.command, env, o.before + o.after)
        expected = (code, out)
        if code != 0 or not out:
            print(f"without a preload: exit {code}, {len(out)} bytes\n{err}")
            return 1
    failed = 0
    for mode in o.mode or ["passthrough", "full"]:
        shim = f"{o.libs}/passthrough/libtessera.so" if mode == "passthrough" else f"{o.libs}/libtessera.so"
        code, out, err = run(o.command, env + o.extra, o.before + [shim, f"{o.libs}/libtessera_alias.so"] + o.after)
        if (code, out) != expected or err:
            failed = 1
            print(f"{mode}: exit {code} (expected {expected[0]}); {difference(expected[1], out)}\n{err[:2000]}")
        else:
            print(f"{mode}: same, {len(out.splitlines())} lines")
    return failed


if __name__ == "__main__":
    sys.exit(main())
