"""A proven connection to a server: frames over a blocking socket, after the handshake.

Used by the store client and by a node's session; what the frames mean is theirs.
"""

import contextlib
import errno
import hmac
import logging
import secrets
import selectors
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rallypoint.deadline import Deadline
from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.store import protocol as p
from rallypoint.store.connect import (
    FIRST_PAUSE_SECONDS,
    NOTICE_SECONDS,
    connect,
    wait_before_next,
)

logger = logging.getLogger("rallypoint")

SOFTWARE = "rallypoint-python"
READ_BYTES = 64 * 1024
HANDSHAKE_SECONDS = 10.0
SEND_SECONDS = 10.0  # without any progress, until a connection counts as broken
_FINAL = (p.GOODBYE_VERSION, p.GOODBYE_PROTOCOL, p.GOODBYE_LIMIT)
_ADVICE = "give a port of a Rallypoint server, or a free one"
_handshake = msgspec.msgpack.Decoder(p.Challenge | p.Welcome | p.Goodbye)


class NotOurProtocolError(StoreConnectionError):
    """The other side is no server of ours, or refuses us for good: trying again is no use."""


@dataclass(frozen=True)
class Target:
    """Where a client connects, and as whom.

    Args:
        host: name or address of the server.
        port: its TCP port.
        run: run id; it names the store and the run that this client can reach.
        token: shared secret, b"" for none; never shown.
        client: random identity of the client object, kept when it reconnects.
    """

    host: str
    port: int
    run: str
    token: bytes = field(default=b"", repr=False)
    client: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    @property
    def where(self) -> str:
        """HOST:PORT, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Link:
    """Frames over one connected socket; not thread-safe but for one sender and one reader."""

    def __init__(self, sock: socket.socket, where: str) -> None:
        self.sock = sock
        self.where = where
        self.welcome = p.Welcome(0, False)
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Send whole frames (StoreConnectionError when the connection is broken)."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise self.broken(error) from error

    def send_reading(self, frames: list[bytes], deadline: Deadline) -> list[bytes]:
        """Send frames, reading meanwhile; return the bodies that have come.

        A server stops taking requests from a client that leaves its answers unread, so who
        has much to send and much to read must do both.
        """
        bodies: list[bytes] = []
        view = memoryview(b"".join(frames))
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while view:
                for _, events in selector.select(deadline.capped(1.0)):
                    try:
                        if events & selectors.EVENT_READ:
                            bodies += self._split(self._read(socket.MSG_DONTWAIT))
                        if events & selectors.EVENT_WRITE:
                            view = view[self.sock.send(view, socket.MSG_DONTWAIT) :]
                    except BlockingIOError:
                        continue
                    except StoreConnectionError:
                        raise
                    except OSError as error:
                        raise self.broken(error) from error
                if view and deadline.expired():
                    raise self.broken(TimeoutError(errno.ETIMEDOUT, "requests are not taken"))
        return bodies

    def receive(self) -> list[bytes]:
        """Return the bodies that have come, at least one unless the read timed out ([])."""
        bodies: list[bytes] = []
        while not bodies:
            data = self._read_in_time()
            if data is None:
                return []
            bodies = self._split(data)
        return bodies

    def receive_some(self) -> list[bytes]:
        """Read once; return the bodies that are whole now, [] if none, or if it timed out."""
        data = self._read_in_time()
        return [] if data is None else self._split(data)

    def _read_in_time(self) -> bytes | None:
        try:
            return self._read(0)
        except (BlockingIOError, TimeoutError):
            return None
        except StoreConnectionError:
            raise
        except OSError as error:
            raise self.broken(error) from error

    def _read(self, flags: int) -> bytes:
        data = self.sock.recv(READ_BYTES, flags)
        if not data:
            raise StoreConnectionError(f"the server at {self.where} closed the connection")
        return data

    def _split(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        size = len(data)
        if not buffer and size >= 4 and int.from_bytes(data[:4], "big") == size - 4:
            return [data[4:]]  # one whole frame: usual
        buffer += data  # a long frame comes in many pieces, and is copied once it is whole
        bodies, start, size = [], 0, len(buffer)
        while size - start >= 4:
            length = int.from_bytes(buffer[start : start + 4], "big")
            if length > p.FRAME_LIMIT:
                raise NotOurProtocolError(
                    f"what listens at {self.where} sent a frame of {length} bytes (limit "
                    f"{p.FRAME_LIMIT}): it is not a Rallypoint server; {_ADVICE}"
                )
            end = start + 4 + length
            if end > size:
                break
            with memoryview(buffer) as view:
                bodies.append(bytes(view[start + 4 : end]))
            start = end
        del buffer[:start]
        return bodies

    def broken(self, error: OSError) -> StoreConnectionError:
        """Return the error for a connection that broke."""
        return StoreConnectionError(
            f"the connection to {self.where} broke: {error.strerror or error}"
        )

    def read_timeout(self, seconds: float) -> None:
        """Let the kernel end a read after so long; cheaper than a poll before each read."""
        self._kernel_limit(socket.SO_RCVTIMEO, seconds)

    def send_timeout(self, seconds: float) -> None:
        """Let the kernel end a write that has made no progress for so long."""
        self._kernel_limit(socket.SO_SNDTIMEO, seconds)

    def _kernel_limit(self, option: int, seconds: float) -> None:
        whole = int(seconds)
        value = struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
        self.sock.setsockopt(socket.SOL_SOCKET, option, value)

    def interrupt(self) -> None:
        """End the connection; a reader blocked in it returns at once."""
        with contextlib.suppress(OSError):  # not connected any more: that is what was wanted
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and free the socket."""
        self.interrupt()
        self.sock.close()

    def abandon(self) -> None:
        """Free this process's copy of the socket after a fork: the parent goes on with its own."""
        self.sock.close()


