#!/usr/bin/env python3
"""H23: what does MPS itself cost a service that is alone? A request's median time, by CUDA graph and eager, without MPS and as the only
client, beside a client that only has a context, beside one that has memory, and by CUDA_DEVICE_MAX_CONNECTIONS.

With --neighbour MIB it is such a client: it has a context and that memory until its standard input ends."""
import ctypes
import subprocess
import sys
import time

import processes

SERVICES = ("resnet_graph", "resnet", "decoder")
CONNECTIONS = (None, "1", "32")  # None: as the driver has it


def neighbour(mebibytes):
    driver, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    calls = (lambda: driver.cuInit(0), lambda: driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), lambda: driver.cuCtxSetCurrent(context),
             lambda: driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mebibytes << 20)) if mebibytes else 0)
    results = [call() for call in calls]
    print("ready" if not any(results) else f"failed: {results}", flush=True)
    sys.stdin.read()


def beside(company, environment, mebibytes, measure):
    """What `measure` says beside a client that has that much memory."""
    client = processes.Process([sys.executable, __file__, "--neighbour", str(mebibytes)], environment, sys.stderr, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    company.workers.append(client)
    said = client.line(time.monotonic() + 20 * company.patience)
    if said != "ready":
        return {"failed": said}
    times = measure()
    client.process.stdin.close()  # a client that is killed may take others with it
    client.gone(time.monotonic() + 5)
    return times


def answer(company, options):
    daemon = company.daemon('[mps]\nmode = "manage"\n')
    mps = daemon.mps_state()
    soft = {"LD_LIBRARY_PATH": str(company.soft)} if company.soft else {}
    under_mps = {**daemon.clients_of_mps(options.rehearse), **soft}
    services = SERVICES[:1] if options.rehearse else SERVICES
    rows = [(regime, connections) for regime in ("without", "mps")[:2 if mps.get("active") else 1] for connections in CONNECTIONS]
    workers = [company.worker("service.py", environment={**(under_mps if regime == "mps" else soft),
                                                         **({"CUDA_DEVICE_MAX_CONNECTIONS": connections} if connections else {})})
               for regime, connections in rows]
    company.started()
    result = {"question": "H23", "mps": mps.get("reason") or mps.get("active"), "rows": []}
    for (regime, connections), worker in zip(rows, workers):
        def measure():
            return {f"{what}_ms": round(company.ask(worker, do="load", what=what)["alone_ms"], 4) for what in services}

        row = {"regime": regime, "connections": connections or "default"}
        first = measure()  # makes it; what follows is measured again, so that all are of a warm program
        result["rows"].append({**row, "beside": "nobody", "first": first, **measure()})
        if regime == "mps" and connections is None:
            for mebibytes in (0, 16 if options.rehearse else 4096):
                result["rows"].append({**row, "beside": f"a client with {mebibytes} MiB", **beside(company, under_mps, mebibytes, measure)})
            result["rows"].append({**row, "beside": "nobody again", **measure()})
        worker.process.stdin.close()
        worker.gone(time.monotonic() + 5)
    bare = result["rows"][0]
    result["over_without"] = {f"{row['regime']}/{row['connections']}/{row['beside']}": {what: round(row[f"{what}_ms"] / bare[f"{what}_ms"], 3) for what in services}
                              for row in result["rows"] if "failed" not in row}
    return {**result, "wrong": [row for row in result["rows"] if "failed" in row]}


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--neighbour":
        neighbour(int(sys.argv[2]))
    else:
        sys.exit(processes.question(__doc__, answer))
