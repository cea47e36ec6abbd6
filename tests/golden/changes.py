#!/usr/bin/env python3
"""changes.py INPUT PRINTED CUT: writes what printing changes in the statements of INPUT (in most inputs nothing), and each
function that cutting adds, as the lines in which it differs from its original. Comments and white space of INPUT do not count.
"""
import difflib
import pathlib
import re
import sys


def statements(text):
    """The text with one statement a line, without comments and without needless white space."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    text = re.sub(r"\s+(?=\W)|(?<=\W)\s+", "", re.sub(r"\s+", " ", text))
    return re.sub(r"([;{}])", r"\1\n", text).splitlines()


def difference(before, after):
    return list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]


def original(function, functions):
    """The definition that `function` is a cut copy of; empty for a function that is no copy."""
    name = re.search(r"(\S+?)__tessera_slice\(", function)
    heads = [f for f in functions if name and f.endswith("}") and f" {name[1]}(" in f.split("{")[0]]
    return heads[0] if heads else ""


def main():
    source, printed, cut = (pathlib.Path(name).read_text() for name in sys.argv[1:4])
    lines = difference(statements(source), statements(printed))
    if lines:
        print("printed:", *lines, sep="\n")
    before, after = printed.rstrip().split("\n\n"), cut.rstrip().split("\n\n")
    for tag, first, last, new_first, new_last in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        if tag in ("delete", "replace"):
            print("gone:", *before[first:last], sep="\n")
        if tag in ("insert", "replace"):
            for function in after[new_first:new_last]:
                print("added:", *difference(original(function, before).splitlines(), function.splitlines()), sep="\n")


main()
