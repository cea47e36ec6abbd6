#!/usr/bin/env python3
"""Kernels written in Triton with fixed configurations, long enough to be cut: one pointwise, one with a reduction, one of products.

As a program it compiles them, which needs neither a GPU nor PyTorch, and says what became of each; --out keeps the PTX (what
`tessera inspect` says of it). Results without a GPU: digests.py --cpu with TRITON_INTERPRET=1."""
import argparse
import json
import pathlib

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


def launches(n):
    """Of matrices of n x n numbers: kernel, grid, its numbers, its constants."""
    return ((pointwise, (triton.cdiv(n * n, 256),), {"n": n * n, "rounds": 2000}, {"block": 256}),
            (softmax, (n,), {"n_columns": n}, {"block": triton.next_power_of_2(n)}),
            (product, (n // 32, n // 32), {"n": n}, {"block": 32, "deep": 32}))


def results(a, b):
    results = {}
    for kernel, grid, numbers, constants in launches(a.shape[0]):
        matrices = {"x": a, "y": b, "out": a.new_empty(a.shape)}
        kernel[grid](**{name: matrix for name, matrix in matrices.items() if name in kernel.arg_names}, **numbers, **constants)
        results[kernel.__name__] = matrices["out"]
    return results


def compiled(n, capability):
    """Name and what Triton made of it."""
    from triton.backends.compiler import GPUTarget
    for kernel, _, numbers, constants in launches(n):
        types = {name: "constexpr" if name in constants else "i32" if name in numbers else "*fp32" for name in kernel.arg_names}
        source = triton.compiler.ASTSource(fn=kernel, signature=types, constexprs=constants)
        yield kernel.__name__, triton.compile(source, target=GPUTarget("cuda", capability, 32))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, default=90, help="90 is that of an H100 and H200")
    parser.add_argument("--size", type=int, default=2048, help="of the matrices, as digests.py has them")
    parser.add_argument("--out", type=pathlib.Path, help="folder for NAME.ptx")
    given = parser.parse_args()
    made = {}
    for name, kernel in compiled(given.size, given.capability):
        made[name] = {"threads": 32 * kernel.metadata.num_warps, "shared_bytes": kernel.metadata.shared, "ptx_bytes": len(kernel.asm["ptx"])}
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / f"{name}.ptx").write_text(kernel.asm["ptx"])
    print(json.dumps(made))


if __name__ == "__main__":
    main()
