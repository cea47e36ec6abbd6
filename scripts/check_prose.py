#!/usr/bin/env python3
"""The prose of pages and comments keeps to what a script can tell of plain English:

  sentence   a sentence of a page has at most 30 words
  cell       a cell of a table has at most 40 words
  opening    a comment does not open with Of, What, Who, Whose, Where, Which or That, unless it asks a question
  pronoun    "so many", "so long" and the like are followed by "that" or "as": they do not stand for a number named elsewhere
  orphan     no comment line of one or two words follows a full one and precedes another: a formatter leaves such lines
  reference  what a page or comment refers to is in the project: decisions (D7) and questions of hardware (H7) are rows of
             a table, and no document of another project is named

Pages are all tracked *.md but docs/notes, which tells of what was tried. Comments are those of sources and scripts.

usage: check_prose.py [--root DIR] [FILE...]     FILE: print the findings there only
"""
import argparse
import pathlib
import re
import subprocess
import sys

SENTENCE_WORDS, CELL_WORDS = 30, 40
FULL_COLUMNS, ORPHAN_WORDS = 90, 2
SLASHES, HASHES = (".h", ".cc", ".cu", ".c", ".S", ".def"), (".py", ".sh", ".cmake", ".toml")
OPENING = re.compile(r"(Of|What|Who|Whose|Where|Which|That)\b")
SENTENCE_END = re.compile(r"""(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.?!][)"*_]*\s+(?=["(*_`\[]*[A-Z0-9])""")
ELSEWHERE = re.compile(r"\bconventions(?:\.md)? \d|\bconventions\.md|\bdesign(?:\.md)? section|\bdesign\.md|\bresearch [\w-]+\.md")
PRONOUN = re.compile(r"(?<!\bas )(?<!\bnot )\bso (?:many|long|much|few)\b(?! as\b)", re.I)
NUMBERED = re.compile(r"\b[DH][1-9]\d?\b")


def words(text):
    return [w for w in text.split() if re.search(r"\w", w)]


def plain(text):
    """Code, links and tags count as they read: one word, their text, nothing."""
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"<[^>\s][^>]*>", "", text)


def page_parts(text):
    """(line, kind, text) of a page: paragraphs, items of lists, cells of tables."""
    parts, fence, open_part = [], False, None
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare.startswith("```"):
            fence, open_part = not fence, None
        elif fence or not bare or bare.startswith(("#", "<!--")) or re.fullmatch(r"[|:\- ]+", bare):
            open_part = None
        elif bare.startswith("|"):
            open_part = None
            escaped = re.sub(r"`[^`]*`", "code", bare.replace("\\|", "/"))
            parts += [[number, "cell", cell] for cell in escaped.strip("|").split("|")]
        elif open_part is None or re.match(r"(?:[-*]|\d+\.)\s", bare):
            open_part = [number, "text", re.sub(r"^(?:[-*]|\d+\.)\s+", "", bare)]
            parts.append(open_part)
        else:
            open_part[2] += " " + bare
    return parts


def page_findings(text):
    for number, kind, part in page_parts(text):
        part = plain(part)
        if kind == "cell" and len(words(part)) > CELL_WORDS:
            yield number, "cell", f"{len(words(part))} words in a cell: {part.strip()[:60]}"
        if kind == "text":
            for sentence in SENTENCE_END.split(part):
                if len(words(sentence)) > SENTENCE_WORDS:
                    yield number, "sentence", f"{len(words(sentence))} words: {sentence.strip()[:60]}"


def comment_lines(path, text):
    """Number of a line: its comment. Only lines that hold nothing else."""
    mark = r"//+" if path.endswith(SLASHES) else r"#"
    found = ((n, re.match(rf"\s*{mark}(?!!)\s?(.*)$", line)) for n, line in enumerate(text.split("\n"), 1))
    return {n: m for n, m in found if m}


def comment_findings(path, text):
    lines = comment_lines(path, text)
    for n, m in lines.items():
        if n - 1 not in lines:
            block, k = m[1], n + 1
            while k in lines and not re.search(r"[.?!:]\s*$", block):
                block, k = f"{block} {lines[k][1].strip()}", k + 1
            first = re.match(r".*?[.?!](?=\s|$)|.*", block)[0]
            if OPENING.match(block) and not first.endswith("?"):
                yield n, "opening", f"opens with a bare {block.split()[0]}: {block[:60]}"
        elif n + 1 in lines and lines[n + 1][1].strip() and 0 < len(words(m[1])) <= ORPHAN_WORDS \
                and re.fullmatch(r"\s*[a-z][\w ,.;:)]*", m[1]) and len(lines[n - 1].string.rstrip()) >= FULL_COLUMNS:
            yield n, "orphan", f"left over by a formatter: {m[1].strip()}"
        elif re.fullmatch(r"-{20,}\s*", m[1]) and lines[n - 1][1].startswith("---"):
            yield n, "orphan", "the rest of the rule above"


def pronoun_findings(lines):
    for (n, line), (_, following) in zip(lines, [*lines[1:], (0, "")]):
        for m in PRONOUN.finditer(line):
            if not re.search(r"\bthat\b", f"{line[m.end():]} {following}"[:100]):
                yield n, "pronoun", f"{m[0]} stands for a number: {line[m.start():].strip()[:60]}"


def reference_findings(lines, defined):
    for n, line in lines:
        for m in ELSEWHERE.finditer(line):
            yield n, "reference", f"not in the project: {m[0]}"
        for m in NUMBERED.finditer(line):
            if m[0] not in defined:
                yield n, "reference", f"defined nowhere: {m[0]}"


def findings(path, text, defined):
    if path.endswith(".md"):
        outside_code = re.sub(r"```.*?```|`[^`\n]*`", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)
        yield from page_findings(text)
        yield from pronoun_findings([*enumerate(outside_code.split("\n"), 1)])
        yield from reference_findings(enumerate(outside_code.split("\n"), 1), defined)
    else:
        yield from comment_findings(path, text)
        yield from pronoun_findings([*enumerate(text.split("\n"), 1)])
        mark = "//" if path.endswith(SLASHES) else "#"
        yield from reference_findings([(n, line.partition(mark)[2]) for n, line in enumerate(text.split("\n"), 1)], defined)


def is_watched(path):
    return path.endswith((".md", *SLASHES, *HASHES)) and not path.startswith("docs/notes/") or path.endswith("CMakeLists.txt")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    listed = subprocess.run(["git", "ls-files"], cwd=options.root, capture_output=True, text=True).stdout.split("\n")
    texts = {f: (options.root / f).read_text(errors="replace") for f in listed if f and is_watched(f) and (options.root / f).is_file()}
    if not texts:
        print("no files found", file=sys.stderr)
        return 1
    defined = {m[1] for f, text in texts.items() if f.endswith(".md") for m in re.finditer(r"^\|\s*([DH]\d+)\b", text, re.M)}
    problems = [f"{file}:{number}: {rule}: {what}" for file, text in texts.items() if not options.files or file in options.files
                for number, rule, what in findings(file, text, defined)]
    print("\n".join(problems + [f"prose: {len(texts)} files, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
