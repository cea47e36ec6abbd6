"""Training of a small network: tinygrad's JIT makes CUDA graphs and changes their parameters between launches."""
import importlib.metadata
import os

os.environ.update(DEV="CUDA", TRAINING="1")
from tinygrad import Tensor, TinyJit, nn  # noqa: E402

VERSION = importlib.metadata.version("tinygrad")


def work(steps):
    Tensor.manual_seed(1)
    first, second = nn.Linear(64, 96), nn.Linear(96, 10)
    parameters = nn.state.get_parameters([first, second])
    optimizer = nn.optim.SGD(parameters, lr=0.05)
    x, y = Tensor.randn(128, 64).realize(), Tensor.randint(128, high=10).realize()

    @TinyJit
    def step():
        optimizer.zero_grad()
        loss = second(first(x).relu()).sparse_categorical_crossentropy(y).backward()
        optimizer.step()
        return loss.realize()

    for _ in range(steps):
        step().numpy()
    return [p.numpy() for p in parameters]
