"""The environment of a worker. PURE.

Scripts written for torchrun read RANK, WORLD_SIZE, MASTER_ADDR and so on; `rallypoint.worker`
reads RALLYPOINT_*. Both follow from the assignment in the sealed round.
"""

from collections.abc import Mapping

import msgspec

from rallypoint.core.events import Assignment

TORCH_DEFAULTS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}  # as torchrun sets it
OMP_THREADS = "OMP_NUM_THREADS"
TOKEN = "RALLYPOINT_TOKEN"  # noqa: S105 - the name of a variable
# With the nodes' token, a worker could do what only an agent may do.
NOT_FOR_WORKERS = (TOKEN, f"{TOKEN}_FILE")


class WorkerContext(msgspec.Struct, frozen=True):
    """What all workers of a node share.

    Args:
        run_id: name of the run.
        local_world_size: number of workers on this node.
        role: name of their role.
        max_restarts: the run's restart budget.
        store_url: where `rallypoint.worker` finds the store: `tcp://HOST:PORT`,
            `file:///PATH`, or "" for none.
        token: permits this run's store and nothing else, "" for none.
        environment: more variables, such as those of TLS.
        error_dir: directory for TORCHELASTIC_ERROR_FILE, "" for none.
    """

    run_id: str
    local_world_size: int
    role: str = "default"
    max_restarts: int = 0
    store_url: str = ""
    token: str = ""
    error_dir: str = ""
    environment: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"WorkerContext(run_id={self.run_id!r}, role={self.role!r})"  # never the token


def sets_omp_threads(base: Mapping[str, str], local_world_size: int) -> bool:
    """Return whether workers get OMP_NUM_THREADS=1, as with torchrun."""
    return local_world_size > 1 and OMP_THREADS not in base


def worker_environment(
    base: Mapping[str, str],
    context: WorkerContext,
    assignment: Assignment,
    local_rank: int,
    master: tuple[str, int] | None = None,
) -> dict[str, str]:
    """Return the whole environment of one worker.

    Args:
        base: the agent's environment, which the worker inherits.
        context: what all workers of the node share.
        assignment: of the node, in the sealed round.
        local_rank: of the worker, from 0.
        master: bootstrap address and port; None: those of the assignment.
    """
    rank = assignment.worker_offset + local_rank
    address, port = master or (assignment.master_addr, assignment.master_port)
    own: dict[str, object] = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": assignment.world_size,
        "LOCAL_WORLD_SIZE": context.local_world_size,
        "GROUP_RANK": assignment.rank,
        "GROUP_WORLD_SIZE": assignment.size,
        "ROLE_NAME": context.role,
        "ROLE_RANK": assignment.role_offset + local_rank,
        "ROLE_WORLD_SIZE": assignment.role_world_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": assignment.restarts,
        "TORCHELASTIC_MAX_RESTARTS": context.max_restarts,
        "TORCHELASTIC_RUN_ID": context.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": False,  # rank 0 of the workers hosts its own store
        "RALLYPOINT_RUN_ID": context.run_id,
        "RALLYPOINT_ROUND": assignment.round,
        "RALLYPOINT_INCARNATION": assignment.incarnation,
    }
    if context.store_url:
        own["RALLYPOINT_STORE"] = context.store_url
    if context.token:
        own[TOKEN] = context.token
    if context.error_dir:
        name = f"error_round_{assignment.round}_rank_{rank}.json"
        own["TORCHELASTIC_ERROR_FILE"] = f"{context.error_dir}/{name}"
    if sets_omp_threads(base, context.local_world_size):
        own[OMP_THREADS] = 1
    inherited = {name: base[name] for name in base if name not in NOT_FOR_WORKERS}
    made = {name: str(value) for name, value in own.items()}
    return {**TORCH_DEFAULTS, **inherited, **context.environment, **made}
