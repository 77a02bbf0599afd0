"""One client's connection: frames in, handshake, dispatch, frames out.

Everything that comes before the handshake is held to small frames and a deadline, and each
way of not being our protocol ends in one stated reason: an HTTP request and a TLS hello are
recognised by their first bytes, a length above the limit is never allocated.
"""

import asyncio
import hmac
import itertools
import logging
import secrets
from typing import TYPE_CHECKING, Any, cast

import msgspec

from rallypoint.rendezvous import wire
from rallypoint.rendezvous.core.events import Close, Join
from rallypoint.rendezvous.core.state import NodeId
from rallypoint.rendezvous.status import ServerStatus
from rallypoint.server import audit
from rallypoint.server.gate import Allowance
from rallypoint.store import protocol as p
from rallypoint.store.keyring import EVERYTHING

if TYPE_CHECKING:
    from rallypoint.server.runs import RunHost
    from rallypoint.server.server import Server
    from rallypoint.server.spaces import Space

logger = logging.getLogger("rallypoint.server")

_HTTP_STARTS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"CONN", b"PATC", b"DELE")
_HTTP_ANSWER = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks the Rallypoint protocol, not HTTP.\n"
)
_TLS_HELLO = b"\x16\x03"
_CLOSE_SECONDS = 1.0  # for the other side to read our last words
_CLIENT_ID_BYTES = 64
_handshake = msgspec.msgpack.Decoder(wire.HandshakeBody)
_bodies = msgspec.msgpack.Decoder(wire.ClientBody)
_ALIVE = p.frame(wire.Beat())
_numbers = itertools.count()


def _unsent(data: bytes) -> None:
    """Stand in for `send` once a connection has ended."""


