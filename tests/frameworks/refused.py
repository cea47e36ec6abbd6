"""PyTorch meets its limit of memory: refused.py. Its allocator keeps 300 MiB that were freed, and is asked for 400 MiB. The call
itself has to tell it that there is no room: then it frees what it keeps, and asks again. Prints what it counted, as JSON."""
import ctypes
import json
import os
import pathlib

# The software GPU's runtime goes before the wheel's: NVIDIA's asks the driver for tables that have no documentation.
for folder in map(pathlib.Path, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
    if (folder / "handles").is_dir():
        ctypes.CDLL(str(folder / "libcudart.so.13"), ctypes.RTLD_GLOBAL)

import torch  # noqa: E402

MIB = 1 << 20


def main():
    first = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
    del first  # it stays reserved
    second = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
    told = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({"version": torch.__version__, "retries": told["num_alloc_retries"], "held": second.numel() // MIB,
                      "reserved": told["reserved_bytes.all.current"] // MIB, "free": free // MIB, "total": total // MIB}),
          flush=True)


if __name__ == "__main__":
    main()
