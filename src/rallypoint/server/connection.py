"""One client's connection: frames in, handshake, dispatch, frames out.

Before the handshake only small frames are taken, and only for a limited time. Whatever is not
our protocol is refused with a reason, and a length above the limit is never allocated.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from rallypoint.core.events import Join
from rallypoint.core.state import NodeId
from rallypoint.net import protocol as p
from rallypoint.net.handshake import Done, NeedsPeerCredentials, Reply, ServerHandshake
from rallypoint.net.tokens import EVERYTHING, Keyring, Rights
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.reports.status import ServerStatus
from rallypoint.server import audit
from rallypoint.server.fault import FaultLog
from rallypoint.server.limits import (
    LONG_BYTES,
    RateLimit,
    ReceiveBudget,
    early_frame_refusal,
    too_long,
)
from rallypoint.server.options import Options
from rallypoint.server.peer_credentials import PeerCredentials, may_talk, refusal
from rallypoint.server.runs import RunHost
from rallypoint.server.status import visible
from rallypoint.server.store_host import StoreHost

logger = logging.getLogger("rallypoint.server")

DECOY_BYTES = 32
CORKED_BYTES = 64 * 1024  # longer answers are not copied to be written with others
_CLOSE_SECONDS = 1.0  # for the other side to read our last words
_handshake_bodies = msgspec.msgpack.Decoder(wire.HandshakeBody)
_bodies = msgspec.msgpack.Decoder(wire.ClientBody)
_TAKES_PART = "all, run:ID or admin"
_LACKS = "it lacks the scope ({}); give a token of the server that has it"
_ALIVE = p.frame(wire.Beat())
_header = p.HEADER.unpack_from
_numbers = itertools.count()


class OwningServer(Protocol):
    """What a connection needs from its server."""

    options: Options
    loop: asyncio.AbstractEventLoop
    epoch: int
    keyring: Keyring
    peer_credentials: PeerCredentials | None
    receive_budget: "ReceiveBudget[Connection]"
    faults: FaultLog
    requests: int
    bytes_in: int
    bytes_out: int
    runs: dict[str, RunHost]

    def opened(self, connection: "Connection") -> None:
        """Count a new connection, and close it or an older one at a limit."""

    def proved(self, connection: "Connection") -> None:
        """Its handshake is done."""

    def closed(self, connection: "Connection") -> None:
        """It is closed."""

    def run(self, run_id: str) -> RunHost:
        """Return a run; make it if there is none."""

    def store(self, run_id: str) -> StoreHost | None:
        """Return a run's store; make it if there is none. None: there are too many."""

    def report(self, run_id: str, brief: bool = False) -> Report:
        """Return what a run is doing; make no run."""

    def status(self) -> ServerStatus:
        """Return how the server is, and the list of its runs."""


def _unsent(data: bytes) -> None:
    """Stand in for `write` before a connection begins and once it has ended."""