def open_link(target: Target, deadline: Deadline, *, once: bool = False) -> Link:
    """Connect and prove to each other that both sides know the token.

    A connection that breaks in the handshake, or a server that says nothing (held up, or a
    proxy without a server behind it), is tried again like one that refuses; what answers as
    something else than a server of ours is not.

    Raises StoreConnectionError (see `connect`; also version and protocol), AuthenticationError.
    """
    pause, noticed = FIRST_PAUSE_SECONDS, False
    while True:
        link = Link(connect(target.host, target.port, deadline, once=once), target.where)
        try:
            link.sock.settimeout(max(0.05, deadline.capped(HANDSHAKE_SECONDS)))
            _shake_hands(link, target)
            link.sock.settimeout(None)
            link.send_timeout(SEND_SECONDS)
            return link
        except (AuthenticationError, NotOurProtocolError):
            link.close()
            raise
        except StoreConnectionError as error:
            link.close()
            if once or deadline.expired():
                raise
            if not noticed and deadline.elapsed() > NOTICE_SECONDS:
                noticed = True
                logger.warning("%s; trying for %.0f s more", error, deadline.remaining())
        except BaseException:
            link.close()
            raise
        pause = wait_before_next(pause, deadline)


def _shake_hands(link: Link, target: Target) -> None:
    nonce = secrets.token_bytes(p.NONCE_BYTES)
    hello = p.Hello(p.PROTOCOL_VERSION, target.run, target.client, nonce, SOFTWARE)
    link.send(p.frame(hello))
    challenge = _expect(link, p.Challenge)
    wanted = p.proof(target.token, b"server", hello, challenge.nonce) if target.token else b""
    if not hmac.compare_digest(wanted, challenge.proof):
        raise AuthenticationError(_server_unproven(target, challenge))
    mine = p.proof(target.token, b"client", hello, challenge.nonce) if target.token else b""
    link.send(p.frame(p.Proof(mine)))
    link.welcome = _expect(link, p.Welcome)


def _server_unproven(target: Target, challenge: p.Challenge) -> str:
    if not target.token:
        return (
            f"the server at {target.where} asks for a token and this client has none; set "
            "RALLYPOINT_TOKEN or pass token_file with the server's secret"
        )
    if not challenge.proof:
        return (
            f"the server at {target.where} was started without a token, but this client has "
            "one; start the server with the same token, or unset RALLYPOINT_TOKEN here"
        )
    return (
        f"the server at {target.where} does not know this client's token; give both the same "
        "(RALLYPOINT_TOKEN, token_file), or check that the endpoint is the right one"
    )


def _expect(link: Link, kind: type[Any]) -> Any:
    try:
        bodies = link.receive()
    except NotOurProtocolError:
        raise
    except StoreConnectionError as error:
        raise StoreConnectionError(
            f"what listens at {link.where} did not answer as a Rallypoint server: {error}; "
            f"{_ADVICE}"
        ) from error
    if not bodies:
        raise StoreConnectionError(
            f"what listens at {link.where} accepted the connection and said nothing: it is not "
            f"a Rallypoint server, or it is stopped; {_ADVICE}"
        )
    try:
        body = _handshake.decode(bodies[0])
    except msgspec.DecodeError as error:
        raise NotOurProtocolError(
            f"what listens at {link.where} is not a Rallypoint server: {error}; {_ADVICE}"
        ) from error
    if isinstance(body, p.Goodbye):
        raise goodbye_error(link.where, body)
    if not isinstance(body, kind) or len(bodies) > 1:
        raise NotOurProtocolError(f"the server at {link.where} broke the handshake: {body!r}")
    return body


def goodbye_error(where: str, body: p.Goodbye) -> StoreConnectionError:
    """Return the error for a server that ended the connection with a reason."""
    kind: type[StoreConnectionError] = StoreConnectionError
    if body.code == p.GOODBYE_TOKEN:
        kind = AuthenticationError
    elif body.code in _FINAL:
        kind = NotOurProtocolError
    return kind(f"the server at {where} closed the connection: {body.reason}")
