"""torch's LocalElasticAgent with a rendezvous that is asked for by its name.

The situations are those of torch's own tests of that agent (test/distributed/elastic/agent/
server/test in pytorch/pytorch); where those expect less than we promise, so does this file not.
"""

import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from tests.integrations.torchrun import situations as do
from tests.integrations.torchrun.situations import Part, make_agent, make_spec, run_agent
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
    registry,
)
from torch.distributed.elastic.utils import store as store_util

from rallypoint.net.addresses import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
LIMIT_SECONDS = 150.0  # for seconds of work, on a machine that may be busy
# Importing torch takes longer than most of what is done here: one process does it for all.
forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload([local_elastic_agent.__name__])


class Job:
    """Several agents, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"127.0.0.1:{free_port('127.0.0.1')}"
        self.results: Any = forked.Queue()
        self.agents: list[Any] = []
        self._folder = folder

    def start(self, part: Part, nodes: tuple[int, int]) -> Any:
        """Start one more agent."""
        folder = self._folder / str(len(self.agents))
        args = (part, self.endpoint, "job", nodes, str(folder), self.results)
        self.agents.append(forked.Process(target=run_agent, args=args))
        self.agents[-1].start()
        return self.agents[-1]

    def all_of(self, *parts: Part) -> list[tuple[str, RunResult]]:
        """Run an agent for each part, to the end; return the results with their roles."""
        for part in parts:
            self.start(part, (len(parts), len(parts)))
        found = [self.results.get(timeout=LIMIT_SECONDS) for _ in parts]
        for agent in self.agents:
            agent.join(LIMIT_SECONDS)
            assert agent.exitcode == 0
        return found

    def end(self) -> None:
        """End them, whatever their state."""
        for agent in self.agents:
            agent.kill()
            agent.join(LIMIT_SECONDS)


@pytest.fixture(name="job")
def _job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.end()


Alone = Callable[..., RunResult]


@pytest.fixture(name="alone")
def _alone(tmp_path: Path) -> Alone:
    """Run one agent in this process."""

    def run(work: Any, *args: Any, endpoint: str = "localhost:0", **more: Any) -> RunResult:
        return run_agent(Part(work, args, **more), endpoint, "job", (1, 1), str(tmp_path))

    return run


def values(results: list[tuple[str, RunResult]]) -> dict[int, Any]:
    """Return what workers returned, by rank."""
    assert not any(result.is_failed() for _, result in results)
    return {rank: value for _, r in results for rank, value in r.return_values.items()}


# -- one agent ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "config"),
    [
        ("localhost:0", {}),
        ("localhost:0", {"is_host": True}),
        ("{address}:{port}", {}),
        ("localhost:{port}", {"is_host": True}),
        ("localhost:{port}", {"is_host": "true"}),
        ("{name}:{port}", {"is_host": 1}),
    ],
)
def test_single_agent_hosts_at_the_given_address(
    alone: Alone, endpoint: str, config: dict[str, Any]
) -> None:
    port = free_port("127.0.0.1")
    place = endpoint.format(address="127.0.0.1", name=socket.gethostname(), port=port)
    if endpoint.startswith("{name}"):
        config = {**config, "insecure": True}  # the name may be that of an open interface
    result = alone(do.give_back, "x", endpoint=place, workers=2, config=tuple(config.items()))
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {0: "x", 1: "x"}


@pytest.mark.parametrize("shared", ["0", "1"])
def test_workers_use_the_agents_store_or_their_own(
    alone: Alone, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1" if shared == "0" else "0")
    assert alone(do.add_up, workers=2).return_values == {0: 1.0, 1: 1.0}
    (told,) = set(alone(do.master, workers=2).return_values.values())
    assert told[2] == str(shared == "1")


def test_worker_failure_ends_the_agent_with_its_error(alone: Alone) -> None:
    result = alone(do.fail, workers=2)
    assert result.is_failed()
    failure = next(iter(result.failures.values()))
    assert failure.exitcode == 1
    assert "fails on purpose" in str(failure.message)


def test_restarts_are_used_up_and_counted(tmp_path: Path) -> None:
    spec = make_spec(Part(do.fail, (2,), workers=2, restarts=2), "localhost:0", "job", (1, 1))
    agent = make_agent(spec, str(tmp_path), 5)
    assert agent.run().is_failed()
    assert agent._remaining_restarts == 0
    assert agent.get_worker_group().state is WorkerState.FAILED
    assert spec.rdzv_handler.shutdown()


def test_worker_that_fails_once_is_restarted(alone: Alone) -> None:
    result = alone(do.fail_once, "again ", workers=2, restarts=1)
    assert result.return_values == {0: "again 1", 1: "again 1"}


def test_failed_exit_barrier_is_ignored(alone: Alone) -> None:
    with patch.object(store_util, "barrier", side_effect=RuntimeError("on purpose")) as barrier:
        assert not alone(do.give_back, 1).is_failed()
    barrier.assert_called_once()


def test_worker_processes_are_closed_at_the_end(tmp_path: Path) -> None:
    context = Mock()
    context.pids.return_value = {0: 0}
    spec = make_spec(Part(do.give_back, (1,)), "localhost:0", "job", (1, 1))
    agent = make_agent(spec, str(tmp_path), 5)
    done = RunResult(state=WorkerState.SUCCEEDED, return_values={0: 0})
    with (
        patch.object(local_elastic_agent, "start_processes", return_value=context),
        patch.object(agent, "_monitor_workers", return_value=done),
    ):
        assert agent.run("worker") is done
    context.close.assert_called_once()


# -- several agents -----------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(2, 2), (1, 2, 3)])
def test_world_size_counts_workers_of_all_agents(job: Job, sizes: tuple[int, ...]) -> None:
    found = values(job.all_of(*[Part(do.add_up, workers=size) for size in sizes]))
    total = sum(range(sum(sizes)))
    assert found == dict.fromkeys(range(sum(sizes)), float(total))


def test_only_one_agent_hosts(job: Job) -> None:
    """As torch's tests start them: the host last."""
    hosts = [Part(do.rest, (0.0,), config=(("is_host", n == 2),)) for n in range(3)]
    assert values(job.all_of(*hosts)) == {0: 0, 1: 1, 2: 2}


