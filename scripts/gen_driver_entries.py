#!/usr/bin/env python3
"""Writes driver_api/{entries,hooks,transfers}.def.

entries.def: one row per entry point of the CUDA driver, with its true signature, from the toolkit's headers:
  cuda.h and cudaProfiler.h preprocessed with __CUDA_API_VERSION_INTERNAL (declares every old and per-thread ABI),
  cudaGL.h, cudaEGL.h, cudaVDPAU.h the same way (the driver exports them, the link stub does not),
  cuda*Typedefs.h for the driver version from which cuGetProcAddress answers with a symbol,
  the link stub's export list as a cross-check,
  driver_api/undeclared.txt, what real drivers export and no header declares (--learn adds to it),
  entries.def itself for the rows of releases that are newer than this toolkit: --add reads them from their headers once.
hooks.def: the rows that driver_api/actions.def (hand-written) gives a class, class by class.
transfers.def: what actions.def says of the copies and fills among them.

  gen_driver_entries.py [--cuda DIR]           rewrite the files
  gen_driver_entries.py --check [--cuda DIR]   exit 1 and say which file is stale, write nothing
  gen_driver_entries.py --add DIR [--cuda DIR] also take in what the headers of a newer release (DIR/include) declare, and
                                               propose a class for each name that actions.def does not know
  gen_driver_entries.py --unknown LIBRARY      list what this driver exports and neither list nor header has, one per line
  gen_driver_entries.py --learn LIBRARY        add to driver_api/undeclared.txt what --unknown lists
  gen_driver_entries.py --make-stub LIBRARY [--cuda DIR]    a link stub for a toolkit that has none (scripts/setup.sh)
"""
import argparse
import collections
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNDECLARED = ROOT / "driver_api/undeclared.txt"
FLAVOUR = re.compile(r"(_ptds|_ptsz)$")

# Graphics types, replaced by ABI-equal C types so that no graphics header is needed to use the tables.
INTEROP_TYPES = {
    "GLuint": "unsigned int", "GLenum": "unsigned int", "EGLImageKHR": "void *", "EGLStreamKHR": "void *",
    "EGLSyncKHR": "void *", "EGLint": "int", "VdpDevice": "unsigned int", "VdpVideoSurface": "unsigned int",
    "VdpOutputSurface": "unsigned int", "VdpGetProcAddress": "void", "CUeglFrame": "struct CUeglFrame_st",
    "CUGLDeviceList": "int", "CUGLmap_flags": "int",
}
# Symbols whose stream is not a parameter of type CUstream.
STREAM_IN_STRUCT = {
    "cuLaunchKernelEx": "(config ? config->hStream : nullptr)",
    "cuGraphInstantiateWithParams": "(instantiateParams ? instantiateParams->hUploadStream : nullptr)",
}

# Exports of a driver that we withhold. A debugger looks these up by name in every library and takes the first. We are
# loaded before the driver. The debugger then breaks there or writes there, so it must find the driver's.
WITHHELD = {
    "cudbgReportDriverApiError": "a place for a breakpoint, which the driver calls by itself",
    "cudbgReportDriverInternalError": "a place for a breakpoint, which the driver calls by itself",
}

Row = collections.namedtuple("Row", "symbol base since stream ret params args")


class Problem(Exception):
    pass


def preprocess(cuda, headers, stubs):
    """Text of the declarations, old ABIs included; `stubs` holds empty graphics headers."""
    source = "#define __CUDA_API_VERSION_INTERNAL\n" + "".join(f"#include <{h}>\n" for h in headers)
    command = ["g++", "-E", "-P", "-x", "c++", f"-I{stubs}", f"-I{cuda}/include", "-"]
    run = subprocess.run(command, input=source, capture_output=True, text=True)
    if run.returncode:
        raise Problem(f"cannot preprocess {headers}: {run.stderr[:500]}")
    return run.stdout


def declarations(text):
    found = {}
    for m in re.finditer(r"\bCUresult\s+(cu\w+)\s*\(([^;{]*)\)\s*;", text):
        found.setdefault(m[1], re.sub(r"\s+", " ", m[2]).strip())
    return found


def base_of(symbol):
    return re.sub(r"_v\d+$", "", FLAVOUR.sub("", symbol))


