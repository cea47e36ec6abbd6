"""A framework's workload as a program of the demo: program.py serve|train WORKLOAD STEPS [options as cli/demo/jax/programs.py].

A request, or a step of training, is STEPS steps of the workload, from its beginning to what it leaves on the host."""
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "cli/demo/jax"))
import client  # noqa: E402
import programs  # noqa: E402


class Service:
    def __init__(self, workload, steps):
        self.workload, self.steps = workload, steps

    def input(self):
        return self.steps

    def request(self, steps):
        return self.workload.work(steps)[0]


class Trainer:
    def __init__(self, workload, steps):
        self.workload, self.steps = workload, steps

    def step(self):
        self.left = self.workload.work(self.steps)
        return lambda: None  # it has ended

    def arrays(self):
        return self.left


def main():
    what, name, steps, *words = sys.argv[1:]
    workload, run, program = client.load(name), *{"serve": (programs.serve, Service), "train": (programs.train, Trainer)}[what]
    run(lambda seed: program(workload, int(steps)), __doc__, words)


if __name__ == "__main__":
    main()
