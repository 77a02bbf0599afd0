"""Elastic data-parallel training with numpy: a small network on handwritten digits.

    rallypoint run --standalone --nproc-per-node 2 examples/train_digits.py

What makes it elastic is little. The global batch does not depend on the number of workers:
each step takes the same samples of the same shuffle (seeded by the epoch), each worker
computes the gradients of its share, and the sum over all workers is what a single one would
have got. Rank 0 writes a checkpoint after each epoch, whole or not at all; a new round
starts from the newest one, with as many workers as there are. So a run that lost a worker
half-way ends with the same network, up to the rounding of sums in another order.
"""

import argparse
import io
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

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
    """A network with one hidden layer: all parameters in one vector, and their momentum."""

    inputs: int
    weights: Array = field(init=False)
    momentum: Array = field(init=False)
    epoch: int = 0  # epochs that are done

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
        """Return the share of samples that are recognised."""
        return float((self.forward(x)[1].argmax(axis=1) == y).mean())

    def dump(self) -> bytes:
        """Return the whole state as bytes."""
        buffer = io.BytesIO()
        np.savez(buffer, weights=self.weights, momentum=self.momentum, epoch=self.epoch)
        return buffer.getvalue()

    def load(self, dumped: bytes) -> None:
        """Take over a state that `dump` made."""
        with np.load(io.BytesIO(dumped), allow_pickle=False) as arrays:
            self.weights, self.momentum = arrays["weights"], arrays["momentum"]
            self.epoch = int(arrays["epoch"])


def load_data() -> Data:
    """Return scikit-learn's bundled digits: 1,797 pictures of 8 x 8."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    x, y = x[order] / 16.0, y[order].astype(np.int64)
    train = slice(TEST_SAMPLES, None)
    return Data(x[train], y[train], x[:TEST_SAMPLES], y[:TEST_SAMPLES])


def save_checkpoint(folder: Path, model: Model) -> None:
    """Write the state, so that a reader sees the old file or the new one, never a part."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".digits.{os.getpid()}.tmp"
    scratch.write_bytes(model.dump())
    scratch.replace(folder / "digits.npz")


def resume(folder: Path | None, model: Model) -> None:
    """Agree on the newest checkpoint that any worker can read, and take it over."""
    path = folder / "digits.npz" if folder else None
    if path is not None and path.exists():
        model.load(path.read_bytes())
    epochs = [int(epoch) for epoch in worker.all_gather(str(model.epoch))]
    newest = int(np.argmax(epochs))
    if len(set(epochs)) > 1:  # folders are not shared, or a newcomer has none
        states = worker.all_gather(model.dump() if worker.rank() == newest else b"")
        model.load(states[newest])


def train_epoch(model: Model, data: Data, step_delay: float) -> float:
    """Train one epoch together with all workers; return the mean loss."""
    order = np.random.default_rng([SEED, model.epoch]).permutation(len(data.train_y))
    loss = 0.0
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        share = batch[worker.rank() :: worker.world_size()]
        total = worker.all_reduce(model.gradients(data.train_x[share], data.train_y[share]))
        model.step(total[:-1] / len(batch))
        loss += float(total[-1])
        time.sleep(step_delay)
    model.epoch += 1
    return loss / len(order)


def train(epochs: int, folder: Path | None = None, step_delay: float = 0.0) -> Model:
    """Train up to `epochs` epochs, from the newest checkpoint; return the network."""
    data = load_data()
    model = Model(data.train_x.shape[1])
    resume(folder, model)
    while model.epoch < epochs:
        loss = train_epoch(model, data, step_delay)
        if worker.rank() == 0:
            if folder:
                save_checkpoint(folder, model)
            report(model, loss, model.accuracy(data.test_x, data.test_y))
    if worker.rank() == 0:
        print(f"final accuracy {model.accuracy(data.test_x, data.test_y):.1%}", flush=True)
    return model


def report(model: Model, loss: float, accuracy: float) -> None:
    """Print one line about an epoch."""
    print(
        f"round {worker.round()}  world size {worker.world_size()}  epoch {model.epoch:3d}  "
        f"loss {loss:.4f}  accuracy {accuracy:.1%}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="folder to resume from")
    parser.add_argument(
        "--step-delay", type=float, default=0.0, metavar="SECONDS", help="pause after each step"
    )
    options = parser.parse_args(arguments)
    train(options.epochs, options.checkpoint, options.step_delay)
    worker.barrier()  # nobody goes before the last checkpoint is written


if __name__ == "__main__":
    main()