def exports_of(library):
    """Name -> "function" or "object" of what a library exports under a name of the driver's."""
    run = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    words = [line.split() for line in run.stdout.splitlines()]
    return {name: "function" if kind in "TWi" else "object" for _, kind, name in words if name.startswith("cu")}


def undeclared():
    """The same of what real drivers export and no header declares. Nobody knows parameters; a stub needs none."""
    return dict(line.split() for line in UNDECLARED.read_text().splitlines())


def versions(cuda):
    """(base, flavour) -> sorted driver versions, from the PFN_ types of the Typedefs headers."""
    table = collections.defaultdict(set)
    for name in ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler"):
        text = (cuda / "include" / f"{name}Typedefs.h").read_text()
        for m in re.finditer(r"\bCUresult\s*\(\s*CUDAAPI\s*\*\s*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)", text):
            table[(m[1], m[3] or "")].add(int(m[2]))
    return {key: sorted(value) for key, value in table.items()}


def abi_number(symbol):
    m = re.search(r"_v(\d+)$", FLAVOUR.sub("", symbol))
    return int(m[1]) if m else 1


def since_of(symbols, version_table):
    """The n-th ABI of a name belongs to its n-th version; where the counts differ the version is not known (0)."""
    groups = collections.defaultdict(list)
    for symbol in symbols:
        flavour = FLAVOUR.search(symbol)
        groups[(base_of(symbol), flavour[1] if flavour else "")].append(symbol)
    since = {}
    for key, members in groups.items():
        members.sort(key=abi_number)
        known = version_table.get(key, [])
        for i, symbol in enumerate(members):
            since[symbol] = known[i] if len(known) == len(members) else 0
    return since


def split_params(text):
    """'int a, void (*f)(int, int)' -> [(declaration, name), ...]"""
    if text in ("", "void"):
        return []
    parts, depth, current = [], 0, ""
    for c in text:
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += c
    parts.append(current)
    out = []
    for i, part in enumerate(p.strip() for p in parts):
        for ours, theirs in INTEROP_TYPES.items():
            part = re.sub(rf"\b{ours}\b", theirs, part)
        m = re.search(r"(\w+)\s*(\[\w*\])?$", part)
        name = m[1] if m and not part.endswith("*") and len(part.split()) > 1 else None
        if name is None:
            name = f"arg{i}"
            part = f"{part} {name}"
        out.append((re.sub(r"\s*\*\s*", " *", part).replace("* *", "**").replace(" *", "* ").replace("* * ", "** ")
                    .strip(), name))
    return out


def stream_of(symbol, params, all_symbols):
    flavour = FLAVOUR.search(symbol)
    kind = "per_thread" if flavour else "legacy"
    base = FLAVOUR.sub("", symbol)
    if base in STREAM_IN_STRUCT:
        return f"{kind}({STREAM_IN_STRUCT[base]})"
    for declaration, name in params:
        if re.match(rf"CUstream {name}$", declaration):
            return f"{kind}({name})"
    # No stream parameter but a per-thread twin: works in the default stream of its flavour.
    if flavour or any(base_of(s) == base_of(symbol) and FLAVOUR.search(s) for s in all_symbols):
        return f"{kind}(nullptr)"
    return "none"


def core_declarations(cuda, stubs):
    return declarations(preprocess(cuda, ["cuda.h", "cudaProfiler.h"], stubs))


def make_stub(cuda, library):
    """A toolkit from Python wheels has no link stub: one with the names that the headers declare."""
    with tempfile.TemporaryDirectory() as folder:
        names = sorted(core_declarations(cuda, folder))
        assembly = pathlib.Path(folder) / "stub.s"
        assembly.write_text("".join(f".globl {n}\n.type {n}, @function\n{n}:\n" for n in names) +
                            '\tmovl $34, %eax\n\tret\n.section .note.GNU-stack,"",@progbits\n')  # CUDA_ERROR_STUB_LIBRARY
        subprocess.run(["cc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", assembly, "-o", library], check=True)


@contextlib.contextmanager
def graphics_stubs():
    with tempfile.TemporaryDirectory() as stubs:
        for header in ("GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h"):
            path = pathlib.Path(stubs) / header
            path.parent.mkdir(exist_ok=True)
            path.write_text("")
        yield stubs


