#!/usr/bin/env python3
"""Names in the documentation exist: files, links, commands and their options, tests, configuration keys, environment
variables, functions and types; `file.cc: symbol` stands in that file, and a constant has the value that is quoted with
it (`kName` = 32); blocks that say `same: NAME` are equal. Looks at what stands in backticks, in shell blocks and in links of every tracked *.md; says nothing
about CHANGELOG.md, which tells of what was.

usage: check_docs.py [--root DIR] [--build DIR]     DIR: a configured build; without it names of CTests are not checked
"""
import argparse
import fnmatch
import itertools
import pathlib
import re
import subprocess
import sys

# Names of others that look like ours. A reason is not needed: whoever reads the line knows the thing.
FOREIGN = set("""
CUDA_CACHE_PATH CUDA_MPS_ACTIVE_THREAD_PERCENTAGE DT_RPATH DT_RUNPATH EF_CUDA_ACCELERATORS dynlink_loader
profiles/results/ H13_gpt2.json kube_pod_info with_stack record_shapes profile_memory
""".split())

HISTORY = {"CHANGELOG.md"}
SOURCE = r"(?:cc|h|cu|c|S|py|sh|md|def|toml|txt|map|ptx|json|service|cmake|conf)"
PLACEHOLDER = re.compile(r"[<>$~|…]|\.\.\.|^/|^[A-Z_]+/|\bX\b|://")


NUMBER = r"\d[\d',]*(?:\.\d+)?(?:e\d+)?"


def number(text):
    return float(re.sub("[',]", "", text))


class Tree:
    def __init__(self, root, tests):
        self.root = root
        listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True).stdout.split("\n")
        self.files = [f for f in listed if f and (root / f).is_file()]
        self.folders = {str(p) for f in self.files for p in pathlib.PurePosixPath(f).parents} - {"."}
        self.words, self.dotted, self.text = set(), set(), {}
        for f in self.files:
            if f.endswith((".md", ".png", ".bin", ".xz")):
                continue
            text = (root / f).read_text(errors="replace")
            self.words.update(re.findall(r"[A-Za-z_]\w*", text))
            self.dotted.update(re.findall(r"\w+\.\w+", text))
            self.text[f] = text
        for f in map(pathlib.PurePosixPath, self.files):  # programs and tests are called after their sources
            self.words.update((f.stem, f"{f.parent.name}_{f.stem}"))
        self.tests = tests
        tests_text = "\n".join(t for f, t in self.text.items() if f.startswith("tests/") and f.endswith((".cc", ".cu")))
        self.suites = dict()
        for m in re.finditer(r"\bTEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", tests_text):
            self.suites.setdefault(m[1], set()).add(m[2])
        options = next((t for f, t in self.text.items() if f.endswith("config/options.def")), "")
        self.keys = {}
        for m in re.finditer(r"^TS_(?:NUMBER|CHOICE|TEXT)\((\w+), (\w+),", options, re.M):
            self.keys.setdefault(m[1], set()).add(m[2])
        parameters = self.text.get("scheduler_daemon/policy/parameters.def", "")
        times = {f"{m[1]}_{m[2]}" for m in re.finditer(r"^TS_TIME\((\w+), (\w+),", parameters, re.M)}
        percents = {f"{name}_percent" for name in re.findall(r"^TS_PERCENT\((\w+),", parameters, re.M)}
        switches = set(re.findall(r"^TS_SWITCH\((\w+),", parameters, re.M))
        self.keys.setdefault("policy", set()).update(times | percents | switches)
        self.words |= times | percents | switches
        self.constants = {}
        for text in (t for f, t in self.text.items() if f.endswith((".h", ".cc", ".def"))):
            for m in re.finditer(rf"\b(k[A-Z]\w*) ?= ?({NUMBER})[uUlL]*\b|^TS_TUNE\(\w+, (\w+), ({NUMBER}),", text, re.M):
                self.constants.setdefault(m[1] or m[3], set()).add(number(m[2] or m[4]))
        cli = "\n".join(t for f, t in self.text.items() if f.startswith("cli/"))
        self.commands = set(re.findall(r'add_subcommand\(\s*"(\w+)"', cli))

    def may_be_a_test(self, name):
        """Without a build: whatever begins like a folder of tests, as CTests do."""
        return name in self.tests if self.tests else f"tests/{name.split('_')[0]}" in self.folders

    def options_of(self, program):
        sources = {"tessera": "cli/", "tesserad": "scheduler_daemon/main.cc"}.get(program, program)
        return set(re.findall(r"--[a-z][a-z0-9-]+", "\n".join(t for f, t in self.text.items() if f.startswith(sources))))

    def has_path(self, path, beside):
        path = path.rstrip("/")
        for candidate in (path, str(pathlib.PurePosixPath(beside) / path)):
            candidate = re.sub(r"^(\./)+", "", candidate)
            if candidate in self.folders or candidate in self.files:
                return True
        if "*" in path:
            return any(fnmatch.fnmatch(f, path) or fnmatch.fnmatch(f, "*/" + path) for f in self.files)
        if any(f.endswith("/" + path) for f in itertools.chain(self.files, self.folders)):
            return True
        return any(f.startswith(path + ".") for f in self.files)  # a.h and a.cc


