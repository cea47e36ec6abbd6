#!/usr/bin/env python3
"""Random graphs that get every state that an executable graph can have and its source has not, and that are captured with it
(tests/unit/interpose/graph_random_test.cc): what they leave in memory is compared with a bare run. CTest has the first seeds."""
import subprocess

import frame

PROGRAM = frame.BIN / "interpose_graph_random_test"
GRAPHS = 40  # of one run, of some seconds
# All in one process, and what is different where no executable graph with a state was captured before.
FILTERS = ["*", "*Named"]


def main():
    run = frame.Run("graph_states")
    while run.goes_on():
        first = run.random.randrange(1, 1 << 40)
        tests = FILTERS[run.runs % len(FILTERS)]
        environment = {"TESSERA_RANDOM_GRAPHS": str(GRAPHS), "TESSERA_RANDOM_GRAPHS_FROM": str(first)}
        what = f"TESSERA_RANDOM_GRAPHS={GRAPHS} TESSERA_RANDOM_GRAPHS_FROM={first} {PROGRAM.name} --gtest_filter='{tests}'"
        process = run.start([str(PROGRAM), f"--gtest_filter={tests}"], environment, "graphs")
        try:
            status = process.wait(timeout=frame.PATIENCE_S * 5)
        except subprocess.TimeoutExpired:
            process.kill()
            status = "none: it hangs"
        if status != 0:
            run.found(f"{what}: status {status}\n{run.text('graphs')[-2000:]}")
        run.runs += 1
    run.finish()


main()
