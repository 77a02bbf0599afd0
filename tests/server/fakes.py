"""A fake event loop with manual time, and connections that keep what is sent to them."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any, cast

import msgspec

from rallypoint.core.events import Join
from rallypoint.core.state import Node, NodeId, Settings
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.view import Seated
from rallypoint.server.runs import RunHost

_decoder = msgspec.msgpack.Decoder(wire.ServerBody)


class Handle:
    """A timer or callback of the fake loop."""

    def __init__(self, due: float, call: Callable[[], object]) -> None:
        self.due, self.call, self.cancelled = due, call, False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """The few methods of an event loop that the server's hosts use."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._soon: list[Handle] = []
        self._later: list[tuple[float, int, Handle]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[..., object], *args: Any) -> Handle:
        self._soon.append(Handle(self.now, lambda: call(*args)))
        return self._soon[-1]

    def call_later(self, delay: float, call: Callable[..., object], *args: Any) -> Handle:
        assert delay >= 0
        handle = Handle(self.now + delay, lambda: call(*args))
        self._count += 1
        heapq.heappush(self._later, (handle.due, self._count, handle))
        return handle

    def turn(self) -> None:
        """Run what is due now."""
        while self._soon or (self._later and self._later[0][0] <= self.now):
            ready, self._soon = self._soon, []
            while self._later and self._later[0][0] <= self.now:
                ready.append(heapq.heappop(self._later)[2])
            for handle in ready:
                if not handle.cancelled:
                    handle.call()

    def advance(self, seconds: float) -> None:
        """Let time pass in small steps, as on a machine that is not held up."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.125)
            self.turn()

    def stall(self, seconds: float) -> None:
        """Let time pass while this process is stopped; then run what is due."""
        self.now += seconds
        self.turn()

    @property
    def pending(self) -> int:
        """How many timers run."""
        return sum(not handle.cancelled for _, _, handle in self._later)


class FakeConnection:
    """A connection that keeps what it is sent."""

    def __init__(self, heard_at: float = 1000.0) -> None:
        self.node: NodeId | None = None
        self.heard_at = heard_at
        self.sent: list[Any] = []
        self.at_send: Callable[[], None] = lambda: None

    def send(self, data: bytes) -> None:
        self.at_send()
        body = _decoder.decode(data[4:])
        self.sent.append(body.message if isinstance(body, wire.Push) else body)

    def take(self) -> list[Any]:
        """Return what came since the last call."""
        sent, self.sent = self.sent, []
        return sent


SETTINGS = Settings(2, 4, last_call_seconds=30.0, rejoin_timeout_seconds=60.0, lease_seconds=15.0)


class Bench:
    """A run host on a fake loop, with connections by node id."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.loop = FakeLoop()
        self.settings = settings
        self.host = RunHost("run", cast(asyncio.AbstractEventLoop, self.loop), "server x:1")
        self.connections: dict[NodeId, FakeConnection] = {}

    def connect(self, node: NodeId) -> FakeConnection:
        """Make a new connection for a node."""
        connection = self.connections[node] = FakeConnection(self.loop.now)
        return connection

    def join(
        self, node: NodeId, incarnation: int = 0, after: int = 0, **more: Any
    ) -> FakeConnection:
        """Join on the node's connection (made if there is none)."""
        connection = self.connections.get(node) or self.connect(node)
        who = Node(id=node, address="10.0.0.1", port=7, host=node)
        event = Join(who, more.pop("settings", self.settings), incarnation, after, **more)
        self.host.ask(connection, wire.Ask(0, event))
        return connection

    def ask(self, node: NodeId, number: int, event: wire.NodeEvent) -> FakeConnection:
        connection = self.connections[node]
        self.host.ask(connection, wire.Ask(number, event))
        return connection

    def seal(self, *nodes: NodeId) -> None:
        """Bring the nodes into a sealed round, and forget what they were told."""
        for node in nodes:
            self.join(node)
        self.loop.turn()
        self.loop.advance(31)
        for connection in self.connections.values():
            connection.heard_at = self.loop.now
            assert isinstance(connection.take()[-1], Seated)

    def sweep(self, gap: float = 0.0) -> None:
        self.host.sweep(self.loop.now, gap)
        self.loop.turn()

    def labels_lost(self) -> set[NodeId]:
        return set(self.host.state.fenced)