def all_declarations(cuda, headers=("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")):
    with graphics_stubs() as stubs:
        return declarations(preprocess(cuda, headers, stubs))


def rows_of(declared, since):
    """Symbol -> row."""
    rows = {}
    for symbol, parameters in declared.items():
        params = split_params(parameters)
        rows[symbol] = Row(symbol, base_of(symbol), since[symbol], stream_of(symbol, params, declared), "CUresult",
                           "(" + (", ".join(d for d, _ in params) or "void") + ")",
                           "(" + ", ".join(n for _, n in params) + ")")
    return rows


def toolkit_rows(cuda, newer):
    every = all_declarations(cuda)
    with graphics_stubs() as stubs:
        core = core_declarations(cuda, stubs)
    stub = set(exports_of(f"{cuda}/lib64/stubs/libcuda.so"))
    if stub != set(core):
        raise Problem(f"the headers and the link stub disagree on {sorted(stub ^ set(core))}")
    since = since_of(every, versions(cuda))
    for symbol in {name for name, kind in undeclared().items() if kind == "function"} - every.keys() - newer.keys() - WITHHELD.keys():
        every[symbol], since[symbol] = "void", 0
    return rows_of(every, since)


ROW = re.compile(r"TS_CU\((\w+), (\w+), (\d+), (none|(?:legacy|per_thread)\(.*\)), (CUresult), (\(.*\)), (\(.*\))\)")


def newer_rows(text, version):
    """The rows of entries.def that came with releases newer than this toolkit."""
    rows = (Row(*m.groups())._replace(since=int(m[3])) for m in ROW.finditer(text))
    return {row.symbol: row for row in rows if row.since > version}