def expand(text):
    """a/{b,c}.h -> a/b.h, a/c.h"""
    m = re.search(r"\{([^{}]*,[^{}]*)\}", text)
    if not m:
        return [text]
    return [one for part in m[1].split(",") for one in expand(text[:m.start()] + part.strip() + text[m.end():])]


def spans(text):
    """(line, code) of backticks and of the lines of shell blocks."""
    out, fence, inline = [], None, []
    for number, line in enumerate(text.split("\n"), 1):
        m = re.match(r"\s*```(\w*)", line)
        if m:
            fence = None if fence is not None else m[1]
            inline.append("")
            continue
        inline.append("" if fence is not None else line)
        if fence in ("", "sh", "bash") and re.match(r"\s*(scripts/|tessera |tesserad |ctest )", line):
            out.append((number, line.split("#")[0].strip()))
    joined = "\n".join(inline)
    for m in re.finditer(r"`([^`\n]+(?:\n[^`\n]+)?)`", joined):
        out.append((joined.count("\n", 0, m.start()) + 1, " ".join(m[1].split())))
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)", lambda m: re.sub(r"[^\n]", " ", m[0]), joined)
    for m in re.finditer(rf"(?<![\w./-])(?:[\w-]+/)+[\w-]+\.{SOURCE}\b", plain):
        out.append((plain.count("\n", 0, m.start()) + 1, m[0]))
    return out


def is_path(token):
    return bool(re.fullmatch(r"[\w.*{},/+-]+", token)) and not re.search(r",(?![^{]*\})", token) and \
        ("/" in token or re.search(rf"\w\.(?:{SOURCE}|\*|\{{.*\}})$", token) is not None)


