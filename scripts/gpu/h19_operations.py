#!/usr/bin/env python3
"""H19: stock cuBLAS, cuBLASLt and cuDNN below libtessera_ops.so, by class of shape (workloads/operations.py): a call's time and bits without
Tessera; the same beside a service, with --split-operations, whether its pieces have equal bits and what they cost; how far the first
estimates are off (scripts/prior_error.py); whether cuBLAS obeys an SM target; which kernels of a call precede its longest one, because the
estimate of a call is that of its first; whether cuBLASLt's algorithm for a product suits its pieces (workloads/lt_algorithm.py)."""
import statistics
import subprocess
import sys
import time

import processes

sys.path.insert(0, str(processes.WORKLOADS.parents[1]))
import prior_error

CLASSES = ("square_fp32", "square_bf16", "tall_fp16", "wide_bf16", "deep_bf16", "odd_fp32", "bias_bf16", "batch_bf16", "batch_fp32",
           "convolution_bf16", "convolution_fp32")
COUNTERS = ("split_calls", "split_pieces", "split_proven", "split_unequal", "kept_unproven", "kept_unequal", "kept_form", "kept_short", "kept_free")
PRODUCTS = ("square_fp32", "tall_fp16", "wide_bf16", "odd_fp32", "bias_bf16")  # whose algorithm is asked about
TARGETS = (0, 96, 64, 32)  # SMs; 0 = all
BEGIN_S = 50               # no class begins later than that after the start


def off_by(pairs):
    """How far off the first estimates were, and 0.25 ms for all would have been."""
    def spread(ratios):
        return {"median": round(statistics.median(ratios), 2), "p90": round(statistics.quantiles(ratios, n=10)[8], 2)}

    if len(pairs) < 2:
        return {"shapes": len(pairs)}
    return {"shapes": len(pairs), "estimate": spread([max(e / t, t / e) for e, t in pairs]),
            "quarter_ms": spread([max(prior_error.KNOWN_NOTHING_NS / t, t / prior_error.KNOWN_NOTHING_NS) for _, t in pairs])}


def order_of(kernels):
    """The kernels of a call, how many precede the longest, and the longest one's share of the time."""
    times_us = [time_us for _, time_us in kernels]
    longest_us = max(times_us, default=0)
    return {"kernels": kernels, "before_the_longest": times_us.index(longest_us) if times_us else None,
            "share_of_the_longest": round(longest_us / sum(times_us), 3) if sum(times_us) else None}


def answer(company, options):
    began_s, daemon = time.monotonic(), company.daemon()
    audit = ("--audit",) if options.rehearse else ()  # the stand-in looks cuBLAS up by itself
    bare = company.worker("operations.py")
    observed = company.worker("operations.py")  # a profiler's hooks would stay in the times of `bare`
    split = company.worker("operations.py", daemon, ("--split-operations", *audit), {"XDG_CACHE_HOME": str(company.folder)})
    service = company.worker("service.py", daemon, ("--priority", "high"))
    company.started()
    loaded = company.ask(service, do="load", what="resnet_graph")
    trace = company.folder / "trace.json"
    tracing = processes.Process([str(company.bins / "tessera"), "trace", "--socket", daemon.socket, "-o", str(trace)], {}, sys.stderr,
                                stdout=subprocess.PIPE, ends_by=processes.signal.SIGINT)
    company.workers.append(tracing)
    result, wrong = {"question": "H19", "classes": {}, "left_out": []}, []
    seconds = options.seconds / 2
    for what in CLASSES[:2] if options.rehearse else CLASSES:
        if time.monotonic() - began_s > BEGIN_S * company.patience:
            result["left_out"].append(what)
            continue
        alone = company.ask(bare, do="load", what=what)
        company.ask(bare, do="unload")
        company.ask(observed, do="load", what=what)
        order = order_of(company.ask(observed, do="kernels")["kernels"])
        company.ask(observed, do="unload")
        before, at_s = daemon.client(split), time.monotonic() + 0.1
        # The service's requests go on while the class is made: what is alone is not cut.
        service.send(do="run", what="resnet_graph", at_s=at_s, seconds=2 * seconds, rate_per_s=500 / loaded["alone_ms"])
        first = company.ask(split, do="load", what=what)
        beside = company.ask(split, do="run", what=what, at_s=at_s, seconds=2 * seconds)
        served = company.answer(service, 2 * seconds)
        after = daemon.client(split)
        equal = first["digest"] == alone["digest"] and beside["others"] == 0
        result["classes"][what] = {"alone_ms": round(alone["call_ms"], 4), "beside_ms": round(beside["call_ms"], 4), "calls": beside["calls"],
                                   "equal": equal, **order, **{key: after.get(key, 0) - before.get(key, 0) for key in COUNTERS}}
        if not equal:
            wrong.append(f"{what}: other bits than without Tessera")
        if served["digest"] != loaded["digest"]:
            wrong.append("the service's answers differ")
    tracing.end()
    tracing.gone(time.monotonic() + 10 * company.patience)
    result["estimates"] = off_by(prior_error.estimates(trace))
    result["sm_target"] = company.ask(bare, do="target", counts=TARGETS)["call_ms"]
    result["algorithms"] = {what: company.ask(observed, do="algorithm", what=what) for what in PRODUCTS[:1 if options.rehearse else None]}
    state = daemon.client(split)
    result["operations"] = [{key: each.get(key) for key in ("name", "type", "class", "calls", "launches")} for each in state.get("operations", [])]
    if not daemon.alive() or not state:
        wrong.append("the daemon or its client has ended")
    elif not result["operations"]:
        wrong.append("no call was seen")
    return {**result, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(processes.question(__doc__, answer))
