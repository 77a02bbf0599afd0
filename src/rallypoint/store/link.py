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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

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
from rallypoint.store.keyring import Key, for_run, parse
from rallypoint.store.tls import NO_TLS, TLS
from rallypoint.store.token import current

if TYPE_CHECKING:
    from rallypoint.store.tls_socket import TLSSocket

logger = logging.getLogger("rallypoint")

SOFTWARE = "rallypoint-python"
READ_BYTES = 64 * 1024
HANDSHAKE_SECONDS = 10.0
SEND_SECONDS = 10.0  # without any progress, until a connection counts as broken
_FINAL = (p.GOODBYE_VERSION, p.GOODBYE_PROTOCOL, p.GOODBYE_LIMIT)
_TLS_STARTS = (b"\x15\x03", b"\x16\x03")  # an alert, a handshake record
_ADVICE = "give a port of a Rallypoint server, or a free one"
_handshake = msgspec.msgpack.Decoder(p.Challenge | p.Welcome | p.Goodbye)


class NotOurProtocolError(StoreConnectionError):
    """The other side is no server of ours, or refuses us for good: trying again is no use."""


class UnknownTokenError(AuthenticationError):
    """The server does not know the token that was tried; another one of ours may do."""


@dataclass(frozen=True)
class Target:
    """Where a client connects, and as whom.

    Args:
        host: name or address of the server.
        port: its TCP port.
        run: run id; it names the store and the run that this client can reach.
        token: secrets, one a line (see keyring.py), b"" for none; never shown.
        client: random identity of the client object, kept when it reconnects.
        tls: files for TLS; none: plain TCP.
    """

    host: str
    port: int
    run: str
    token: bytes = field(default=b"", repr=False)
    client: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    tls: TLS = NO_TLS

    @property
    def where(self) -> str:
        """HOST:PORT, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def another(self) -> "Target":
        """Return the same for another client object."""
        return replace(self, client=secrets.token_bytes(16))


class Link:
    """Frames over one connected socket; not thread-safe but for one sender and one reader."""

    def __init__(self, sock: "socket.socket | TLSSocket", where: str, binding: bytes = b"") -> None:
        self.sock = sock
        self.where = where
        self.binding = binding
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
        """Read what is there; return the bodies that are whole now, [] if none."""
        data = self._read_in_time(socket.MSG_DONTWAIT)
        return [] if data is None else self._split(data)

    def _read_in_time(self, flags: int = 0) -> bytes | None:
        try:
            return self._read(flags)
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
            if bytes(buffer[start : start + 2]) in _TLS_STARTS and length > p.FRAME_LIMIT:
                raise NotOurProtocolError(
                    f"the server at {self.where} speaks TLS and this client does not: give the "
                    "authority of its certificate (RALLYPOINT_TLS_CA, tls_ca)"
                )
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
        try:
            return _attempt(target, deadline, once)
        except (AuthenticationError, NotOurProtocolError):
            raise
        except StoreConnectionError as error:
            if once or deadline.expired():
                raise
            if not noticed and deadline.elapsed() > NOTICE_SECONDS:
                noticed = True
                logger.warning("%s; trying for %.0f s more", error, deadline.remaining())
        pause = wait_before_next(pause, deadline)


def _attempt(target: Target, deadline: Deadline, once: bool) -> Link:
    """Connect and shake hands, with each of our tokens until the server knows one."""
    keys: list[Key | None] = [*for_run(parse(current(target.token)), target.run)]
    if target.token and not keys:
        raise AuthenticationError(f"none of this client's tokens is for run {target.run!r}")
    keys = keys or [None]
    while True:
        link = _connected(target, deadline, once)
        try:
            link.sock.settimeout(max(0.05, deadline.capped(HANDSHAKE_SECONDS)))
            _shake_hands(link, target, keys[0])
            link.sock.settimeout(None)
            link.send_timeout(SEND_SECONDS)
            return link
        except UnknownTokenError:
            link.close()
            del keys[0]
            if not keys:
                raise
        except BaseException:
            link.close()
            raise


def _connected(target: Target, deadline: Deadline, once: bool) -> Link:
    sock = connect(target.host, target.port, deadline, once=once)
    if not target.tls.for_clients:
        return Link(sock, target.where)
    import ssl  # slow to import, and most never need it

    from rallypoint.store.tls_socket import TLSSocket

    try:
        sock.settimeout(max(0.05, deadline.capped(HANDSHAKE_SECONDS)))
        secured = TLSSocket(sock, target.tls, target.host)
        return Link(secured, target.where, secured.binding)
    except BaseException as error:
        sock.close()
        if isinstance(error, ssl.SSLError):
            raise NotOurProtocolError(
                f"what listens at {target.where} does not speak TLS as this client does "
                f"({error.reason or error}): start the server with --tls-cert, or unset "
                "RALLYPOINT_TLS_CA here"
            ) from error
        if isinstance(error, OSError) and not isinstance(error, StoreConnectionError):
            raise StoreConnectionError(f"TLS with {target.where}: {error}") from error
        raise


def _shake_hands(link: Link, target: Target, key: Key | None) -> None:
    nonce = secrets.token_bytes(p.NONCE_BYTES)
    hello = p.Hello(p.PROTOCOL_VERSION, target.run, target.client, nonce, SOFTWARE)
    if key is not None:
        worker = key.scope == "worker"
        hello = msgspec.structs.replace(hello, key=key.id, worker=worker)
    link.send(p.frame(hello))
    challenge = _expect(link, p.Challenge)

    def proof(role: bytes) -> bytes:
        if key is None:
            return b""
        return p.proof(key.secret, role, hello, challenge.nonce, link.binding)

    if not hmac.compare_digest(proof(b"server"), challenge.proof):
        kind = UnknownTokenError if key and challenge.proof else AuthenticationError
        raise kind(_server_unproven(target, challenge))
    link.send(p.frame(p.Proof(proof(b"client"))))
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
        "(RALLYPOINT_TOKEN, token_file), or check that the endpoint is the right one, and that "
        "nothing in between ends TLS"
    )


def _expect(link: Link, kind: type[Any]) -> Any:
    try:
        bodies = link.receive()
    except (NotOurProtocolError, AuthenticationError):
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
