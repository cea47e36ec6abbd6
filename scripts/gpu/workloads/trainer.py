#!/usr/bin/env python3
"""An ordinary PyTorch training, eager, as fast as it goes. Told by JSON lines what to run (protocol.py).

load: gpt2, resnet (bf16 autocast), products, copies; begins from the seed again. run: steps from the command on, counted from
"at_s" on for "seconds"; the losses of its first steps since load are the result."""
import collections
import time

import protocol

N_LOSSES = 16  # losses of the first steps that are kept
N_AHEAD = 2    # steps that the CPU is ahead of the GPU
N_WARM_UP = 2  # steps that belong to load: they bring code to the device


class Trainer:
    """make(what) returns a step, which returns its loss; mark() returns a function that waits for the work so far."""

    def __init__(self):
        self.step, self.what, self.losses = None, None, []

    def load(self, what):
        self.unload()
        self.step, self.what, self.losses = self.make(what), what, []
        for _ in range(N_WARM_UP):
            self.step()
        self.mark()()
        return {"what": what}

    def run(self, what, at_s, seconds):
        if what != self.what:
            raise ValueError(f"{what} is not loaded")
        waiting, ends_s = collections.deque(), []
        while not ends_s or ends_s[-1] < at_s + seconds:
            loss = self.step()
            if len(self.losses) < N_LOSSES:
                self.losses.append(self.kept(loss))
            waiting.append(self.mark())
            if len(waiting) > N_AHEAD:
                waiting.popleft()()
                ends_s.append(time.monotonic())
        for wait in waiting:
            wait()
        inside_s = [end_s for end_s in ends_s if at_s <= end_s <= at_s + seconds]
        per_s = (len(inside_s) - 1) / (inside_s[-1] - inside_s[0]) if len(inside_s) > 2 else len(inside_s) / seconds
        losses = [float(loss) for loss in self.losses]
        return {"what": what, "steps": len(inside_s), "steps_per_s": round(per_s, 3), "losses": losses,
                "digest": protocol.digest(losses)}

    def unload(self):
        self.step, self.what, self.losses = None, None, []

    def kept(self, loss):
        return loss


class StandInTrainer(Trainer):
    def __init__(self, priority=0):
        super().__init__()
        self.gpu = protocol.StandIn(priority)

    def make(self, what):
        def step():
            self.gpu.fill(20)
            return 1.0
        return step

    def mark(self):
        return lambda: None


def torch_trainer(cpu, priority=0):
    import torch
    import models

    class TorchTrainer(Trainer):
        def __init__(self):
            super().__init__()
            self.place = models.Place(cpu, priority)

        def mark(self):
            if cpu:
                return lambda: None
            event = torch.cuda.Event()
            event.record()
            return event.synchronize

        def kept(self, loss):
            return loss.detach().float().clone()

        def unload(self):
            super().unload()
            self.place.forget()

        def make(self, what):
            makers = {"products": self.products, "copies": self.copies}
            return makers[what]() if what in makers else self.training(what)

        def training(self, network):
            _, forward, optimizer = models.training(self.place, network)
            return lambda: models.train_step(self.place, forward, optimizer)

        def products(self):
            n = 128 if cpu else 8192
            a, b = (self.place.build(15 + i, lambda: torch.randn(n, n)).to(self.place.dtype) for i in range(2))
            out = torch.empty_like(a)

            def step():
                for _ in range(8):
                    torch.mm(a, b, out=out)
                return out[0, 0]
            return step

        def copies(self):
            values = self.place.build(17, lambda: torch.randn(1 << (16 if cpu else 28)))

            def step():
                for _ in range(8):
                    values.mul_(1.0001)
                return values[0]
            return step

    if not cpu:
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    return TorchTrainer(), torch.__version__


if __name__ == "__main__":
    protocol.run(__doc__, StandInTrainer, torch_trainer)
