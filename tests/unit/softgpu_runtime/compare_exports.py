#!/usr/bin/env python3
"""compare_exports.py LIBRARY EXPORTS_TXT: the library exports exactly these names, under version libcudart.so.13."""
import subprocess
import sys

library, listing = sys.argv[1:]
text = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
symbols = {line.split()[-1] for line in text.splitlines() if "cuda" in line and " A " not in line}
names = {s.split("@")[0] for s in symbols}
wanted = {line.strip() for line in open(listing) if line.strip() and not line.startswith("#")}
problems = [f"missing: {n}" for n in sorted(wanted - names)] + [f"not in the list: {n}" for n in sorted(names - wanted)]
problems += [f"wrong version: {s}" for s in sorted(symbols) if not s.endswith("@@libcudart.so.13")]
print("\n".join(problems) or f"{len(names)} exports, all there")
sys.exit(1 if problems else 0)
