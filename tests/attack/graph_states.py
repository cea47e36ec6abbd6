#!/usr/bin/env python3
"""Random graphs that get every state that an executable graph can have and its source has not, and that are captured with it
(tests/unit/interpose/graph_random_test.cc): what they leave in memory is compared with a bare run. CTest has the first seeds."""
import frame

# All in one process, and what is different where no executable graph with a state was captured before.
frame.run_seeds("graph_states", "interpose_graph_random_test", "TESSERA_RANDOM_GRAPHS", 40, ["*", "*Named"])
