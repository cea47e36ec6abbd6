#!/usr/bin/env python3
"""H4: does MPS start in a private directory as this user, do client and stream priorities hold between its clients, and
what happens to the others when a client is SIGKILLed? Only directories made here are used; an MPS that is already
running is not touched."""
import signal
import sys
import time

import lab


def pair(environment, rounds, seconds, latency_options=(), hog_options=(), hog_environment=None):
    """Latency of a short kernel beside a hog."""
    hog = lab.start("--role", "hog", "--seconds", seconds + 30, "--rounds", rounds["hog"], *hog_options,
                    environment={**environment, **(hog_environment or {})})
    quick = lab.start("--role", "latency", "--seconds", seconds, "--rounds", rounds["quick"], *latency_options,
                      environment=environment)
    answer = {"latency": lab.result(quick)}
    answer["hog"] = lab.end(hog)
    return answer


def questions(environment, seconds):
    rounds = {"quick": lab.rounds(0.2, environment), "hog": lab.rounds(5, environment)}
    alone = lab.start("--role", "latency", "--seconds", seconds, "--rounds", rounds["quick"], environment=environment)
    results = {"alone": lab.result(alone)}
    results["beside_hog"] = pair(environment, rounds, seconds)
    results["beside_low_priority_client"] = pair(environment, rounds, seconds,
                                                 hog_environment={"CUDA_MPS_CLIENT_PRIORITY": "1"})
    results["high_priority_stream"] = pair(environment, rounds, seconds, latency_options=("--stream-priority", -5))
    # Last, because it may take the whole server down: kill a client with work outstanding, look at a survivor.
    victim = lab.start("--role", "hog", "--seconds", 60, "--rounds", 4 * rounds["hog"], environment=environment)
    survivor = lab.start("--role", "latency", "--seconds", 2 * seconds, "--rounds", rounds["quick"],
                         environment=environment)
    time.sleep(seconds / 2)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    survived = lab.result(survivor)
    results["survivor_of_sigkill"] = {"died": survived["failed"]} if "failed" in survived else survived
    return results


if __name__ == "__main__":
    sys.exit(lab.answer_under_mps("H4", __doc__, questions))
