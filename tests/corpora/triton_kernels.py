"""Kernels as Triton's users write them, compiled without a GPU: PTX of each, and how long it would run at a usual size.

usage: python triton_kernels.py FOLDER ARCHITECTURE...     (80, 90, 100 or 120; Triton adds the `a`)"""
import pathlib
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra.cuda import libdevice


@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.jit
def exponential(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    a, b = tl.load(x + i, i < n), tl.load(y + i, i < n)
    tl.store(o + i, a * b + tl.exp(a), i < n)


@triton.jit
def trigonometry(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, libdevice.sin(a) * libdevice.cos(b) + libdevice.exp(-a * a) * libdevice.tanh(b))


@triton.jit
def gelu(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + i, i < n).to(tl.float32)
    tl.store(o + i, (0.5 * a * (1 + libdevice.erf(a * 0.7071067811865476))).to(tl.bfloat16), i < n)


@triton.jit
def dropout(x, o, n, p, seed, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    kept = tl.rand(seed, i) > p
    tl.store(o + i, tl.where(kept, tl.load(x + i, i < n) / (1 - p), 0.0), i < n)


@triton.jit
def softmax(x, o, n, R: tl.constexpr):
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, R)
    a = tl.load(x + row * n + c, c < n, float("-inf"))
    e = tl.exp(a - tl.max(a, 0))
    tl.store(o + row * n + c, e / tl.sum(e, 0), c < n)


@triton.jit
def layer_norm(x, w, b, o, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    x += row * n
    total = tl.zeros((B,), tl.float32)
    for at in range(0, n, B):
        c = at + tl.arange(0, B)
        total += tl.load(x + c, c < n, 0.0)
    mean = tl.sum(total, 0) / n
    total = tl.zeros((B,), tl.float32)
    for at in range(0, n, B):
        c = at + tl.arange(0, B)
        d = tl.where(c < n, tl.load(x + c, c < n, 0.0) - mean, 0.0)
        total += d * d
    scale = 1 / tl.sqrt(tl.sum(total, 0) / n + eps)
    for at in range(0, n, B):
        c = at + tl.arange(0, B)
        v = (tl.load(x + c, c < n) - mean) * scale
        tl.store(o + row * n + c, v * tl.load(w + c, c < n) + tl.load(b + c, c < n), c < n)


@triton.jit
def column_sums(x, o, m, n, B: tl.constexpr, C: tl.constexpr):
    c = tl.program_id(0) * C + tl.arange(0, C)
    total = tl.zeros((B, C), tl.float32)
    for at in range(0, m, B):
        r = at + tl.arange(0, B)
        total += tl.load(x + r[:, None] * n + c[None, :], (r[:, None] < m) & (c[None, :] < n), 0.0)
    tl.store(o + c, tl.sum(total, 0), c < n)


@triton.jit
def adam(w, g, m, v, n, rate, beta1, beta2, eps, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    d = tl.load(g + i, i < n)
    a = beta1 * tl.load(m + i, i < n) + (1 - beta1) * d
    b = beta2 * tl.load(v + i, i < n) + (1 - beta2) * d * d
    tl.store(m + i, a, i < n)
    tl.store(v + i, b, i < n)
    tl.store(w + i, tl.load(w + i, i < n) - rate * a / (tl.sqrt(b) + eps), i < n)


@triton.jit
def tile_product(a, b, K, N, pm, pn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    x = a + rm[:, None] * K + rk[None, :]
    y = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(x), tl.load(y), acc)
        x += BK
        y += BK * N
    return acc, rm[:, None] * N + rn[None, :]


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc, at = tile_product(a, b, K, N, tl.program_id(0), tl.program_id(1), BM, BN, BK)
    tl.store(c + at, acc)


@triton.jit
def matmul_grouped(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    pid, rows, columns = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (G * columns)
    height = min(rows - group * G, G)
    pm = group * G + (pid % (G * columns)) % height
    acc, at = tile_product(a, b, K, N, pm, (pid % (G * columns)) // height, BM, BN, BK)
    tl.store(c + at, acc.to(tl.bfloat16))


@triton.jit
def matmul_persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    columns = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * columns, tl.num_programs(0)):
        acc, at = tile_product(a, b, K, N, tile // columns, tile % columns, BM, BN, BK)
        tl.store(c + at, acc.to(tl.bfloat16))


@triton.jit
def matmul_tma(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    x = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    y = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    z = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    pm, pn = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(x.load([pm, k]), y.load([k, pn]), acc)
    z.store([pm, pn], acc.to(tl.bfloat16))


@triton.jit
def attention(q, k, v, o, n, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rows, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    head = tl.program_id(1).to(tl.int64) * n * D
    x = tl.load(q + head + rows[:, None] * D + d[None, :])
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for at in range(0, n, BN):
        c = at + tl.arange(0, BN)
        s = tl.dot(x, tl.load(k + head + c[None, :] * D + d[:, None])) * scale
        above = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - above[:, None])
        old = tl.exp2(most - above)
        total = total * old + tl.sum(p, 1)
        acc = acc * old[:, None]
        acc = tl.dot(p.to(tl.bfloat16), tl.load(v + head + c[:, None] * D + d[None, :]), acc)
        most = above
    tl.store(o + head + rows[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def scores_of(x, keys, at, rows, scale, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    """Of some rows and keys, as exponents of 2."""
    c, d = at + tl.arange(0, BN), tl.arange(0, D)
    s = tl.dot(x, tl.load(keys + c[None, :] * D + d[:, None])) * scale
    return tl.where(rows[:, None] >= c[None, :], s, float("-inf")) if CAUSAL else s


@triton.jit
def attend(acc, total, most, x, keys, values, begin, end, rows, scale, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    d = tl.arange(0, D)
    for at in tl.range(begin, end, BN):
        s = scores_of(x, keys, at, rows, scale, BN, D, CAUSAL)
        above = tl.maximum(most, tl.max(s, 1))
        p = tl.math.exp2(s - above[:, None])
        old = tl.math.exp2(most - above)
        total = total * old + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), tl.load(values + (at + tl.arange(0, BN))[:, None] * D + d[None, :]), acc * old[:, None])
        most = above
    return acc, total, most


@triton.jit
def attention_causal(q, k, v, o, logs, n, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """In two stages: keys below the diagonal, then those on it; keeps what the gradient needs."""
    rows, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    head = tl.program_id(1).to(tl.int64) * n * D
    x = tl.load(q + head + rows[:, None] * D + d[None, :])
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    diagonal = tl.program_id(0) * BM
    acc, total, most = attend(acc, total, most, x, k + head, v + head, 0, diagonal, rows, scale, BN, D, False)
    acc, total, most = attend(acc, total, most, x, k + head, v + head, diagonal, diagonal + BM, rows, scale, BN, D, True)
    tl.store(logs + tl.program_id(1) * n + rows, most + tl.math.log2(total))
    tl.store(o + head + rows[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def attention_delta(o, g, delta, n, BM: tl.constexpr, D: tl.constexpr):
    rows, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    at = tl.program_id(1).to(tl.int64) * n * D + rows[:, None] * D + d[None, :]
    products = tl.load(o + at).to(tl.float32) * tl.load(g + at).to(tl.float32)
    tl.store(delta + tl.program_id(1) * n + rows, tl.sum(products, 1))


@triton.jit
def attention_backward(q, k, v, g, dq, dk, dv, logs, delta, n, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """One block: gradients of its keys and values over the rows below, then of its own rows over the keys above."""
    d = tl.arange(0, D)
    head = tl.program_id(1).to(tl.int64) * n * D
    logs += tl.program_id(1) * n
    delta += tl.program_id(1) * n
    keys = tl.program_id(0) * BN + tl.arange(0, BN)
    key = tl.load(k + head + keys[:, None] * D + d[None, :])
    value = tl.load(v + head + keys[:, None] * D + d[None, :])
    sum_k, sum_v = tl.zeros((BN, D), tl.float32), tl.zeros((BN, D), tl.float32)
    for at in tl.range(tl.program_id(0) * BN, n, BM):
        rows = at + tl.arange(0, BM)
        x = tl.load(q + head + rows[None, :] * D + d[:, None])
        p = tl.math.exp2(tl.dot(key, x) * scale - tl.load(logs + rows)[None, :])
        p = tl.where(rows[None, :] >= keys[:, None], p, 0.0)
        y = tl.load(g + head + rows[:, None] * D + d[None, :])
        sum_v = tl.dot(p.to(tl.bfloat16), y, sum_v)
        s = p * (tl.dot(value, tl.trans(y)) - tl.load(delta + rows)[None, :])
        sum_k = tl.dot(s.to(tl.bfloat16), tl.trans(x), sum_k)
    tl.store(dk + head + keys[:, None] * D + d[None, :], (sum_k * scale).to(tl.bfloat16))
    tl.store(dv + head + keys[:, None] * D + d[None, :], sum_v.to(tl.bfloat16))
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    x = tl.load(q + head + rows[:, None] * D + d[None, :])
    y = tl.load(g + head + rows[:, None] * D + d[None, :])
    log, minus = tl.load(logs + rows)[:, None], tl.load(delta + rows)[:, None]
    sum_q = tl.zeros((BN, D), tl.float32)
    for at in tl.range(0, (tl.program_id(0) + 1) * BN, BM):
        p = tl.math.exp2(scores_of(x, k + head, at, rows, scale, BM, D, True) - log)
        c = at + tl.arange(0, BM)
        s = p * (tl.dot(y, tl.load(v + head + c[None, :] * D + d[:, None])) - minus)
        sum_q = tl.dot(s.to(tl.bfloat16), tl.load(k + head + c[:, None] * D + d[None, :]), sum_q)
    tl.store(dq + head + rows[:, None] * D + d[None, :], (sum_q * scale).to(tl.bfloat16))


@triton.jit
def sum_atomic(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(o, tl.sum(tl.load(x + i, i < n, 0.0), 0))


F32, BF16, I32, FP = "*fp32", "*bf16", "i32", "fp32"
TILES = {"BM": 128, "BN": 128, "BK": 64}
MANY = 128 * 2**20
# Kernel, types of its arguments in their order, constants, bytes moved and operations at a usual size.
ROWS = [
    (add, [F32, F32, F32, I32], {"B": 1024}, 12 * MANY, 0),
    (exponential, [F32, F32, F32, I32], {"B": 1024}, 12 * MANY, 0),
    (trigonometry, [F32, F32, F32, I32], {"B": 1024}, 12 * MANY, 0),
    (gelu, [BF16, BF16, I32], {"B": 1024}, 4 * MANY, 0),
    (dropout, [F32, F32, I32, FP, I32], {"B": 1024}, 8 * MANY, 0),
    (softmax, [F32, F32, I32], {"R": 16384}, 8 * 8192 * 16384, 0),
    (layer_norm, [F32, F32, F32, F32, I32, FP], {"B": 1024}, 8 * 16384 * 8192, 0),
    (column_sums, [F32, F32, I32, I32], {"B": 32, "C": 64}, 4 * 16384 * 8192, 0),
    (adam, [F32, F32, F32, F32, I32, FP, FP, FP, FP], {"B": 1024}, 28 * MANY, 0),
    (matmul, [BF16, BF16, F32, I32, I32, I32], TILES, 0, 2 * 8192**3),
    (matmul_grouped, [BF16, BF16, BF16, I32, I32, I32], TILES | {"G": 8}, 0, 2 * 8192**3),
    (matmul_persistent, [BF16, BF16, BF16, I32, I32, I32], TILES, 0, 2 * 8192**3),
    (matmul_tma, [BF16, BF16, BF16, I32, I32, I32], TILES, 0, 2 * 8192**3),
    (attention, [BF16, BF16, BF16, BF16, I32, FP], {"BM": 128, "BN": 64, "D": 64}, 0, 4 * 64 * 64 * 4096**2),
    (attention_causal, [BF16, BF16, BF16, BF16, F32, I32, FP], {"BM": 128, "BN": 64, "D": 64}, 0, 2 * 64 * 64 * 4096**2),
    (attention_delta, [BF16, BF16, F32, I32], {"BM": 128, "D": 64}, 4 * 64 * 64 * 4096, 0),
    (attention_backward, [BF16] * 7 + [F32, F32, I32, FP], {"BM": 32, "BN": 128, "D": 64}, 0, 5 * 64 * 64 * 4096**2),
    (sum_atomic, [F32, F32, I32], {"B": 1024}, 4 * MANY, 0),
]


def usual_us(moved_bytes, operations):
    """The least time on an H100: 3.35 TB/s, 990 TFLOP/s."""
    return max(moved_bytes / 3.35e6, operations / 990e6)


def main():
    folder = pathlib.Path(sys.argv[1])
    for sm in map(int, sys.argv[2:]):
        for function, types, constants, moved_bytes, operations in ROWS:
            name = f"triton.{function.__name__}.sm_{sm}"
            signature = dict(zip(function.arg_names, types + ["constexpr"] * len(constants)))
            pointers = {(at,): [["tt.divisibility", 16]] for at, t in enumerate(types) if t != FP}
            try:
                source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=pointers)
                made = triton.compile(source, target=GPUTarget("cuda", sm, 32))
            except Exception as why:  # a compiler's refusal is told and left out
                print(f"{name}: not compiled: {str(why).splitlines()[0] if str(why) else why!r}")
                continue
            (folder / f"{name}.ptx").write_text(made.asm["ptx"])
            (folder / f"{name}.us").write_text(f"{usual_us(moved_bytes, operations):.0f}")


if __name__ == "__main__":
    main()
