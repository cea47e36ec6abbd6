#!/usr/bin/env python3
"""What the software GPU's interpreter supports and what the tests run of it.

usage: softgpu_coverage.py BUILD_FOLDER [--table] [--operations FILE] [--least PERCENT]

Runs the interpreter's unit tests once per instruction set with a marker in front of every operation and prints the
share of the supported forms (rows of softgpu/exec/operations.def by type, conversions by pair of types, the other
operations by sub-operation) that at least one test has run; --table prints each. The same for the forms of operands
(constants in each notation, negated predicates, vector elements, parts of wider registers, sinks, guards, addresses) by
operation: those that came out as the case's reference says, and those that did not although ptxas accepts them.
With --operations, a file of PTX operations in use (comma-separated names such as mul.wide.s32, grouped under header
lines), prints per group how many of them the interpreter accepts, tried on one small kernel each, and names those that it refuses.
Exit status 1 if fewer than PERCENT (default 95) of the forms are run.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

TESTS = ["algorithms", "asynchronous", "instructions", "faults"]
INSTRUCTION_SETS = ["avx512", "avx2", "v2", "none"]


def run_tests(build):
    """{form: was run by a test}"""
    forms = {}
    with tempfile.TemporaryDirectory() as folder:
        for isa in INSTRUCTION_SETS:
            for test in TESTS:
                program = os.path.join(build, "bin", f"softgpu_exec_{test}_test")
                environment = dict(os.environ, TESSERA_EXEC_COVERAGE=folder, TESSERA_EXEC_ISA=isa)
                done = subprocess.run([program], env=environment, stdout=subprocess.PIPE, text=True)
                if done.returncode:
                    sys.exit(f"{program} failed with TESSERA_EXEC_ISA={isa}:\n{done.stdout[-2000:]}")
        for name in os.listdir(folder):
            for line in open(os.path.join(folder, name)):
                form, answer = line.split()
                forms[form] = forms.get(form, False) or answer == "yes"
    return forms


REGISTERS = {"8": "%r", "16": "%h", "32": "%r", "64": "%d"}


def register(type_name, n):
    """A register that fits a type."""
    if type_name == "pred":
        return f"%p{n}"
    if "x2" in type_name and "m" in type_name:  # e4m3x2, e5m2x2
        return f"%h{n}"
    if "x2" in type_name or type_name == "tf32":
        return f"%r{n}"
    return REGISTERS[re.search(r"\d+$", type_name).group()] + str(n)


def is_type(part):
    return bool(re.fullmatch(r"[usbf](8|16|32|64)|f16x2|bf16(x2)?|tf32|[us]16x2|pred|e4m3x2|e5m2x2", part))


def registers(n, kind="%r", first=0):
    return "{" + ", ".join(f"{kind}{first + i}" for i in range(n)) + "}"


# Number of sources of plain operations, all of the one type.
SOURCES = {"mov": 1, "not": 1, "cnot": 1, "neg": 1, "abs": 1, "brev": 1, "add": 2, "sub": 2, "and": 2, "or": 2,
           "xor": 2, "min": 2, "max": 2, "div": 2, "rem": 2, "copysign": 2, "mul": 2, "fma": 3, "addc": 2, "subc": 2,
           "ex2": 1, "lg2": 1, "sin": 1, "cos": 1, "tanh": 1, "rsqrt": 1, "rcp": 1, "sqrt": 1}


IMAGE_COORDINATES = {"1d": 1, "2d": 2, "3d": 4, "a1d": 2, "a2d": 4, "cube": 4, "acube": 4}


def matrix(parts):
    """mma and wmma; the list has the modifiers in alphabetical order."""
    shape = next(p for p in parts if re.fullmatch(r"m\d+n\d+k\d+", p))
    m, n, k = map(int, re.findall(r"\d+", shape))
    types = [p for p in parts if re.fullmatch(r"[usbf](8|16|32|64)|bf16|tf32|e4m3|e5m2", p)]
    bits = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "f64": 64, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}

    def fragment(type_name, total, first):
        if type_name == "f64":
            return registers(total // 32, "%d", first)
        if type_name == "f32" or type_name == "s32" or type_name == "tf32":
            return registers(total // 32, "%r", first)
        return registers(total * bits[type_name] // 32 // 32, "%r", first)
    if parts[0] == "mma":
        if len(types) == 4:
            wide = [t for t in types if t in ("f32", "s32", "f64")]
            narrow = [t for t in types if t not in ("f32", "s32")]
            if wide and narrow and len(narrow) == 2:
                d, a, b, c = wide[0], narrow[0], narrow[1], wide[-1]
            else:
                d = a = b = c = types[0]
            return (f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{c} {fragment(d, m * n, 0)}, "
                    f"{fragment(a, m * k, 20)}, {fragment(b, n * k, 30)}, {fragment(c, m * n, 40)};")
        return None
    # wmma fragments: f16 a and b hold 16 elements of which 8 registers are named, others as the ISA lists them.
    counts = {"f16": 8, "bf16": 4, "tf32": 4, "u8": 2, "s8": 2, "f64": 1}
    space = ".global" if "global" in parts else ""
    if "mma" in parts:
        if "f64" in types:
            a, d, suffix, kind = 1, 2, "f64.f64.f64.f64", "%d"
        elif len(types) == 2:
            a, d, suffix, kind = 8, 8, ".".join(types), "%r"
        else:
            narrow = next(t for t in types if t not in ("f32", "s32"))
            wide = next(t for t in types if t in ("f32", "s32"))
            a, d, suffix, kind = counts[narrow], 8, f"{wide}.{narrow}.{narrow}.{wide}", "%r"
        return (f"wmma.mma.sync.aligned.row.col.{shape}.{suffix} {registers(d, kind)}, {registers(a, kind, 20)}, "
                f"{registers(a, kind, 30)}, {registers(d, kind, 40)};")
    which = next(p for p in parts[1:] if p in "abcd")
    layout = "col" if "col" in parts else "row"
    t = types[0]
    kind = "%d" if t == "f64" else "%r"
    n_registers = (2 if t == "f64" else 8) if which in "cd" else counts[t]
    address = f"[%d60]"
    stride = "%r61"
    if "store" in parts:
        return f"wmma.store.d.sync.aligned.{layout}.{shape}{space}.{t} {address}, {registers(n_registers, kind)}, {stride};"
    return f"wmma.load.{which}.sync.aligned.{layout}.{shape}{space}.{t} {registers(n_registers, kind)}, {address}, {stride};"


def instruction(name):
    """A PTX instruction of that form, or None if this script cannot write one."""
    parts = name.split(".")
    op, types = parts[0], [p for p in parts[1:] if is_type(p)]
    t = types[-1] if types else None
    space = next((p for p in parts if p in ("global", "shared", "local", "const", "param")), None)
    address = "[%r60]" if space == "shared" else "[l]" if space == "local" else "[%d60]"
    plain = {
        "ret": "ret;", "exit": "exit;", "trap": "trap;", "brkpt": "brkpt;", "bra": "bra.uni L; L:",
        "call": "call f;", "nanosleep": "nanosleep.u32 20;", "bar.sync": "bar.sync 0;",
        "barrier.sync": "barrier.sync 0;", "barrier.sync.aligned": "barrier.sync.aligned 0;",
        "bar.warp.sync": "bar.warp.sync -1;", "bar.arrive": "bar.arrive 1, 64;", "ld.param": "ld.param.u64 %d1, [p];",
        "st.param": "{ .param .b32 q; st.param.b32 [q], %r1; }", "ld.const": "ld.const.u32 %r1, [c];",
        "activemask.b32": "activemask.b32 %r1;", "elect.sync": "elect.sync %r1|%p1, -1;",
        "cp.async.shared.global": "cp.async.ca.shared.global [%r60], [%d60], 16;",
        "cp.async.wait_group": "cp.async.wait_group 0;", "prefetch.global.L2": "prefetch.global.L2 [%d60];",
        "setmaxnreg.inc.sync.aligned.u32": "setmaxnreg.inc.sync.aligned.u32 64;",
        "setmaxnreg.dec.sync.aligned.u32": "setmaxnreg.dec.sync.aligned.u32 64;",
        "prmt.b32": "prmt.b32 %r1, %r2, %r3, %r4;", "lop3.b32": "lop3.b32 %r1, %r2, %r3, %r4, 0x96;",
        "bfi.b32": "bfi.b32 %r1, %r2, %r3, %r4, %r5;", "bfi.b64": "bfi.b64 %d1, %d2, %d3, %r4, %r5;",
        "movmatrix.sync.aligned.m8n8.trans.b16": "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;",
        "match.any.sync.b32": "match.any.sync.b32 %r1, %r2, -1;",
        "match.any.sync.b64": "match.any.sync.b64 %r1, %d2, -1;",
        "bmsk.clamp.b32": "bmsk.clamp.b32 %r1, %r2, %r3;", "rem": None,
        "vabsdiff4.u32.u32.u32": "vabsdiff4.u32.u32.u32 %r1, %r2, %r3, %r4;",
        "vabsdiff2.u32.u32.u32": "vabsdiff2.u32.u32.u32 %r1, %r2, %r3, %r4;",
        "vote.ballot.sync.b32": "vote.sync.ballot.b32 %r1, %p1, -1;",
        "set.f16x2": "set.gt.f16x2.f16x2 %r1, %r2, %r3;", "set.f16": "set.gt.f16.f16 %h1, %h2, %h3;",
        "fence.mbarrier_init.release.cluster": "fence.mbarrier_init.release.cluster;",
    }
    if name in plain:
        return plain[name]
    if op == "mbarrier":
        what = ".".join(parts[1:])
        token = "_" if "shared::cluster" in parts else "%d1"
        if "init" in parts or "expect_tx" in parts and "arrive" not in parts:
            return f"{name} [%r60], %r2;"
        if "inval" in parts:
            return f"{name} [%r60];"
        if "arrive" in parts:
            return f"{name} {token}, [%r60]{', %r2' if 'expect_tx' in what else ''};"
        return f"{name} %p1, [%r60], {'%r2' if 'parity' in parts else '%d2'};"
    if name.startswith("cp.async.mbarrier"):
        return f"{name} [%r60];"
    if "tensor" in parts and op == "cp":
        n = int(next(p for p in parts if re.fullmatch(r"\dd", p))[0])
        tensor, barrier = "[%d60, " + registers(n, "%r", 10) + "]", "mbarrier::complete_tx::bytes" in parts
        ranks = ", %h1" if "multicast::cluster" in parts else ""
        if "prefetch" in parts:
            return f"{name} {tensor};"
        return f"{name} [%r60], {tensor}, [%r61]{ranks};" if barrier else f"{name} {tensor}, [%r60];"
    if name.startswith("cp.async.bulk.shared"):
        return f"{name} [%r60], [%d60], %r2, [%r61];"
    if name.startswith("cp.async.bulk.wait_group"):
        return f"{name} 0;"
    if op == "mapa":
        return f"{name} %r1, %r2, %r3;"
    if op in ("mma", "wmma"):
        return matrix(parts)
    if name.startswith("fence.proxy.tensormap") and "acquire" in parts:
        return f"{name} [%d60], 128;"
    if op in ("membar", "fence", "griddepcontrol", "cp") or name.startswith("barrier.cluster"):
        return name + ";"
    if op in ("ldmatrix", "stmatrix"):
        n = int(next(p for p in parts if p in ("x1", "x2", "x4"))[1:])
        trans = ".trans" if "trans" in parts else ""
        value, where = registers(n), "[%r60]"
        return f"{op}.sync.aligned.m8n8.x{n}{trans}.shared.b16 " + (
            f"{value}, {where};" if op == "ldmatrix" else f"{where}, {value};")
    if op in ("ld", "st"):
        semantics = next((p for p in parts if p in ("volatile", "relaxed", "acquire", "release")), "")
        scope = ".gpu" if semantics in ("relaxed", "acquire", "release") else ""
        form = op + ("." + semantics if semantics else "") + scope + ("." + space if space else "") + ".u32"
        return f"{form} %r1, {address};" if op == "ld" else f"{form} {address}, %r1;"
    if op in ("atom", "red"):
        how = next(p for p in parts if p in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"))
        noftz = ".noftz" if t in ("f16", "f16x2", "bf16", "bf16x2") else ""
        d = register(t, 1)
        operands = ([d] if op == "atom" else []) + [address, register(t, 2)] + ([register(t, 3)] if how == "cas" else [])
        return f"{op}{'.' + space if space else ''}.{how}{noftz}.{t} {', '.join(operands)};"
    if op == "cvta":
        return f"{name} %d1, %d2;"
    if op == "cvt":
        to, source = types if len(types) == 2 else (types[0], types[0])
        is_float = lambda x: x[0] in "fe" or x.startswith("bf") or x == "tf32"
        width = lambda x: int(re.search(r"\d+", x).group())
        d, a = register(to, 1), register(source, 2)
        if to in ("f16x2", "bf16x2", "e4m3x2", "e5m2x2"):
            rounding = ".rn.satfinite" if "m" in to else ".rn"
            return f"cvt{rounding}.{to}.{source} {d}, " + (f"{a}, {register(source, 3)};" if source == "f32" else f"{a};")
        rounding = ""
        if is_float(source) and not is_float(to):
            rounding = ".rzi"
        elif is_float(to) and to == source:
            rounding = ".rni" if to != "f32" else ".sat"
        elif to == "tf32":
            rounding = ".rna"
        elif is_float(to) and (not is_float(source) or width(to) < width(source) or to == "bf16"):
            rounding = ".rn"
        return f"cvt{rounding}.{to}.{source} {d}, {a};"
    if op == "setp":
        return f"setp.lt.{t} %p1, {register(t, 2)}, {register(t, 3)};".replace("lt.b", "eq.b")
    if op == "selp":
        return f"selp.{t} {register(t, 1)}, {register(t, 2)}, {register(t, 3)}, %p1;"
    if op in ("shl", "shr"):
        return f"{name} {register(t, 1)}, {register(t, 2)}, %r3;"
    if op == "shf":
        return f"{name} %r1, %r2, %r3, %r4;"
    if op == "shfl":
        return f"{name} %r1, %r2, 1, 31, -1;"
    if op == "vote":
        return f"{name} {'%r1' if 'ballot' in parts else '%p2'}, %p1, -1;"
    if op == "redux":
        return f"{name} %r1, %r2, -1;"
    if op in ("clz", "popc", "bfind"):
        return f"{name} %r1, {register(t, 2)};"
    if op == "bfe":
        return f"{name} {register(t, 1)}, {register(t, 2)}, %r3, %r4;"
    if op == "dp4a":
        return f"{name} %r1, %r2, %r3, %r4;"
    if name.startswith("bar.red") or name.startswith("barrier.red"):
        return f"{name} %p1, 0, %p2;"
    if op in ("mul", "mad", "madc") and types and t[0] in "us":
        if "wide" in parts:
            wide = t[0] + str(2 * int(t[1:]))
            d, last = register(wide, 1), register(wide, 4)
        else:
            d, last = register(t, 1), register(t, 4)
            if op != "mul" and not {"lo", "hi"} & set(parts):
                name = name.replace(op, op + ".lo" if "cc" not in parts else op + ".lo", 1)
        return f"{name} {d}, {register(t, 2)}, {register(t, 3)}" + (f", {last};" if op != "mul" else ";")
    if op in SOURCES and types:
        form = name
        if t[0] == "f" or t.startswith("bf"):
            if op == "fma" or (op in ("div", "rcp", "sqrt") and "approx" not in parts):
                form = name.replace(op, op + ".rn", 1)
            if op in ("rcp", "rsqrt") and "approx" in parts and t == "f64":
                form = name.replace(".f64", ".ftz.f64")
        operands = ", ".join(register(t, n) for n in range(1, SOURCES[op] + 2))
        return f"{form} {operands};"
    if op in ("tex", "sust"):
        geometry = next(p for p in parts if p in IMAGE_COORDINATES)
        where = f"[%d60, {registers(IMAGE_COORDINATES[geometry], '%r', 10)}]"
        if op == "tex":
            return f"{name} {registers(4)}, {where}{', %r20' if 'level' in parts else ''};"
        n = next((int(p[1]) for p in parts if re.fullmatch(r"v\d", p)), 1)
        kind = "%h" if parts[-2] in ("b8", "b16") else "%r"
        return f"{name} {where}, {registers(n, kind) if n > 1 else kind + '1'};"
    if op == "wgmma" and "mma_async" in parts:
        shape = next(p for p in parts if re.fullmatch(r"m\d+n\d+k\d+", p))
        n = int(re.findall(r"\d+", shape)[1])
        types = [p for p in parts if re.fullmatch(r"f16|f32|bf16|tf32|e4m3|e5m2|s8|u8|s32", p)]
        sums = next((t for t in types if t in ("f32", "s32")), types[0])
        narrow = [t for t in types if t != sums] or types[1:]
        sparse = ".sp" if "sp" in parts else ""
        signs = "" if sums == "s32" else ", 1, 1" + (", 0, 0" if narrow[0] in ("f16", "bf16") else "")
        return (f"wgmma.mma_async{sparse}.sync.aligned.{shape}.{sums}.{narrow[0]}.{narrow[-1]} "
                f"{registers(n // (4 if sums == 'f16' else 2), '%s')}, %d1, %d2{', %r1, 0' if sparse else ''}, %p1{signs};")
    if op == "wgmma":
        return f"{name}.sync.aligned{' 0' if 'wait_group' in parts else ''};"
    if op == "tensormap" and "cp_fenceproxy" in parts:
        return f"{name} [%d60], [%r60], 128;"
    if op == "tensormap":
        value = {"b64": "%d1", "b32": "1" if "elemtype" in parts or "mode" in name else "%r1"}[parts[-1]]
        ordinal = "0, " if {"box_dim", "global_dim", "global_stride", "element_stride"} & set(parts) else ""
        return f"{name} [{'%d60' if 'global' in parts else '%r60'}], {ordinal}{value};"
    if op == "prefetch":
        return f"{name} [%d60];"
    if op == "multimem":
        return "multimem.ld_reduce.global.add.f32 %r1, [%d60];"
    return None


def kernel(n, text):
    return (f".visible .entry k{n}(.param .u64 p)\n{{\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<64>;\n"
            f".reg .b64 %d<64>;\n.reg .b32 %s<128>;\n.local .align 16 .b8 l[64];\n{text}\nret;\n}}\n")


def groups_of(path):
    """({header: typed names}, coarse names from the most to the least used)"""
    groups, names_in_order, title = {}, [], ""
    for line in open(path):
        line = line.strip()
        coarse = re.match(r"coarse[^:]*: (.*)", line)
        if coarse:
            names_in_order.extend(x.strip() for x in coarse.group(1).split(","))
            continue
        if line.endswith(":") and "," not in line:
            title = line[:-1]
        elif line:
            groups[title] = [x.strip() for x in line.split(",")]
    return groups, names_in_order


def accepted(build, names):
    """({name: reason or None if accepted}, names that could not be written)"""
    unwritten = [name for name in names if instruction(name) is None]
    source = (".version 8.5\n.target sm_90a\n.address_size 64\n.const .align 4 .b8 c[16];\n.func f() { ret; }\n" +
              "".join(kernel(i, instruction(name)) for i, name in enumerate(names) if name not in unwritten))
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(source)
        file.flush()
        done = subprocess.run([os.path.join(build, "bin", "softgpu_exec_refusals"), file.name], stdout=subprocess.PIPE,
                              text=True)
        if done.returncode:
            sys.exit("softgpu_exec_refusals failed")
    answers = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return ({name: None if answers[f"k{i}"] == "ok" else answers[f"k{i}"]
             for i, name in enumerate(names) if name not in unwritten}, unwritten)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--operations")
    parser.add_argument("--least", type=float, default=95)
    options = parser.parse_args()

    forms = run_tests(options.build)
    operands = {form: forms.pop(form) for form in list(forms) if form.startswith("operand.")}
    if options.table:
        for form in sorted(forms):
            print(f"{form:24} supported  {'run' if forms[form] else 'NOT RUN'}")
    n_run = sum(forms.values())
    share = 100 * n_run / len(forms)
    print(f"forms: {n_run} of {len(forms)} supported are run by a test ({share:.1f} %)")
    for form in sorted(form for form, run in forms.items() if not run):
        print(f"  not run: {form}")

    kinds = {}
    for form, run in operands.items():
        kind = re.match(r"operand\.((?:integer|float|predicate|address)\.\w+|guard\.negated|\w+)", form)[1]
        kinds.setdefault(kind, []).append(run)
    missing = [form for form, run in operands.items() if not run]
    print(f"operand forms by operation: {len(operands) - len(missing)} are run; that ptxas accepts and are not run: "
          f"{len(missing)}")
    for kind in sorted(kinds):
        print(f"  {kind}: {sum(kinds[kind])}")
    for form in sorted(missing):
        print(f"  not run: {form}")
    if options.operations:
        total = supported = 0
        groups, coarse = groups_of(options.operations)
        typed = {}
        for title, names in groups.items():
            answers, unwritten = accepted(options.build, names)
            typed.update(answers)
            good = sum(reason is None for reason in answers.values())
            total, supported = total + len(names), supported + good
            print(f"operations, {title}: {good} of {len(names)}; so far {supported} of {total}")
            for name in names:
                if name in unwritten:
                    print(f"  not tried: {name}")
                elif answers[name] is not None:
                    print(f"  refused: {name}")
        # A coarse operation counts if a typed form of it is accepted.
        refused = []
        for i, name in enumerate(coarse, 1):
            stem = name.removesuffix(".sem")
            if not any(form == stem or form.startswith(stem + ".") for form, why in typed.items() if why is None):
                refused.append(name)
            if i in (75, 95):
                print(f"operations without types, the first {i}: {i - len(refused)}; refused: {', '.join(refused)}")
    return 0 if share >= options.least and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
