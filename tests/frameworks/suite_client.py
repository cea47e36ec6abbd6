"""A framework's own tests, run by its own Python: suite_client.py RESULTS [--only FILE] MODULE...

Appends to RESULTS a line when a test begins and one when it ends, flushed, so that whoever reads it knows in which test the
process died or hangs. Tests of which RESULTS already has a line are left out: called again, it goes on behind such a test.
Behind each module whose tests ran comes a line with what a daemon, if one answers, has counted of this process so far.
It ends early after a module in which a test failed, as that may have spoilt the context for those behind it.
Prints one line of JSON at the end: is every module done."""
import argparse
import json
import os
import pathlib
import sys
import unittest

import client


class Report(unittest.TestResult):
    """Each test is what it ended with: passed, skipped, failed."""

    def __init__(self, path):
        super().__init__()
        self.file = open(path, "a", buffering=1)
        self.failed_tests = 0
        self.outcome, self.why = "passed", ""

    def line(self, test, outcome, why=""):
        self.file.write(json.dumps([test.id(), outcome, why[-600:]]) + "\n")

    def counted(self, module):
        self.file.write(json.dumps([f"{module} in process {os.getpid()}", "counted", client.counters()]) + "\n")

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.why = "passed", ""
        self.line(test, "begun")

    def worse(self, outcome, why):
        if self.outcome != "failed":
            self.outcome, self.why = outcome, why

    def addError(self, test, error):
        super().addError(test, error)
        self.worse("failed", self.errors[-1][1])

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.worse("failed", self.failures[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.worse("failed", str(error[1]))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.worse("skipped", reason)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.worse("failed", "unexpected success")

    def stopTest(self, test):
        super().stopTest(test)
        self.line(test, self.outcome, self.why)
        self.failed_tests += self.outcome == "failed"


def tests_of(suite):
    for test in suite:
        yield from tests_of(test) if isinstance(test, unittest.TestSuite) else [test]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--only", type=pathlib.Path, metavar="FILE", help="ids of tests, one a line")
    options = parser.parse_args()
    known = {json.loads(line)[0] for line in options.results.read_text().splitlines()} if options.results.exists() else set()
    only = set(options.only.read_text().splitlines()) if options.only else None
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is not the answer
    for module in options.modules:
        chosen = unittest.TestSuite(test for test in tests_of(unittest.defaultTestLoader.loadTestsFromName(module))
                                    if test.id() not in known and (only is None or test.id() in only))
        report = Report(options.results)
        chosen.run(report)
        if report.testsRun:
            report.counted(module)
        if report.failed_tests:
            break
    done = module == options.modules[-1]
    print(json.dumps({"done": done}), file=output, flush=True)


if __name__ == "__main__":
    sys.exit(main())
