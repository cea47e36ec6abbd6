"""Training of a small transformer by JAX: attention over a causal mask, layer norm, GELU, softmax cross entropy, Adam."""
import importlib.metadata
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "cli/demo/jax"))
import jax_on_softgpu  # noqa: E402, F401: before jax
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

VERSION = importlib.metadata.version("jax")
WORDS, LENGTH, BATCH, WIDTH, HEADS, LAYERS = 32, 16, 4, 32, 2, 2


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(layer, x):
    split = lambda w: (x @ w).reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)
    q, k, v = map(split, (layer["q"], layer["k"], layer["v"]))
    scores = q @ k.transpose(0, 1, 3, 2) / numpy.sqrt(WIDTH // HEADS).astype(numpy.float32)
    scores = jnp.where(numpy.tril(numpy.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = jax.nn.softmax(scores) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH) @ layer["o"]


def loss(parameters, words):
    one_hot = jax.nn.one_hot(words, WORDS)  # an index's gradient would be atomics, whose order is nobody's
    x = one_hot @ parameters["words"] + parameters["places"]
    for layer in parameters["layers"]:
        x = x + attention(layer, norm(x))
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    chances = jax.nn.log_softmax(norm(x) @ parameters["words"].T)[:, :-1]
    return -jnp.mean(jnp.sum(chances * one_hot[:, 1:], -1))


@jax.jit
def step(state, words):
    parameters, mean, square, count = state
    gradient, count = jax.grad(loss)(parameters, words), count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, gradient)
    move = lambda p, m, s: p - 3e-3 * m / (1 - 0.9 ** count) / (jnp.sqrt(s / (1 - 0.99 ** count)) + 1e-6)
    return jax.tree.map(move, parameters, mean, square), mean, square, count


def work(steps):
    random = numpy.random.default_rng(2)
    normal = lambda *shape: random.standard_normal(shape).astype(numpy.float32) * 0.1
    layer = lambda: {**{name: normal(WIDTH, WIDTH) for name in "qkvo"},
                     "up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH)}
    parameters = {"words": normal(WORDS, WIDTH), "places": normal(LENGTH, WIDTH), "layers": [layer() for _ in range(LAYERS)]}
    zero = jax.tree.map(numpy.zeros_like, parameters)
    state, words = (parameters, zero, zero, numpy.float32(0)), random.integers(0, WORDS, (BATCH, LENGTH))
    before = float(loss(parameters, words))
    for _ in range(steps):
        state = step(state, words)
    after = float(loss(state[0], words))
    assert steps < 4 or after < before, f"it does not learn: loss {before} and then {after}"
    return [numpy.asarray(p) for p in jax.tree.leaves(state)]
