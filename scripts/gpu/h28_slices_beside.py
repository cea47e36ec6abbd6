#!/usr/bin/env python3
"""H28: do kernels of Triton and torch.compile that are cut beside a service give the results of uncut ones, bit for bit? The first pass is
alone, where nothing is cut; the same process with the same code goes on beside a protected ResNet-50. `relaxed` is a second process whose kernels
may be cut even where compiling the PTX again is not known to keep all bits: what differs there is an answer, and no fault."""
import sys
import time

import processes

VARIANTS = {"strict": (), "relaxed": ("--bit-stability", "relaxed")}
LOAD_S = 10  # beyond the usual limit: torch.compile begins without a cache
COUNTERS = ("slices", "refused_kernels", "refused_bits")


def answer(company, options):
    daemon = company.daemon()
    workers = {name: company.worker("digests.py", daemon, ("--keep-ptx", *more)) for name, more in VARIANTS.items()}
    service = company.worker("service.py", daemon, ("--priority", "high"))
    company.started()
    loaded = company.ask(service, do="load", what="resnet_graph")
    result, wrong = {"question": "H28", "service_alone_ms": loaded["alone_ms"]}, []
    for what in ("triton", "compile"):
        for worker in workers.values():  # at once: most of it is the CPU's work
            worker.send(do="load", what=what)
        loads = {name: company.answer(worker, LOAD_S) for name, worker in workers.items()}
        result[what] = loads["strict"] if "absent" in loads["strict"] else {}
        for name, compiled in workers.items() if not result[what] else ():
            before, at_s = daemon.client(compiled), time.monotonic() + 0.5
            service.send(do="run", what="resnet_graph", at_s=at_s, seconds=options.seconds, rate_per_s=500 / loaded["alone_ms"])
            beside = company.ask(compiled, do="run", what=what, at_s=at_s, seconds=options.seconds)
            served = company.answer(service, options.seconds)
            after = daemon.client(compiled)
            counted = {key: after.get(key, 0) - before.get(key, 0) for key in COUNTERS}
            result[what][name] = {**beside, **counted, "requests": served["requests"], "service_p99_ms": served.get("latency_p99_ms")}
            if name == "strict":
                wrong += [f"{what}: {key} differs" for key in beside["differ"]]
            if served["distinct_answers"] != 1 or served["digest"] != loaded["digest"]:
                wrong.append("the service's answers differ")
        if result[what].get("relaxed", {}).get("slices") == 0 and not options.rehearse:
            wrong.append(f"{what}: nothing was cut")
    if not daemon.alive():
        wrong.append("the daemon has ended")
    return {**result, "equal": not wrong, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(processes.question(__doc__, answer))
