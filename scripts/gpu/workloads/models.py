"""The networks of service.py and trainer.py in plain torch.nn, with random weights made on the device."""
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class Place:
    """Where and how large: the GPU and real sizes, or the CPU and tiny ones."""

    def __init__(self, cpu):
        self.cpu = cpu
        self.device = "cpu" if cpu else "cuda"
        self.dtype = torch.float32 if cpu else torch.bfloat16

    def build(self, seed, make):
        torch.manual_seed(seed)
        with contextlib.nullcontext() if self.cpu else torch.device(self.device):
            return make()

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
