"""A worker for torchrun: all-reduces with gloo until a file appears, and says where it is.

    worker.py STOP_FILE [FAIL_FILE]

Each line on stdout is `start rank=R world=W restart=K` or `end ...`. With FAIL_FILE the
worker of rank 1 exits with 3 when the file is there, and takes it away before.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    stop, fail = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    where = f"rank={rank} world={world} restart={os.environ['TORCHELASTIC_RESTART_COUNT']}"
    print(f"start {where}", flush=True)
    while True:
        seen = torch.tensor([1.0, float(stop.exists())])
        dist.all_reduce(seen)
        assert int(seen[0]) == world
        if fail is not None and rank == 1 and fail.exists():
            fail.unlink()
            sys.exit(3)
        if seen[1] > 0:
            break
        time.sleep(0.01)
    dist.destroy_process_group()
    print(f"end {where}", flush=True)


if __name__ == "__main__":
    main()
