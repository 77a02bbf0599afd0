"""The digits again, as a script for Hugging Face's accelerate, without any Rallypoint code.

    rallypoint run --standalone --nproc-per-node 2 examples/train_accelerate.py
    rallypoint run --nnodes 1:4 --endpoint HOST:29400 --run-id digits examples/train_accelerate.py

accelerate, Lightning and others read the variables that torchrun sets; `rallypoint run` sets
the same. Needs torch, accelerate and scikit-learn.
"""

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TEST_SAMPLES = 360


def main() -> None:
    """Train, and print the accuracy on the test samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(7)
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y))
    held_back, rest = torch.utils.data.random_split(
        data, [TEST_SAMPLES, len(data) - TEST_SAMPLES], torch.Generator().manual_seed(7)
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    batches = DataLoader(rest, batch_size=64, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for _ in range(arguments.epochs):
        for images, digits in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(images), digits))
            optimizer.step()
    images, digits = next(iter(DataLoader(held_back, batch_size=TEST_SAMPLES)))
    known = accelerator.gather((model(images).argmax(dim=1) == digits).float())
    workers = accelerator.num_processes
    accelerator.print(f"{workers} workers: accuracy {known.mean().item():.3f}")
    accelerator.wait_for_everyone()  # no rank destroys the group while another still gathers
    accelerator.end_training()


if __name__ == "__main__":
    main()
