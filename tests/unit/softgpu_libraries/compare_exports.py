#!/usr/bin/env python3
"""compare_exports.py LIBRARY EXPORTS_DEF SONAME: the library exports exactly these names, under the version SONAME."""
import re
import subprocess
import sys

library, listing, soname = sys.argv[1:]
text = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
symbols = {line.split()[-1] for line in text.splitlines() if " A " not in line}
names = {symbol.split("@")[0] for symbol in symbols}
wanted = set(re.findall(r"^TS_\w+_EXPORT\((\w+)\)", open(listing).read(), re.M))
problems = [f"missing: {n}" for n in sorted(wanted - names)] + [f"not in the list: {n}" for n in sorted(names - wanted)]
problems += [f"wrong version: {s}" for s in sorted(symbols) if not s.endswith(f"@@{soname}")]
dynamic = subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout
if not re.search(rf"SONAME\s+{re.escape(soname)}\n", dynamic):
    problems.append(f"its SONAME is not {soname}")
print("\n".join(problems) or f"{len(names)} exports, all there")
sys.exit(1 if problems else 0)
