#!/usr/bin/env python3
"""H28: do kernels of Triton and torch.compile that are cut beside a service give the results of uncut ones, bit for bit? The first pass is
alone, where nothing is cut; the same process with the same code goes on beside a protected ResNet-50."""
import sys
import time

import processes

COUNTERS = ("slices", "refused_kernels", "refused_bits")


def answer(company, options):
    daemon = company.daemon()
    compiled = company.worker("digests.py", daemon, ("--keep-ptx",))
    service = company.worker("service.py", daemon, ("--priority", "high"))
    company.started()
    loaded = company.ask(service, do="load", what="resnet_graph")
    result, wrong = {"question": "H28", "service_alone_ms": loaded["alone_ms"]}, []
    for what in ("triton", "compile"):
        first = company.ask(compiled, do="load", what=what)
        if "absent" in first:
            result[what] = first
            continue
        before, at_s = daemon.client(compiled), time.monotonic() + 0.5
        service.send(do="run", what="resnet_graph", at_s=at_s, seconds=options.seconds, rate_per_s=500 / loaded["alone_ms"])
        beside = company.ask(compiled, do="run", what=what, at_s=at_s, seconds=options.seconds)
        served = company.answer(service, options.seconds)
        after = daemon.client(compiled)
        counted = {key: after.get(key, 0) - before.get(key, 0) for key in COUNTERS}
        result[what] = {**beside, **counted, "requests": served["requests"], "service_p99_ms": served.get("latency_p99_ms")}
        wrong += [f"{what}: {name} differs" for name in beside["differ"]]
        if not options.rehearse and counted["slices"] == 0:
            wrong.append(f"{what}: nothing was cut")
        if served["distinct_answers"] != 1 or served["digest"] != loaded["digest"]:
            wrong.append("the service's answers differ")
    if not daemon.alive():
        wrong.append("the daemon has ended")
    return {**result, "equal": not wrong, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(processes.question(__doc__, answer))
