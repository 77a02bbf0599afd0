"""One client's connection: frames in, handshake, dispatch, frames out.

Everything that comes before the handshake is held to small frames and a deadline, and each
way of not being our protocol ends in one stated reason: an HTTP request and a TLS hello are
recognised by their first bytes, a length above the limit is never allocated.
"""

import asyncio
import hmac
import logging
import secrets
from typing import TYPE_CHECKING, Any, cast

import msgspec

from rallypoint.rendezvous import wire
from rallypoint.rendezvous.core.state import NodeId
from rallypoint.store import protocol as p

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
_handshake = msgspec.msgpack.Decoder(wire.HandshakeBody)
_bodies = msgspec.msgpack.Decoder(wire.ClientBody)
_ALIVE = p.frame(wire.Beat())


class Connection(asyncio.Protocol):
    """A client of the server; implements `runs.Session`."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.node: NodeId | None = None
        self.opened_at = self.heard_at = server.loop.time()
        self.peer = "?"
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._hello: p.Hello | None = None
        self._nonce = b""
        self._space: Space | None = None
        self._run: RunHost | None = None
        self._bye = False

    # -- transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the handshake's deadline runs from now."""
        self._transport = cast(asyncio.Transport, transport)
        self.send = self._transport.write  # type: ignore[method-assign] # one call less a frame
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        self.server.opened(self)

    def send(self, data: bytes) -> None:
        """Write one frame (nothing happens once the connection is closed)."""

    def pause_writing(self) -> None:
        """The client does not read: take nothing more from it, cut it off at the limit."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the node's grace begins, parked calls are cancelled."""
        if self._run is not None:
            self._run.disconnected(self)
        if self._space is not None and self._hello is not None:
            self._space.detach(self._hello.client, self.send, self._bye)
        self.server.closed(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes; handle each whole frame in them."""
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
            if self._space is None and (start == 0 or length > p.HANDSHAKE_FRAME_LIMIT):
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
        self._buffer = bytearray(view[start:]) if start < size else bytearray()

    def _plausible(self, view: bytes | bytearray, start: int, length: int) -> bool:
        if length <= p.HANDSHAKE_FRAME_LIMIT:
            return True
        head = bytes(view[start : start + 4])
        if head in _HTTP_STARTS:
            self._close("an HTTP request was sent to a Rallypoint port", _HTTP_ANSWER)
        elif head.startswith(_TLS_HELLO):
            self.goodbye(p.GOODBYE_PROTOCOL, "a TLS handshake was sent to a port without TLS")
        else:
            self._refuse_frame(length, p.HANDSHAKE_FRAME_LIMIT)
        return False

    def _refuse_frame(self, length: int, limit: int) -> None:
        self.goodbye(p.GOODBYE_LIMIT, f"a frame of {length} bytes is above the limit of {limit}")

    def goodbye(self, code: str, reason: str) -> None:
        """Close the connection and say why."""
        self._close(reason, p.frame(p.Goodbye(code, reason)))

    def _close(self, reason: str, last: bytes) -> None:
        logger.info("closing the connection of %s: %s", self.peer, reason)
        self._buffer = bytearray()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(last)
            self._transport.close()

    # -- frames ---------------------------------------------------------------------------

    def _frame(self, body: bytes | bytearray) -> bool:
        """Handle one frame; return False once the connection is closed."""
        self.server.requests += 1
        try:
            if self._space is not None:
                self._body(_bodies.decode(body))
            else:
                self._shake(_handshake.decode(body))
        except msgspec.DecodeError as error:
            self.goodbye(p.GOODBYE_PROTOCOL, f"a frame that is not ours: {error}")
        return self._transport is not None and not self._transport.is_closing()

    def _shake(self, body: p.Hello | p.Proof) -> None:
        token = self.server.options.token
        if isinstance(body, p.Hello):
            self._greet(body, token)
            return
        hello = self._hello
        if hello is None:
            self.goodbye(p.GOODBYE_PROTOCOL, "a proof came before the hello")
            return
        wanted = p.proof(token, b"client", hello, self._nonce) if token else body.proof
        if not hmac.compare_digest(wanted, body.proof):
            shown = "a token that is not this server's" if body.proof else "no token"
            self.goodbye(p.GOODBYE_TOKEN, f"{self.peer} has {shown}; give all nodes the same one")
            return
        self._space = self.server.space(hello.run)
        resumed = self._space.attach(hello.client, self.send)
        self.server.proved(self)
        self.send(p.frame(p.Welcome(self.server.epoch, resumed)))

    def _greet(self, hello: p.Hello, token: bytes) -> None:
        if self._hello is not None or len(hello.nonce) != p.NONCE_BYTES:
            self.goodbye(p.GOODBYE_PROTOCOL, "a hello that is not the first, or has a bad nonce")
            return
        if hello.version != p.PROTOCOL_VERSION:
            self.goodbye(
                p.GOODBYE_VERSION,
                f"this server speaks protocol {p.PROTOCOL_VERSION}, the client "
                f"({hello.software[:80]}) speaks {hello.version}; use the same version of rallypoint",
            )
            return
        self._hello = hello
        self._nonce = secrets.token_bytes(p.NONCE_BYTES)
        shown = p.proof(token, b"server", hello, self._nonce) if token else b""
        self.send(p.frame(p.Challenge(p.PROTOCOL_VERSION, self._nonce, shown)))

    def _body(self, body: Any) -> None:
        kind = type(body)
        hello, space = self._hello, self._space
        if hello is None or space is None:
            return
        if kind is p.Call:
            space.call(hello.client, body)
        elif kind is wire.Beat:
            self.send(_ALIVE)
        elif kind is p.Bye:
            self._bye = True
        else:
            if self._run is None:
                self._run = self.server.run(hello.run)
            if kind is wire.Ask:
                self._run.ask(self, body)
            elif kind is wire.Resume:
                self._run.resume(self, body)
            else:
                self._inquire(self._run, body)

    def _inquire(self, run: "RunHost", inquiry: wire.Inquire) -> None:
        if inquiry.seats:
            answer = wire.Answer(inquiry.id, seats=run.seats())
        else:
            answer = wire.Answer(inquiry.id, report=run.report())
        self.send(p.frame(answer))
