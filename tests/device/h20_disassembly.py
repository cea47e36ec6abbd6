"""What of H20 can be checked without a card: h20_disassembly.py FOLDER [--nvdisasm FILE].

NVIDIA's disassembler reads the spliced machine code, which our own nvcc made of our own kernels. Each kernel must be the
check of the template, no-operations to the end of a line of 128 bytes, and the untouched kernel, whose jumps, calls, returns
and jump tables lead where they led. Without a disassembler (toolkit, PATH, Triton's wheel) it is skipped: exit status 77."""
import argparse
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys

LINE_BYTES = 128
INSTRUCTION_BYTES = 16


def disassembler():
    frameworks = pathlib.Path(os.environ.get("TESSERA_FRAMEWORKS", pathlib.Path.home() / ".cache/tessera-frameworks"))
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvdisasm"
    of_triton = frameworks.glob("triton/lib/python*/site-packages/triton/backends/nvidia/bin/nvdisasm")
    found = [path for path in (toolkit, *of_triton) if path.exists()]
    return shutil.which("nvdisasm") or (found[0] if found else None)


def kernels(nvdisasm, cubin):
    """Name of a section of code -> its instructions, with the places instead of the names of what they lead to."""
    text = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    sections, lines = {}, None
    for line in text.split("\n"):
        if found := re.match(r"\.text\.(\S+):", line):
            lines = sections.setdefault(found[1], [])
        elif lines is not None:
            lines.append(line)
    return {name: instructions(name, lines) for name, lines in sections.items()}


def instructions(name, lines):
    places, found = {name: 0}, []
    for line in lines:
        if instruction := re.match(r"\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;?\s*(\(\*.*\*\))?;?\s*$", line):
            found.append((instruction[2].rstrip(" ;"), instruction[3] or ""))
        elif label := re.match(r"(\S+):$", line):
            places[label[1]] = len(found) * INSTRUCTION_BYTES
    place = lambda match: f"@{places.get(match[1], match[1])}"
    return [(re.sub(r"`\(([^)]*)\)", place, text), re.sub(r"([.$\w]*\.L_x_\d+)", place, targets)) for text, targets in found]


def moved(instruction, by):
    return tuple(re.sub(r"@(\d+)", lambda m: f"@{int(m[1]) + by}", part) for part in instruction)


def expected(check, kernel):
    """The spliced kernel as it must be, without what fills its section."""
    exits = [i for i, (text, _) in enumerate(check) if re.match(r"@!?U?P\d EXIT", text)]
    front = check[:exits[-1] + 1]
    while len(front) * INSTRUCTION_BYTES % LINE_BYTES:
        front.append(("NOP", ""))
    return front + [moved(i, len(front) * INSTRUCTION_BYTES) for i in kernel]


def first_difference(wanted, found):
    for i, (a, b) in enumerate(itertools.zip_longest(wanted, found)):
        if a != b:
            return f"at {i * INSTRUCTION_BYTES:#x}: {b} instead of {a}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--nvdisasm", default=disassembler())
    options = parser.parse_args()
    if not options.nvdisasm:
        print("skipped: no nvdisasm in PATH, in the CUDA toolkit, or in Triton's wheel (scripts/frameworks.sh triton)")
        return 77
    check, plain, spliced = (kernels(options.nvdisasm, options.folder / f"h20_{name}.cubin")
                             for name in ("range_check", "kernels", "spliced"))
    problems = [] if set(plain) == set(spliced) and len(plain) >= 5 else [f"kernels {sorted(spliced)} of {sorted(plain)}"]
    jumps = 0
    for name, kernel in plain.items():
        wanted = expected(next(iter(check.values())), kernel)
        jumps += sum(re.search(r"@\d", text + targets) is not None for text, targets in kernel)
        if difference := first_difference(wanted, spliced.get(name, [])):
            problems.append(f"{name} {difference}")
    for problem in problems:
        print(f"WRONG: {problem}")
    print(f"{len(plain)} kernels, {jumps} jumps, calls and returns, {len(problems)} problems, by {options.nvdisasm}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
