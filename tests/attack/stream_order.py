#!/usr/bin/env python3
"""Random programs of streams, events, captures and graphs before the gate on the device and under a reserve of SMs
(tests/unit/interpose/device_order_test.cc): what they leave in memory is compared with a bare run. CTest has the first seeds."""
import frame

frame.run_seeds("stream_order", "interpose_device_order_test", "TESSERA_RANDOM_ORDERS", 40, ["*Bare", "*Reserve*"])
