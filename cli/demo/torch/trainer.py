"""The trainer of `tessera demo --workload torch` in stock PyTorch, eager: GPT-2 small, whose CPU is its limit; with `resnet` as the first
word ResNet-50 (`--workload torch-resnet`). Sums are made in one order, so that runs can be compared."""
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before torch: products in one order

import models
import programs
import torch


class Trainer:
    def __init__(self, network, seed, cpu=False):
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.place = models.Place(cpu)
        self.net, self.forward, self.optimizer = models.training(self.place, network, seed)

    def step(self):
        models.train_step(self.place, self.forward, self.optimizer)
        if self.place.cpu:
            return lambda: None
        event = torch.cuda.Event()
        event.record()
        return event.synchronize

    def arrays(self):
        return [parameter.detach().float().cpu().numpy() for parameter in self.net.parameters()]


if __name__ == "__main__":
    words = sys.argv[1:]
    chosen = words.pop(0) if words and not words[0].startswith("-") else "gpt2"
    programs.train(lambda seed: Trainer(chosen, seed), __doc__, words)
