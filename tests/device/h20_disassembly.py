"""What of H20 can be checked without a card: h20_disassembly.py FOLDER --splice FILE [--ptxas FILE...] [--sources] [PTX...].

NVIDIA's disassembler reads machine code with a range check in front, which our own compilers made of our own kernels. Each kernel
must be the check of the template with this kernel's constants, no-operations to the end of a line of 128 bytes, and the untouched
kernel, whose jumps, calls, returns and jump tables lead where they led. h20_splice proves the same by kernels/sass.
Asked of the files in FOLDER, and of what other releases of ptxas make of the same PTX with and without line numbers, of further PTX,
and with --sources of the kernels of all programs in this folder. The ptxas are those of Triton's wheels, or as given. Without a disassembler (toolkit,
PATH, Triton's wheel) the bytes of the two checks are compared with h20_checks.txt, which it wrote (--rebase)."""
import argparse
import itertools
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "h20_checks.txt"
LINE_BYTES = 128
INSTRUCTION_BYTES = 16
TEMPLATE_PARAMETERS = 36  # of which the last eight bytes are the range
REFUSED = "refused: "


def of_triton(name):
    """A tool in the wheels that scripts/frameworks.sh fetches, one of each directory."""
    frameworks = pathlib.Path(os.environ.get("TESSERA_FRAMEWORKS", pathlib.Path.home() / ".cache/tessera-frameworks"))
    return sorted(frameworks.glob(f"*/lib/python*/site-packages/triton/backends/nvidia/bin/{name}"))


def toolkit(name):
    return pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / name


def disassembler():
    found = [path for path in (toolkit("nvdisasm"), *of_triton("nvdisasm")) if path.exists()]
    return shutil.which("nvdisasm") or (found[0] if found else None)


def sections(path):
    """The sections of an ELF file: name -> bytes."""
    data = path.read_bytes()
    table, (count, names) = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<HH", data, 0x3c)
    headers = [struct.unpack_from("<IIQQQQ", data, table + 64 * i) for i in range(count)]
    name = lambda at: data[headers[names][4] + at:data.index(b"\0", headers[names][4] + at)].decode()
    return {name(h[0]): data[h[4]:h[4] + h[5]] for h in headers}


def kernels(nvdisasm, cubin):
    """Name of a section of code -> its instructions, with the places instead of the names of what they lead to."""
    text = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    found, lines = {}, None
    for line in text.split("\n"):
        if begin := re.match(r"\.text\.(\S+):", line):
            lines = found.setdefault(begin[1], [])
        elif lines is not None:
            lines.append(line)
    return {name: instructions(name, lines) for name, lines in found.items()}


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


def lifted(check):
    exits = [i for i, (text, _) in enumerate(check) if re.match(r"@!?U?P\d EXIT", text)]
    return check[:exits[-1] + 1]


def expected(check, kernel, template_range, own_range):
    """The kernel as it must be: the check reads its range elsewhere than the template did."""
    front = lifted(check)
    constants = {f"c[0x0][{template_range + i:#x}]": f"c[0x0][{own_range + i:#x}]" for i in (0, 4)}
    front = [(re.sub(r"c\[0x0\]\[0x[0-9a-f]+\]", lambda m: constants.get(m[0], m[0]), text), targets) for text, targets in front]
    while len(front) * INSTRUCTION_BYTES % LINE_BYTES:
        front.append(("NOP", ""))
    return front + [moved(i, len(front) * INSTRUCTION_BYTES) for i in kernel]


def first_difference(wanted, found):
    for i, (a, b) in enumerate(itertools.zip_longest(wanted, found)):
        if a != b:
            return f"at {i * INSTRUCTION_BYTES:#x}: {b} instead of {a}"
    return None


