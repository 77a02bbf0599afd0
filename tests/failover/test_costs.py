"""The cost of a round with the state in a database: one write per batch, not one per node.

`python -m tests.failover.test_costs` prints the figures of docs/high-availability.md: a round
of 1,000 nodes in memory, on one etcd member and on three, and on Redis.
"""

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial

import pytest
from tests.cases.test_costs import AT_ONCE, LightNode, Swarm
from tests.engine_servers import EtcdServers, RedisServer
from tests.server.in_turn import InTurn

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Commit, Engine, Entry
from rallypoint.engines.url import open_engine
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.journal.engine import LOG
from rallypoint.server.options import Options
from rallypoint.server.server import raise_file_limit
from rallypoint.testing.fakes import MemoryEngine

LIMIT = 60.0


class Counting(MemoryEngine):
    """Counts writes of the log, and delays one of them on request."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = [0]
        self.open = threading.Event()
        self.open.set()

    def clone(self) -> "Counting":
        twin = Counting()
        twin._data, twin.writes, twin.open = self._data, self.writes, self.open
        return twin

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        if any(key.startswith(LOG) for key in changes):
            self.writes[0] += 1
            assert self.open.wait(LIMIT)
        return super().commit(expected, changes, deadline, expire)


@pytest.fixture(name="engine")
def _engine() -> Counting:
    return Counting()


@pytest.fixture(name="server")
def _server(engine: Counting) -> Iterator[InTurn]:
    server = InTurn(engine, "a", LIMIT)
    server.leads()
    yield server
    assert server.stop() is None


async def connect(swarm: Swarm, port: int) -> None:
    """Make all nodes connect, authenticate and join, in one write each."""
    loop = asyncio.get_running_loop()
    for start in range(0, swarm.size, AT_ONCE):
        makers = [
            loop.create_connection(partial(LightNode, swarm, n), "127.0.0.1", port)
            for n in range(start, min(swarm.size, start + AT_ONCE))
        ]
        swarm.nodes += [node for _, node in await asyncio.gather(*makers)]


@pytest.mark.integration
@pytest.mark.parametrize("size", [10, 1000])
def test_round_writes_once_per_batch(engine: Counting, server: InTurn, size: int) -> None:
    """Nodes that come while the first batch is being written share the second one."""
    raise_file_limit()
    inner = server.leads()
    assert inner.persistence is not None
    group_commit = inner.persistence.group_commit
    while not group_commit.is_resting:  # it writes what format it has
        time.sleep(0.005)
    before, commits, requests = engine.writes[0], group_commit.commits, inner.requests

    async def form() -> tuple[int, int]:
        swarm = Swarm(size, "costs")
        engine.open.clear()
        await connect(swarm, int(server.where.rpartition(":")[2]))
        while inner.requests - requests < 3 * size:  # hello, proof, join
            await asyncio.sleep(0.005)
        engine.open.set()
        await swarm.form()
        spent = engine.writes[0] - before, group_commit.commits - commits
        for node in swarm.nodes:
            node.transport.abort()
        return spent

    with asyncio.Runner() as runner:
        writes, batches = runner.run(form())
    assert writes == batches == 2


# -- figures --------------------------------------------------------------------------------


async def form(swarm: Swarm, port: int) -> float:
    """Form a round, connecting included; return its seconds."""
    began = time.monotonic()
    await connect(swarm, port)
    await swarm.form()
    took = time.monotonic() - began
    for node in swarm.nodes:
        node.transport.abort()
    return took


def in_memory(size: int, times: int) -> float:
    """Return the seconds of a round on a server without a state, the best of several."""
    server = EmbeddedServer("127.0.0.1", 0, Options())
    with asyncio.Runner() as runner:
        took = [runner.run(form(Swarm(size, f"m{n}"), server.port)) for n in range(times)]
    server.stop()
    return min(took)


def on_engine(engine: Engine, size: int, times: int) -> tuple[float, int]:
    """Return the seconds of the best of several rounds, and the median of their commits."""
    server = InTurn(engine, "a", LIMIT)
    inner = server.leads()
    assert inner.persistence is not None
    port, group_commit = int(server.where.rpartition(":")[2]), inner.persistence.group_commit
    took, commits = [], []
    with asyncio.Runner() as runner:
        for number in range(times):
            before = group_commit.commits
            took.append(runner.run(form(Swarm(size, f"e{number}"), port)))
            commits.append(group_commit.commits - before)
    server.stop()
    return min(took), int(statistics.median(commits))


def main(size: int = 1000, times: int = 8) -> None:
    """Print a table."""
    raise_file_limit()
    print(f"| state in | round of {size} nodes | writes |\n|---|---|---|")
    print(f"| memory (no `--state`) | {in_memory(size, times):.2f} s | - |", flush=True)
    redis, one, three = RedisServer().start(), EtcdServers(1).start(), EtcdServers(3).start()
    try:
        for name, servers in (
            ("Redis", redis), ("etcd, one member", one), ("etcd, three members", three)
        ):  # fmt: skip
            took, commits = on_engine(open_engine(servers.url("x")), size, times)
            print(f"| {name} | {took:.2f} s | {commits} |", flush=True)
    finally:
        for server in (redis, one, three):
            server.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
