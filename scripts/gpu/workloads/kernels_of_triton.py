"""Kernels written in Triton with fixed configurations, long enough to be cut: one pointwise, one with a reduction, one of products."""
import torch
import triton
import triton.language as tl


@triton.jit
def pointwise(x, y, out, n, rounds, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    a, b = tl.load(x + i, mask=i < n), tl.load(y + i, mask=i < n)
    for _ in range(rounds):
        a = a * 0.999 + b
    tl.store(out + i, a, mask=i < n)


@triton.jit
def softmax(x, out, n_columns, block: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, block)
    a = tl.load(x + row * n_columns + i, mask=i < n_columns, other=-float("inf"))
    a = tl.exp(a - tl.max(a, 0))
    tl.store(out + row * n_columns + i, a / tl.sum(a, 0), mask=i < n_columns)


@triton.jit
def product(x, y, out, n, block: tl.constexpr, deep: tl.constexpr):
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros((block, block), dtype=tl.float32)
    for k in range(0, n, deep):
        inner = k + tl.arange(0, deep)
        total += tl.dot(tl.load(x + rows[:, None] * n + inner[None, :]), tl.load(y + inner[:, None] * n + columns[None, :]))
    tl.store(out + rows[:, None] * n + columns[None, :], total)


def results(a, b):
    n, out = a.shape[0], {name: torch.empty_like(a) for name in ("pointwise", "softmax", "product")}
    pointwise[(triton.cdiv(a.numel(), 256),)](a, b, out["pointwise"], a.numel(), 2000, block=256)
    softmax[(n,)](a, out["softmax"], a.shape[1], block=triton.next_power_of_2(a.shape[1]))
    product[(n // 32, n // 32)](a, b, out["product"], n, block=32, deep=32)
    return out
