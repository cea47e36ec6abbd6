#!/usr/bin/env python3
"""H24 under an MPS of our own: h24_killed_behind_gate, whose processes are its clients. Options after `--` go to the program.
On the software GPU (TESSERA_SOFTGPU_MODE=mps) there is no control daemon to start."""
import json
import os
import subprocess
import sys

import lab


def killed(environment, _):
    answer = subprocess.run([lab.program("h24_killed_behind_gate"), *sys.argv[1:]], capture_output=True, text=True,
                            env={**os.environ, **environment})
    if answer.returncode != 0:
        raise SystemExit(answer.stderr.strip() or answer.stdout)
    return json.loads(answer.stdout)


if __name__ == "__main__":
    print(json.dumps({"question": "H24", **lab.with_mps(killed, None)}))
