"""A worker for TensorPlay's launcher: fits a line with gradients averaged over all workers.

    worker.py [STOP_FILE]

With STOP_FILE it goes on until the file is there; stdout is as that of torchrun/worker.py.
"""

import os
import sys
from pathlib import Path

import tensorplay as tp
import tensorplay.distributed as dist


def main() -> None:
    stop = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    where = f"rank={rank} world={world} restart={os.environ['TORCHELASTIC_RESTART_COUNT']}"
    print(f"start {where}", flush=True)
    model = tp.nn.Linear(4, 1)
    optimizer = tp.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    tp.manual_seed(rank)
    x = tp.randn(32, 4)
    y = x.sum(dim=1, keepdim=True)
    losses, steps = [], 0
    while True:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        losses.append(float(loss))
        steps += 1
        seen = tp.tensor([float(stop is None or stop.exists())])
        dist.all_reduce(seen)
        if steps >= 40 and float(seen[0]) > 0:
            break
    dist.destroy_process_group()
    print(f"end {where} loss={losses[0]:.4f}->{losses[-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
