#!/usr/bin/env python3
"""Adds up test results and prints 'N passed, N failed' as the last line; exit status 1 unless all passed.

usage: count_tests.py [--failed-builds N] REPORT_FOLDER...

A report folder holds ctest.xml (CTest's JUnit output) and one GoogleTest XML per test program. A CTest entry whose
program wrote a GoogleTest report counts with its cases, any other entry counts as one test, and says why where it was
skipped. A program that CTest saw fail although its report shows no failed case (crash, time-out, no report) counts one
failure more.
"""
import argparse
import glob
import os
import sys
import xml.etree.ElementTree as ElementTree


def gtest_cases(path):
    """(passed, failed, skipped) of one GoogleTest report."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--failed-builds", type=int, default=0)
    parser.add_argument("reports", nargs="*")
    arguments = parser.parse_args()
    passed, failed, skipped = 0, arguments.failed_builds, 0
    for report in arguments.reports:
        try:
            suite = ElementTree.parse(os.path.join(report, "ctest.xml")).getroot()
        except (OSError, ElementTree.ParseError) as problem:
            print(f"{report}: no CTest report ({problem})")
            failed += 1
            continue
        for case in suite.iter("testcase"):
            name, status = case.get("name"), case.get("status")
            cases = [0, 0, 0]
            for path in glob.glob(os.path.join(report, glob.escape(name) + ".xml")):
                try:
                    cases = [a + b for a, b in zip(cases, gtest_cases(path))]
                except ElementTree.ParseError:
                    pass  # cut off by a crash: CTest's own verdict counts below
            ok = status == "run"
            if status in ("notrun", "disabled") and case.find("failure") is None:
                cases = [0, 0, 1]
                print(f"SKIPPED {name}: {(case.findtext('system-out') or '').strip().partition(chr(10))[0]}")
            elif sum(cases) == 0:
                cases = [1, 0, 0] if ok else [0, 1, 0]
            elif not ok and cases[1] == 0:
                cases[1] += 1
            if not ok and cases[1]:
                print(f"FAILED {os.path.basename(os.path.dirname(report))}: {name}")
            passed, failed, skipped = passed + cases[0], failed + cases[1], skipped + cases[2]
    if passed + failed == 0:
        print("no test was run")
        failed = 1
    tail = f", {skipped} skipped" if skipped else ""
    print(f"{passed} passed, {failed} failed{tail}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
