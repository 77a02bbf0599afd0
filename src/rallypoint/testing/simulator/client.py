"""Clients on the simulated network: they connect, shake hands and reconnect.

`NodeClient` drives the product's `Session` as `client.transport` does, with events of the virtual
clock in place of sockets and threads. The other end is the server's real connection, so the
handshake and every frame are real.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from rallypoint.core.events import Assignment
from rallypoint.errors import StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.handshake import ClientHandshake
from rallypoint.rendezvous import timing
from rallypoint.rendezvous.client.session import Request, Session
from rallypoint.rendezvous.view import View
from rallypoint.testing.simulator.context import Simulation
from rallypoint.testing.simulator.network import End
from rallypoint.testing.simulator.server import SimulatedServer
from rallypoint.testing.simulator.virtual_clock import Handle, Process

_NONCE = b"n" * p.NONCE_BYTES


class Client(ABC):
    """Connects, shakes hands and reconnects: what nodes and store clients have in common.

    Args:
        simulation: its time, network and run.
        server: where it connects.
        process: its own.
        identity: random bytes, the same when it reconnects.
    """

    def __init__(
        self, simulation: Simulation, server: SimulatedServer, process: Process, identity: bytes
    ) -> None:
        self.simulation = simulation
        self.server = server
        self.process = process
        self.identity = identity
        self.end: End | None = None
        self.ready = False
        self.stopped = False
        self.heard_at = 0.0
        self._handshake: ClientHandshake | None = None
        self._buffer = b""
        self._limit: Handle | None = None
        self._attempts = 0

    def connect(self) -> None:
        """Begin an attempt to connect."""
        if self.stopped or self.ready:
            return
        self._attempts += 1
        number = self._attempts
        self._limit = self.process.call_later(timing.ATTEMPT_SECONDS, self._failed, number)
        self.simulation.network.connect(
            self.process, self.server.process, self, lambda end: self._opened(end, number)
        )

    def _opened(self, end: End | None, number: int) -> None:
        if self.stopped or number != self._attempts:
            if end is not None:
                end.close()
            return
        if end is None:
            self._failed(number)
            return
        self.end = end
        self._buffer = b""
        self._handshake = ClientHandshake(
            "the server", self.simulation.run_id, self.identity, _NONCE
        )
        end.write(self._handshake.begin())

    def _failed(self, number: int) -> None:
        if self.stopped or number != self._attempts or self.ready:
            return
        self._drop()
        self._attempts += 1  # the result of that attempt does not count
        jitter = 0.5 + self.simulation.clock.random.random()
        self.process.call_later(self.retry_seconds(jitter), self.connect)

    def _drop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        end, self.end, self.ready = self.end, None, False
        if end is not None:
            end.owner = None
            end.close()

    def reconnect(self) -> None:
        """The connection is over: connect again."""
        if self.stopped:
            return
        self._drop()
        self.process.soon(self.connect)

    def write(self, data: bytes) -> None:
        """Send frames, if connected."""
        if self.ready and self.end is not None:
            self.end.write(data)

    def stop(self) -> None:
        """Say goodbye and end."""
        self.write(p.frame(p.Bye()))
        self.stopped = True
        self._drop()

    # -- what the network calls -----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take bytes; handle each whole frame."""
        self.heard_at = self.process.time()
        buffer = self._buffer + data
        while len(buffer) >= 4 and self.end is not None:
            end = 4 + int.from_bytes(buffer[:4], "big")
            if len(buffer) < end:
                break
            body, buffer = buffer[4:end], buffer[end:]
            self._buffer = buffer
            self._frame(self.end, body)
        self._buffer = buffer

    def _frame(self, end: End, body: bytes) -> None:
        handshake = self._handshake
        if handshake is None or self.ready:
            self._receive(body)
            return
        try:
            answer = handshake.receive([body])
        except StoreConnectionError:
            self._failed(self._attempts)
            return
        if answer:
            end.write(answer)
        if handshake.welcome is not None:
            self.ready = True
            if self._limit is not None:
                self._limit.cancel()
            self.welcomed(handshake.welcome)

    def _receive(self, body: bytes) -> None:
        try:
            self.receive(body)
        except StoreConnectionError:
            self.reconnect()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        if self.end is not None and self.end.closed:
            if self.ready:
                self.reconnect()
            else:
                self._failed(self._attempts)

    # -- for subclasses -------------------------------------------------------------------------

    @abstractmethod
    def retry_seconds(self, jitter: float) -> float:
        """Return the pause before the next attempt to connect."""

    @abstractmethod
    def welcomed(self, welcome: p.Welcome) -> None:
        """The handshake is done."""

    @abstractmethod
    def receive(self, body: bytes) -> None:
        """A frame has arrived; StoreConnectionError: reconnect."""