def test_ranks_are_consecutive_within_role_and_agent(job: Job) -> None:
    parts = [Part(do.places, workers=n, role=role) for role, n in
             (("master", 1), ("trainer", 1), ("trainer", 2), ("ps", 2))]  # fmt: skip
    results = job.all_of(*parts)
    found = values(results)
    assert {told["WORLD_SIZE"] for told in found.values()} == {6}
    assert sorted(found) == sorted(told["RANK"] for told in found.values()) == list(range(6))
    for role, size in (("master", 1), ("trainer", 3), ("ps", 2)):
        mine = [v for name, r in results if name == role for v in r.return_values.values()]
        assert {told["ROLE_WORLD_SIZE"] for told in mine} == {size}
        assert sorted(told["ROLE_RANK"] for told in mine) == list(range(size))
    for name in ("RANK", "ROLE_RANK"):
        for _, result in results:
            own = [v[name] for v in sorted(result.return_values.values(), key=str)]
            assert sorted(own) == list(range(min(own), min(own) + len(own)))


@pytest.mark.parametrize(("seconds", "barrier"), [(2.0, 20.0), (4.0, 0.0)])
def test_agents_may_end_at_different_times(job: Job, seconds: float, barrier: float) -> None:
    parts = [Part(do.rest, (s,), exit_barrier_seconds=barrier) for s in (0.0, seconds)]
    assert values(job.all_of(*parts)) == {0: 0, 1: 1}


def test_killed_and_restarted_agent_comes_back(job: Job) -> None:
    host = (("is_host", True),)
    part = Part(do.add_up, (2.0,), 2, restarts=2, config=host, start_method="spawn")
    job.start(part, (2, 2))
    job.start(part, (2, 2)).kill()
    job.start(part, (2, 2))
    found = [job.results.get(timeout=LIMIT_SECONDS) for _ in range(2)]
    assert values(found) == dict.fromkeys(range(4), 6.0)
    for agent, code in zip(job.agents, (0, -signal.SIGKILL, 0), strict=True):
        agent.join(LIMIT_SECONDS)
        assert agent.exitcode == code


