"""Elastic data-parallel training with numpy: a small network on handwritten digits.

    rallypoint run --standalone --nproc-per-node 2 examples/train_digits.py

The global batch does not depend on the number of workers: each step takes the same samples of
the same shuffle (seeded by the epoch), each worker computes the gradients of its share, and the
sum over all workers is what a single worker would compute. `worker.elastic` saves the state
after each epoch and, with `--admit checkpoint`, before nodes join or leave; the next round
resumes from there with its own number of workers. So a run that gained and lost workers ends
with the same network, up to rounding in the sums.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from rallypoint import worker

Array = NDArray[np.float64]
HIDDEN, CLASSES = 64, 10
BATCH = 128  # samples of one step, over all workers
LEARNING_RATE, MOMENTUM = 0.2, 0.9
TEST_SAMPLES = 360
SEED = 7


@dataclass
class Data:
    """The digits, shuffled once with a fixed seed and split."""

    train_x: Array
    train_y: NDArray[np.int64]
    test_x: Array
    test_y: NDArray[np.int64]


@dataclass
class Model:
    """A network with one hidden layer: all parameters in one vector, and their momentum.

    `loss` is the sum over this epoch's samples so far.
    """

    inputs: int
    weights: Array = field(init=False)
    momentum: Array = field(init=False)
    loss: float = 0.0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(SEED)
        first = rng.normal(0, np.sqrt(2 / self.inputs), (self.inputs, HIDDEN))
        second = rng.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, CLASSES))
        parts = [first.ravel(), np.zeros(HIDDEN), second.ravel(), np.zeros(CLASSES)]
        self.weights = np.concatenate(parts)
        self.momentum = np.zeros_like(self.weights)

    def split(self, vector: Array) -> tuple[Array, Array, Array, Array]:
        """Return views of the four parameters in a vector of their total size."""
        a = self.inputs * HIDDEN
        b, c = a + HIDDEN, a + HIDDEN + HIDDEN * CLASSES
        return (
            vector[:a].reshape(self.inputs, HIDDEN),
            vector[a:b],
            vector[b:c].reshape(HIDDEN, CLASSES),
            vector[c:],
        )

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the hidden layer and the probability of each class."""
        w1, b1, w2, b2 = self.split(self.weights)
        hidden = np.maximum(x @ w1 + b1, 0.0)
        scores = hidden @ w2 + b2
        scores -= scores.max(axis=1, keepdims=True)
        exp = np.exp(scores)
        return hidden, exp / exp.sum(axis=1, keepdims=True)

    def gradients(self, x: Array, y: NDArray[np.int64]) -> Array:
        """Return the summed gradients of the samples, with their summed loss as last element."""
        out = np.zeros(self.weights.size + 1)
        if len(y) == 0:  # more workers than samples in the last batch
            return out
        hidden, probability = self.forward(x)
        w2 = self.split(self.weights)[2]
        g1, gb1, g2, gb2 = self.split(out[:-1])
        rows = np.arange(len(y))
        out[-1] = -np.log(np.maximum(probability[rows, y], 1e-12)).sum()
        probability[rows, y] -= 1.0
        g2[...] = hidden.T @ probability
        gb2[...] = probability.sum(axis=0)
        back = (probability @ w2.T) * (hidden > 0)
        g1[...] = x.T @ back
        gb1[...] = back.sum(axis=0)
        return out

    def step(self, gradient: Array) -> None:
        """Move the weights by one step of gradient descent with momentum."""
        self.momentum = MOMENTUM * self.momentum - LEARNING_RATE * gradient
        self.weights = self.weights + self.momentum

    def accuracy(self, x: Array, y: NDArray[np.int64]) -> float:
        """Return the fraction of samples that are classified correctly."""
        return float((self.forward(x)[1].argmax(axis=1) == y).mean())

    def dump(self) -> dict[str, Any]:
        """Return everything that is needed to resume."""
        return {"weights": self.weights, "momentum": self.momentum, "loss": self.loss}

    def load(self, dumped: dict[str, Any]) -> None:
        """Restore what `dump` returned."""
        self.weights, self.momentum = dumped["weights"], dumped["momentum"]
        self.loss = dumped["loss"]


def load_data() -> Data:
    """Return scikit-learn's bundled digits: 1,797 pictures of 8 x 8."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    x, y = x[order] / 16.0, y[order].astype(np.int64)
    train = slice(TEST_SAMPLES, None)
    return Data(x[train], y[train], x[:TEST_SAMPLES], y[:TEST_SAMPLES])


def train_step(model: Model, data: Data, epoch: int, start: int) -> None:
    """Train with all workers on the batch that begins at `start` in an epoch's order."""
    order = np.random.default_rng([SEED, epoch]).permutation(len(data.train_y))
    batch = order[start : start + BATCH]
    share = batch[worker.rank() :: worker.world_size()]
    total = worker.all_reduce(model.gradients(data.train_x[share], data.train_y[share]))
    model.step(total[:-1] / len(batch))
    model.loss = (model.loss if start else 0.0) + float(total[-1])


def train(epochs: int, folder: Path | None = None, step_delay: float = 0.0) -> Model:
    """Train up to `epochs` epochs, from the newest checkpoint if any; return the network."""
    data = load_data()
    model = Model(data.train_x.shape[1])
    starts = range(0, len(data.train_y), BATCH)
    state = worker.State(dump=model.dump, load=model.load, folder=folder)
    for step in worker.elastic(state, epochs * len(starts), every=len(starts)):
        epoch, batch = divmod(step, len(starts))
        train_step(model, data, epoch, starts[batch])
        if batch + 1 == len(starts) and worker.rank() == 0:
            report(model, data, epoch + 1)
        time.sleep(step_delay)
    if worker.rank() == 0:
        print(f"final accuracy {model.accuracy(data.test_x, data.test_y):.1%}", flush=True)
    return model


def report(model: Model, data: Data, epoch: int) -> None:
    """Print one line about an epoch."""
    loss, accuracy = model.loss / len(data.train_y), model.accuracy(data.test_x, data.test_y)
    print(
        f"round {worker.round()}  world size {worker.world_size()}  epoch {epoch:3d}  "
        f"loss {loss:.4f}  accuracy {accuracy:.1%}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="folder of the state (default: the store)"
    )
    parser.add_argument(
        "--step-delay", type=float, default=0.0, metavar="SECONDS", help="pause after each step"
    )
    options = parser.parse_args(arguments)
    train(options.epochs, options.checkpoint, options.step_delay)


if __name__ == "__main__":
    main()