class Connection(asyncio.Protocol):
    """A client of the server; implements `runs.Session`."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self._early_limit = server.options.handshake_frame_limit
        self.node: NodeId | None = None
        self.number = next(_numbers)
        self.opened_at = self.heard_at = server.loop.time()
        self.peer = self.address = "?"
        self.binding = b""  # to the certificate that TLS was set up with
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._hello: p.Hello | None = None
        self._nonce = self._secret = b""
        self._rights = EVERYTHING
        self._joins: Allowance | None = None
        self._space: Space | None = None
        self._run: RunHost | None = None
        self._bye = False
        self._ended = False

    # -- transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the handshake's deadline runs from now."""
        self._transport = cast(asyncio.Transport, transport)
        self.send = self._transport.write  # type: ignore[method-assign] # one call less a frame
        name = transport.get_extra_info("peername")
        if name:
            self.address, self.peer = str(name[0]), f"{name[0]}:{name[1]}"
        self.server.opened(self)

    def send(self, data: bytes) -> None:
        """Write one frame (nothing happens once the connection is closed)."""

    def _send_within_limit(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        unread = transport.get_write_buffer_size() + len(data)
        if unread <= self.server.options.buffer_limit:
            transport.write(data)
            return
        logger.warning("cutting off %s, which has left %d bytes unread", self.peer, unread)
        self.abort()  # last words would only join what is not read

    def _end(self) -> None:
        self._ended = True
        self._buffer = bytearray()
        self.send = _unsent  # type: ignore[method-assign]

    def pause_writing(self) -> None:
        """The client does not read: take nothing more from it, cut it off at the limit.

        What others push to it does not stop by that, so from now on each frame is counted.
        """
        transport = self._transport
        if transport is not None and not self._ended:
            self.send = self._send_within_limit  # type: ignore[method-assign]
            transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        transport = self._transport
        if transport is not None and not self._ended:
            self.send = transport.write  # type: ignore[method-assign]
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the node's grace begins, parked calls are cancelled."""
        self._end()
        if self._run is not None:
            self._run.disconnected(self)
        if self._space is not None and self._hello is not None:
            self._space.detach(self._hello.client, self, self._bye)
        self.server.closed(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes; handle each whole frame in them.

        A long frame comes in many pieces: they are added to one buffer, which is copied only
        once the frame is whole.
        """
        if self._ended:
            return  # read and let go, so that our last words are not lost in a reset
        self.heard_at = self.server.loop.time()
        self.server.bytes_in += len(data)
        buffer = self._buffer
        if buffer:
            buffer += data
            view: bytes | bytearray = buffer
        else:
            view = data
        start, size = 0, len(view)
        while size - start >= 4:
            length = int.from_bytes(view[start : start + 4], "big")
            if self._space is None and (start == 0 or length > self._early_limit):
                if not self._plausible(view, start, length):
                    return
            elif length > self.server.options.frame_limit:
                self._refuse_frame(length, self.server.options.frame_limit)
                return
            end = start + 4 + length
            if end > size:
                break
            if not self._frame(view[start + 4 : end]):
                return
            start = end
        if view is buffer:
            del buffer[:start]
        elif start < size:
            self._buffer = bytearray(view[start:])

    def _plausible(self, view: bytes | bytearray, start: int, length: int) -> bool:
        if length <= self._early_limit:
            return True
        head = bytes(view[start : start + 4])
        if head in _HTTP_STARTS:
            self._close("an HTTP request was sent to a Rallypoint port", _HTTP_ANSWER)
        elif head.startswith(_TLS_HELLO):
            self.goodbye(p.GOODBYE_PROTOCOL, "a TLS handshake was sent to a port without TLS")
        else:
            self._refuse_frame(length, self._early_limit)
        return False

    def _refuse_frame(self, length: int, limit: int) -> None:
        self.goodbye(p.GOODBYE_LIMIT, f"a frame of {length} bytes is above the limit of {limit}")

    def goodbye(self, code: str, reason: str) -> None:
        """Close the connection and say why."""
        self._close(reason, p.frame(p.Goodbye(code, reason)))

    def abort(self) -> None:
        """End the connection without waiting for anything."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _close(self, reason: str, last: bytes) -> None:
        logger.info("closing the connection of %s: %s", self.peer, reason)
        transport, ended = self._transport, self._ended
        self._end()
        if transport is None or ended or transport.is_closing():
            return
        transport.write(last)
        transport.write_eof()  # not close: with unread bytes it would reset, and last be lost
        self.server.loop.call_later(_CLOSE_SECONDS, transport.abort)

    # -- frames ---------------------------------------------------------------------------

    def _frame(self, body: bytes | bytearray) -> bool:
        """Handle one frame; return False once the connection is closed."""
        self.server.requests += 1
        try:
            if self._space is not None:
                self._body(_bodies.decode(body), len(body))
            else:
                self._shake(_handshake.decode(body))
        except msgspec.DecodeError as error:
            self.goodbye(p.GOODBYE_PROTOCOL, f"a frame that is not ours: {error}")
        return not self._ended

    def _shake(self, body: p.Hello | p.Proof) -> None:
        if isinstance(body, p.Hello):
            self._greet(body)
            return
        hello, secret = self._hello, self._secret
        if hello is None:
            self.goodbye(p.GOODBYE_PROTOCOL, "a proof came before the hello")
            return
        wanted = self._proof(b"client") if secret else body.proof
        if not hmac.compare_digest(wanted, body.proof):
            shown = "a token that is not this server's" if body.proof else "no token"
            self.goodbye(p.GOODBYE_TOKEN, f"{self.peer} has {shown}; give all nodes the same one")
        elif not self._rights.reaches(hello.run):
            why = f"{self._rights.who} is for run {self._rights.run!r}, not for {hello.run!r}"
            self.goodbye(p.GOODBYE_TOKEN, why)
        else:
            self._enter(hello)

    def _proof(self, role: bytes) -> bytes:
        if self._hello is None or not self._secret:
            return b""
        return p.proof(self._secret, role, self._hello, self._nonce, self.binding)

    def _enter(self, hello: p.Hello) -> None:
        space = self.server.space(hello.run)
        if space is None:
            limit = self.server.options.runs_limit
            self.goodbye(p.GOODBYE_LIMIT, f"this server has its limit of {limit} runs already")
            return
        former = space.peer(hello.client)
        if isinstance(former, Connection) and not self._replaces(former):
            return
        self._space = space
        resumed = space.attach(hello.client, self)
        self.server.proved(self)
        record = space.record(hello.client)
        self.send(p.frame(p.Welcome(self.server.epoch, resumed, record)))

    def _replaces(self, former: "Connection") -> bool:
        """End the older of two connections of one client; return whether that is the other one.

        A network may bring what was said on a connection after what was said on its
        successor. The client has said it again there: the first copy must change nothing (E1).
        """
        older = former if former.number < self.number else self
        logger.info("%s is the older connection of its client, and ends", older.peer)
        older.abort()
        return older is former

    def _greet(self, hello: p.Hello) -> None:
        well_formed = len(hello.nonce) == p.NONCE_BYTES and len(hello.client) <= _CLIENT_ID_BYTES
        if self._hello is not None or not well_formed:
            why = "a hello that is not the first, or has a bad nonce or client id"
            self.goodbye(p.GOODBYE_PROTOCOL, why)
            return
        if hello.version != p.PROTOCOL_VERSION:
            self.goodbye(
                p.GOODBYE_VERSION,
                f"this server speaks protocol {p.PROTOCOL_VERSION}, the client "
                f"({hello.software[:80]!r}) speaks {hello.version}; use the same version of "
                "rallypoint",
            )
            return
        if problem := p.run_problem(hello.run, self.server.options.run_name_limit):
            self.goodbye(p.GOODBYE_PROTOCOL, problem)
            return
        self._hello = hello
        self._nonce = secrets.token_bytes(p.NONCE_BYTES)
        if self.server.keyring:
            unknown = (secrets.token_bytes(32), EVERYTHING)  # which nobody can prove
            found = self.server.keyring.find(hello.key, hello.run, hello.worker)
            self._secret, self._rights = found or unknown
        shown = self._proof(b"server")
        self.send(p.frame(p.Challenge(p.PROTOCOL_VERSION, self._nonce, shown)))

    def _body(self, body: Any, size: int) -> None:
        kind = type(body)
        hello, space = self._hello, self._space
        if hello is None or space is None:
            return
        if kind is p.Call:
            if self._rights.store:
                space.call(hello.client, body)
            else:
                why = f"{self._rights.who} may only look, not use the store"
                self.send(p.frame(p.Failure(body.id, p.FAIL_DENIED, why)))
        elif kind is wire.Beat:
            self.send(_ALIVE)
        elif kind is p.Bye:
            self._bye = True
        elif size > self.server.options.event_limit:
            self._refuse_frame(size, self.server.options.event_limit)
        elif kind is wire.Inquire:
            self._inquire(hello.run, body)  # makes no run: who asks does not take part
        elif kind is wire.Ask:
            self._ask(hello.run, body)
        elif self._rights.join:
            self._run_of(hello.run).resume(self, body)
        else:
            self.send(p.frame(wire.Denied(0, self._may_not("take part in a run"))))

    def _run_of(self, run_id: str) -> "RunHost":
        if self._run is None:
            self._run = self.server.run(run_id)
        return self._run

    def _may_not(self, what: str) -> str:
        return f"{self._rights.who} does not allow a client to {what}"

    def _ask(self, run_id: str, ask: wire.Ask) -> None:
        server, rights, event = self.server, self._rights, ask.event
        if isinstance(event, Close) and not rights.admin:
            self.send(p.frame(wire.Denied(ask.id, self._may_not(f"close run {run_id!r}"))))
            return
        if not isinstance(event, Close) and not rights.join:
            self.send(p.frame(wire.Denied(ask.id, self._may_not("take part in a run"))))
            return
        if problem := wire.problem(event, server.options.text_limit):
            self.goodbye(p.GOODBYE_PROTOCOL, problem)
            return
        if isinstance(event, Join) and not self._may_join():
            rate = server.options.joins_per_second
            self.goodbye(p.GOODBYE_LIMIT, f"more than {rate:g} joins a second (joins_per_second)")
            return
        event = wire.cleaned(event)
        if isinstance(event, Close):
            event = audit.recorded(event, run_id, rights.who, self.peer)
        self._run_of(run_id).ask(self, wire.Ask(ask.id, event))

    def _may_join(self) -> bool:
        now = self.server.loop.time()
        if self._joins is None:
            options = self.server.options
            self._joins = Allowance(options.joins_per_second, options.joins_at_once, now)
        return self._joins.take(now)

    def _inquire(self, run_id: str, inquiry: wire.Inquire) -> None:
        server = self.server
        run = server.runs.get(run_id)
        if inquiry.server:
            answer = wire.Answer(inquiry.id, server=self._visible(server.status()))
        elif inquiry.seats:
            answer = wire.Answer(inquiry.id, seats=() if run is None else run.seats())
        else:
            answer = wire.Answer(inquiry.id, report=server.report(run_id, inquiry.brief))
        self.send(p.frame(answer))

    def _visible(self, status: ServerStatus) -> ServerStatus:
        """Leave out the runs that this client's token does not reach."""
        if self._rights.run is None:
            return status
        runs = tuple(run for run in status.runs if self._rights.reaches(run.run_id))
        return msgspec.structs.replace(status, runs=runs, run_count=len(runs))
