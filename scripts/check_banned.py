#!/usr/bin/env python3
"""Patterns that must not appear in the source, each with its reason. Comments and strings are not looked at, except for
the rules on comments. Exit 1 with file:line for every hit.

usage: check_banned.py [--root DIR]
"""
import argparse
import pathlib
import re
import sys

TOP = ("base", "driver_api", "ipc", "interpose", "kernels", "operations", "scheduler_daemon", "profiles", "softgpu", "cli", "tests",
       "scripts")
CODE = (".h", ".cc", ".c")

# (folders, suffixes, pattern, reason)
IN_CODE = [
    (("interpose", "driver_api"), CODE, r"(?<![\w.>:])(?:std::|::)?(?:_exit|exit|quick_exit|abort|terminate)\s*\(",
     "the host program's life is not ours to end"),
    (("interpose", "driver_api"), CODE, r"(?<![\w])throw\b(?!\s*\()", "nothing throws inside a host program"),
    (("interpose", "driver_api"), CODE, r"(?<![\w])assert\s*\(", "assert aborts the host program"),
    (("interpose", "driver_api"), CODE, r"(?<![\w])(?:std::)?(?:printf|puts|fprintf|perror)\s*\(|std::(?:cout|cerr)",
     "text leaves a host program through base/raw_log.h only"),
    (("interpose", "driver_api"), CODE, r"(?<![\w])(?:sigaction|signal|setrlimit|umask)\s*\(",
     "signal handlers, limits and masks belong to the host program"),
    (("interpose",), CODE, r"\bdlsym\s*\(\s*RTLD_NEXT", "RTLD_NEXT depends on the caller (design D2)"),
    (("interpose",), CODE, r"(?<=[;{})])\s*(?:\w+::)*real(?:\(\))?\.cu\w*Get\w*\((?:[^()]|\([^()]*\))*\)\s*;",
     "an out-parameter is read although the call may have failed: look at the result, or driver_api/ask.h"),
    (("interpose",), CODE, r"\breal(?:\(\))?\.cu\w+\(\s*&\w+(?:\[\w+\])?(?:->|\.)\w",
     "what is kept is no out-parameter, for the call may fail and leave anything in it: driver_api/ask.h, made()"),
    (("interpose", "ipc"), CODE, r"\bstd::atomic<[^>]*>::wait|\.wait\(\s*std::memory_order",
     "std::atomic::wait sleeps on a process-private futex"),
    (("scheduler_daemon/policy",), CODE, r"\b(?:clock_gettime|time|rand|getenv|now_ns)\s*\(", "the policy is pure (design D8)"),
    (("base", "ipc", "interpose", "driver_api", "kernels", "scheduler_daemon", "profiles", "softgpu", "cli"), (".h",),
     r"^\s*using namespace\b", "a header must not open namespaces for others"),
    (("profiles", "cli"), CODE, r"(?:\.|->)dump\s*\(", "throws for a name that is no UTF-8: base/json_text.h"),
    (("tests/unit",), CODE, r"\b(?:sleep_for|sleep_until|usleep|nanosleep)\s*\(|(?<![\w:])sleep\s*\(",
     "sleeping is not synchronisation: tests of time use virtual time or a condition"),
]
IN_COMMENTS = [
    (TOP, CODE + (".def", ".S", ".py", ".sh"), r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\))", "write TODO(#issue), or do it"),
]
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(match):
    """Same number of lines, nothing in them; an include path is kept out too, which no rule needs."""
    return "\n" * match[0].count("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    hits, files = [], 0
    for top in TOP:
        for path in sorted((root / top).rglob("*")):
            relative = str(path.relative_to(root))
            if not path.is_file() or path.name in (pathlib.Path(__file__).name, "checks_test.py"):
                continue
            text = None
            for rules, code_only in ((IN_CODE, True), (IN_COMMENTS, False)):
                for folders, suffixes, pattern, reason in rules:
                    if path.suffix not in suffixes or not relative.startswith(tuple(f + "/" for f in folders)):
                        continue
                    if text is None:
                        text = path.read_text(errors="replace")
                        files += 1
                    body = COMMENT_OR_STRING.sub(blank, text) if code_only else text
                    for m in re.finditer(pattern, body, re.M):
                        line = body.count("\n", 0, m.start()) + 1
                        hits.append(f"{relative}:{line}: {m[0].strip()!r}: {reason}")
    print(*hits, sep="\n", end="\n" if hits else "")
    print(f"banned: {files} files, {len(hits)} problems")
    return 1 if hits or not files else 0


if __name__ == "__main__":
    sys.exit(main())
