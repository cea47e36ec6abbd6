#!/usr/bin/env python3
"""An ordinary PyTorch service: requests at random times, answered one by one. Told by JSON lines what to run (protocol.py).

load: resnet, encoder (eager), resnet_graph, encoder_graph (CUDA graphs), decoder (prefill eager, tokens by CUDA graph); answers
with the median time of a request alone. run: also "rate_per_s" and "seed"; latency counts from the intended arrival."""
import random
import statistics
import time

import protocol


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def spread(name, values_s):
    if not values_s:
        return {}
    return {f"{name}_{label}_ms": round(1e3 * quantile(values_s, q), 4)
            for label, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1))}


def arrivals(rate_per_s, seconds, seed):
    source, at_s, due = random.Random(seed), 0.0, []
    while (at_s := at_s + source.expovariate(rate_per_s)) < seconds:
        due.append(at_s)
    return due


class Service:
    """self.requests: by name, a function that takes nothing and returns the answer and times of its parts in seconds."""

    N_ALONE, ALONE_S = 40, 1.0  # requests that say how long one takes alone; fewer if this time ends before
    TAIL_S = 1.0  # after the end, for requests that waited

    def __init__(self):
        self.requests = {}

    def load(self, what):
        if what not in self.requests:
            self.requests[what] = self.make(what)
        times_s = []
        while len(times_s) < 4 or (len(times_s) < self.N_ALONE and sum(times_s) < self.ALONE_S):
            began_s = time.monotonic()
            answer, _ = self.requests[what]()
            times_s.append(time.monotonic() - began_s)
        return {"what": what, "alone_ms": 1e3 * statistics.median(times_s[len(times_s) // 4:]), "digest": protocol.digest([answer])}

    def run(self, what, at_s, seconds, rate_per_s, seed=1):
        request, due = self.requests[what], arrivals(rate_per_s, seconds, seed)
        latencies_s, answers, parts_s = [], set(), {}
        for arrival_s in due:
            protocol.wait_until(at_s + arrival_s)
            began_s = time.monotonic()
            if began_s > at_s + seconds + self.TAIL_S:
                break
            answer, parts = request()
            latencies_s.append(time.monotonic() - at_s - arrival_s)
            answers.add(answer)
            for name, values_s in parts.items():
                parts_s.setdefault(name, []).extend(values_s)
            if "ttft" in parts:  # the first token, too, counts from the arrival
                parts_s["ttft"][-1] += began_s - at_s - arrival_s
        result = {"what": what, "requests": len(latencies_s), "left": len(due) - len(latencies_s),
                  "digest": protocol.digest(sorted(answers)), "distinct_answers": len(answers), **spread("latency", latencies_s)}
        for name, values_s in parts_s.items():
            result.update(spread(name, values_s))
        return result

    def unload(self):
        self.requests.clear()


class StandInService(Service):
    def __init__(self, priority=0):
        super().__init__()
        self.gpu = protocol.StandIn(priority)

    def make(self, what):
        def request():
            self.gpu.fill(10)
            return what, {}
        return request


def torch_service(cpu, priority=0):
    import torch
    import models

    class TorchService(Service):
        N_TOKENS, PROMPT, CONTEXT = (4, 16, 32) if cpu else (32, 512, 1024)

        def __init__(self):
            super().__init__()
            self.place = models.Place(cpu, priority)

        def forward(self, what):
            if what == "resnet":
                side = 64 if cpu else 224
                net = self.place.build(1, lambda: models.resnet(cpu)).to(self.place.dtype).eval()
                image = self.place.build(2, lambda: torch.randn(1, 3, side, side)).to(self.place.dtype)
                net, image = (x.to(memory_format=torch.channels_last) for x in (net, image))
                return lambda: net(image)
            if what == "encoder":
                shape = (64, 4, 2, 1000, 64) if cpu else (768, 12, 12, 30522, 512)
                net = self.place.build(3, lambda: models.Transformer(*shape, causal=False)).to(self.place.dtype).eval()
                length = 32 if cpu else 128
                tokens = self.place.build(4, lambda: torch.randint(0, 1000, (1, length)))
                positions = self.place.build(4, lambda: torch.arange(length))
                return lambda: net(tokens, positions)
            raise ValueError(f"no such program: {what}")

        def make(self, what):
            with torch.no_grad():
                if what == "decoder":
                    return self.decoder()
                forward = self.forward(what.removesuffix("_graph"))
                if what.endswith("_graph"):
                    forward = self.place.graphed(forward)

            def request():
                with torch.no_grad():
                    return forward().float().sum().item(), {}
            return request

        def decoder(self):
            width, n_heads, n_layers, vocabulary = (64, 4, 2, 1000) if cpu else (2048, 16, 16, 32000)
            place, prompt, context = self.place, self.PROMPT, self.CONTEXT
            net = place.build(5, lambda: models.Transformer(width, n_heads, n_layers, vocabulary, context, causal=True))
            net = net.to(place.dtype).eval()
            place.forget()
            shape = (1, n_heads, context, width // n_heads)
            caches = [tuple(torch.zeros(shape, device=place.device, dtype=place.dtype) for _ in "kv") for _ in range(n_layers)]
            tokens = place.build(6, lambda: torch.randint(0, 1000, (1, prompt)))
            every = place.build(6, lambda: torch.arange(context))
            token, position = torch.zeros_like(tokens[:, :1]), torch.full_like(every[:1], prompt)

            def prefill():
                token.copy_(net(tokens, every[:prompt], caches)[:, -1:].argmax(-1))

            def step():
                mask = (every <= position).view(1, 1, 1, -1)
                token.copy_(net(token, position, caches, mask)[:, -1:].argmax(-1))
                position.add_(1)

            prefill()
            decode = self.place.graphed(step)

            def request():
                times_s, said = [time.monotonic()], []
                with torch.no_grad():
                    position.fill_(prompt)
                    for do in [prefill] + self.N_TOKENS * [decode]:
                        do()
                        said.append(token.item())
                        times_s.append(time.monotonic())
                gaps_s = [b - a for a, b in zip(times_s, times_s[1:])]
                return protocol.digest(said), {"ttft": gaps_s[:1], "tpot": gaps_s[1:]}
            return request

        def unload(self):
            super().unload()
            self.place.forget()

    if not cpu:
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    return TorchService(), torch.__version__


if __name__ == "__main__":
    protocol.run(__doc__, StandInService, torch_service)
