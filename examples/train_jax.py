"""Data-parallel training with JAX: a linear fit on all nodes, gradients summed with psum.

    rallypoint run --nnodes 1:4 --endpoint HOST:29400 --run-id jax examples/train_jax.py

The worker of rank 0 runs JAX's coordinator, at the bootstrap address of the round, which
`rallypoint run` sets as MASTER_ADDR and MASTER_PORT. When a node is lost or joins, the workers
restart in a new round with another coordinator, and resume from the checkpoint that rank 0
wrote. Needs jax; runs on CPU devices unchanged.
"""

import argparse
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

SAMPLES, FEATURES = 240, 4  # 240: divisible by 1 to 6 workers, and 8
LEARNING_RATE = 0.05
STEPS_A_CHECKPOINT = 5


def meet() -> tuple[int, int]:
    """Join the other workers of this round; return the rank and the world size."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX catches SIGTERM, but a worker that waits in a psum for a lost one must end.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=world,
        process_id=rank,
    )
    return rank, world


def load(path: Path) -> tuple[int, np.ndarray]:
    """Return the step and the weights of the checkpoint, or the initial ones."""
    if not path.exists():
        return 0, np.zeros(FEATURES, np.float32)
    with np.load(path) as saved:
        return int(saved["step"]), saved["weights"]


def save(path: Path, step: int, weights: np.ndarray) -> None:
    """Write the checkpoint atomically."""
    new = path.with_suffix(".new.npz")
    np.savez(new, step=step, weights=weights)
    new.replace(path)


def main() -> None:
    """Train until the given number of steps is done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--checkpoint", type=Path, default=Path("line.npz"))
    arguments = parser.parse_args()
    rank, world = meet()
    mesh = Mesh(np.array(jax.devices()), ("workers",))
    rows, whole = PartitionSpec("workers"), PartitionSpec()

    def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum((x @ w - y) ** 2))(weights)
        loss, gradient = jax.lax.psum((loss, gradient), "workers")
        return weights - LEARNING_RATE * gradient / SAMPLES, loss / SAMPLES

    # check_vma=False: each device has the gradient of its own rows until psum adds them
    specs = {"in_specs": (whole, rows, rows), "out_specs": (whole, whole), "check_vma": False}
    step_of_all = jax.jit(jax.shard_map(step, mesh=mesh, **specs))

    random = np.random.default_rng(7)  # the same data everywhere; each device takes its rows
    x = random.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    y = x @ np.arange(1, FEATURES + 1, dtype=np.float32)
    sharding = jax.sharding.NamedSharding(mesh, rows)
    ours = [jax.make_array_from_callback(a.shape, sharding, lambda i, a=a: a[i]) for a in (x, y)]

    first, saved = load(arguments.checkpoint)
    weights = jnp.asarray(saved)
    print(f"rank {rank} of {world}, {jax.device_count()} devices, from step {first}", flush=True)
    for done in range(first + 1, arguments.steps + 1):
        weights, loss = step_of_all(weights, *ours)
        if rank == 0 and (done == arguments.steps or done % STEPS_A_CHECKPOINT == 0):
            save(arguments.checkpoint, done, np.asarray(weights))
            print(f"step {done}: loss {float(loss):.6f}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