@pytest.mark.parametrize("late", [False, True])
def test_last_agent_continues_alone(job: Job, late: bool) -> None:
    told = forked.Queue()
    config = (("last_call", 2),)
    part = Part(do.wait_for_world, (1, told), restarts=2, config=config, start_method="spawn")
    job.start(part, (1, 2))
    gone = job.start(part, (1, 2))
    if late:  # in the middle of a round of two
        sizes = {told.get(timeout=LIMIT_SECONDS)[1]}
        while 2 not in sizes:
            sizes.add(told.get(timeout=LIMIT_SECONDS)[1])
    gone.kill()
    _, result = job.results.get(timeout=LIMIT_SECONDS)
    assert result.return_values == {0: 1}
    job.agents[0].join(LIMIT_SECONDS)
    assert [agent.exitcode for agent in job.agents] == [0, -signal.SIGKILL]


def test_newcomer_is_admitted(job: Job) -> None:
    told = forked.Queue()
    part = Part(do.wait_for_world, (2, told), config=(("last_call", 0.5),))
    job.start(part, (1, 2))
    assert told.get(timeout=LIMIT_SECONDS) == (0, 1)
    job.start(part, (1, 2))
    found = [job.results.get(timeout=LIMIT_SECONDS) for _ in range(2)]
    assert values(found) == {0: 2, 1: 2}


def test_agent_that_gives_up_ends_the_others(job: Job) -> None:
    job.start(Part(do.fail), (2, 2))
    other = job.start(Part(do.rest, (300.0,), role="other"), (2, 2))
    role, result = job.results.get(timeout=LIMIT_SECONDS)
    assert (role, result.is_failed()) == ("worker", True)
    other.join(LIMIT_SECONDS)
    assert other.exitcode == 1


# -- the handler itself -------------------------------------------------------------------


def handler(endpoint: str = "localhost:0", run_id: str = "job", n: int = 1, **config: Any) -> Any:
    params = RendezvousParameters("rallypoint", endpoint, run_id, n, n, **config)
    return registry.get_rendezvous_handler(params)


def test_handler_by_name_reports_its_backend() -> None:
    made = handler()
    assert (made.get_backend(), made.get_run_id()) == ("rallypoint", "job")
    info = made.next_rendezvous()
    assert (info.rank, info.world_size, made.num_nodes_waiting()) == (0, 1, 0)
    assert info.bootstrap_store_info.master_port > 0
    info.store.set("key", "value")
    assert info.store.get("key") == b"value"
    assert not made.is_closed()
    made.set_closed()
    assert made.is_closed()
    with pytest.raises(RendezvousClosedError):
        made.next_rendezvous()
    assert made.shutdown()
    assert made.shutdown()


def test_waiting_agents_are_counted_and_admitted() -> None:
    import threading

    place = f"127.0.0.1:{free_port('127.0.0.1')}"
    made = [
        registry.get_rendezvous_handler(
            RendezvousParameters("rallypoint", place, "job", 1, 2, last_call=0.3)
        )
        for _ in range(2)
    ]
    assert made[0].next_rendezvous().world_size == 1
    sizes: list[int] = []
    other = threading.Thread(target=lambda: sizes.append(made[1].next_rendezvous().world_size))
    other.start()
    began = time.monotonic()
    while made[0].num_nodes_waiting() == 0:
        assert time.monotonic() - began < LIMIT_SECONDS
        time.sleep(0.01)
    assert made[0].num_nodes_waiting() == 1
    assert made[0].next_rendezvous().world_size == 2
    other.join(LIMIT_SECONDS)
    assert sizes == [2]
    for each in made:
        each.shutdown()


def test_join_timeout_names_the_missing_nodes() -> None:
    made = handler(n=2, join_timeout=4)
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2"):
        made.next_rendezvous()
    made.shutdown()


def test_no_node_hosts_with_is_host_false() -> None:
    place = f"127.0.0.1:{free_port('127.0.0.1')}"
    made = handler(place, is_host=False, join_timeout=1)
    with pytest.raises(RendezvousConnectionError, match=place):
        made.next_rendezvous()


def test_agents_of_other_runs_may_use_the_same_endpoint() -> None:
    place = f"127.0.0.1:{free_port('127.0.0.1')}"
    made = [handler(place, run) for run in ("one", "two")]
    infos = [each.next_rendezvous() for each in made]
    infos[0].store.set("key", "one")
    assert not infos[1].store.check(["key"])
    made[0].set_closed()
    assert not made[1].is_closed()
    for each in made:
        each.shutdown()
