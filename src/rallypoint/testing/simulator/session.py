"""A node's session on the simulated network: the real decisions, without thread and socket.

What is said and when comes from `rendezvous.dialogue`, what is understood from `wire.told`,
as in `rendezvous.session`; the other end is the server's real `Connection`, so the handshake
and every frame are real, too.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rallypoint.core.events import SHUT_OUT, Join, Refused
from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client import dialogue
from rallypoint.rendezvous.coordinator import View
from rallypoint.testing.simulator.virtual_clock import Handle, Process

if TYPE_CHECKING:
    from rallypoint.testing.simulator.hosted_world import HostedWorld
    from rallypoint.testing.simulator.network import End

_decoder = msgspec.msgpack.Decoder(wire.ServerBody)
_BEAT = p.frame(wire.Beat())


class Client:
    """Connects, shakes hands, reconnects: what session and store client have in common.

    Args:
        world: where it lives.
        process: whose it is.
        identity: random bytes that it keeps when it reconnects.
    """

    def __init__(self, world: "HostedWorld", process: Process, identity: bytes) -> None:
        self.world = world
        self.process = process
        self.identity = identity
        self.end: End | None = None
        self.ready = False
        self.stopped = False
        self.heard_at = 0.0
        self._buffer = b""
        self._pause = dialogue.FIRST_PAUSE_SECONDS
        self._limit: Handle | None = None
        self._attempts = 0

    def connect(self) -> None:
        """Begin an attempt to connect."""
        self._attempts += 1
        number = self._attempts
        self._limit = self.process.call_later(dialogue.ATTEMPT_SECONDS, self._failed, number)
        self.world.network.connect(
            self.process, self.world.server.process, self, lambda end: self._opened(end, number)
        )

    def _opened(self, end: "End | None", number: int) -> None:
        if self.stopped or number != self._attempts:
            if end is not None:
                end.close()
            return
        if end is None:
            self._failed(number)
            return
        self.end, self._buffer = end, b""
        hello = p.Hello(p.PROTOCOL_VERSION, self.world.run_id, self.identity, b"n" * 16, "sim")
        end.write(p.frame(hello))

    def _failed(self, number: int) -> None:
        if self.stopped or number != self._attempts or self.ready:
            return
        self._drop()
        jitter = 0.5 + self.world.clockwork.random.random()
        self._pause = dialogue.next_pause(self._pause)
        self._attempts += 1  # what comes of that attempt does not count
        self.process.call_later(self._pause * jitter, self._again)

    def _again(self) -> None:
        if not self.stopped and not self.ready:
            self.connect()

    def _drop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        end, self.end, self.ready = self.end, None, False
        if end is not None:
            end.owner = None
            end.close()

    def reconnect(self) -> None:
        """The connection is over: come back, as often as it takes."""
        if self.stopped:
            return
        was_ready = self.ready
        self._drop()
        if was_ready:
            self.lost()
        self._pause = dialogue.FIRST_PAUSE_SECONDS
        self.process.soon(self._again)

    def write(self, data: bytes) -> None:
        """Send a frame, if connected."""
        if self.ready and self.end is not None:
            self.end.write(data)

    def stop(self) -> None:
        """Say goodbye and end."""
        if self.ready and self.end is not None:
            self.end.write(p.frame(p.Bye()))
        self.stopped = True
        self._drop()

    # -- what the network calls ---------------------------------------------------------------

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
            self._frame(_decoder.decode(body))
        self._buffer = buffer

    def _frame(self, body: Any) -> None:
        if isinstance(body, p.Challenge):
            if self.end is not None:
                self.end.write(p.frame(p.Proof(b"")))
        elif isinstance(body, p.Welcome):
            self.ready = True
            if self._limit is not None:
                self._limit.cancel()
            self.welcomed(body)
        elif isinstance(body, p.Goodbye):
            self.reconnect()
        else:
            self.take(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        if self.end is not None and self.end.closed:
            if self.ready:
                self.reconnect()
            else:
                self._failed(self._attempts)

    # -- for those who inherit ----------------------------------------------------------------

    def welcomed(self, welcome: p.Welcome) -> None:
        """The handshake is done."""

    def take(self, body: Any) -> None:
        """A body has come."""

    def lost(self) -> None:
        """A connection that was ready is over."""


class NodeSession(Client):
    """The session of one simulated node.

    Args:
        world: where it lives.
        process: the node's.
        lease_seconds: as its settings say.
        changed: called with each new view.
    """

    def __init__(
        self,
        world: "HostedWorld",
        process: Process,
        lease_seconds: float,
        changed: Callable[[View], None],
    ) -> None:
        super().__init__(world, process, b"session " + process.name.encode())
        self.view = View(connected=False)
        self.join: Join | None = None
        self.refused: Refused | None = None
        self.asked: dict[int, bytes] = {}
        self._done: dict[int, Callable[[bool], None]] = {}
        self._lease = lease_seconds
        self._changed = changed
        self._last_id = 0
        self._beats = 0

    def update(self, view: View) -> None:
        """Set the view, and tell of it."""
        before, self.view = self.view, view
        if view != before:
            self._changed(view)

    def ask(self, make: Callable[[int], msgspec.Struct], limit: float, then: Any) -> None:
        """Send a request; `then(done)` is called with the answer or at the limit."""
        self._last_id += 1
        number = self._last_id
        data = p.frame(make(number))
        self.asked[number] = data
        self._done[number] = then
        self.write(data)
        self.process.call_later(limit, self._answer, number, False)

    def _answer(self, number: int, done: bool) -> None:
        self.asked.pop(number, None)
        then = self._done.pop(number, None)
        if then is not None:
            then(done)

    def welcomed(self, welcome: p.Welcome) -> None:
        """Say what goes first, and beat from now on."""
        for data in dialogue.greetings(self.view, self.join, list(self.asked.values())):
            self.write(data)
        self._beats += 1
        self._beat_later(self._beats)
        self.update(msgspec.structs.replace(self.view, connected=True))

    def _beat_later(self, number: int) -> None:
        pause = dialogue.beat_seconds(self._lease)
        due = self.process.time() + pause
        self.process.call_later(pause, self._beat, number, due)

    def _beat(self, number: int, due: float) -> None:
        if number != self._beats or not self.ready:
            return
        now = self.process.time()
        if dialogue.is_gone(now - self.heard_at, now - due, self._lease):
            self.world.note(self.process.name, "the server has said nothing for a lease")
            self.reconnect()
            return
        self.write(_BEAT)
        self._beat_later(number)

    def lost(self) -> None:
        """Workers are left alone; the server will tell."""
        self.world.note(self.process.name, "has lost its connection")
        self.update(msgspec.structs.replace(self.view, connected=False))

    def take(self, body: Any) -> None:
        """Fold what was told into the view."""
        if isinstance(body, wire.Push):
            message = body.message
            self.world.told(self, message)
            if isinstance(message, Refused) and message.refusal not in SHUT_OUT:
                self.refused = message
                self._changed(self.view)
            self.update(wire.told(self.view, message))
        elif isinstance(body, wire.Done | wire.Answer):
            self._answer(body.id, True)
