"""What workers do, and an agent in a process of its own, for test_local_agent.py.

Here, and not in the test, because other processes import it by its name.
"""

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry


@dataclass(frozen=True)
class Part:
    """What one agent is told.

    Args:
        work: its workers' function.
        args: of that function.
        workers: how many there are.
        role: their role.
        config: of the rendezvous, beside the defaults.
        restarts: how often the agent may start them again.
        exit_barrier_seconds: how long it waits for other agents at the end.
        backend: which rendezvous.
        start_method: of its workers; from a fork server they need not import torch each,
            but they outlive an agent that is killed, as those of "spawn" do not.
    """

    work: Any
    args: tuple[Any, ...] = ()
    workers: int = 1
    role: str = "worker"
    config: tuple[tuple[str, Any], ...] = ()
    restarts: int = 0
    exit_barrier_seconds: float = 5.0
    backend: str = "rallypoint"
    start_method: str = "forkserver"


def make_spec(part: Part, endpoint: str, run_id: str, nodes: tuple[int, int]) -> WorkerSpec:
    """Return what an agent needs, with a handler that is asked for by name."""
    params = RendezvousParameters(part.backend, endpoint, run_id, *nodes, **dict(part.config))
    return WorkerSpec(
        role=part.role,
        local_world_size=part.workers,
        entrypoint=part.work,
        args=part.args,
        rdzv_handler=registry.get_rendezvous_handler(params),
        max_restarts=part.restarts,
        monitor_interval=0.02,
    )


def make_agent(
    spec: WorkerSpec, folder: str, exit_barrier_seconds: float, start_method: str = "forkserver"
) -> LocalElasticAgent:
    """Return torch's agent for a spec."""
    return LocalElasticAgent(
        spec,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
        start_method=start_method,
        exit_barrier_timeout=exit_barrier_seconds,
    )


def run_agent(
    part: Part, endpoint: str, run_id: str, nodes: tuple[int, int], folder: str, results: Any = None
) -> RunResult:
    """Run an agent to its end, as a launcher does."""
    spec = make_spec(part, endpoint, run_id, nodes)
    result = make_agent(spec, folder, part.exit_barrier_seconds, part.start_method).run()
    spec.rdzv_handler.shutdown()
    if results is not None:
        results.put((part.role, result))
    return result


# -- what workers do ----------------------------------------------------------------------


def rank_and_size() -> tuple[int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def give_back(value: Any) -> Any:
    return value


def places() -> dict[str, int]:
    names = ("RANK", "WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")
    return {name: int(os.environ[name]) for name in names}


def add_up(seconds: float = 0.0) -> float:
    """Add all ranks over gloo."""
    rank, size = rank_and_size()
    dist.init_process_group("gloo")
    total = torch.tensor(float(rank))
    time.sleep(seconds)
    dist.all_reduce(total)
    dist.destroy_process_group()
    if total.item() != sum(range(size)):
        raise ValueError(f"{total.item()} is not the sum of {size} ranks")
    return total.item()


def rest(seconds: float) -> int:
    time.sleep(seconds)
    return rank_and_size()[0]


def fail(every: int = 1) -> None:
    if rank_and_size()[0] % every == every - 1:
        raise RuntimeError("fails on purpose")


def fail_once(marker: str) -> str:
    """Fail in the first round that any worker is in; return the restart count in the next."""
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if count == "0":
        raise RuntimeError("the first time fails")
    return f"{marker}{count}"


def wait_for_world(size: int, told: Any) -> int:
    """Report the world's size; rest until it is the wanted one."""
    rank, now = rank_and_size()
    told.put((rank, now))
    if now != size:
        time.sleep(300)
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    dist.destroy_process_group()
    return int(ones.item())


def master() -> tuple[str, int, str]:
    env = os.environ
    return env["MASTER_ADDR"], int(env["MASTER_PORT"]), env["TORCHELASTIC_USE_AGENT_STORE"]
