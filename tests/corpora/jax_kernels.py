"""Kernels that XLA makes of JAX programs, compiled on the software GPU and not run: XLA writes their PTX where XLA_FLAGS says.

usage: python jax_kernels.py"""
import os
import pathlib
import sys

# One configuration of each product, where XLA's compiler would try many: each is compiled, and none can be timed.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + (
    " --xla_gpu_override_gemm_autotuner='block_m:128 block_n:128 block_k:32 split_k:1 num_stages:3 num_warps:8 num_ctas:1'")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cli/demo/jax"))
import jax_on_softgpu  # noqa: E402, F401: before jax
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

BF16 = jnp.bfloat16


def shape(*dims, dtype=BF16):
    return jax.ShapeDtypeStruct(dims, dtype)


def layer(w, x):
    """One block of a transformer."""
    normal = lambda v: (v - v.mean(-1, keepdims=True)) * jax.lax.rsqrt(v.var(-1, keepdims=True) + 1e-5)
    q, k, v = (jnp.einsum("btd,dhe->bhte", normal(x), w[name]) for name in "qkv")
    scores = jnp.einsum("bhte,bhse->bhts", q, k).astype(jnp.float32) * 0.125
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    chances = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(BF16)
    x = x + jnp.einsum("bhts,bhse,hed->btd", chances, v, w["o"])
    return x + jax.nn.gelu(normal(x) @ w["up"]) @ w["down"]


def transformer(w, x):
    return jnp.mean(layer(w, x).astype(jnp.float32) ** 2)


def adam(p, m, v, g):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def cross_entropy(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), labels[:, None], 1))


def elements(x, y):
    return jnp.sin(x) * jnp.exp(-y * y) + jnp.tanh(x) / (1 + jnp.abs(y))


def sorted_sums(x):
    return jnp.cumsum(jnp.sort(x, 1), 1)


def softmax_of_product(x, y):
    return jax.nn.softmax(x @ y)


WEIGHTS = {name: shape(1024, 16, 64) for name in "qkv"} | {
    "o": shape(16, 64, 1024), "up": shape(1024, 4096), "down": shape(4096, 1024)}
F32 = shape(64, 2**20, dtype=jnp.float32)
PROGRAMS = [
    (jax.grad(transformer), (WEIGHTS, shape(8, 1024, 1024))),
    (adam, (F32,) * 4),
    (jax.grad(cross_entropy), (shape(8192, 50304), shape(8192, dtype=jnp.int32))),
    (elements, (F32, F32)),
    (sorted_sums, (shape(4096, 8192, dtype=jnp.float32),)),
    (softmax_of_product, (shape(8192, 4096), shape(4096, 8192))),
]


def main():
    for number, (program, arguments) in enumerate(PROGRAMS):
        try:
            jax.jit(program).lower(*arguments).compile()
        except Exception as why:  # what the software GPU lacks
            print(f"program {number}: {str(why).splitlines()[0]}")


if __name__ == "__main__":
    main()