class Checked:
    def __init__(self, nvdisasm, splice):
        self.nvdisasm, self.splice = nvdisasm, splice
        self.problems, self.refused, self.n, self.jumps = [], [], 0, 0

    def file(self, template, cubin, label):
        """All kernels of a file."""
        checks = kernels(self.nvdisasm, template)
        template_range = len(sections(template)[".nv.constant0.check_blocks"]) - 8
        plain, constants = kernels(self.nvdisasm, cubin), sections(cubin)
        with tempfile.TemporaryDirectory(prefix="tessera-h20-") as folder:
            told = subprocess.run([self.splice, template, cubin, folder], capture_output=True, text=True)
            if told.returncode:
                self.problems.append(f"{label}: {told.stderr.strip()}")
                return
            spliced = kernels(self.nvdisasm, pathlib.Path(folder) / "h20_spliced.cubin")
            for line in told.stdout.splitlines():
                name, outcome = line.split(" ", 1)
                if outcome.startswith(REFUSED):
                    self.refused.append(f"{label} {name}: {outcome[len(REFUSED):]}")
                    continue
                check = checks["check_clusters" if "range of clusters" in outcome else "check_blocks"]
                own_range = (len(constants[f".nv.constant0.{name}"]) + 3) // 4 * 4
                wanted = expected(check, plain[name], template_range, own_range)
                self.n += 1
                self.jumps += sum(re.search(r"@\d", text + targets) is not None for text, targets in plain[name])
                if difference := first_difference(wanted, spliced[name]):
                    self.problems.append(f"{label} {name} {difference}")

    def compiled(self, ptxas, texts):
        """What one compiler makes of the template and of PTX."""
        release = re.search(r"release (\d+)\.(\d+)", subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout)
        major, minor = map(int, release.groups())
        newest = (8, minor - 1) if major == 12 else (major - 4, minor)  # PTX that it reads
        with tempfile.TemporaryDirectory(prefix="tessera-h20-") as folder:
            template, cubin, older = (pathlib.Path(folder) / name for name in ("check.cubin", "kernels.cubin", "older.ptx"))
            subprocess.run([ptxas, "-arch=sm_90", HERE / "h20_range_check.ptx", "-o", template], check=True)
            for text in texts:
                ptx = re.sub(r"^\.version (\d+)\.(\d+)", lambda m: ".version {}.{}".format(*min((int(m[1]), int(m[2])), newest)),
                             text.read_text(), flags=re.MULTILINE)
                older.write_text(ptx)
                for label, lines in ("", []), (" with lines", ["-lineinfo"]):
                    if subprocess.run([ptxas, "-arch=sm_90a", *lines, older, "-o", cubin], capture_output=True).returncode:
                        self.refused.append(f"{release[0]} {text.stem}: does not compile")
                        break
                    self.file(template, cubin, f"{release[0]} {text.stem}{label}")


def golden(nvdisasm, template):
    """The two checks: place, bytes, and what the disassembler reads there."""
    code, lines = sections(template), []
    for name, check in sorted(kernels(nvdisasm, template).items()):
        for i, (text, _) in enumerate(lifted(check)):
            at = i * INSTRUCTION_BYTES
            lines.append(f"{name} {at:04x} {code[f'.text.{name}'][at:at + INSTRUCTION_BYTES].hex()} {text}\n")
    return "".join(lines)


def without_disassembler(template):
    code, n = sections(template), 0
    for line in GOLDEN.read_text().splitlines():
        name, at, wanted, text = line.split(" ", 3)
        found = code[f".text.{name}"][int(at, 16):][:INSTRUCTION_BYTES].hex()
        n += 1
        if found != wanted:
            sys.exit(f"WRONG: {name} {at} has other bytes than {text}; another ptxas than {GOLDEN.name} was made with?")
    print(f"{n} instructions of the checks are those of {GOLDEN.name}; there is no nvdisasm in PATH, in the CUDA toolkit, or in "
          "Triton's wheel (scripts/frameworks.sh triton)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("ptx", type=pathlib.Path, nargs="*")
    parser.add_argument("--splice", required=True)
    parser.add_argument("--nvdisasm", default=disassembler())
    parser.add_argument("--ptxas", action="append", type=pathlib.Path)
    parser.add_argument("--sources", action="store_true")
    parser.add_argument("--rebase", action="store_true")
    options = parser.parse_intermixed_args()
    template, own = options.folder / "h20_range_check.cubin", options.folder / "h20_kernels.cubin"
    if not options.nvdisasm:
        without_disassembler(template)
        return 0
    if options.rebase:
        GOLDEN.write_text(golden(options.nvdisasm, template))
    checked = Checked(options.nvdisasm, options.splice)
    checked.file(template, own, "toolkit")
    if golden(options.nvdisasm, template) != GOLDEN.read_text():
        checked.problems.append(f"the checks are not those of {GOLDEN.name} (--rebase)")
    # No kernel of the folder is refused, and the files that the device program loads are there.
    checked.problems += checked.refused
    checked.problems += [f"no file for {name}" for name in kernels(options.nvdisasm, own)
                         if not (options.folder / f"h20_spliced_{name}.cubin").exists()]
    with tempfile.TemporaryDirectory(prefix="tessera-h20-") as folder:
        texts = [options.folder / "h20_kernels.ptx", *options.ptx]
        for source in sorted(HERE.glob("*.cu")) if options.sources else []:
            texts.append(pathlib.Path(folder) / f"{source.stem}.ptx")
            subprocess.run([toolkit("nvcc"), "-std=c++17", "-O2", "-lineinfo", "-ptx", "-arch=compute_90a", f"-I{HERE.parent.parent}",
                            source, "-o", texts[-1]], check=True)
        for ptxas in options.ptxas or of_triton("ptxas*"):
            checked.compiled(ptxas, texts)
        if options.ptx or options.sources:
            checked.compiled(toolkit("ptxas"), texts)
    for problem in checked.problems:
        print(f"WRONG: {problem}")
    for refused in checked.refused:
        print(f"refused: {refused}")
    print(f"{checked.n} kernels, {checked.jumps} jumps, calls and returns, {len(checked.refused)} refused, {len(checked.problems)} "
          f"problems, by {options.nvdisasm}")
    return 1 if checked.problems else 0


if __name__ == "__main__":
    sys.exit(main())
