#!/usr/bin/env python3
"""H17, MPS percentage: what does a client beside a hog gain when the hog may use only a part of the threads
(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), what does the hog lose, and what does another percentage cost, which takes a new process?
Only directories made here are used. On the software GPU, which does not model percentages, every row is the same."""
import sys
import time

import lab

PERCENTAGES = (100, 75, 50, 25)


def beside(environment, rounds, seconds, percentage):
    """Latency of a short kernel beside a hog that has `percentage` of the threads; what the hog does alone and beside."""
    limited = {**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}
    hog_options = ("--role", "hog", "--rounds", rounds["hog"])
    alone = lab.result(lab.start(*hog_options, "--seconds", seconds, environment=limited))
    began = time.monotonic()
    hog = lab.start(*hog_options, "--seconds", seconds + 30, environment=limited)
    ready_ms = (time.monotonic() - began) * 1000
    quick = lab.start("--role", "latency", "--seconds", seconds, "--rounds", rounds["quick"], environment=environment)
    latency = lab.result(quick)
    return {"percentage": percentage, "hog_alone_kernels_per_s": alone.get("kernels_per_s"), "latency": latency,
            "hog_beside_kernels_per_s": lab.end(hog).get("kernels_per_s"), "new_process_ready_ms": round(ready_ms, 1)}


def questions(environment, seconds):
    rounds = {"quick": lab.rounds(0.2, environment), "hog": lab.rounds(5, environment)}
    alone = lab.start("--role", "latency", "--seconds", seconds, "--rounds", rounds["quick"], environment=environment)
    return {"alone": lab.result(alone), "beside": [beside(environment, rounds, seconds, p) for p in PERCENTAGES]}


if __name__ == "__main__":
    sys.exit(lab.answer_under_mps("H17", __doc__, questions))
