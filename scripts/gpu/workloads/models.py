"""The networks of service.py and trainer.py in plain torch.nn, with random weights made on the device."""
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class Place:
    """Where and how large: the GPU and real sizes, or the CPU and tiny ones; `priority` of streams, where it matters."""

    def __init__(self, cpu, priority=0):
        self.cpu, self.priority = cpu, priority
        self.device = "cpu" if cpu else "cuda"
        self.dtype = torch.float32 if cpu else torch.bfloat16

    def build(self, seed, make):
        torch.manual_seed(seed)
        with contextlib.nullcontext() if self.cpu else torch.device(self.device):
            return make()

    def stream(self):
        return torch.cuda.Stream(priority=self.priority)

    def in_stream(self):
        """What this thread launches goes to a stream of that priority; without one, to the default stream."""
        return torch.cuda.stream(self.stream()) if self.priority and not self.cpu else contextlib.nullcontext()

    def graphed(self, function):
        """The function as one CUDA graph that leaves its result where it was."""
        if self.cpu:
            return function
        side = self.stream()  # nodes have the priority of the stream that is captured
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            result = function()

        def replay():
            graph.replay()
            return result
        return replay

    def synchronize(self):
        if not self.cpu:
            torch.cuda.synchronize()

    def forget(self):
        if not self.cpu:
            torch.cuda.empty_cache()


class Bottleneck(nn.Module):
    def __init__(self, n_in, width, stride):
        super().__init__()
        n_out = 4 * width
        self.reduce = nn.Sequential(nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.middle = nn.Sequential(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.expand = nn.Sequential(nn.Conv2d(width, n_out, 1, bias=False), nn.BatchNorm2d(n_out))
        self.shortcut = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        return F.relu(self.expand(self.middle(self.reduce(x))) + self.shortcut(x))


def resnet(tiny):
    """ResNet-50, or one block of each width."""
    counts = (1, 1, 1, 1) if tiny else (3, 4, 6, 3)
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    n_in = 64
    for i, count in enumerate(counts):
        width = 64 << i
        for block in range(count):
            layers.append(Bottleneck(n_in, width, 2 if i > 0 and block == 0 else 1))
            n_in = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, 1000))


class Block(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, causal, cache=None, positions=None, mask=None):
        n, length, width = x.shape
        heads = self.inputs(self.norm_1(x)).view(n, length, 3, self.n_heads, width // self.n_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        if cache is not None:
            for kept, fresh in zip(cache, (k, v)):
                kept.index_copy_(2, positions, fresh)
            if mask is not None:
                k, v = cache
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None)
        x = x + self.output(attended.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    def __init__(self, width, n_heads, n_layers, vocabulary, context, causal):
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, positions, caches=None, mask=None):
        x = self.words(tokens) + self.places(positions)
        for i, block in enumerate(self.blocks):
            x = block(x, self.causal, None if caches is None else caches[i], positions, mask)
        return self.head(self.norm(x))


def gpt2(place, seed):
    """The small one: network, and a function of no argument that answers with its loss."""
    n, length, vocabulary = (2, 32, 1000) if place.cpu else (4, 1024, 50304)
    shape = (64, 4, 2, vocabulary, length) if place.cpu else (768, 12, 12, vocabulary, length)
    net = place.build(seed, lambda: Transformer(*shape, causal=True))
    tokens = place.build(seed + 1, lambda: torch.randint(0, vocabulary, (n, length + 1)))
    positions = place.build(seed + 1, lambda: torch.arange(length))
    return net, lambda: F.cross_entropy(net(tokens[:, :-1], positions).flatten(0, 1), tokens[:, 1:].flatten())


def resnet50(place, seed):
    n, side = (2, 64) if place.cpu else (64, 224)
    net = place.build(seed, lambda: resnet(place.cpu)).to(memory_format=torch.channels_last)
    images = place.build(seed + 1, lambda: torch.randn(n, 3, side, side)).to(memory_format=torch.channels_last)
    labels = place.build(seed + 1, lambda: torch.randint(0, 1000, (n,)))
    return net, lambda: F.cross_entropy(net(images), labels)


def training(place, network, seed=11):
    """Network, loss and optimizer of "gpt2" or "resnet"."""
    if network == "gpt2":
        net, forward = gpt2(place, seed)
        return net, forward, torch.optim.AdamW(net.parameters(), lr=1e-4, **({} if place.cpu else {"fused": True}))
    if network == "resnet":
        net, forward = resnet50(place, seed)
        return net, forward, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    raise ValueError(f"no such network: {network}")


def train_step(place, forward, optimizer):
    """In bf16 where there is a GPU; its loss."""
    with torch.autocast(place.device, dtype=torch.bfloat16, enabled=not place.cpu):
        loss = forward()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss
