"""case-F6: the cost of a round is proportional to N. It is counted, not timed: requests, bytes,
state writes and wake-ups of nodes.

Light clients speak the real protocol to a real server in another process: hello, proof and join in
one write, then the seat. With RALLYPOINT_NIGHTLY, N = 10,000 is tested too.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import pytest

from rallypoint.core.events import Join
from rallypoint.core.state import Node, Settings
from rallypoint.deadline import Deadline
from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.view import Seated
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.server.server import Server, raise_file_limit

SIZES = [10, 100, 1_000, *([10_000] if os.environ.get("RALLYPOINT_NIGHTLY") else [])]
LIMIT_SECONDS = 60.0
AT_ONCE = 500
_decoder = msgspec.msgpack.Decoder(wire.ServerBody)


@dataclass
class Swarm:
    """N light nodes of one run, and the bytes that they send and receive."""

    size: int
    run: str
    seated: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    wakes: int = 0
    all_seated: asyncio.Event = field(default_factory=asyncio.Event)
    nodes: list["LightNode"] = field(default_factory=list)

    def sit(self) -> None:
        self.seated += 1
        if self.seated == self.size:
            self.all_seated.set()

    async def form(self) -> None:
        """Wait until every node has its seat."""
        await asyncio.wait_for(self.all_seated.wait(), LIMIT_SECONDS)
        self.all_seated.clear()
        self.seated = 0


class LightNode(asyncio.Protocol):
    """One node: handshake and join in one write, and a new join when asked."""

    def __init__(self, swarm: Swarm, number: int) -> None:
        self.swarm, self.number, self.data, self.round = swarm, number, b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        client = self.number.to_bytes(16, "big")
        nonce = b"n" * p.NONCE_BYTES
        hello = p.Hello(p.PROTOCOL_VERSION, self.swarm.run, client, nonce, "light")
        self.write(p.frame(hello) + p.frame(p.Proof(b"")))
        self.join()

    def write(self, data: bytes) -> None:
        self.swarm.bytes_out += len(data)
        self.transport.write(data)

    def join(self) -> None:
        size = self.swarm.size
        node = Node(f"{self.number:032x}", "127.0.0.1", 40_000, 1_000)
        known = 1 if self.round else 0
        join = Join(node, Settings(size, size), known, self.round)
        self.write(p.frame(wire.Ask(0, join)))

    def data_received(self, data: bytes) -> None:
        self.swarm.bytes_in += len(data)
        self.swarm.wakes += 1
        self.data += data
        while len(self.data) >= 4:
            end = 4 + int.from_bytes(self.data[:4], "big")
            if len(self.data) < end:
                return
            body, self.data = _decoder.decode(self.data[4:end]), self.data[end:]
            assert not isinstance(body, p.Goodbye), body
            if isinstance(body, wire.Push) and isinstance(body.message, Seated):
                self.round = body.message.seat.round
                self.swarm.sit()


@dataclass(frozen=True)
class Cost:
    """The cost of one round of N nodes."""

    requests: int
    writes: int
    bytes_to_server: int
    bytes_to_nodes: int
    wakes: int


def serve(told: Connection) -> None:
    """Run the server: report the port, then the requests and state writes of each named run."""
    embedded = EmbeddedServer("127.0.0.1", 0, Options())

    def read(run: str, server: Server) -> tuple[int, int]:
        hosted = server.runs.get(run)
        return server.requests, hosted.writes if hosted else 0

    told.send(embedded.port)
    while run := told.recv():
        told.send(embedded.call(partial(read, run), Deadline(LIMIT_SECONDS)))
    embedded.stop()


class Counting:
    """A server process that reports its counters."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._asked, told = context.Pipe()
        self._process = context.Process(target=serve, args=(told,))
        self._process.start()
        self.port: int = self._hear()

    def _hear(self) -> Any:
        assert self._asked.poll(LIMIT_SECONDS)
        return self._asked.recv()

    def counters(self, run: str) -> tuple[int, int]:
        """Return the requests of all clients, and the state writes of a run."""
        self._asked.send(run)
        counted: tuple[int, int] = self._hear()
        return counted

    def stop(self) -> None:
        self._asked.send("")
        self._process.join(LIMIT_SECONDS)
        assert self._process.exitcode == 0


@pytest.fixture
def counting() -> Iterator[Counting]:
    server = Counting()
    yield server
    server.stop()


async def rounds(server: Counting, size: int) -> list[Cost]:
    """Form a first round, connecting included, then another one with the same nodes."""
    loop = asyncio.get_running_loop()
    swarm = Swarm(size, f"costs-{size}")
    costs = []
    for again in (False, True):
        before = await asyncio.to_thread(server.counters, swarm.run)
        swarm.bytes_in = swarm.bytes_out = swarm.wakes = 0
        if again:
            for node in swarm.nodes:
                node.join()
        else:
            for start in range(0, size, AT_ONCE):
                numbers = range(start, min(size, start + AT_ONCE))
                makers = [
                    loop.create_connection(partial(LightNode, swarm, n), "127.0.0.1", server.port)
                    for n in numbers
                ]
                swarm.nodes += [node for _, node in await asyncio.gather(*makers)]
        await swarm.form()
        after = await asyncio.to_thread(server.counters, swarm.run)
        spent = (after[0] - before[0], after[1] - before[1])
        costs.append(Cost(*spent, swarm.bytes_out, swarm.bytes_in, swarm.wakes))
    for node in swarm.nodes:
        node.transport.abort()
    return costs


@pytest.mark.integration
@pytest.mark.cases("case-F6")
@pytest.mark.parametrize("size", SIZES)
def test_cost_of_a_round_per_node_does_not_depend_on_their_number(
    counting: Counting, size: int
) -> None:
    raise_file_limit()
    with asyncio.Runner() as runner:
        first, again = runner.run(rounds(counting, size))
    assert first.requests == 3 * size  # hello, proof, join
    assert again.requests == size  # a join is one request
    for cost in (first, again):
        # The joins of a turn share a write; of thousands of nodes those of a while do (runs.py),
        # or 10,000 that trickle in would take 2,000 to 5,000. How many come in a while is time's.
        assert cost.writes <= (size if size <= 1_000 else size // 8)
        assert cost.bytes_to_server < 250 * size
        assert cost.bytes_to_nodes < 320 * size
        # The handshake is answered at once, then comes the seat; or that a round has opened,
        # then the seat.
        assert cost.wakes <= 2 * size