class NodeClient(Client):
    """Drives the session of a simulated node.

    Args:
        simulation: its time, network and run.
        server: where it connects.
        process: the node's.
        changed: called with each new view.
        seated: called with each new seat.
    """

    def __init__(
        self,
        simulation: Simulation,
        server: SimulatedServer,
        process: Process,
        changed: Callable[[View], None],
        seated: Callable[["NodeClient", Assignment], None],
    ) -> None:
        super().__init__(simulation, server, process, b"session " + process.name.encode())
        lease = simulation.plan.settings.lease_seconds
        self.session = Session(simulation.run_id, "the server", lease)
        self._changed = changed
        self._seated = seated
        self._done: list[tuple[Request, Callable[[bool], object]]] = []
        self._heartbeats = 0

    def update(self, change: Callable[[], object]) -> None:
        """Change the session, and notify of its view."""
        before = self.session.view
        change()
        if self.session.view != before:
            self._changed(self.session.view)

    def call(self, request: Request, limit: float, then: Callable[[bool], object]) -> None:
        """Send a request; `then` is called with whether it was answered within the limit."""
        self._done.append((request, then))
        self.write(request.frame)
        self.process.call_later(limit, self._answered, request)

    def _answered(self, request: Request) -> None:
        for each in self._done:
            if each[0] is request:
                self._done.remove(each)
                each[1](self.session.take_response(request) is not None)
                return

    def retry_seconds(self, jitter: float) -> float:
        return self.session.retry_seconds(standby=False, jitter=jitter)

    def welcomed(self, welcome: p.Welcome) -> None:
        for data in self.session.greetings():
            self.write(data)
        self._heartbeats += 1
        self._heartbeat_later(self._heartbeats)
        self.update(self.session.connected)

    def _heartbeat_later(self, number: int) -> None:
        pause = self.session.heartbeat_seconds
        due = self.process.time() + pause
        self.process.call_later(pause, self._heartbeat, number, due)

    def _heartbeat(self, number: int, due: float) -> None:
        if number != self._heartbeats or not self.ready:
            return
        now = self.process.time()
        frame = self.session.heartbeat(now - self.heard_at, now - due)
        if frame is None:
            self.simulation.note(self.process.name, "the server was silent for a lease")
            self.reconnect()
            return
        self.write(frame)
        self._heartbeat_later(number)

    def reconnect(self) -> None:
        lost = self.ready and not self.stopped
        super().reconnect()
        if lost:
            self.simulation.note(self.process.name, "has lost its connection")
            self.update(self.session.disconnected)

    def receive(self, body: bytes) -> None:
        before = self.session.view
        self.session.receive(body)
        view = self.session.view
        if view.assignment is not None and view.assignment is not before.assignment:
            self._seated(self, view.assignment)
        self._changed(view)  # also for a refusal, which is in no view
        for request, _then in list(self._done):
            if self.session.is_answered(request):
                self._answered(request)

    def stop(self) -> None:
        super().stop()
        self.session.stop()
