"""Elastic data-parallel training with torch: the digits again, under DDP and gloo.

    rallypoint run --standalone --nproc-per-node 2 examples/train_ddp.py
    rallypoint run --nnodes 1:4 --endpoint HOST --run-id digits examples/train_ddp.py

A plain torch script: it reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which
`rallypoint run` sets as torchrun does, so it runs under either. The global batch does not
depend on the number of workers, and rank 0 writes a checkpoint after each epoch, so that a
round of another size resumes where the last one ended. `worker.should_save` requests another
one before nodes join or leave (`--admit checkpoint`, preemption), at the same step on every
rank; under torchrun it never does.
"""

import argparse
import io
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rallypoint import worker

BATCH = 128  # samples of one step, over all workers
TEST_SAMPLES = 360
SEED = 7


def load_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scikit-learn's bundled digits, in the same order as train_digits.py."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    return torch.tensor(x[order] / 16.0, dtype=torch.float32), torch.tensor(y[order])


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Write the checkpoint atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, scratch)
    scratch.replace(path)


def resume(path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load rank 0's checkpoint on all workers; return the number of completed steps."""
    here = path.read_bytes() if dist.get_rank() == 0 and path and path.exists() else b""
    size = torch.tensor(len(here))
    dist.broadcast(size, src=0)
    if not size:
        return 0
    content = torch.frombuffer(bytearray(here or int(size)), dtype=torch.uint8)
    dist.broadcast(content, src=0)
    state = torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def train_step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    epoch: int,
    batch: int,
) -> torch.Tensor:
    """Train on one batch together with all workers; return the sum of this worker's losses."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED + epoch))
    samples = order.split(BATCH)[batch]
    share = samples[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[share]), y[share], reduction="sum")
    # DDP averages over workers, but the step needs the mean over the global batch.
    (loss * dist.get_world_size() / len(samples)).backward()
    optimizer.step()
    return loss.detach()


def measure(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the fraction of samples that are classified correctly."""
    with torch.no_grad():
        return float((network(x).argmax(dim=1) == y).float().mean())


def train(epochs: int, path: Path | None) -> None:
    """Train up to `epochs` epochs, from the checkpoint if there is one."""
    x, y = load_data()
    test_x, train_x = x[:TEST_SAMPLES], x[TEST_SAMPLES:]
    test_y, train_y = y[:TEST_SAMPLES], y[TEST_SAMPLES:]
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
    done = resume(path, network, optimizer)
    if done and dist.get_rank() == 0:
        print(f"world size {dist.get_world_size()}  resumes after step {done}", flush=True)
    model = DistributedDataParallel(network)
    batches = -(-len(train_y) // BATCH)
    for step in range(done, epochs * batches):
        epoch, batch = divmod(step, batches)
        loss = train_step(model, optimizer, train_x, train_y, epoch, batch)
        if batch + 1 == batches:
            report(loss, epoch + 1, measure(network, test_x, test_y))
        if worker.should_save(step + 1, every=batches):
            if dist.get_rank() == 0 and path is not None:
                save_checkpoint(path, network, optimizer, step + 1)
            worker.saved(step + 1)
    if dist.get_rank() == 0:
        print(f"final accuracy {measure(network, test_x, test_y):.1%}", flush=True)


def report(loss: torch.Tensor, epoch: int, accuracy: float) -> None:
    """Print one line about an epoch, with the loss of its last batch."""
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(
            f"world size {dist.get_world_size()}  epoch {epoch:3d}  "
            f"loss {float(loss):.4f}  accuracy {accuracy:.1%}",
            flush=True,
        )


def main() -> None:
    """Read the options, join the process group, train, and leave it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="folder to resume from")
    options = parser.parse_args()
    torch.set_num_threads(1)  # several workers share the cores
    dist.init_process_group("gloo")
    train(options.epochs, options.checkpoint / "ddp.pt" if options.checkpoint else None)
    dist.barrier()  # no rank ends before the last checkpoint is written
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