def check_span(tree, code, beside):
    """Complaints about one span of code."""
    words = code.split()
    if not words or PLACEHOLDER.search(words[0]):
        return
    for name in re.findall(r"\bTESSERA_\w*[A-Z]\b", code):
        if name not in tree.words:
            yield f"no variable {name}"
    head = words[0]
    if head in ("tessera", "tesserad") or head.startswith("scripts/"):
        if head == "tessera" and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]) and words[1] not in tree.commands:
            yield f"no command `tessera {words[1]}`"
        own = words[:words.index("--")] if "--" in words else words
        for option in itertools.chain(*(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", w) for w in own)):
            if option not in tree.options_of(head):
                yield f"{head} has no option {option}"
    if head == "ctest" and tree.tests and (m := re.search(r'-R ("[^"]+"|\S+)', code)):
        pattern = m[1].strip('"').replace("\\|", "|")
        if not any(re.search(pattern, test) for test in tree.tests):
            yield f"no CTest matches {pattern}"
    if m := re.fullmatch(r"((?:\w+::)*\w+)\(.*\)", code):
        words = [m[1] + "()"]
    for token in words if head.startswith("scripts/") else words if len(words) == 1 else []:
        token = token.rstrip(",;:")
        if PLACEHOLDER.search(token) or token.startswith("-") or token in FOREIGN:
            continue
        yield from check_token(tree, token, beside)


def check_token(tree, token, beside):
    if m := re.fullmatch(r"check\.(\w+)", token):
        if tree.tests and token not in tree.tests:
            yield f"no CTest {token}"
    elif (m := re.fullmatch(r"([a-z]+)\.([a-z]\w*)", token)) and m[1] in tree.keys:
        if m[2] not in tree.keys[m[1]] and not {token, re.sub(r"_p\d+_us$", "", token)} & tree.dotted:
            yield f"no configuration key {token}"
    elif (m := re.fullmatch(r"([A-Z]\w+)(?:/\*|/\w+)?(?:\.(\w+|\*))?", token)) and m[1] in tree.suites and m[2]:
        if m[2] != "*" and m[2] not in tree.suites[m[1]]:
            yield f"no test {token}"
    elif re.search(r"^(build|usr|opt|etc|run|tmp)/", token):
        return
    elif is_path(token):
        first = token.split("/")[0]
        ours = re.search(rf"\.(?:{SOURCE})$", token) or first in {f.split("/")[0] for f in tree.folders}
        for path in expand(token):
            made = re.search(r"[A-Z]{3}", path) or any(path in text for text in tree.text.values())  # an output
            if ours and not tree.has_path(path, beside) and not made:
                yield f"no file {path}"
    elif m := re.fullmatch(r"((?:\w+::)*)(\w+)(\(.*\))?", token):
        name, called = m[2], m[3]
        camel = re.search(r"[a-z][A-Z]", name) and not name.isupper()
        if (camel or "_" in name or called) and name not in tree.words and name not in FOREIGN \
                and not tree.may_be_a_test(name) and not re.match(r"_|\d|[A-Z]__", name) and not name.endswith("_"):
            yield f"nothing is called {name}"


def check_symbols(tree, code, beside):
    """`file.cc: symbol, another` and `file.{h,cc}: symbol`: one of the files that are meant has each symbol."""
    m = re.fullmatch(rf"([\w./{{}},-]+\.(?:{SOURCE}|{{[\w,]+}})): ((?:[\w:]+(?:, )?)+)", code)
    if not m:
        return
    meant = {path: [f for f in tree.text if f == path or f.endswith("/" + path)] for path in expand(m[1])}
    yield from (f"no file {path}" for path, files in meant.items() if not files)
    texts = [tree.text[f] for files in meant.values() for f in files]
    for symbol in m[2].split(", ") if texts else []:
        if not any(re.search(rf"\b{symbol.split('::')[-1]}\b", text) for text in texts):
            yield f"{m[1]} has no {symbol}"


def check_constants(tree, text):
    for m in re.finditer(rf"`(\w+)` = ({NUMBER})|`(\w+) = ({NUMBER})`", text):
        name, value = m[1] or m[3], m[2] or m[4]
        known = tree.constants.get(name)
        if known is None and re.match("k[A-Z]", name):
            yield text.count("\n", 0, m.start()) + 1, f"no constant {name}"
        elif known is not None and number(value) not in known:
            yield text.count("\n", 0, m.start()) + 1, f"{name} is not {value}"


def check_links(tree, text, beside):
    for m in re.finditer(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```|`[^`]*`", lambda c: " " * len(c[0]), text, flags=re.S)):
        if "://" not in m[1] and not (tree.root / beside / m[1]).exists():
            yield text.count("\n", 0, m.start()) + 1, f"link to {m[1]}, which is not there"


def check_same(texts):
    """`<!-- same: NAME -->` ... `<!-- end of same -->`: what several pages show is one text."""
    first = {}
    for document, text in texts.items():
        for m in re.finditer(r"<!-- same: (\w+) -->\n(.*?)<!-- end of same -->", text, re.S):
            where, block = first.setdefault(m[1], (document, m[2]))
            if block != m[2]:
                line = text.count("\n", 0, m.start()) + 1
                yield f"{document}:{line}: the block {m[1]} differs from that of {where}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--build", type=pathlib.Path)
    options = parser.parse_args()
    listing = ["ctest", "--test-dir", str(options.build), "-N"] if options.build else ["true"]
    tests = set(re.findall(r"Test +#\d+: (\S+)", subprocess.run(listing, capture_output=True, text=True).stdout))
    tree = Tree(options.root, tests)
    documents = [f for f in tree.files if f.endswith(".md") and f not in HISTORY]
    if not documents:
        print("no documents found", file=sys.stderr)
        return 1
    texts = {document: (options.root / document).read_text() for document in documents}
    problems = list(check_same(texts))
    for document, text in texts.items():
        beside = str(pathlib.PurePosixPath(document).parent)
        found = [(line, what) for line, code in spans(text)
                 for check in (check_span, check_symbols) for what in check(tree, code, beside)]
        found += [*check_links(tree, text, beside), *check_constants(tree, text)]
        problems += [f"{document}:{line}: {what}" for line, what in sorted(set(found))]
    print("\n".join(problems + [f"docs: {len(documents)} files, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