def release_rows(headers, known):
    """What the headers of a release declare and no known row has. Their profiler's header may be in another package."""
    every = all_declarations(headers, ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"))
    rows = rows_of({symbol: text for symbol, text in every.items() if symbol not in known},
                   since_of(every, versions(headers)))
    unknown = [symbol for symbol, row in rows.items() if row.since == 0]
    if unknown:
        raise Problem(f"{headers}: the Typedefs headers do not say since which version there are {unknown}")
    return rows


# Patterns that propose the class of a new function by its name: the first that fits. Its documentation decides.
PROPOSALS = (
    (r"cu\w*(Memcpy|Cpy|Copy)\w*Async$|cuMemcpy", "copy"), (r"cuMemset", "memset"), (r"cuLaunch", "launch_whole"),
    (r"cuStream(Begin|End)\w*[Cc]apture", "capture"), (r"cuGraph(Exec\w*Set|Instantiate)", "graph"),
    (r"cuGraph(Add|Remove|\w+Set)", "graph_edit"), (r"cuGraph(?!ics)", "graph_query"), (r"\w+Synchronize$", "sync"),
    (r"cu(Stream|Event)Query", "query"), (r"cuStream(Create|Destroy)|\w+StreamCreate", "stream_life"),
    (r"cu\w*Ctx(Create|Destroy|Reset)", "context_life"), (r"cuMemAlloc(?!Host)|cuMemCreate|\w*ArrayCreate", "allocate"),
    (r"cuMem(Free|Unmap|HostRegister|HostUnregister)|\w*ArrayDestroy", "waits"), (r"cuStreamWait", "wait_value"),
    (r"cu(Module|Library)(Load|Unload|Get|Enumerate)", "module"))


def proposals(rows, actions):
    for base in sorted({row.base for row in rows} - set(actions)):
        klass = next((klass for pattern, klass in PROPOSALS if re.match(pattern, base)), "pass")
        takes_stream = any(row.base == base and row.stream != "none" for row in rows)
        yield f"  {base}: {klass}" + (" (it takes a stream: does it enqueue work?)" if takes_stream else "")


def types_missing(rows, cuda):
    """Types of rows that this toolkit does not declare: driver_api/newer_types.h needs them."""
    with graphics_stubs() as stubs:
        text = preprocess(cuda, ["cuda.h"], stubs)
    used = {word for row in rows for word in re.findall(r"\bCU\w+", row.params)}
    return sorted(word for word in used if not re.search(rf"\b{word}\b", text))


TRANSFER_CLASSES = ("copy", "memset")

Transfer = collections.namedtuple("Transfer", "waits direction amount element")


def read_actions(text, classes):
    """Base name -> class, and base name -> Transfer of the copies and fills."""
    actions, transfers = {}, {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("//"):
            continue
        plain = re.fullmatch(r'TS_ACTION\((\w+), (\w+), "[^"]+"\)', line)
        moves = re.fullmatch(r"TS_TRANSFER\((\w+), +(\w+), +(\w+), +(\w+(?:\(\w+\))?), +(\w+\([\w, ]+\)), +(1|2|4)\)",
                             line)
        if not plain and not moves:
            raise Problem(f"actions.def:{number}: neither TS_ACTION nor TS_TRANSFER as the head describes them")
        base, klass = (plain or moves).group(1, 2)
        if klass not in classes:
            raise Problem(f"actions.def: {base} has class {klass}, which classes.def does not list")
        if (klass in TRANSFER_CLASSES) != bool(moves):
            raise Problem(f"actions.def: {base}: TS_TRANSFER is for the classes {' and '.join(TRANSFER_CLASSES)}")
        if base in actions:
            raise Problem(f"actions.def: {base} appears twice")
        actions[base] = klass
        if moves:
            transfers[base] = Transfer(*moves.group(3, 4, 5, 6))
    return actions, transfers


ENTRIES_HEAD = """// Every entry point of the CUDA driver. Generated by scripts/gen_driver_entries.py from the toolkit's headers
// (CUDA_VERSION {version}, and newer ones up to {newest}); do not edit. {count} rows, sorted by symbol (byte order).
//
//   TS_CU(symbol, base, since, stream, ret, (params), (args))
//     symbol  exported name, ABI and stream flavour included
//     base    name under which cuGetProcAddress knows it
//     since   driver version from which cuGetProcAddress answers with this symbol; 0: never, since no header declares
//             it (its parameters are not known either, and stand as none)
//     stream  none | legacy(expression) | per_thread(expression); see TS_STREAM_ARG in real_table.h
//     params  declaration list; args: the same names for a call. Graphics types are replaced by ABI-equal C types.
// Include driver_api/cuda.h first: the renaming macros of <cuda.h> would rewrite the rows.
// clang-format off
#ifndef TS_CU
#error "define TS_CU(symbol, base, since, stream, ret, params, args) before including entries.def"
#endif
"""


def render_entries(rows, version):
    body = "".join(f"TS_CU({r.symbol}, {r.base}, {r.since}, {r.stream}, {r.ret}, {r.params}, {r.args})\n"
                   for r in rows)
    newest = max(version, *(row.since for row in rows))
    return ENTRIES_HEAD.format(version=version, newest=newest, count=len(rows)) + body + "#undef TS_CU\n"


HOOKS_HEAD = """// The rows of entries.def that actions.def gives a class. Generated by scripts/gen_driver_entries.py; do not edit.
// {count} rows, class by class, each class sorted by symbol.
//
// Either define one macro for all rows,
//   TS_HOOK(class, symbol, base, since, stream, ret, params, args)
// or any of the families, the others expand to nothing:
//   TS_HOOK_<class>(symbol, base, since, stream, ret, params, args)      classes: classes.def
// clang-format off
"""


def render_hooks(rows, actions, classes):
    out = [HOOKS_HEAD.format(count=sum(r.base in actions for r in rows)), "#ifndef TS_HOOK\n#if "]
    out.append(" && \\\n    ".join(f"!defined(TS_HOOK_{c})" for c in classes))
    out.append("\n#error \"define TS_HOOK or at least one TS_HOOK_<class> before including hooks.def\"\n#endif\n")
    out.append("#define TS_HOOK(klass, ...) TS_HOOK_##klass(__VA_ARGS__)\n")
    for c in classes:
        out.append(f"#ifndef TS_HOOK_{c}\n#define TS_HOOK_{c}(...)\n#endif\n")
    out.append("#endif\n")
    for c in classes:
        out.append(f"\n// {c}\n")
        for r in rows:
            if actions.get(r.base) == c:
                out.append(f"TS_HOOK({c}, {r.symbol}, {r.base}, {r.since}, {r.stream}, {r.ret}, {r.params}, "
                           f"{r.args})\n")
    out.append("\n#undef TS_HOOK\n" + "".join(f"#undef TS_HOOK_{c}\n" for c in classes))
    return "".join(out)


TRANSFERS_HEAD = """// Says what actions.def has of every copy and fill. Generated by scripts/gen_driver_entries.py; do not edit.
//   TS_TRANSFER(symbol, (params), waits, direction, amount, element bytes)     columns: actions.def
// clang-format off
#ifndef TS_TRANSFER
#error "define TS_TRANSFER(symbol, params, waits, direction, amount, element) before including transfers.def"
#endif
"""


def render_transfers(rows, transfers):
    out = [TRANSFERS_HEAD]
    for r in rows:
        if r.base in transfers:
            t = transfers[r.base]
            out.append(f"TS_TRANSFER({r.symbol}, {r.params}, {t.waits}, {t.direction}, {t.amount}, {t.element})\n")
    return "".join(out) + "#undef TS_TRANSFER\n"


def unknown_exports(library):
    """Names that this driver exports, and that neither entries.def nor undeclared.txt has."""
    rows = re.findall(r"^TS_CU\((\w+),", (ROOT / "driver_api/entries.def").read_text(), re.M)
    return sorted(set(exports_of(library)) - set(rows) - set(undeclared()))


def learn(library):
    kinds = exports_of(library)
    every = undeclared() | {name: kinds[name] for name in unknown_exports(library)}
    UNDECLARED.write_text("".join(f"{name} {kind}\n" for name, kind in sorted(every.items())))
    print(f"wrote {UNDECLARED.relative_to(ROOT)}; now run this script without --learn")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cuda", type=pathlib.Path, default=pathlib.Path("/usr/local/cuda"))
    parser.add_argument("--add", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--unknown", type=pathlib.Path, metavar="LIBRARY")
    parser.add_argument("--learn", type=pathlib.Path, metavar="LIBRARY")
    parser.add_argument("--make-stub", type=pathlib.Path, metavar="LIBRARY")
    options = parser.parse_args()
    if options.unknown:
        print("".join(f"{name}\n" for name in unknown_exports(options.unknown)), end="")
        return 0
    if options.make_stub:
        make_stub(options.cuda, options.make_stub)
        return 0
    if options.learn:
        learn(options.learn)
        return 0
    header = options.cuda / "include/cuda.h"
    if not header.exists():
        raise Problem(f"{header} not found: pass --cuda DIR with the toolkit's folder")
    version = int(re.search(r"#define CUDA_VERSION (\d+)", header.read_text())[1])
    entries_path = ROOT / "driver_api/entries.def"
    if options.check:
        stated = int(re.search(r"CUDA_VERSION (\d+)", entries_path.read_text())[1])
        if stated != version:
            print(f"skipped: entries.def was made from CUDA {stated}, this toolkit is {version}")
            return 77
    newer = newer_rows(entries_path.read_text(), version)
    by_symbol = newer | toolkit_rows(options.cuda, newer)
    added = release_rows(options.add, by_symbol) if options.add else {}
    rows = sorted((by_symbol | added).values())
    classes = re.findall(r"^TS_CLASS\((\w+),", (ROOT / "driver_api/classes.def").read_text(), re.M)
    actions, transfers = read_actions((ROOT / "driver_api/actions.def").read_text(), classes)
    unknown = sorted(set(actions) - {row.base for row in rows})
    if unknown:
        raise Problem(f"actions.def: not a driver function: {unknown}")
    files = {
        entries_path: render_entries(rows, version),
        ROOT / "driver_api/hooks.def": render_hooks(rows, actions, classes),
        ROOT / "driver_api/transfers.def": render_transfers(rows, transfers),
    }
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run scripts/gen_driver_entries.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(files[path])
    if added:
        print(f"{len(added)} names are new, {len(types_missing(added.values(), options.cuda))} types for "
              f"driver_api/newer_types.h: {types_missing(added.values(), options.cuda)}; for actions.def:")
        print("\n".join(proposals(added.values(), actions)))
    hooked = sum(row.base in actions for row in rows)
    print(f"{len(rows)} entries, {hooked} hooked; rewrote {[str(p.relative_to(ROOT)) for p in stale]}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        print(f"gen_driver_entries: {problem}", file=sys.stderr)
        sys.exit(1)