class Connection(asyncio.Protocol):
    """A client of the server; implements `runs.NodeConnection`."""

    def __init__(self, server: OwningServer) -> None:
        self.server = server
        self._early_limit = server.options.handshake_frame_limit
        self.node: NodeId | None = None
        self.number = next(_numbers)
        self.heard_at = server.loop.time()
        self.peer = "?"
        self.address = "?"
        self.binding = b""  # to the certificate that TLS was set up with
        self._transport: asyncio.Transport | None = None
        self._write: Callable[[bytes], None] = _unsent
        self._corked: list[bytes] | None = None  # answers to one read, written as one
        self._buffer = bytearray()
        self._ends: tuple[Any, Any] = (None, None)  # addresses of the client's socket and ours
        self._handshake: ServerHandshake | None = None  # since the first frame
        self._hello: p.Hello | None = None  # once the handshake is done
        self.rights = EVERYTHING
        self._joins: RateLimit | None = None
        self._store: StoreHost | None = None
        self._run: RunHost | None = None
        self._bye = False
        self._ended = False
        self._unread = False  # the client does not read
        self._long = False  # a long message arrives
        self._no_room = False  # and waits for room

    # -- transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the handshake has a deadline from now on."""
        self._transport = cast(asyncio.Transport, transport)
        self._write = self._transport.write
        name = transport.get_extra_info("peername")
        self._ends = name, transport.get_extra_info("sockname")
        if name:
            self.address, self.peer = str(name[0]), f"{name[0]}:{name[1]}"
        self.server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the node's grace begins, and its parked calls are cancelled."""
        self._end()
        if self._run is not None:
            self._run.disconnected(self)
        if self._store is not None and self._hello is not None:
            self._store.detach(self._hello.client, self, self._bye)
        self.server.closed(self)

    def send(self, data: bytes) -> None:
        """Write one frame (nothing happens once the connection is closed)."""
        self.server.bytes_out += len(data)
        if self._corked is None:
            self._write(data)
        elif len(data) < CORKED_BYTES:
            self._corked.append(data)
        else:
            self._uncork()
            self._write(data)

    def _uncork(self) -> None:
        corked, self._corked = self._corked, None
        if corked:
            self._write(b"".join(corked))

    send_at_once = send  # for frames that tell nothing of any run: never held for a commit

    def _write_within_limit(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        unread = transport.get_write_buffer_size() + len(data)
        if unread <= self.server.options.buffer_limit:
            transport.write(data)
            return
        logger.warning("disconnecting %s, which has left %d bytes unread", self.peer, unread)
        self.abort()  # a goodbye would not be read, either

    def _end(self) -> None:
        self._ended = True
        self._buffer = bytearray()
        self._write = _unsent
        self._end_long()

    def pause_writing(self) -> None:
        """The client does not read: take nothing more from it, and disconnect it at the limit.

        Other nodes' events still send frames to it, so each one is counted from now on.
        """
        transport = self._transport
        if transport is not None and not self._ended:
            self._write = self._write_within_limit
            self._unread = True
            transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        transport = self._transport
        if transport is not None and not self._ended:
            self._write = transport.write
            self._unread = False
            self._read_on()

    def _read_on(self) -> None:
        if self._transport is not None and self._may_read():
            self._transport.resume_reading()

    def _may_read(self) -> bool:
        return not (self._ended or self._unread or self._no_room)

    # -- long messages ----------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._buffer)

    def _begin_long(self, length: int) -> None:
        self._long = True
        room = self.server.receive_budget.begin(self, length, self.heard_at)
        if not room and self._transport is not None:
            self._no_room = True
            self._transport.pause_reading()

    def _end_long(self) -> None:
        if self._long:
            self._long = self._no_room = False
            for each in self.server.receive_budget.end(self, self.server.loop.time()):
                each.go_on()

    def go_on(self) -> None:
        """There is room for the long message: read on."""
        self._no_room = False
        self._read_on()

    def data_received(self, data: bytes) -> None:
        """Take bytes; handle each whole frame in them.

        A long frame comes in many pieces: they are added to one buffer, which is copied only
        once the frame is whole.
        """
        if self._ended:  # read on, so that no reset loses our last words
            return
        server, size = self.server, len(data)
        self.heard_at = server.loop.time()
        server.bytes_in += size
        if (
            self._store is not None
            and not self._buffer
            and 4 <= size <= server.options.frame_limit
            and _header(data)[0] == size - 4
        ):
            self._frame(data[4:])  # usual: one frame, as it was sent
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        server, buffer = self.server, self._buffer
        view: bytes | bytearray = data
        if buffer:
            buffer += data
            view = buffer
        start, size = 0, len(view)
        while size - start >= 4:
            length = int.from_bytes(view[start : start + 4], "big")
            if self._store is None:
                if length > self._early_limit:
                    head = bytes(view[start : start + 4])
                    self._close(*early_frame_refusal(head, self._early_limit))
                    return
            elif length > server.options.frame_limit:
                self.close(too_long(length, server.options.frame_limit))
                return
            end = start + 4 + length
            if end > size:
                if length >= LONG_BYTES and not self._long and self.node is None:
                    self._begin_long(length)  # a node's heartbeats are always read
                break
            if end < size and self._corked is None:
                self._corked = []
            if not self._frame(view[start + 4 : end]):
                return
            start = end
            self._end_long()
        if self._corked is not None:
            self._uncork()
        if view is buffer:
            del buffer[:start]
        elif start < size:
            self._buffer = bytearray(view[start:])

    def close(self, goodbye: p.Goodbye) -> None:
        """Close the connection and say why."""
        self._close(goodbye.reason, p.frame(goodbye))

    def abort(self) -> None:
        """End the connection without waiting for anything."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _close(self, reason: str, last: bytes) -> None:
        logger.info("closing the connection of %s: %s", self.peer, reason)
        transport, ended = self._transport, self._ended
        self._uncork()
        self._end()
        if transport is None or ended or transport.is_closing():
            return
        self.server.bytes_out += len(last)
        transport.write(last)
        transport.write_eof()  # not close: with unread bytes it would reset and lose the goodbye
        self.server.loop.call_later(_CLOSE_SECONDS, transport.abort)

    # -- frames ---------------------------------------------------------------------------

    def _frame(self, body: bytes | bytearray) -> bool:
        """Handle one frame; return False once the connection is closed."""
        self.server.requests += 1
        try:
            if self._store is None:
                self._shake(_handshake_bodies.decode(body))
            elif type(message := _bodies.decode(body)) is p.Call:
                self._call(message)
            else:
                self._message(message, len(body))
        except msgspec.DecodeError as error:
            self.close(p.Goodbye(p.GOODBYE_PROTOCOL, f"a frame that is not ours: {error}"))
        except Exception as error:  # a bug; runs and stores contain their own
            why = self.server.faults.contain(f"the connection of {self.peer}: ended", error)
            self.close(p.Goodbye(p.GOODBYE_PROTOCOL, why))
        return not self._ended

    def _shake(self, body: p.Hello | p.Proof) -> None:
        handshake = self._handshake
        if handshake is None:
            handshake = self._handshake = self._new_handshake()
        self._carry_out(handshake.take(body, self.server.keyring))

    def _new_handshake(self) -> ServerHandshake:
        server = self.server
        return ServerHandshake(
            self.peer,
            secrets.token_bytes(p.NONCE_BYTES),
            secrets.token_bytes(DECOY_BYTES),
            server.options.run_name_limit,
            asks_peer=server.peer_credentials is not None,
            binding=self.binding,
        )

    def _carry_out(self, replies: list[Reply]) -> None:
        for reply in replies:
            if type(reply) is p.Challenge:
                self.send_at_once(p.frame(reply))
            elif type(reply) is Done:
                self._enter(reply.hello, reply.rights)
            elif type(reply) is p.Goodbye:
                self.close(reply)
            elif type(reply) is NeedsPeerCredentials and self.server.peer_credentials is not None:
                self.server.peer_credentials.ask(*self._ends, self._peer_known)

    def _peer_known(self, uid: int | None) -> None:
        """Go on with the handshake now that it is known whose process the client is."""
        if self._handshake is not None and not self._ended:
            why = "" if may_talk(uid) else refusal(uid)
            self._carry_out(self._handshake.peer_known(why, self.server.keyring))

    def recheck_token(self) -> None:
        """End the connection if its token is not among the server's changed tokens."""
        goodbye = None if self._handshake is None else self._handshake.recheck(self.server.keyring)
        if goodbye is not None:
            self.close(goodbye)

    def _enter(self, hello: p.Hello, rights: Rights) -> None:
        store = self.server.store(hello.run)
        if store is None:
            limit = self.server.options.runs_limit
            why = f"this server has its limit of {limit} runs already"
            self.close(p.Goodbye(p.GOODBYE_LIMIT, why))
            return
        former = store.connection_of(hello.client)
        if isinstance(former, Connection) and not self._replaces(former):
            return
        self._hello = hello
        self.rights = rights
        self._store = store
        resumed = store.attach(hello.client, self)
        self.server.proved(self)
        since, record = store.record(hello.client)
        self.inform(p.frame(p.Welcome(self.server.epoch, resumed, record, since)))

    def inform(self, data: bytes) -> None:
        """Write a welcome, or the answer to an inquiry."""
        self.send(data)

    def _replaces(self, former: "Connection") -> bool:
        """End the older of two connections of one client; return whether that is `former`.

        A network may deliver what was sent on a connection after what was sent on its
        successor. The client has sent it again there, so the first copy must change nothing
        (E1).
        """
        older = former if former.number < self.number else self
        logger.info("%s is the older connection of its client, and ends", older.peer)
        older.abort()
        return older is former

    def _call(self, call: p.Call) -> None:
        if not self.rights.store:
            why = (
                f"{self.rights.who} may only look, not use the store: {_LACKS.format(_TAKES_PART)}"
            )
            self.send(p.frame(p.Failure(call.id, p.FAIL_DENIED, why)))
        elif self._store is not None and self._hello is not None:
            self._store.call(self._hello.client, call)

    def _message(self, body: Any, size: int) -> None:
        kind, hello = type(body), self._hello
        if hello is None:
            return
        if kind is wire.Beat:
            self.send_at_once(_ALIVE)
        elif kind is p.Bye:
            self._bye = True
        elif size > self.server.options.event_limit:
            self.close(too_long(size, self.server.options.event_limit))
        elif kind is wire.Inquire:
            self._inquire(hello.run, body)  # makes no run: an inquiry takes no part
        elif kind is wire.Ask:
            self._ask(hello.run, body)
        elif self.rights.join:
            self._run_of(hello.run).resume(self, body)
        else:
            self.send(p.frame(wire.Denied(0, self._may_not("take part in a run", _TAKES_PART))))

    def _run_of(self, run_id: str) -> RunHost:
        if self._run is None:
            self._run = self.server.run(run_id)
        return self._run

    def _may_not(self, what: str, scope: str) -> str:
        return f"{self.rights.who} does not allow a client to {what}: {_LACKS.format(scope)}"

    def _ask(self, run_id: str, ask: wire.Ask) -> None:
        server, rights, event = self.server, self.rights, ask.event
        order = audit.order(event, self.node)
        if not (rights.join if order is None else rights.admin):
            what = f"{audit.deed(order)} run {run_id!r}" if order else "take part in a run"
            scope = "admin" if order else _TAKES_PART
            self.send(p.frame(wire.Denied(ask.id, self._may_not(what, scope))))
            return
        if problem := wire.problem(event, server.options.text_limit):
            self.close(p.Goodbye(p.GOODBYE_PROTOCOL, problem))
            return
        if isinstance(event, Join) and not self._may_join():
            rate = server.options.joins_per_second
            why = f"more than {rate:g} joins a second (joins_per_second)"
            self.close(p.Goodbye(p.GOODBYE_LIMIT, why))
            return
        event = wire.cleaned(event)
        if order is not None:
            event = audit.recorded(order, run_id, rights.who, self.peer)
        self._run_of(run_id).ask(self, wire.Ask(ask.id, event))

    def _may_join(self) -> bool:
        options, now = self.server.options, self.server.loop.time()
        if self._joins is None:
            self._joins = RateLimit(options.joins_per_second, options.joins_at_once, now)
        return self._joins.take(now)

    def _inquire(self, run_id: str, inquiry: wire.Inquire) -> None:
        try:
            answer: wire.Answer | wire.Denied = self._answer(run_id, inquiry)
        except Exception as error:  # a bug; denied, or the client would ask again for ever
            answer = wire.Denied(
                inquiry.id, self.server.faults.contain("a question: not answered", error)
            )
        self.inform(p.frame(answer))

    def _answer(self, run_id: str, inquiry: wire.Inquire) -> wire.Answer:
        server = self.server
        run = server.runs.get(run_id)
        if inquiry.server:
            return wire.Answer(inquiry.id, server=visible(server.status(), self.rights))
        if inquiry.seats:
            return wire.Answer(inquiry.id, seats=() if run is None else run.seats())
        return wire.Answer(inquiry.id, report=server.report(run_id, inquiry.brief))
