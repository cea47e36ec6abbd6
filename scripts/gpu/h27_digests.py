#!/usr/bin/env python3
"""H27: are the results of frameworks (PyTorch, torch.compile, Triton, JAX, CuPy: what is installed) those without Tessera, as best-effort
and protected client, under --audit, --split-operations and --keep-ptx? All programs run at once. `again` is a second one without:
what differs there does not repeat by itself."""
import sys
import time

import processes

GROUPS = ("torch", "compile", "triton", "jax", "cupy")
BEGIN_S = 30  # no group begins later than that after the start

VARIANTS = {"bare": None, "again": None, "best_effort": (), "protected": ("--priority", "high"), "audit": ("--audit",),
            "split_operations": ("--split-operations",), "keep_ptx": ("--keep-ptx",)}


def answer(company, options):
    began_s, daemon = time.monotonic(), company.daemon()
    workers = {name: company.worker("digests.py", None if run is None else daemon, run or (), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
               for name, run in VARIANTS.items()}
    company.started()
    result, wrong = {"question": "H27", "digests": {}, "left_out": []}, []
    for what in GROUPS[:1] if options.rehearse else GROUPS:
        if time.monotonic() - began_s > BEGIN_S * company.patience:
            result["left_out"].append(what)
            continue
        for worker in workers.values():
            worker.send(do="load", what=what)
        said = {name: company.answer(worker) for name, worker in workers.items()}
        if "absent" in said["bare"]:
            result["digests"][what] = {"absent": said["bare"]["absent"]}
            continue
        bare = said["bare"]["digests"]
        differ = {name: [key for key, value in bare.items() if answer["digests"].get(key) != value] for name, answer in said.items()}
        result["digests"][what] = {"bare": bare, "differ": {name: keys for name, keys in differ.items() if keys}}
        wrong += [f"{what}: {key} under {name}" for name, keys in differ.items() if name != "again" for key in keys
                  if key not in differ["again"]]
    clients = [bool(daemon.client(workers[name])) for name, run in VARIANTS.items() if run is not None]
    if not daemon.alive() or not all(clients):
        wrong.append(f"daemon lives: {daemon.alive()}, clients: {clients}")
    return {**result, "equal": not wrong, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(processes.question(__doc__, answer))
