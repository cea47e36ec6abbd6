#!/usr/bin/env python3
"""The service and the trainer as two threads of one ordinary PyTorch program, on streams of the highest and the lowest priority: what a
program can do by itself. The service is told by standard input what to run, the trainer by --trainer's first descriptor, and it
answers on the second (protocol.py)."""
import contextlib
import os
import threading
import time

import protocol
import service
import trainer

HIGHEST, LOWEST = -5, 0  # the driver takes what is nearest


def act(make, commands, answers, one_loads, began_s):
    with one_loads:
        workload, version = make()
    place = getattr(workload, "place", None)
    with place.in_stream() if place else contextlib.nullcontext():
        protocol.obey(workload, commands, answers, one_loads, torch=version, import_s=round(time.monotonic() - began_s, 2))


def main():
    parser = protocol.options(__doc__)
    parser.add_argument("--trainer", required=True, help="two descriptors, with a comma: commands, answers")
    given = parser.parse_args()
    commands, answers = (os.fdopen(int(fd), mode) for fd, mode in zip(given.trainer.split(","), "rw"))
    if given.rehearse:
        makers = (lambda: (service.StandInService(HIGHEST), "none"), lambda: (trainer.StandInTrainer(LOWEST), "none"))
    else:
        makers = (lambda: service.torch_service(given.cpu, HIGHEST), lambda: trainer.torch_trainer(given.cpu, LOWEST))
    one_loads, began_s = threading.Lock(), time.monotonic()
    second = threading.Thread(target=act, args=(makers[1], commands, answers, one_loads, began_s), daemon=True)
    second.start()
    act(makers[0], protocol.sys.stdin, protocol.sys.stdout, one_loads, began_s)


if __name__ == "__main__":
    main()
