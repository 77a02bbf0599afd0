"""Light nodes that keep their seat during an outage of the server, as sessions do."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rallypoint.core.events import Assignment, Join
from rallypoint.core.state import Node, Settings
from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.view import Seated

PAUSE_SECONDS = 0.1
LIMIT_SECONDS = 60.0
_decoder = msgspec.msgpack.Decoder(wire.ServerBody)


@dataclass
class Crowd:
    """N nodes of one run, on one event loop."""

    port: int
    size: int
    nodes: list["SteadyNode"] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def connect(self) -> None:
        """Connect all nodes; each reconnects by itself."""
        self.nodes = [SteadyNode(self, number) for number in range(self.size)]
        await asyncio.gather(*[node.come() for node in self.nodes])

    async def until(self, ready: Any) -> None:
        """Wait until every node is in this state."""
        async with asyncio.timeout(LIMIT_SECONDS), self.changed:
            await self.changed.wait_for(lambda: all(map(ready, self.nodes)))


class SteadyNode(asyncio.Protocol):
    """One node: joins, and once it has its seat, resumes."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.crowd, self.number = crowd, number
        self.seat: Assignment | None = None
        self.told: list[Any] = []
        self.welcomes: list[p.Welcome] = []
        self.report: Report | None = None
        self.connected, self.leaving, self.data = False, False, b""
        self.tasks: set[asyncio.Task[None]] = set()

    async def come(self) -> None:
        """Connect; try again until it succeeds."""
        loop = asyncio.get_running_loop()
        while not self.connected:
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", self.crowd.port)
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.connected, self.data = transport, True, b""
        hello = p.Hello(
            p.PROTOCOL_VERSION, "crowd", self.number.to_bytes(16, "big"), b"n" * 16, "light"
        )
        name = f"{self.number:032x}"
        if self.seat is None:
            settings = Settings(self.crowd.size, self.crowd.size)
            first: Any = wire.Ask(0, Join(Node(name, "127.0.0.1", 40_000, 1_000), settings))
        else:
            first = wire.Resume(name, self.seat.incarnation, self.seat.round)
        self.write(hello, p.Proof(b""), first)

    def write(self, *bodies: msgspec.Struct) -> None:
        self.transport.write(b"".join(map(p.frame, bodies)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.connected = False
        if not self.leaving:
            task = asyncio.get_running_loop().create_task(self.come())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def data_received(self, data: bytes) -> None:
        self.data += data
        while len(self.data) >= 4:
            end = 4 + int.from_bytes(self.data[:4], "big")
            if len(self.data) < end:
                break
            body, self.data = _decoder.decode(self.data[4:end]), self.data[end:]
            self.take(body)
        task = asyncio.get_running_loop().create_task(self.notify())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def notify(self) -> None:
        async with self.crowd.changed:
            self.crowd.changed.notify_all()

    def take(self, body: Any) -> None:
        if isinstance(body, p.Welcome):
            self.welcomes.append(body)
        elif isinstance(body, wire.Answer):
            self.report = body.report
        elif isinstance(body, wire.Push) and isinstance(body.message, Seated):
            self.seat = body.message.seat
        elif isinstance(body, wire.Push):
            self.told.append(body.message)

    def leave(self) -> None:
        """End for good."""
        self.leaving = True
        self.transport.abort()
